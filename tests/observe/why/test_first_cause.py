"""`why` is right about catastrophes: each a history of events on four nodes, as real runs leave them."""

from __future__ import annotations

import random

import pytest

from clusterctl.observe.why.first_cause import Explanation
from observe.histories import START_T, History, traceback

NOT_ANSWERED = "clusterctl.runtime.errors.UnreachableError: pserver {0} (10.0.0.{0}:7164) has not answered for 60 s"


def assert_cause(found: Explanation, process: str | None, reason: str, node: int | None = None) -> None:
    cause = found.cause
    assert cause is not None
    assert (cause.process, cause.diagnosis.kind) == (process, reason), cause
    assert node is None or cause.node == node


def fails_with(error: str, process: str = "trainer2", code: int = 1, **more: object) -> Explanation:
    """One process of four ends with these last words, and the lead stops the others."""
    history = History()
    history.step(2.5, 1)
    return history.fail(3.01, history.exit(3.0, process, code, traceback(error), **more)).explain()


# What is wrong with one node.


def test_a_bad_import_on_one_node_is_named_and_the_others_are_said_to_do_without_it() -> None:
    found = fails_with("ModuleNotFoundError: No module named 'pandas'")
    assert_cause(found, "trainer2", "import_error", node=2)
    assert found.cause is not None
    assert found.cause.diagnosis.subject == "pandas"
    assert found.notes == ("only here: 3 other trainers did not fail this way",)
    assert found.stopped == 7


def test_a_missing_library_is_named() -> None:
    error = "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory"
    found = fails_with(error)
    assert_cause(found, "trainer2", "missing_library")
    assert found.cause is not None
    assert found.cause.diagnosis.subject == "libcudart.so.12"


@pytest.mark.parametrize(
    "error",
    [
        "SyntaxError: invalid syntax",
        "ImportError: cannot import name 'Self' from 'typing' (/usr/lib/typing.py)",
    ],
)
def test_a_wrong_python_is_told_by_its_version(error: str) -> None:
    history = History()
    for node in history.nodes:
        history.answers[node]["python"] = "3.8.10" if node == 1 else "3.11.2"
    found = history.fail(1.2, history.exit(1.1, "trainer1", 1, traceback(error))).explain()
    assert found.cause is not None
    assert found.cause.node == 1
    assert "Python is 3.8.10 on node1, but 3.11.2 on the others" in found.notes


def test_a_missing_data_shard_is_named() -> None:
    found = fails_with("FileNotFoundError: [Errno 2] No such file or directory: 'data/part-00002'")
    assert_cause(found, "trainer2", "missing_file")
    assert found.cause is not None
    assert found.cause.diagnosis.subject == "data/part-00002"


def test_permission_denied_is_told() -> None:
    assert_cause(fails_with("PermissionError: [Errno 13] Permission denied: '/data/x'"), "trainer2", "permission")


@pytest.mark.parametrize(
    "error", ["OSError: [Errno 28] No space left on device", "OSError: [Errno 122] Disk quota exceeded: 'out'"]
)
def test_a_full_disk_is_told(error: str) -> None:
    assert_cause(fails_with(error), "trainer2", "no_space")


def test_a_full_disk_that_the_supervisor_meets_is_told() -> None:
    history = History()
    message = "cannot write its log: No space left on device"
    about = {"role": "trainer", "rank": 3, "attempt": 1}
    history.note(4.0, 3, "log", level="error", message=message, **about)
    cause = {"kind": "node", "message": message, "t": START_T + 4.0, "node": 3, "tail": [], **about}
    history.answers[3]["free_bytes"] = 0
    found = history.fail(4.01, cause).explain()
    assert_cause(found, "trainer3", "no_space", node=3)
    assert "node3 has 0.0 GB free now on the disk of ROOT_DIR" in found.notes


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("node", [3, 0])
def test_a_full_disk_that_keeps_a_node_from_writing_its_last_state_is_not_taken_for_a_killed_supervisor(
    noted: bool, node: int
) -> None:
    """Node 0 leads."""
    history = History()
    message = "cannot write its log: No space left on device"
    about = {"role": "trainer", "rank": node, "attempt": 1}
    history.note(4.0, node, "log", level="error", message=message, **about)
    cause = {"kind": "node", "message": message, "t": START_T + 4.0, "node": node, "tail": [], **about}
    history.fail(4.01, cause)
    own = history.answers[node]
    own.update(state="lost", seen=START_T + 3.5)  # its state.json is of before, and its supervisor has left
    own["events"] = [event for event in own["events"] if noted or event["event"] not in ("ended", "exited")]
    assert_cause(history.explain(), f"trainer{node}", "no_space", node=node)


def test_a_command_that_is_not_there_is_told() -> None:
    history = History()
    cause = {"kind": "node", "message": "cannot start 'pyhton': No such file or directory", "node": 0, "tail": []}
    found = history.fail(1.0, {**cause, "role": "trainer", "rank": 0, "attempt": 1, "t": START_T + 1}).explain()
    assert_cause(found, "trainer0", "missing_program")


def test_that_others_did_better_is_not_said_of_those_that_never_came_so_far() -> None:
    """They were stopped before they could fail in the same way."""
    history = History()
    found = history.fail(1.01, history.exit(1.0, "trainer2", 1, traceback("SyntaxError: invalid syntax"))).explain()
    assert_cause(found, "trainer2", "syntax_error")
    for node in (0, 1, 3):
        history.answers[node]["events"] = [{**e, "worked": False} for e in history.answers[node]["events"]]
    assert history.explain().notes == ()


def test_what_a_process_wrote_before_its_last_step_has_not_ended_it() -> None:
    history = History()
    history.step(9.0, 40)
    words = traceback("KeyError: 'cache'")
    lines = [[START_T + 5.0, line] for line in words] + [[START_T + 9.5, "bad licence"]]
    history.answers[2]["outputs"] = [{"role": "trainer", "rank": 2, "attempt": 1, "lines": lines}]
    found = history.fail(10.01, history.exit(10.0, "trainer2", 1)).explain()
    assert_cause(found, "trainer2", "exit")
    assert found.cause is not None
    assert found.cause.diagnosis.words == '"bad licence"'


# Memory, ports, signals, numbers.


def test_a_kill_by_the_kernel_for_want_of_memory_is_told() -> None:
    history = History()
    assert_cause(history.fail(9.01, history.exit(9.0, "trainer1", -9, oom=True)).explain(), "trainer1", "out_of_memory")


@pytest.mark.parametrize(
    "error",
    [
        "MemoryError",
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 29.8 GiB for an array",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "OSError: [Errno 12] Cannot allocate memory",
        "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.",
    ],
)
def test_memory_that_a_program_did_not_get_is_told(error: str) -> None:
    assert_cause(fails_with(error), "trainer2", "out_of_memory")


def test_a_kill_from_outside_is_told_apart_from_ours() -> None:
    history = History()
    found = history.fail(9.01, history.exit(9.0, "trainer1", -9)).explain()
    assert_cause(found, "trainer1", "killed")


def test_a_port_that_is_taken_is_told_also_by_a_program_without_tracebacks() -> None:
    assert_cause(fails_with("OSError: [Errno 98] Address already in use"), "trainer2", "address_in_use")
    history = History()
    said = ["starting server", "E0101 bind: Address already in use", "giving up"]
    found = history.fail(3.1, history.exit(3.0, "pserver1", 1, said, port_taken=True)).explain()
    assert_cause(found, "pserver1", "address_in_use")


def test_numbers_that_are_not_finite_are_the_cause_of_the_end_that_they_bring() -> None:
    history = History()
    history.step(5.0, 40)
    about = {"role": "trainer", "rank": 1, "attempt": 1, "pass": 0}
    history.note(6.0, 1, "nan", step=41, what="the loss of trainer 1", action="failed", **about)
    words = traceback("clusterctl.runtime.errors.NotFiniteError: the loss of trainer 1 is not finite")
    found = history.fail(6.2, history.exit(6.1, "trainer1", 1, words, hopeless=True)).explain()
    assert_cause(found, "trainer1", "not_finite")
    assert found.cause is not None
    assert found.cause.kind == "nan"
    assert "step 41" in found.cause.message
    assert found.cause.lines, "it shows what the process said of it"


def test_a_warning_of_numbers_in_one_trainer_is_not_blamed_for_the_crash_of_another() -> None:
    history = History()
    history.note(4.0, 1, "nan", step=41, what="the loss of trainer 1", role="trainer", rank=1, attempt=1, **{"pass": 0})
    found = history.fail(6.2, history.exit(6.1, "trainer3", 1, traceback("KeyError: 'x'"))).explain()
    assert_cause(found, "trainer3", "exception")


def test_numbers_of_long_ago_are_not_blamed_for_another_failure_of_the_same_trainer() -> None:
    history = History()
    history.note(4.0, 1, "nan", step=41, what="the loss of trainer 1", role="trainer", rank=1, attempt=1, **{"pass": 0})
    words = traceback("FileNotFoundError: [Errno 2] No such file or directory: 'x'")
    found = history.fail(600.2, history.exit(600.1, "trainer1", 1, words)).explain()
    assert_cause(found, "trainer1", "missing_file")
    assert [one.kind for one in found.before] == ["nan"]


# One fails, and others because of it.


@pytest.mark.parametrize(("code", "reason"), [(-11, "segfault"), (139, "segfault"), (-9, "killed"), (-7, "bus_error")])
def test_a_pserver_that_died_is_the_cause_and_trainers_that_miss_it_are_not(code: int, reason: str) -> None:
    history = History()
    history.exit(5.0, "pserver2", code)
    for rank in (0, 1, 3):
        history.exit(4.9 + rank / 10, f"trainer{rank}", 1, traceback(NOT_ANSWERED.format(2)))
    found = history.fail(5.3, {"kind": "exit", "role": "trainer", "rank": 0, "attempt": 1, "node": 0}).explain()
    assert_cause(found, "pserver2", reason)
    assert [one.process for one in found.then] == ["trainer0", "trainer1", "trainer3"]


def test_peers_that_only_see_a_reset_connection_follow_from_the_crash_that_was_noted_later() -> None:
    history = History()
    for rank in (0, 3):
        history.exit(5.0, f"trainer{rank}", 1, traceback("ConnectionResetError: [Errno 104] Connection reset by peer"))
    history.exit(7.5, "trainer1", -11)  # its core was written first
    found = history.fail(7.6, {"kind": "exit", "role": "trainer", "rank": 0, "attempt": 1}).explain()
    assert_cause(found, "trainer1", "segfault")


def test_an_exception_of_the_user_comes_before_the_timeouts_of_the_others() -> None:
    history = History()
    mine = history.exit(5.0, "trainer1", 1, traceback("ValueError: labels must be 0 or 1, found 7"))
    for rank in (0, 2, 3):
        history.exit(6.0, f"trainer{rank}", 1, traceback(NOT_ANSWERED.format(rank)))
    found = history.fail(6.1, mine).explain()
    assert_cause(found, "trainer1", "exception")
    assert found.cause is not None
    assert found.cause.diagnosis.where == "train.py:7"
    assert len(found.then) == 3


def test_a_service_outside_of_the_job_that_refuses_is_told_as_such() -> None:
    found = fails_with("ConnectionRefusedError: [Errno 111] Connection refused")
    assert_cause(found, "trainer2", "peer_refused")
    assert_cause(fails_with("socket.gaierror: [Errno -2] Name or service not known"), "trainer2", "name_not_found")


def test_an_error_in_the_program_fails_everybody_and_that_is_said() -> None:
    history = History()
    words = traceback("NameError: name 'nmupy' is not defined")
    exits = [history.exit(1.0 + rank / 100, f"trainer{rank}", 1, words) for rank in (3, 0, 1, 2)]
    found = history.fail(1.1, exits[0]).explain()
    assert_cause(found, "trainer0", "exception")
    assert {one.process for one in found.alike} == {"trainer1", "trainer2", "trainer3"}
    assert not found.then


# Nodes.


def test_a_killed_supervisor_is_told() -> None:
    history = History()
    history.killed(2, 10.0)
    history.note(18.0, 0, "lost", message="its supervisor is gone")["node"] = 2
    history.exit(17.0, "trainer1", 1, traceback(NOT_ANSWERED.format(2)))
    cause = {"kind": "node_lost", "node": 2, "message": "node2 is lost: its supervisor is gone"}
    found = history.fail(18.0, cause, silent=[2]).explain()
    assert_cause(found, None, "supervisor_killed", node=2)
    assert found.not_heard_of == (2,)
    assert found.cause is not None
    assert found.cause.onset == START_T + 10.0


def test_a_node_that_was_started_anew_is_told() -> None:
    history = History()
    history.killed(2, 10.0, booted=START_T + 60)
    history.note(40.0, 0, "lost", message="nothing heard of it for 30 s")["node"] = 2
    cause = {"kind": "node_lost", "node": 2, "message": "node2 is lost: nothing heard of it for 30 s"}
    assert_cause(history.fail(40.0, cause, silent=[2]).explain(), None, "rebooted", node=2)


def test_a_node_that_cannot_be_reached_now_is_told_with_what_the_others_know() -> None:
    history = History()
    history.note(40.0, 0, "lost", message="nothing heard of it for 30 s")["node"] = 2
    history.exit(35.0, "trainer1", 1, traceback(NOT_ANSWERED.format(2)))
    cause = {"kind": "node_lost", "node": 2, "message": "node2 is lost: nothing heard of it for 30 s"}
    found = history.fail(40.0, cause, silent=[2]).explain(silent={2: "connection timed out"})
    assert_cause(found, None, "node_down", node=2)
    assert found.cause is not None
    assert "connection timed out" in found.cause.diagnosis.words
    assert found.cause.onset == START_T + 10.0


def test_a_partition_is_told_by_two_nodes_that_lost_each_other() -> None:
    history = History()
    history.note(13.0, 0, "suspect", silent_s=3.0)["node"] = 3
    history.note(40.0, 0, "lost", message="nothing heard of it for 30 s")["node"] = 3
    message = "the lead on node0 is lost: nothing heard of the lead for 30 s"
    history.note(40.5, 3, "lost", lost_node=0, message=message)
    cause = {"kind": "node_lost", "node": 3, "message": "node3 is lost: nothing heard of it for 30 s"}
    history.fail(40.1, cause, silent=[3])
    history.note(41.0, 3, "ended", state="failed", cause={"kind": "node_lost", "node": 0, "message": message})
    history.answers[3]["state"] = "failed"
    found = history.explain()
    assert_cause(found, None, "partition", node=3)
    assert found.cause is not None
    assert found.cause.onset == START_T + 10.0


def test_a_lead_that_all_others_lost_was_cut_off_itself() -> None:
    history = History()
    message = "the lead on node0 is lost: nothing heard of the lead for 30 s"
    for node in (1, 2, 3):
        history.note(40.0, 0, "lost", message="nothing heard of it for 30 s")["node"] = node
        history.note(40.2, node, "lost", lost_node=0, message=message)
    cause = {"kind": "node_lost", "node": 1, "message": "node1 is lost: nothing heard of it for 30 s"}
    assert_cause(history.fail(40.0, cause).explain(), None, "partition", node=0)


def test_a_lead_that_slept_is_to_blame_though_it_lost_only_the_first_of_those_that_had_lost_it() -> None:
    history = History()
    message = "the lead on node0 is lost: nothing heard of the lead for 30 s"
    for node in (1, 2, 3):
        history.note(40.2, node, "lost", lost_node=0, message=message)
    history.note(50.0, 0, "lost", message="it had taken the lead for lost")["node"] = 3
    cause = {"kind": "node_lost", "node": 3, "message": "node3 is lost: it had taken the lead for lost"}
    assert_cause(history.fail(50.0, cause).explain(), None, "node_silent", node=0)


def test_a_silent_node_that_lived_is_told() -> None:
    history = History()
    history.note(13.0, 0, "suspect", silent_s=3.0)["node"] = 3
    history.note(40.0, 0, "lost", message="nothing heard of it for 30 s")["node"] = 3
    cause = {"kind": "node_lost", "node": 3, "message": "node3 is lost: nothing heard of it for 30 s"}
    assert_cause(history.fail(40.1, cause).explain(), None, "node_silent", node=3)
    history.answers[3]["halted"] = True
    found = history.explain()
    assert found.cause is not None
    assert "SIGSTOP" in found.cause.diagnosis.words


@pytest.mark.parametrize("asked", [True, False])
def test_a_lost_lead_is_told_whether_it_answers_or_not(asked: bool) -> None:
    history = History()
    history.killed(0, 10.0)
    message = "the lead on node0 is lost: its supervisor is gone (connection refused)"
    cause = {"kind": "node_lost", "node": 0, "message": message}
    for node in (1, 2, 3):
        history.note(12.0, node, "lost", lost_node=0, message=message)
    history.stop_all(12.1, silent=[0])
    history.end(12.5, cause, "failed", silent=[0])
    found = history.explain("lost", {} if asked else {0: "connection refused"})
    assert_cause(found, None, "supervisor_killed" if asked else "node_down", node=0)


def test_all_supervisors_killed_at_once_leave_a_cause() -> None:
    history = History()
    for node in history.nodes:
        history.killed(node, 10.0 + node / 10)
    assert_cause(history.explain("lost"), None, "supervisor_killed", node=0)


def test_a_node_that_shuts_down_begins_with_its_processes_being_ended() -> None:
    history = History()
    first = history.exit(10.0, "trainer2", -15)
    history.exit(10.05, "pserver2", -15)
    history.note(18.0, 0, "lost", message="its supervisor is gone")["node"] = 2
    found = history.fail(10.1, first).explain()
    assert_cause(found, "trainer2", "signal", node=2)


# Clocks.


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
@pytest.mark.parametrize("set_since", [False, True])
def test_a_clock_that_is_an_hour_off_does_not_hide_the_first_failure(ahead_s: float, set_since: bool) -> None:
    """Also when somebody has set the clock right since the run, so that what is measured now is wrong for it."""
    for first, second in (("trainer1", "trainer3"), ("trainer3", "trainer1")):
        history = History(skew_s={1: ahead_s}, measured_s={} if set_since else None)
        one = history.exit(5.0, first, 1, traceback("ValueError: the first"))
        history.exit(5.5, second, 1, traceback("ValueError: the second"))
        found = history.fail(5.6, one).explain()
        assert_cause(found, first, "exception")
        assert found.cause is not None
        assert abs(found.cause.onset - START_T - 5.0) < 0.7


# Time, hangs, restarts.


def test_a_time_limit_is_told() -> None:
    history = History()
    found = history.fail(60.0, {"kind": "time_limit", "message": "the time limit of 60 s is over"}).explain()
    assert_cause(found, None, "time_limit")


def test_a_process_that_stood_still_is_the_cause_when_the_time_limit_ends_the_run() -> None:
    history = History()
    words = {"stalled_s": 20.0, "message": "has made no step for 20 s: stalled"}
    history.note(50.0, 2, "stalled", role="trainer", rank=2, attempt=1, **words)
    stacks = {"role": "trainer", "rank": 2, "attempt": 1, "lines": [[START_T + 50.1, 'File "train.py", line 9 in f']]}
    history.answers[2]["outputs"] = [stacks]
    found = history.fail(60.0, {"kind": "time_limit", "message": "the time limit of 60 s is over"}).explain()
    assert_cause(found, "trainer2", "stalled")
    assert found.cause is not None
    assert found.cause.onset == START_T + 30.0
    assert [text for _, text in found.cause.lines] == ['File "train.py", line 9 in f']
    assert [one.kind for one in found.then] == ["time_limit"]


def test_a_process_that_stood_still_tells_what_its_thread_had_met_and_its_kill_is_no_news() -> None:
    history = History()
    words = traceback("ValueError: shard 3: bad magic")
    output = {"role": "trainer", "rank": 2, "attempt": 1, "lines": [[START_T + 5.0, line] for line in words]}
    history.answers[2]["outputs"] = [output]
    history.note(50.0, 2, "stalled", role="trainer", rank=2, attempt=1, stalled_s=20.0, message="stalled")
    killed = history.exit(51.0, "trainer2", -9, stalled=True, message="stalled for 20 s")
    found = history.fail(51.1, killed).explain()
    assert_cause(found, "trainer2", "stalled")
    assert found.cause is not None
    assert found.cause.diagnosis.words == "it had raised ValueError: shard 3: bad magic"
    assert found.then == ()


@pytest.mark.parametrize("ending", ["time_limit", "stalled"])
def test_a_trainer_that_left_the_others_alone_with_exit_code_0_is_the_cause_of_their_standstill(ending: str) -> None:
    history = History()
    history.step(5.0, 40)
    history.exit(5.2, "trainer2", 0, pushes=0)
    if ending == "stalled":
        history.note(50.0, 0, "standstill", stalled_s=45.0, message="the run stands still")
    found = history.fail(60.0, {"kind": ending, "message": "over"}).explain()
    assert_cause(found, "trainer2", "left_early")
    assert [one.kind for one in found.then] == [ending]


@pytest.mark.parametrize("why_not", ["said goodbye", "others go on", "all have left"])
def test_a_trainer_that_is_done_has_not_left_anybody_alone(why_not: str) -> None:
    history = History()
    history.step(5.0, 40)
    for rank in (0, 1, 2, 3) if why_not == "all have left" else (2,):
        history.exit(5.2, f"trainer{rank}", 0, pushes=40 if why_not == "said goodbye" else 0)
    if why_not == "others go on":
        history.step(30.0, 80)
    found = history.fail(60.0, {"kind": "time_limit", "message": "over"}).explain()
    assert_cause(found, None, "time_limit")
    assert not found.before


def test_a_stall_that_was_over_is_not_blamed() -> None:
    history = History()
    about = {"role": "trainer", "rank": 2, "attempt": 1}
    history.note(50.0, 2, "stalled", stalled_s=20.0, message="stalled", **about)
    history.note(52.0, 2, "stalled", over=True, state="running", message="goes on", **about)
    found = history.fail(60.0, {"kind": "time_limit", "message": "over"}).explain()
    assert_cause(found, None, "time_limit")


def test_a_stall_that_was_made_a_failure_is_told_as_a_stall() -> None:
    history = History()
    history.note(50.0, 2, "stalled", role="pserver", rank=2, attempt=1, stalled_s=20.0, message="stalled")
    killed = history.exit(51.0, "pserver2", -9, stalled=True, message="stalled for 20 s")
    assert_cause(history.fail(51.1, killed).explain(), "pserver2", "stalled")


def test_a_stopped_pserver_is_blamed_by_the_trainers_that_wait_for_it() -> None:
    history = History()
    history.note(30.0, 1, "stalled", role="pserver", rank=1, attempt=1, stalled_s=20.0, message="has not answered")
    gone = history.exit(40.0, "trainer3", 1, traceback(NOT_ANSWERED.format(1)))
    assert_cause(history.fail(40.1, gone).explain(), "pserver1", "stalled")


def test_a_crash_loop_is_told_once_with_how_often_it_came() -> None:
    history = History()
    words = traceback("RuntimeError: bad batch 17")
    for attempt, at in ((1, 10.0), (2, 20.0), (3, 30.0)):
        history.restarting(at + 0.1, history.exit(at, "trainer1", 1, words, attempt=attempt))
    found = history.fail(40.1, history.exit(40.0, "trainer1", 1, words, attempt=4)).explain()
    assert_cause(found, "trainer1", "exception")
    assert found.cause is not None
    assert (found.cause.times, found.cause.since) == (4, START_T + 10.0)
    assert not found.before


def test_what_was_survived_is_told_but_not_blamed() -> None:
    history = History()
    history.restarting(10.1, history.exit(10.0, "pserver1", -9))
    last = history.exit(300.0, "trainer2", 1, traceback("ZeroDivisionError: division by zero"))
    found = history.fail(300.1, last).explain()
    assert_cause(found, "trainer2", "exception")
    assert [(one.process, one.forgiven) for one in found.before] == [("pserver1", True)]


def test_a_trainer_that_the_others_went_on_without_is_not_blamed() -> None:
    history = History()
    history.exit(10.0, "trainer1", 1, traceback("ValueError: x"))
    history.note(10.1, 0, "lost", role="trainer", rank=1, message="ended with exit code 1")["node"] = 1
    found = history.fail(90.1, history.exit(90.0, "pserver3", -11)).explain()
    assert_cause(found, "pserver3", "segfault")


def test_what_a_node_that_is_silent_now_had_told_the_lead_is_known() -> None:
    history = History()
    gone = history.exit(5.0, "trainer2", 1, traceback("ModuleNotFoundError: No module named 'pandas'"))
    found = history.fail(5.1, gone).explain(silent={2: "connection refused"})
    assert_cause(found, "trainer2", "import_error", node=2)


# No failure.


def test_a_run_that_the_user_stopped_has_not_failed() -> None:
    history = History()
    found = history.fail(9.0, {"kind": "stopped", "message": "stopped by the user"}, state="stopped").explain()
    assert found.cause is not None
    assert found.cause.kind == "stopped"
    assert not found.then


def test_a_run_that_goes_on_or_has_succeeded_has_no_cause() -> None:
    history = History()
    history.restarting(10.1, history.exit(10.0, "trainer1", -9))
    history.step(20.0, 7)
    for state in ("running", "succeeded"):
        found = history.explain(state)
        assert found.cause is None
        assert [one.process for one in found.before] == ["trainer1"]
        assert found.step == 7


def test_how_far_it_came_and_where_it_can_go_on_is_known() -> None:
    history = History()
    history.step(3.0, 100)
    history.saved(3.1, 80)
    history.saved(3.2, 100)
    found = history.fail(4.1, history.exit(4.0, "trainer1", 1, traceback("KeyError: 'x'"))).explain()
    assert (found.pass_, found.step) == (0, 100)
    assert found.checkpoint is not None
    assert found.checkpoint["tag"] == "step-000000100"


def test_damaged_events_do_no_harm() -> None:
    """Whatever a node claims, there is an answer."""
    rng = random.Random(3)
    for _ in range(200):
        history = History()
        history.fail(3.1, history.exit(3.0, "trainer1", 1, traceback("KeyError: 'x'")))
        for event in history.answers[2]["events"]:
            for name in list(event):
                if rng.random() < 0.2:
                    event[name] = rng.choice([None, -1, "x", [], {}, 1e308])
        assert history.explain(reword=False).cause is not None


# What people do about it changes nothing of what it was.


def lost_supervisor() -> History:
    """Node 2's is killed, and the lead gives the node up."""
    history = History()
    history.killed(2, 10.0)
    history.note(10.5, 0, "lost", message="its supervisor is gone")["node"] = 2
    cause = {"kind": "node_lost", "node": 2, "message": "node2 is lost: its supervisor is gone"}
    return history.fail(10.5, cause, silent=[2])


def test_a_stop_afterwards_is_no_sign_of_life() -> None:
    history = lost_supervisor()
    before = history.explain()
    assert_cause(before, None, "supervisor_killed", node=2)
    history.note(60.0, 2, "ended", state="stopped", cause={"kind": "stopped", "message": "by the user"}, late=True)
    history.answers[2]["state"] = "stopped"
    assert history.explain() == before


@pytest.mark.parametrize(("rebooted", "reason"), [(False, "supervisor_killed"), (True, "rebooted")])
def test_a_supervisor_that_took_over_is_not_the_one_that_was_lost(rebooted: bool, reason: str) -> None:
    history = lost_supervisor()
    history.answers[2].update(state="failed", seen=START_T + 90.0)
    history.note(60.0, 2, "took_over", seen=START_T + 10.0, rebooted=rebooted, message="a new supervisor")
    found = history.explain()
    assert_cause(found, None, reason, node=2)
    assert found.cause is not None
    assert found.cause.onset == START_T + 10.0


def test_a_node_that_did_not_run_for_a_while_is_told_by_its_own_word() -> None:
    history = History()
    message = "the lead on node0 is lost: nothing heard of the lead for 30 s"
    for node in (1, 2, 3):
        history.note(40.2, node, "lost", lost_node=0, message=message)
    history.note(50.0, 0, "lost", message="it had taken the lead for lost")["node"] = 3
    history.note(50.1, 0, "paused", paused_s=40.0, message="the supervisor did not run for 40 s")
    cause = {"kind": "node_lost", "node": 3, "message": "node3 is lost: it had taken the lead for lost"}
    found = history.fail(50.0, cause).explain()
    assert_cause(found, None, "paused", node=0)
    assert found.cause is not None
    assert "did not run for 40 s" in found.cause.diagnosis.words


def test_whom_a_run_waits_for_is_open_until_it_is_back() -> None:
    history = History()
    history.killed(2, 10.0)
    history.note(10.5, 0, "lost", message="its supervisor is gone", waits=True)["node"] = 2
    history.note(10.5, 0, "phase", phase="gathering")
    (node,) = history.explain("starting").open
    assert (node.node, node.awaited, node.diagnosis.kind) == (2, True, "supervisor_killed")
    history.note(60.0, 2, "took_over", seen=START_T + 10.0, rebooted=False, message="a new supervisor")
    history.note(60.1, 0, "rejoined")["node"] = 2
    history.answers[2]["state"] = "running"
    found = history.explain("running")
    assert found.open == ()
    assert [one.node for one in found.before] == [2]


def test_a_trainer_that_a_run_waits_for_is_open_until_it_starts_again() -> None:
    history = History()
    about = {"role": "trainer", "rank": 1}
    history.exit(3.0, "trainer1", 1, traceback("ValueError: bad shard"))
    history.note(3.1, 0, "held", message="the run waits", **about)["node"] = 1
    (trainer,) = history.explain("running").open
    assert (trainer.process, trainer.awaited) == ("trainer1", True)
    assert trainer.diagnosis.error == "ValueError: bad shard"
    history.note(60.0, 0, "rejoined", **about)["node"] = 1
    history.note(60.1, 1, "spawned", attempt=2, pid=7, **about)
    found = history.explain("running")
    assert found.open == ()
    assert [one.process for one in found.before] == ["trainer1"]


def test_the_cause_is_told_while_the_run_still_ends() -> None:
    history = History()
    history.note(10.5, 0, "lost", message="its supervisor is gone")["node"] = 2
    history.killed(2, 10.0)
    cause = {"kind": "node_lost", "node": 2, "message": "node2 is lost: its supervisor is gone"}
    history.note(10.5, 0, "phase", phase="stopping", cause=cause)
    assert_cause(history.explain("running"), None, "supervisor_killed", node=2)


def test_a_stall_that_somebody_ended_by_a_stop_was_not_survived() -> None:
    history = History()
    history.step(3.0, 9)
    history.note(603.0, 1, "stalled", role="trainer", rank=1, attempt=1, stalled_s=600.0, message="has made no step")
    found = history.fail(700.0, {"kind": "stopped", "message": "stopped by the user"}, "stopped").explain()
    assert [one.process for one in found.open] == ["trainer1"]
    assert found.before == ()
