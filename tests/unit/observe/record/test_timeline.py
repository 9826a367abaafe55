"""The timeline of a run: states of processes over time, and marks, from the events of all nodes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from clusterctl.observe.record.model import Mark
from clusterctl.observe.record.timeline import marks, rollbacks, spans
from clusterctl.observe.why.node_report import NodeReport
from unit.observe.histories import START_T, UP_S, History

EVIL = "\x1b]0;</script>"


def reports(run: History) -> list[NodeReport]:
    return [NodeReport(node, -run.skew_s.get(node, 0.0), 0.001, run.answers[node]) for node in run.nodes]


def states(run: History, ended: float | None) -> Mapping[tuple[str, int], list[tuple[str, float, float | None, int]]]:
    """Return the spans as (state, begin, end, attempt), in seconds since the start."""
    found = spans(reports(run), None if ended is None else START_T + ended)
    return {
        key: [
            (
                one.state,
                round(one.begin - START_T, 2),
                None if one.end is None else round(one.end - START_T, 2),
                one.attempt,
            )
            for one in track
        ]
        for key, track in found.items()
    }


def texts(run: History, kind: str) -> list[str]:
    return [mark.line for mark in marks(reports(run), has_pservers=True) if mark.kind == kind]


def test_processes_start_run_and_end() -> None:
    run = History(2).fail(9.0, None, "stopped")
    found = states(run, 9.3)
    assert found["pserver", 1] == [("starting", 0.02, 0.6, 1), ("running", 0.6, 9.05, 1)]
    assert found["trainer", 0] == [("starting", 0.72, UP_S, 1), ("running", UP_S, 9.05, 1)]


def test_a_restart_is_a_state_of_its_own_and_begins_the_next_attempt() -> None:
    run = History(2)
    run.restarting(5.0, run.exit(4.9, "trainer1", 1), in_s=1.5)
    run.note(8.0, 1, "step", step=3, role="trainer", rank=1, attempt=2)
    assert states(run, None)["trainer", 1][1:] == [
        ("running", UP_S, 4.9, 1),
        ("restarting", 5.0, 6.5, 1),
        ("starting", 6.5, 8.0, 2),
        ("running", 8.0, None, 2),
    ]
    assert texts(run, "restarting") == ["trainer1@node1 ended with exit code 1; restarting in 1.5 s (restart 1 of 3)"]


def test_a_stall_ends_when_the_process_responds_again() -> None:
    run = History(1)
    about = {"role": "trainer", "rank": 0, "attempt": 1}
    run.note(5.0, 0, "stalled", message="no step for 600 s", **about)
    run.note(7.0, 0, "stalled", over=True, state="running", message="responds again", **about)
    assert [span[:3] for span in states(run, None)["trainer", 0]][1:] == [
        ("running", UP_S, 5.0),
        ("stalled", 5.0, 7.0),
        ("running", 7.0, None),
    ]


def test_processes_of_a_node_that_fell_silent_are_lost_from_then_on() -> None:
    run = History(2)
    run.killed(1, 6.0)
    assert states(run, 9.0)["trainer", 1][1:] == [("running", UP_S, 6.0, 1), ("lost", 6.0, 9.0, 1)]


def test_times_are_by_our_clock() -> None:
    run = History(2, skew_s={1: 3600.0}).fail(9.0, None)
    assert states(run, 9.3)["trainer", 1][0][:3] == ("starting", 0.72, UP_S)


def test_marks_are_in_order_and_name_their_process_or_node() -> None:
    run = History(2)
    run.saved(4.0, 100)
    run.note(5.0, 0, "suspect", message="no word for 3 s")["node"] = 1
    run.note(6.0, 0, "rolled_back", epoch=1, tag="step-000000100", step=100, whole=True, processes=["trainer0"])
    run.note(7.0, 1, "nan", role="trainer", rank=1, attempt=1, step=7, message="the loss is not finite")
    run.note(7.5, 1, "nan", role="trainer", rank=1, attempt=1, step=8, message="the loss is not finite")
    run.note(8.0, 1, "log", level="warning", message="the disk is nearly full")
    lines = [mark.line for mark in marks(reports(run), has_pservers=True)]
    assert lines == [
        "starting pservers",
        "all pservers are ready; starting trainers",
        "all processes are running",
        "checkpoint step-000000100",
        "node1 is suspect: no word for 3 s",
        "rolling back all processes to checkpoint step-000000100 (step 100)",
        "trainer1@node1 the loss is not finite",
        "node1 the disk is nearly full",
    ]
    assert rollbacks(reports(run), 0) == ((START_T + 6.0, 100),)
    assert rollbacks(reports(run), 1) == (), "only the lead can know"


@pytest.mark.parametrize("junk", [None, {}, EVIL, float("nan")], ids=repr)
def test_malformed_events_spoil_nothing(junk: object) -> None:
    run = History(1)
    run.saved(4.0, 100)
    for name in (
        "saved",
        "restarting",
        "rolled_back",
        "stalled",
        "exited",
        "log",
        "suspect",
        "held",
        "paused",
        "copying",
    ):
        for key in ("tag", "message", "in_s", "count", "exit_code", "processes", "whole", "state", "limit_s", "level"):
            run.note(5.0, 0, name, role="trainer", rank=0, **{key: junk})
    found = marks(reports(run), has_pservers=True)
    assert Mark(START_T + 4.0, "saved", "checkpoint step-000000100") in found
    assert all(isinstance(mark.text, str) for mark in found)
    assert ("trainer", 0) in spans(reports(run), None)
