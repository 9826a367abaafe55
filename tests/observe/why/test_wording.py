"""`why` relies on fields, not messages; for runs of an older version without a field, on the texts of that version.

`History.explain` checks the first half for every run of test_first_cause.py. The runs here are those whose facts used
to be in a message only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from clusterctl.observe.why.evidence import Evidence
from clusterctl.observe.why.exits import HALTED, MEMORY_LIMIT
from clusterctl.observe.why.first_cause import Explanation, explain
from clusterctl.observe.why.incidents import of_exit
from clusterctl.observe.why.node_report import NodeReport
from clusterctl.observe.why.older_versions import complete, ours_in
from clusterctl.observe.why.report import headline
from observe.histories import START_T, History, traceback
from observe.rewording import WAYS, conclusion, reworded

ABOUT = {"role": "trainer", "rank": 1, "attempt": 1}
LONG_AGO = "nothing heard of it for 30 s"


def silent_node() -> History:
    history = History()
    history.note(40.0, 0, "lost", message=LONG_AGO)["node"] = 2
    return history.fail(40.1, {"kind": "node_lost", "node": 2, "message": f"node2 is lost: {LONG_AGO}"}, silent=[2])


def halted_process() -> History:
    history = History()
    message = "has made no step for 20 s: stalled (it is stopped by a signal)"
    history.note(50.0, 1, "stalled", stalled_s=20.0, message=message, **ABOUT)
    return history.fail(60.0, {"kind": "time_limit", "message": "the time limit of 60 s is over"})


def memory_limit() -> History:
    history = History()
    message = "ended with exit code 1 (out of memory: MEMORY_LIMIT_MB = 500)"
    return history.fail(3.1, history.exit(3.0, "trainer1", 1, traceback("MemoryError"), message=message))


def our_lines_after_the_programs() -> History:
    history = History()
    last = [
        "no licence",
        "pass 0: 20 steps, 640 samples, 99 samples/s; wait 3%",
        "clusterctl: trainer1 has made no step",
    ]
    return history.fail(3.1, history.exit(3.0, "trainer1", 3, last))


def missing_command() -> History:
    history = History()
    cause = {"kind": "node", "message": "cannot start 'pyhton': No such file or directory", "tail": [], "node": 1}
    return history.fail(1.0, {**cause, **ABOUT, "t": START_T + 1})


def full_disk_of_the_lead() -> History:
    history = History()
    message = "cannot write the manifest of step-9: [Errno 28] No space left on device: '/job/step-9'; free space there"
    return history.fail(9.0, {"kind": "node", "message": message, "node": 0, "t": START_T + 9})


def pserver_that_died_after_its_trainer() -> History:
    """A run in which trainer 1 names pserver 2, whose exit was noted long after its own."""
    history = History()
    words = "clusterctl.runtime.errors.UnreachableError: pserver 2 (10.9.9.9:1) has not answered for 46 s"
    first = history.exit(5.2, "trainer1", 1, traceback(words))
    history.exit(30.0, "pserver2", -11)
    return history.fail(31.0, first)


RUNS: Sequence[Callable[[], History]] = (
    silent_node,
    halted_process,
    memory_limit,
    our_lines_after_the_programs,
    missing_command,
    full_disk_of_the_lead,
    pserver_that_died_after_its_trainer,
)


def test_the_texts_of_older_runs_are_read() -> None:
    explanations = [run().explain() for run in RUNS]
    assert [(one.cause and one.cause.process, one.cause and one.cause.diagnosis.kind) for one in explanations] == [
        (None, "node_silent"),
        ("trainer1", "stalled"),
        ("trainer1", "out_of_memory"),
        ("trainer1", "exit"),
        ("trainer1", "missing_program"),
        (None, "no_space"),
        ("pserver2", "segfault"),
    ]
    silent, halted, memory, own, command, full, late = (one.cause for one in explanations if one.cause)
    assert silent.onset == START_T + 10.0
    assert silent.message == LONG_AGO
    assert (halted.diagnosis.advice, memory.diagnosis.advice) == (HALTED, MEMORY_LIMIT)
    assert memory.explained
    assert own.diagnosis.words == '"no licence"'
    assert (command.diagnosis.errno, command.diagnosis.subject) == ("ENOENT", "pyhton")
    assert (full.diagnosis.errno, full.diagnosis.subject) == ("ENOSPC", "/job/step-9")
    assert late.onset == START_T + 30.0


@pytest.mark.parametrize("run", RUNS)
def test_without_the_fields_facts_are_lost_when_texts_change(run: Callable[[], History]) -> None:
    """This shows that the rewording would be noticed."""
    history = run()
    before = history.explain()
    others = [reworded_as_it_is(history, way) for way in WAYS]
    assert any(conclusion(other) != conclusion(before) or quoted(other) != quoted(before) for other in others)


def reworded_as_it_is(history: History, way: str) -> Explanation:
    answers = {node: reworded(answer, WAYS[way]) for node, answer in history.answers.items()}
    for event in (event for answer in answers.values() for event in answer["events"]):
        tail = event.get("tail") or []
        event.update({"tail": [WAYS[way](line) if at in ours_in(tail) else line for at, line in enumerate(tail)]})
    return explain([NodeReport(node, 0.0, 0.001, answers[node]) for node in history.nodes], 0, {}, history.state)


def quoted(explanation: Explanation) -> str:
    return explanation.cause.diagnosis.words if explanation.cause else ""


def test_processes_that_ended_in_the_same_way_are_grouped_whatever_their_messages() -> None:
    history = History()
    first = history.exit(3.0, "trainer1", 3, message="ended with exit code 3")
    history.exit(3.1, "trainer2", 3, message="has come to its end with code 3")
    history.exit(3.2, "trainer3", 4, message="ended with exit code 4")
    explanation = history.fail(3.3, first).explain()
    assert [one.process for one in explanation.alike] == ["trainer2"]
    assert [one.process for one in explanation.then] == ["trainer3"]


def test_the_number_of_a_loaders_worker_is_not_the_rank_of_a_trainer() -> None:
    evidence = Evidence([], 0, {})
    evidence.node_of["trainer3"] = 1
    assert evidence.peers_in("Caught ValueError in DataLoader worker process 3, worker 3") == set()
    assert evidence.peers_in("connection to rank 3 timed out") == {"trainer3"}


@pytest.mark.parametrize("explained", [True, False])
def test_a_reason_that_the_message_gives_is_not_given_twice(explained: bool) -> None:
    history = History()
    event = history.exit(
        3.0, "trainer1", -11, message="was ended by signal 11", reason="segfault" if explained else None
    )
    one = of_exit(Evidence([], 0, {}), None, event)
    assert one.explained == explained
    report = type("Found", (), {"members": type("Members", (), {"by_id": {}})})()
    assert headline(report, one) == "was ended by signal 11" + ("" if explained else ": segmentation fault")


def test_existing_fields_take_precedence_over_the_text() -> None:
    lost = {"event": "lost", "message": "nothing heard of it for 30 s", "silent_s": 12.5, "why": "it is gone"}
    assert complete(lost) == lost
    exited = {"event": "exited", "message": "out of memory", "reason": None, "limit": None, "ours": [], "tail": []}
    assert complete(exited) == exited
    assert complete({"event": "step"}) == {"event": "step"}
    nested = complete({"event": "ended", "cause": {"kind": "node_lost", "node": 0, "message": "node0 is lost: gone"}})
    assert nested["cause"]["why"] == "gone"
    assert replace(NodeReport(0, 0.0, 0.0, {"events": []})).events == []
