"""A program of the job that forges messages to its supervisor cannot crash it or speak for other processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contract.security.liars import EVIL, is_harmless
from support.site import Site, events_in

pytestmark = pytest.mark.slow

FORGE = """
import json, os, socket, time
control = socket.socket(fileno=int(os.environ["CLUSTERCTL_CONTROL_FD"]))
receipt = {"event": "saved", "tag": "t", "pass": 0, "step": 1, "mode": "sync", "seed": 0, "pserver": 0, "pservers": 1,
           "file": "pserver-00000.safetensors", "bytes": 1, "sha256": "0" * 64, "tables": {}}
inf = float("inf")
words = [
    {"event": "exited", "exit_code": 1}, {"event": "ended", "state": "failed"}, {"event": "phase", "phase": EVIL},
    {"event": "ready", "ports": [inf]}, {"event": "ready", "ports": []}, {"event": "ready"}, {"event": EVIL},
    {"event": "step", "step": inf}, {"event": "step", "step": -1}, {"event": "step", "step": EVIL, "loss": EVIL},
    {"event": "step", "step": 10 ** 30, "pass": {}}, {"event": "step", "staleness": 7, "tables": [[]], "lost": EVIL},
    {"event": "log", "values": 7}, {"event": "log", "values": {"a": EVIL}, "pass": 0, "weight": EVIL},
    {"event": "log", "level": "warning", "message": EVIL}, {"event": "log", "values": {EVIL: 1}, "pass": inf},
    {"event": "nan", "what": EVIL}, {"event": "saved"}, {"event": "saved", "attempts": 5, "epoch": EVIL},
    {**receipt, "tag": "../../../evil"}, {**receipt, "file": "../../evil"}, {**receipt, "tables": 7},
    {**receipt, "checkpoint": True, "steps": [inf]}, {**receipt, "do": "stop", "complete": True, "node": 9, "rank": 9},
    {**receipt, "pservers": EVIL}, {**receipt, "pservers": 0}, {**receipt, "tag": EVIL}, {**receipt, "step": None},
    {"event": "log", "role": "trainer", "rank": 7, "node": 7, "t": 0, "seq": 0, "v": 9, "message": "not mine"},
    {"event": "step", "awaits": [EVIL], "awaited": EVIL, "waiting": -1, "awaits_s": inf},
    {"event": "step", "awaits": [10 ** 30] * 9, "awaited": inf, "waiting": 10 ** 30, "awaits_s": 5},
    {"event": "cut", "phase": [EVIL]}, {"event": "cut", "phase": "held", "cut": 1, "counts": EVIL, "step": inf},
    {"event": "cut_dropped", "message": EVIL, "trainers": [EVIL], "saves": 7},
    {"event": "step", "apply_s": EVIL, "send_s": [1]}, {"event": "usage", "cpu": 7, "memory": 7},
    [], 7, None, {"event": "step", "step": inf},
]
for word in words:
    control.sendall(json.dumps(word).encode() + b"\\n")
for line in (b"{", b"\\xff\\x1b", b"[" * 300_000, b'{"a":' * 600 + b"1" + b"}" * 600, b"x" * 3_000_000,
             b'{"event": "log", "x": ' + b"[" * 400 + b"]" * 400 + b"}"):
    control.sendall(line + b"\\n")
print(EVIL, flush=True)
"""
SERVER = FORGE + "time.sleep(600)\n"


def forged(site: Site) -> Path:
    names = f"EVIL = {EVIL.replace(chr(0xD800), '')!r}\n"
    return site.workspace(names + FORGE, **{"server.py": names + SERVER})


def events(site: Site, job: str) -> list[dict[str, Any]]:
    runs = (site.job_dir(job, node) / ".clusterctl/runs/0001/events.jsonl" for node in range(2))
    return [event for run in runs for event in events_in(run)]


def test_supervisors_survive_all_forged_messages_and_attribute_each_to_its_own_process(site: Site) -> None:
    site.conf(HOSTS=site.hosts[:2], PSERVER_COMMAND="python server.py", PSERVERS=1)
    package = forged(site)
    attached = site.run("start", "--job_dispatch_package", str(package), "--verbose")
    assert attached.code == 0, attached
    assert is_harmless(attached.out + attached.err)
    job = site.run("jobs", "--json").json()["jobs"][0]["job"]
    for arguments in (("status", job), ("logs", job), ("logs", job, "--fold"), ("jobs",)):
        shown = site.ok(*arguments)
        assert is_harmless(shown.out + shown.err), arguments
    assert site.ok("status", job, "--json").out.isascii()
    site.assert_nothing_left(job)  # node 1 records the end after the lead
    recorded = events(site, job)
    assert {(e["role"], e["rank"], e["node"]) for e in recorded if "role" in e} == {
        ("pserver", 0, 0),
        ("trainer", 0, 0),
        ("trainer", 1, 1),
    }
    assert not [
        e for e in recorded if e["event"] in ("saved", "phase", "exited", "ended") and EVIL[:5] in json.dumps(e)
    ]
    assert [e["state"] for e in recorded if e["event"] == "ended"] == ["succeeded", "succeeded"]
    assert not [e for e in recorded if e["event"] == "usage" and e["memory"] == 7]
    assert not [e for e in recorded if e["event"] == "step" and {"apply_s", "send_s"} & set(e)]
    assert not list(site.nodes_directory.rglob("evil*"))
    collected = site.run("collect", job, "-o", str(site.directory / "home"))  # of a model that does not exist
    assert (collected.code, is_harmless(collected.err)) == (3, True)
    assert "pserver-00000.safetensors is in the manifest but missing" in collected.err
