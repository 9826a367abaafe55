"""The model comes home though a node is gone: copies of pieces on other nodes, and the merged model on the lead's."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.common.files import digest_of
from clusterctl.runtime import load_model
from contract.e2e.programs import REGRESSION
from support.processes import wait_until
from support.site import Site, agent_processes, events_in

pytestmark = [pytest.mark.nodes(3), pytest.mark.copies, pytest.mark.slow]


def events(site: Site, job: str, run: str = "0001") -> list[dict[str, Any]]:
    return events_in(site.job_dir(job, 0) / f".clusterctl/runs/{run}/events.jsonl")


def copied(site: Site, job: str, node: int, run: str = "0001") -> dict[str, list[str]]:
    place = site.job_dir(job, node) / f".clusterctl/runs/{run}/copies"
    return {tag.name: sorted(path.name for path in tag.iterdir()) for tag in place.iterdir()}


@pytest.mark.nodes(2)
def test_pieces_are_copied_to_the_next_node_and_the_newest_model_is_merged_on_the_leads(site: Site) -> None:
    site.conf(KEEP_MODELS=2, KEEP=2)
    job = site.dispatch(REGRESSION)
    site.ok("start", "--job_workspace", job, "--", "--num_passes", "3")
    site.assert_nothing_left(job)  # the other nodes remove old copies until their supervisors end
    log = events(site, job)
    assert [e["message"] for e in log if e.get("level") in ("warning", "error")] == []
    done = {(e["tag"], e.get("checkpoint", False)) for e in log if e["event"] == "copied"}
    checkpoint = max(tag for tag, is_checkpoint in done if is_checkpoint)
    assert ("pass-00002", False) in done
    for node in range(2):
        held = copied(site, job, node)
        piece = f"pserver-{(node - 1) % 2:05d}.safetensors"
        for tag in ("pass-00002", checkpoint):
            assert held[tag] == ["manifest.json", piece], (node, held)
        assert {"pass-00000"}.isdisjoint(held)  # copies go with their originals
        assert len([tag for tag in held if tag.startswith("step-")]) <= 2
        original = site.job_dir(job, (node - 1) % 2) / "output/pass-00002" / piece
        copy = site.job_dir(job, node) / ".clusterctl/runs/0001/copies/pass-00002" / piece
        assert digest_of(copy) == digest_of(original)
    lead = site.job_dir(job, 0) / "output"
    assert [path.parent.name for path in sorted(lead.glob("*/model.safetensors"))] == ["pass-00002"]
    site.ok("collect", job, "-o", "home")
    merged = load_model(lead / "pass-00002")
    whole = load_model(site.directory / "home/model")
    assert merged.keys() == whole.keys()
    assert np.array_equal(merged["w"], whole["w"])
    assert not list(Path(site.directory / "home").glob("node-0/output/*/model.safetensors"))


NOBODY = "root@127.0.0.1:1"  # where no node answers any more


def test_a_run_and_its_model_outlive_a_node_that_is_lost_for_good(site: Site) -> None:
    """Collect without it, without the lead's node, and with a damaged piece; the model is the same."""
    site.conf()
    job = site.dispatch(REGRESSION)
    site.ok("start", "--job_workspace", job, "--", "--num_passes", "3")
    site.ok("collect", job, "-o", "whole")
    whole = load_model(site.directory / "whole/model")
    for node in (2, 0):
        site.conf(HOSTS=[NOBODY if other == node else host for other, host in enumerate(site.hosts[:3])])
        part = site.run("collect", job, "-o", f"without{node}", "--json")
        assert (part.code, part.json()["tag"]) == (3, "pass-00002"), part
        model = load_model(site.directory / part.json()["model"])
        assert np.array_equal(model["w"], whole["w"])
        assert all(np.array_equal(a, b) for a, b in zip(model["e"], whole["e"], strict=True))
    site.conf()
    original = site.job_dir(job, 1) / "output/pass-00002/pserver-00001.safetensors"
    original.write_bytes(original.read_bytes()[:-1] + b"?")
    again = site.ok("collect", job, "-o", "again", "--json").json()
    assert np.array_equal(load_model(site.directory / again["model"])["w"], whole["w"])


# Each pass ends when the file `goN` exists.
GATED = REGRESSION.replace(
    '        print("end of pass"',
    "        import os, time\n        while not os.path.exists(f'go{pass_}'):\n            time.sleep(0.02)\n"
    '        print("end of pass"',
)


def go(site: Site, job: str, pass_: int) -> None:
    for node in range(3):
        (site.job_dir(job, node) / f"go{pass_}").touch()


def has_copied(site: Site, job: str, tag: str) -> bool:
    return any(event["event"] == "copied" and event["tag"] == tag for event in events(site, job))


def test_a_piece_server_that_is_killed_is_replaced_when_it_is_needed_again(site: Site) -> None:
    site.conf()
    job = site.dispatch(GATED)
    site.ok("start", "--job_workspace", job, "--detach", "--", "--num_passes", "2")
    go(site, job, 0)
    assert wait_until(lambda: has_copied(site, job, "pass-00000"))
    for node in range(3):
        server = [p for p in agent_processes(str(site.job_dir(job, node))) if " piece-server " in p.command]
        os.kill(server[0].pid, signal.SIGKILL)
    go(site, job, 1)
    site.wait_for_end(job)
    assert has_copied(site, job, "pass-00001")
    assert site.status(job)["state"] == "succeeded"
    site.assert_nothing_left(job)


def test_a_file_of_the_program_is_never_replaced_by_a_merged_model(site: Site) -> None:
    site.conf()
    early = GATED.replace("        import os, time\n", "        import os, time\n        write_own()\n").replace(
        "def reader(",
        "def write_own():\n"
        "    import os\n"
        "    os.makedirs(f'{ps.output_dir}/pass-00000', exist_ok=True)\n"
        "    open(f'{ps.output_dir}/pass-00000/model.safetensors', 'w').write('mine')\n\ndef reader(",
    )
    job = site.dispatch(early)
    site.ok("start", "--job_workspace", job, "--detach", "--", "--num_passes", "1")
    go(site, job, 0)
    site.wait_for_end(job)
    path = site.job_dir(job, 0) / "output/pass-00000/model.safetensors"
    assert path.read_text() == "mine"
    warned = [e["message"] for e in events(site, job) if e.get("level") == "warning"]
    assert warned == [f"model pass-00000 was not merged on node0: {path} is a file of the program"]
    home = site.ok("collect", job, "-o", "home", "--json").json()
    assert set(load_model(site.directory / home["model"])) == {"w", "e"}
    assert (site.directory / "home/node-0/output/pass-00000/model.safetensors").read_text() == "mine"


def test_a_copied_checkpoint_stays_until_a_newer_one_is_copied(site: Site) -> None:
    """The copies stand still while the run goes on; then a machine is lost with its disk."""
    site.conf(ON_NODE_LOSS="fail", KEEP=1, KEEP_MODELS=1, SAVE_EVERY="5 steps")
    job = site.dispatch(GATED)
    site.ok("start", "--job_workspace", job, "--detach", "--", "--num_passes", "5")
    go(site, job, 0)
    assert wait_until(lambda: has_copied(site, job, "step-000000005") and has_copied(site, job, "pass-00000"))
    [server] = [p for p in agent_processes(str(site.job_dir(job, 1))) if " piece-server " in p.command]
    os.kill(server.pid, signal.SIGSTOP)
    for pass_ in range(1, 4):
        go(site, job, pass_)
    assert wait_until(lambda: any(e["event"] == "saved" and e["tag"] == "step-000000020" for e in events(site, job)))
    done = [(event["tag"], event.get("checkpoint", False)) for event in events(site, job) if event["event"] == "copied"]
    checkpoint, model = (max(tag for tag, is_checkpoint in done if is_checkpoint == kind) for kind in (True, False))
    assert checkpoint < "step-000000020"
    for node in range(3):
        assert {checkpoint, model} <= copied(site, job, node).keys()
        for place in (f".clusterctl/runs/0001/checkpoints/{checkpoint}", f"output/{model}"):
            assert (site.job_dir(job, node) / place / f"pserver-{node:05d}.safetensors").is_file()
    os.kill(site.supervisor(job, 2), signal.SIGKILL)
    site.wait_for_end(job)
    site.assert_nothing_left(job)
    shutil.rmtree(site.job_dir(job, 2))
    site.conf(HOSTS=[*site.hosts[:2], NOBODY])
    for node in (0, 1):
        (site.job_dir(job, node) / "go4").touch()
    resumed = site.ok("start", "--job_workspace", job, "--resume", "--allow-partial")
    assert f"checkpoint {checkpoint} of run 1" in resumed.out + resumed.err


def test_collect_takes_the_newest_model_that_can_be_completed(site: Site) -> None:
    """Node 2 is lost with its disk, and its pieces of the newest model were not copied yet."""
    site.conf(MODEL_ON_LEAD_MB=0)
    job = site.dispatch(REGRESSION)
    site.ok("start", "--job_workspace", job, "--", "--num_passes", "2")
    before = load_model(
        site.directory / site.ok("collect", job, "-o", "named", "--pass", "0", "--json").json()["model"]
    )
    (site.job_dir(job, 0) / ".clusterctl/runs/0001/copies/pass-00001/pserver-00002.safetensors").unlink()
    site.conf(HOSTS=[*site.hosts[:2], NOBODY])
    found = site.run("collect", job, "-o", "home", "--json")
    assert (found.code, found.json()["tag"], found.json()["more_models"]) == (3, "pass-00000", 0), found
    reason = "pserver-00002.safetensors is on none of the nodes that answered"
    assert found.json()["skipped"] == [{"tag": "pass-00001", "reason": reason}]
    model = load_model(site.directory / found.json()["model"])
    assert np.array_equal(model["w"], before["w"])
    again = site.run("collect", job, "-o", "home")
    assert f"skipped the model of pass-00001: {reason}" in again.err
    assert "model of pass-00000" in again.out
    named = site.run("collect", job, "-o", "last", "--pass", "1", "--json")
    assert (named.code, named.json()["model"]) == (3, None)
    site.conf(HOSTS=site.hosts[:3])
    damaged = site.job_dir(job, 2) / "output/pass-00001/pserver-00002.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    whole = site.run("collect", job, "-o", "home", "--json")
    assert (whole.code, whole.json()["tag"]) == (3, "pass-00000")
    assert "the newest model, pass-00001, cannot be completed; pass-00000 was collected instead" in whole.err
    assert "no node sent an undamaged pserver-00002.safetensors" in whole.json()["skipped"][0]["reason"]
