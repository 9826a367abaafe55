"""The fold of a run's events: what the supervisors, the screen and the report agree on."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.common.run_state import ProcessState, RunState

PROCESS = {"role": "trainer", "rank": 1, "attempt": 1}
DROPPED = {"t": 5.0, "message": "no pushes", "trainers": [1], "saves": ["checkpoint", "model"]}


def folded(*events: dict[str, Any], lead: int | None = 0) -> RunState[ProcessState]:
    run = RunState(lambda event: ProcessState(event["role"], event["rank"]), lead=lead)
    for number, event in enumerate(events):
        run.take({"t": float(number), "node": 0, **event})
    return run


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([], "starting"),
        ([{"event": "ready", **PROCESS}], "ready"),
        ([{"event": "phase", "phase": "running"}], "running"),
        ([{"event": "stalled", "message": "", **PROCESS}], "stalled"),
        ([{"event": "stalled", "message": "", **PROCESS}, {"event": "step", **PROCESS}], "running"),
        ([{"event": "exited", "exit_code": 0, "stopping": False, **PROCESS}], "succeeded"),
        ([{"event": "exited", "exit_code": 0, "stopping": False, "unfinished": "not_left", **PROCESS}], "failed"),
        ([{"event": "exited", "exit_code": -15, "stopping": True, **PROCESS}, {"event": "step", **PROCESS}], "stopped"),
        (
            [{"event": "exited", "exit_code": 1, "stopping": False, **PROCESS}, {"event": "restarting", **PROCESS}],
            "restarting",
        ),
    ],
)
def test_the_state_of_a_process_follows_its_events(events: list[dict[str, Any]], state: str) -> None:
    run = folded({"event": "spawned", **PROCESS}, *events)
    assert run.processes["trainer", 1].state == state


def test_the_run_waits_for_nodes_and_trainers_until_they_rejoin_or_all_restart() -> None:
    waiting = ({"event": "lost", "node": 2, "waits": True}, {"event": "held", **PROCESS})
    assert folded(*waiting).waits_for == ["node2", "trainer1"]
    assert folded(*waiting, {"event": "rejoined", "node": 2}).waits_for == ["trainer1"]
    assert folded(*waiting, {"event": "rolled_back"}).waits_for == ["node2"]
    assert folded(*waiting, {"event": "phase", "phase": "stopping"}).waits_for == []


def test_a_dropped_save_is_known_until_it_is_made_or_the_lead_ends_the_run() -> None:
    dropped, model = {"event": "cut_dropped", **DROPPED}, {"event": "saved", "tag": "pass-1", "complete": True}
    assert folded(dropped, model).cut_dropped == {**DROPPED, "saves": ["checkpoint"]}
    assert folded(dropped, model, {**model, "checkpoint": True}).cut_dropped is None
    assert folded(dropped, {"event": "ended", "node": 1, "state": "failed"}).cut_dropped == DROPPED
    run = folded(dropped, {"event": "ended", "state": "failed", "warnings": [{"kind": "a", "message": "b"}]})
    assert (run.cut_dropped, run.ended and run.ended["state"], len(run.warnings)) == (None, "failed", 1)


def test_the_first_cause_and_the_newest_saves_are_kept() -> None:
    saves = [{"event": "saved", "tag": f"step-{n}", "complete": n < 3, "checkpoint": True} for n in range(4)]
    causes = [{"event": "phase", "phase": "stopping", "cause": {"kind": kind}} for kind in ("exit", "stopped")]
    run = folded(*saves, *causes)
    assert (run.checkpoint, run.model, run.cause) == ("step-2", None, {"kind": "exit"})


def test_a_warning_that_is_sent_again_and_again_is_kept_once() -> None:
    warned = {"event": "warned", "kind": "no_push", "message": "nobody pushed"}
    run = folded(*({**warned, "t": t} for t in range(100)), {**warned, "kind": "node_lost", "t": 100.0, "lost_s": 37.0})
    told = [
        {"kind": "no_push", "message": "nobody pushed", "t": 0},
        {"kind": "node_lost", "message": "nobody pushed", "t": 100.0, "lost_s": 37.0},
    ]
    assert run.warnings == told
    older = {**warned, "kind": "older"}
    run.take({"event": "ended", "t": 101.0, "node": 0, "state": "succeeded", "warnings": [warned, older]})
    assert run.warnings == [*told, older]
