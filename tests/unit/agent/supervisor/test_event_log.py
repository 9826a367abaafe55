"""Events that a supervisor records: pauses, takeovers, and the processes that the run waits for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterctl.agent.supervisor import event_log
from clusterctl.agent.supervisor.event_log import PAUSED_S, SNAPSHOT_S, EventLog
from clusterctl.common.files import read_json
from clusterctl.common.paths import JobPaths, RunPaths


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    made = JobPaths(tmp_path / "JOB").run("0001")
    made.dir.mkdir(parents=True)
    return made


def begin(run: RunPaths) -> EventLog:
    return EventLog(run, 0, lambda: [], lambda: 0.0)


def events(run: RunPaths) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.events.read_text().splitlines()]


def test_a_supervisor_that_did_not_run_for_a_while_records_it_once(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(event_log, "_boot_s", lambda: clock[0])
    written = begin(run)
    for passed in (SNAPSHOT_S, SNAPSHOT_S + PAUSED_S, SNAPSHOT_S + PAUSED_S + 40.0, SNAPSHOT_S):
        clock[0] += passed
        written.heartbeat()
    (paused,) = events(run)
    assert (paused["event"], paused["paused_s"]) == ("paused", PAUSED_S + 40.0)


def test_a_pause_is_recorded_before_the_events_detected_after_it(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(event_log, "_boot_s", lambda: clock[0])
    written = begin(run)
    clock[0] += 60.0
    written.record({"event": "lost", "node": 3, "message": "gone"})
    written.heartbeat()
    assert [event["event"] for event in events(run)] == ["paused", "lost"]


def test_a_supervisor_that_takes_over_records_when_its_predecessor_was_last_seen(run: RunPaths) -> None:
    begin(run).write_state()
    before = read_json(run.state)
    assert before is not None
    after = begin(run)
    after.take_over()
    (event,) = events(run)
    assert (event["event"], event["seen"], event["rebooted"]) == ("took_over", before["t"], False)
    run.state.write_text(json.dumps({**before, "supervisor": [1, 2, "another boot"]}))
    begin(run).take_over()
    assert events(run)[-1]["rebooted"] is True


def test_the_state_keeps_the_warnings_of_a_run_also_for_the_next_supervisor(run: RunPaths) -> None:
    begin(run).record({"event": "warned", "kind": "lag", "message": "copies lag behind", "subject": 1})
    after = begin(run)
    assert after.warnings == [{"kind": "lag", "message": "copies lag behind", "t": events(run)[0]["t"]}]
    after.record({"event": "log", "message": "other"})
    state = read_json(run.state)
    assert state is not None
    assert state["warnings"] == after.warnings
