"""A node's answer to `why`, including which lines of a process's log were not written by its program."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from clusterctl.agent.node.log_files import EventReader
from clusterctl.agent.operations.diagnose import FREQUENT, PrintedLines, _relevant, diagnose
from clusterctl.agent.peer import Peer
from clusterctl.common.files import write_json
from clusterctl.common.paths import JobPaths
from unit.agent.specs import spec_json

PASS, SAVED = "pass 0: all well", "pserver 1: stored"
LINES = [[1.0, "mine"], [2.0, PASS], [3.0, SAVED], [4.0, "clusterctl: a remark"]]


def printed(*events: dict[str, Any]) -> PrintedLines:
    lines = PrintedLines()
    for event in events:
        lines.take(event)
    return lines


def test_lines_of_clusterctl_are_identified_by_the_events_that_report_them() -> None:
    lines = printed(
        {"event": "pass", "role": "trainer", "rank": 1, "line": PASS},
        {"event": "saved", "role": "pserver", "rank": 1, "line": SAVED},
        {"event": "saved", "tag": "step-1", "complete": True},
        {"event": "log", "role": "trainer", "rank": 1, "line": "mine"},
    )
    assert lines.ours("trainer", 1, LINES) == [1, 3]
    assert lines.ours("pserver", 1, LINES) == [2, 3]
    assert lines.ours("trainer", 0, LINES) == [3], "it printed nothing"


def test_of_frequent_events_only_the_first_and_the_last_of_each_process_are_sent(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    ranks = (0, 1)
    frequent = [
        {"event": kind, "role": "trainer", "rank": rank, "attempt": 1, "t": t}
        for t in range(1000)
        for kind in FREQUENT
        for rank in ranks
    ]
    path.write_text("".join(json.dumps(event) + "\n" for event in [{"event": "phase"}, *frequent, {"event": "ended"}]))
    sent = list(_relevant(EventReader(path), PrintedLines()))
    assert [event["event"] for event in sent if "role" not in event] == ["phase", "ended"]
    of_processes = [(event["t"], event["event"], event["rank"]) for event in sent if "role" in event]
    assert of_processes == [(t, kind, rank) for t in (0, 999) for kind in FREQUENT for rank in ranks]
    assert "usage" in FREQUENT


def test_after_the_end_of_a_job_this_machine_and_its_boots_are_not_those_of_the_run(tmp_path: Path) -> None:
    run = JobPaths(tmp_path / "JOB20261121-081530").run("0001")
    run.dir.mkdir(parents=True)
    write_json(run.job.record, {"job": run.job.dir.name})
    write_json(run.spec, spec_json(t=1.0, mode="sync", engine="clusterctl"))
    write_json(run.state, {"processes": [], "supervisor": [1, 1, "another boot"], "ended": None, "t": 5.0})
    run.events.touch()
    peer = cast("Peer", SimpleNamespace(receive=lambda: {}, send=lambda message: None))
    request = {"ref": run.job.dir.name}
    assert diagnose(tmp_path, request, peer)["booted"]
    answer = diagnose(tmp_path, {**request, "over": True}, peer)
    assert (answer["state"], answer["booted"], answer["halted"], answer["python"]) == ("lost", None, False, None)
