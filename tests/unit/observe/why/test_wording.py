"""`why` relies on fields, not messages.

`History.explain` checks that for every run of test_first_cause.py. The runs here are those with a fact that a message
reports too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from clusterctl.observe.why.evidence import Evidence
from clusterctl.observe.why.exits import HALTED, MEMORY_LIMIT
from clusterctl.observe.why.first_cause import Explanation
from clusterctl.observe.why.incidents import of_exit
from clusterctl.observe.why.report import headline
from unit.observe.histories import START_T, History, traceback
from unit.observe.rewording import conclusion

ABOUT = {"role": "trainer", "rank": 1, "attempt": 1}


def silent_node() -> History:
    history = History()
    return history.fail(40.1, history.lost(40.0, 2, silent_s=30.0), silent=[2])


def halted_process() -> History:
    history = History()
    message = "has made no step for 20 s: stalled (it is stopped by a signal)"
    history.stalled(50.0, "trainer1", message=message, halted=True)
    return history.fail(60.0, {"kind": "time_limit", "message": "the time limit of 60 s is over"})


def memory_limit() -> History:
    history = History()
    message = "ended with exit code 1 (out of memory: MEMORY_LIMIT_MB = 500)"
    facts = {"message": message, "reason": "out_of_memory", "limit": "MEMORY_LIMIT_MB"}
    return history.fail(3.1, history.exit(3.0, "trainer1", 1, traceback("MemoryError"), **facts))


def our_lines_after_the_programs() -> History:
    history = History()
    last = [
        "no licence",
        "pass 0: 20 steps, 640 samples, 99 samples/s; wait 3%",
        "clusterctl: trainer1 has made no step",
    ]
    return history.fail(3.1, history.exit(3.0, "trainer1", 3, last, ours=[1, 2]))


def missing_command() -> History:
    history = History()
    message = "cannot start 'pyhton': No such file or directory"
    return history.fail(1.0, history.failure(1.0, 1, message, errno="ENOENT", command="pyhton", **ABOUT))


def full_disk_of_the_lead() -> History:
    history = History()
    message = "cannot write the manifest of step-9: [Errno 28] No space left on device: '/job/step-9'; free space there"
    return history.fail(9.0, history.failure(9.0, 0, message, errno="ENOSPC", path="/job/step-9"))


def pserver_that_died_after_its_trainer() -> History:
    """A run in which trainer 1 names pserver 2, whose exit was noted long after its own."""
    history = History()
    words = "clusterctl.runtime.errors.UnreachableError: a pserver has not answered for 46 s"
    first = history.exit(5.2, "trainer1", 1, traceback(words), peers=["pserver2"])
    history.exit(30.0, "pserver2", -11)
    return history.fail(31.0, first)


#: Runs, and the fields that have their facts.
RUNS: Mapping[Callable[[], History], Sequence[str]] = {
    silent_node: ["silent_s"],
    halted_process: ["halted"],
    memory_limit: ["limit"],
    our_lines_after_the_programs: ["ours"],
    missing_command: ["errno", "command"],
    full_disk_of_the_lead: ["errno", "path"],
    pserver_that_died_after_its_trainer: ["peers"],
}


def test_facts_of_messages_are_in_fields() -> None:
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
    assert silent.message == "nothing heard of it for 30 s"
    assert (halted.diagnosis.advice, memory.diagnosis.advice) == (HALTED, MEMORY_LIMIT)
    assert memory.explained
    assert own.diagnosis.words == '"no licence"'
    assert (command.diagnosis.errno, command.diagnosis.subject) == ("ENOENT", "pyhton")
    assert (full.diagnosis.errno, full.diagnosis.subject) == ("ENOSPC", "/job/step-9")
    assert late.onset == START_T + 30.0


@pytest.mark.parametrize("run", RUNS)
def test_a_fact_whose_field_is_missing_is_not_taken_from_the_message(run: Callable[[], History]) -> None:
    history = run()
    before = history.explain()
    for event in (event for answer in history.answers.values() for event in answer["events"]):
        for about in (event, event.get("cause") or {}):
            for name in RUNS[run]:
                about.pop(name, None)
    after = history.explain(reword=False)
    assert conclusion(after) != conclusion(before) or quoted(after) != quoted(before)


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
