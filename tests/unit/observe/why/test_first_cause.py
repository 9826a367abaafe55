"""`why` finds the cause of failures: each a history of events on four nodes, as real runs leave them."""

from __future__ import annotations

import random

import pytest

from clusterctl.agent.lead.messages import cause_of_stop
from clusterctl.observe.why.first_cause import Explanation
from unit.observe.histories import GONE, START_T, History, traceback

NOT_ANSWERED = "clusterctl.runtime.errors.UnreachableError: pserver {0} (10.0.0.{0}:7164) has not answered for 60 s"


def assert_cause(explanation: Explanation, process: str | None, reason: str, node: int | None = None) -> None:
    cause = explanation.cause
    assert cause is not None
    assert (cause.process, cause.diagnosis.kind) == (process, reason), cause
    assert node is None or cause.node == node


def fails_with(error: str, process: str = "trainer2", code: int = 1, **more: object) -> Explanation:
    """Let one process of four exit with this error and the lead stop the others."""
    history = History()
    history.step(2.5, 1)
    return history.fail(3.01, history.exit(3.0, process, code, traceback(error), **more)).explain()


# Problems of one node.


def test_a_failed_import_is_reported_as_specific_to_one_node() -> None:
    explanation = fails_with("ModuleNotFoundError: No module named 'pandas'")
    assert_cause(explanation, "trainer2", "import_error", node=2)
    assert explanation.cause is not None
    assert explanation.cause.diagnosis.subject == "pandas"
    assert explanation.notes == ("only here: 3 other trainers did not fail this way",)
    assert explanation.stopped == 7


@pytest.mark.parametrize(
    "error",
    [
        "ImportError: cannot import name 'Self' from 'typing' (/usr/lib/typing.py)",
    ],
)
def test_a_wrong_python_is_recognized_by_its_version(error: str) -> None:
    history = History()
    for node in history.nodes:
        history.answers[node]["python"] = "3.8.10" if node == 1 else "3.11.2"
    explanation = history.fail(1.2, history.exit(1.1, "trainer1", 1, traceback(error))).explain()
    assert explanation.cause is not None
    assert explanation.cause.node == 1
    assert "Python is 3.8.10 on node1, but 3.11.2 on the others" in explanation.notes


def test_a_full_disk_hit_by_the_supervisor_is_reported() -> None:
    history = History()
    message = "cannot write its log: No space left on device"
    about = {"role": "trainer", "rank": 3, "attempt": 1}
    history.note(4.0, 3, "log", level="error", message=message, **about)
    cause = history.failure(4.0, 3, message, errno="ENOSPC", **about)
    history.answers[3]["free_bytes"] = 0
    explanation = history.fail(4.01, cause).explain()
    assert_cause(explanation, "trainer3", "no_space", node=3)
    assert "node3 has 0.0 GB free now on the disk of ROOT_DIR" in explanation.notes


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
    cause = history.failure(4.0, node, message, errno="ENOSPC", **about)
    history.fail(4.01, cause)
    own = history.answers[node]
    own.update(state="lost", seen=START_T + 3.5)  # its state.json is older, and its supervisor is gone
    own["events"] = [event for event in own["events"] if noted or event["event"] not in ("ended", "exited")]
    assert_cause(history.explain(), f"trainer{node}", "no_space", node=node)


def test_a_start_that_failed_is_not_a_stop_by_the_user() -> None:
    history = History()
    message = "the start failed: node2: the agent exited with code 137"
    explanation = history.fail(
        2.5, {"kind": "stopped", "reason": "start_failed", "message": message}, "stopped"
    ).explain()
    assert_cause(explanation, None, "start_failed")
    assert explanation.cause is not None
    assert explanation.cause.message == message


def test_other_trainers_are_not_said_to_have_succeeded_if_they_never_got_that_far() -> None:
    """They were stopped before they could fail in the same way."""
    history = History()
    explanation = history.fail(
        1.01, history.exit(1.0, "trainer2", 1, traceback("SyntaxError: invalid syntax"))
    ).explain()
    assert_cause(explanation, "trainer2", "syntax_error")
    for node in (0, 1, 3):
        history.answers[node]["events"] = [{**e, "worked": False} for e in history.answers[node]["events"]]
    assert history.explain().notes == ()


def test_output_before_the_last_step_is_not_the_cause() -> None:
    history = History()
    history.step(9.0, 40)
    words = traceback("KeyError: 'cache'")
    history.output(5.0, "trainer2", words)
    history.output(9.5, "trainer2", ["bad licence"])
    explanation = history.fail(10.01, history.exit(10.0, "trainer2", 1)).explain()
    assert_cause(explanation, "trainer2", "exit")
    assert explanation.cause is not None
    assert explanation.cause.diagnosis.words == '"bad licence"'


# Memory, ports, signals, numbers.


def test_a_kill_by_the_kernel_for_lack_of_memory_is_reported() -> None:
    history = History()
    assert_cause(history.fail(9.01, history.exit(9.0, "trainer1", -9, oom=True)).explain(), "trainer1", "out_of_memory")


def test_non_finite_numbers_are_the_cause_of_the_failure_they_lead_to() -> None:
    history = History()
    history.step(5.0, 40)
    about = {"role": "trainer", "rank": 1, "attempt": 1, "pass": 0}
    history.note(6.0, 1, "nan", step=41, what="the loss of trainer 1", action="failed", **about)
    words = traceback("clusterctl.runtime.errors.NotFiniteError: the loss of trainer 1 is not finite")
    explanation = history.fail(6.2, history.exit(6.1, "trainer1", 1, words, hopeless=True)).explain()
    assert_cause(explanation, "trainer1", "not_finite")
    assert explanation.cause is not None
    assert explanation.cause.kind == "nan"
    assert "step 41" in explanation.cause.message
    assert explanation.cause.lines, "the output of the process about it is shown"


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        ("KeyError: 'label'", "exit", "exception"),
        ("IndexError: index 9223372036854775808 is out of bounds", "nan", "not_finite"),
    ],
)
def test_a_non_finite_warning_is_blamed_for_a_crash_right_after_it_only_if_numbers_may_be_the_reason(
    error: str, kind: str, reason: str
) -> None:
    history = History()
    history.note(6.0, 1, "nan", step=41, what="the loss of trainer 1", role="trainer", rank=1, attempt=1, **{"pass": 0})
    explanation = history.fail(6.2, history.exit(6.1, "trainer1", 1, traceback(error))).explain()
    assert_cause(explanation, "trainer1", reason)
    assert explanation.cause is not None
    assert explanation.cause.kind == kind


TOO_LATE = ("did not listen on 10.0.0.2:7164 within 180 s", "did not become ready within 60 s")


@pytest.mark.parametrize("message", TOO_LATE)
@pytest.mark.parametrize("tail", [(), ("waiting for the scheduler", "done")])
def test_a_pserver_that_was_not_ready_in_time_did_not_exit(message: str, tail: tuple[str, ...]) -> None:
    history = History()
    cause = history.failure(180.0, 2, message, role="pserver", rank=2, attempt=1, tail=list(tail), timed_out=True)
    explanation = history.fail(180.1, cause).explain()
    assert_cause(explanation, "pserver2", "timed_out")
    assert explanation.cause is not None
    assert (explanation.cause.message, explanation.cause.exit_code) == (message, None)
    assert "exit" not in explanation.cause.diagnosis.words + explanation.cause.diagnosis.advice
    assert [line for _, line in explanation.cause.lines] == list(tail)


# One process fails, and others because of it.


@pytest.mark.parametrize(("code", "reason"), [(-11, "segfault"), (-9, "killed")])
def test_a_dead_pserver_is_the_cause_and_the_trainers_that_lost_it_are_not(code: int, reason: str) -> None:
    history = History()
    history.exit(5.0, "pserver2", code)
    for rank in (0, 1, 3):
        history.exit(4.9 + rank / 10, f"trainer{rank}", 1, traceback(NOT_ANSWERED.format(2)))
    explanation = history.fail(5.3, {"kind": "exit", "role": "trainer", "rank": 0, "attempt": 1, "node": 0}).explain()
    assert_cause(explanation, "pserver2", reason)
    assert [one.process for one in explanation.then] == ["trainer0", "trainer1", "trainer3"]


def test_peers_that_only_see_a_reset_connection_are_consequences_of_a_crash_noted_later() -> None:
    history = History()
    for rank in (0, 3):
        history.exit(5.0, f"trainer{rank}", 1, traceback("ConnectionResetError: [Errno 104] Connection reset by peer"))
    history.exit(7.5, "trainer1", -11)  # its core was written first
    explanation = history.fail(7.6, {"kind": "exit", "role": "trainer", "rank": 0, "attempt": 1}).explain()
    assert_cause(explanation, "trainer1", "segfault")


def test_an_exception_of_the_user_comes_before_the_timeouts_of_the_others() -> None:
    history = History()
    mine = history.exit(5.0, "trainer1", 1, traceback("ValueError: labels must be 0 or 1, found 7"))
    for rank in (0, 2, 3):
        history.exit(6.0, f"trainer{rank}", 1, traceback(NOT_ANSWERED.format(rank)))
    explanation = history.fail(6.1, mine).explain()
    assert_cause(explanation, "trainer1", "exception")
    assert explanation.cause is not None
    assert explanation.cause.diagnosis.where == "train.py:7"
    assert len(explanation.then) == 3


def test_an_error_in_the_program_that_fails_every_trainer_is_reported_as_common_to_all() -> None:
    history = History()
    words = traceback("NameError: name 'nmupy' is not defined")
    exits = [history.exit(1.0 + rank / 100, f"trainer{rank}", 1, words) for rank in (3, 0, 1, 2)]
    explanation = history.fail(1.1, exits[0]).explain()
    assert_cause(explanation, "trainer0", "exception")
    assert {one.process for one in explanation.alike} == {"trainer1", "trainer2", "trainer3"}
    assert not explanation.then


def test_a_process_that_was_stopped_as_it_exited_is_the_cause_if_the_first_one_complains_about_it() -> None:
    """The lines of a process that was stopped count up to the order to stop, and only if it did not go on."""
    mine, complaint = traceback("OSError: corrupt jpeg: 7.jpg"), "RuntimeError: connection to rank 2 closed by peer"

    def play(lines: list[str], complaint: str, at: float = 3.0) -> Explanation:
        history = History()
        history.step(2.5, 1)
        history.output(at, "trainer2", lines)
        return history.fail(3.31, history.exit(3.3, "trainer0", 1, traceback(complaint))).explain()

    assert_cause(play(mine, complaint), "trainer2", "exception", node=2)
    assert_cause(play([*mine, "using another picture"], complaint), "trainer0", "peer_gone")
    assert_cause(play(mine, complaint, at=3.4), "trainer0", "peer_gone")
    assert_cause(play(mine, complaint, at=2.0), "trainer0", "peer_gone")
    assert_cause(play(mine, "ValueError: x"), "trainer0", "exception")


def test_an_exception_after_a_stall_that_was_only_reported_is_the_cause_and_a_kill_is_not() -> None:
    for code, expected in ((1, "peer_silent"), (-9, "stalled")):
        history = History()
        history.step(2.5, 1)
        history.stalled(6.5, "trainer1", stalled_s=4.0)
        lines = traceback("TimeoutError: feature store did not answer for 9 s") if code > 0 else []
        explanation = history.fail(12.1, history.exit(12.0, "trainer1", code, lines)).explain()
        assert_cause(explanation, "trainer1", expected)


def test_a_supervisor_that_a_signal_from_outside_ended_is_named() -> None:
    history = History()
    cause = cause_of_stop({"do": "stop_wanted", "signal": "SIGTERM"}, 1)
    assert cause_of_stop({"do": "stop_wanted"}, 1)["message"] == "stopped by the user"
    explanation = history.fail(5.0, dict(cause), "stopped").explain(reword=False)
    assert_cause(explanation, None, "supervisor_ended", node=1)
    assert explanation.cause is not None
    assert explanation.cause.message == "the supervisor of node1 was ended by SIGTERM, sent from outside clusterctl"


# Nodes.


def test_a_killed_supervisor_is_reported() -> None:
    history = History()
    history.killed(2, 10.0)
    cause = history.lost(18.0, 2, GONE)
    history.exit(17.0, "trainer1", 1, traceback(NOT_ANSWERED.format(2)))
    explanation = history.fail(18.0, cause, silent=[2]).explain()
    assert_cause(explanation, None, "supervisor_killed", node=2)
    assert explanation.not_heard_of == (2,)
    assert explanation.cause is not None
    assert explanation.cause.onset == START_T + 10.0


@pytest.mark.parametrize("error", ["ValueError: labels must be 0 or 1", "ConnectionRefusedError: [Errno 111] refused"])
def test_a_supervisor_killed_right_after_another_failure_is_not_its_cause(error: str) -> None:
    """Its last sign of life is up to a heartbeat older than its end."""
    history = History()
    history.step(5.0, 1)
    exited = history.exit(10.6, "trainer1", 1, traceback(error))
    history.killed(2, 10.1 if error.startswith("ValueError") else 10.7)
    history.lost(10.9, 2, GONE)
    explanation = history.fail(10.61, exited, silent=[2]).explain()
    assert_cause(explanation, "trainer1", "exception" if error.startswith("ValueError") else "peer_refused", node=1)


def test_the_end_of_its_connection_dates_the_end_of_a_killed_supervisor() -> None:
    """The guardian reports it later, and its last sign of life is older."""
    for closed_at, process in ((10.55, None), (10.65, "trainer1")):
        history = History()
        history.step(5.0, 1)
        exited = history.exit(10.6, "trainer1", 1, traceback("ValueError: labels must be 0 or 1"))
        history.killed(2, 10.1)
        history.note(10.9, 0, "lost", message="its supervisor is gone", closed_s=10.9 - closed_at)["node"] = 2
        explanation = history.fail(10.61, exited, silent=[2]).explain()
        assert_cause(explanation, process, "exception" if process else "supervisor_killed")


def test_a_rebooted_node_is_reported() -> None:
    history = History()
    history.killed(2, 10.0, booted=START_T + 60)
    cause = history.lost(40.0, 2, silent_s=30.0)
    assert_cause(history.fail(40.0, cause, silent=[2]).explain(), None, "rebooted", node=2)


def test_a_node_that_is_unreachable_now_is_reported_with_what_the_others_know() -> None:
    history = History()
    cause = history.lost(40.0, 2, silent_s=30.0)
    history.exit(35.0, "trainer1", 1, traceback(NOT_ANSWERED.format(2)))
    explanation = history.fail(40.0, cause, silent=[2]).explain(silent={2: "connection timed out"})
    assert_cause(explanation, None, "node_down", node=2)
    assert explanation.cause is not None
    assert "connection timed out" in explanation.cause.diagnosis.words
    assert explanation.cause.onset == START_T + 10.0


def test_a_partition_is_recognized_by_two_nodes_that_lost_each_other() -> None:
    history = History()
    history.note(13.0, 0, "suspect", silent_s=3.0)["node"] = 3
    cause = history.lost(40.0, 3, silent_s=30.0)
    other = history.lost_lead(40.5, 3)
    history.fail(40.1, cause, silent=[3])
    history.note(41.0, 3, "ended", state="failed", cause=other)
    history.answers[3]["state"] = "failed"
    explanation = history.explain()
    assert_cause(explanation, None, "partition", node=3)
    assert explanation.cause is not None
    assert explanation.cause.onset == START_T + 10.0


def test_a_lead_that_all_others_lost_was_cut_off_itself() -> None:
    history = History()
    causes = [history.lost(40.0, node, silent_s=30.0) for node in (1, 2, 3)]
    for node in (1, 2, 3):
        history.lost_lead(40.2, node)
    assert_cause(history.fail(40.0, causes[0]).explain(), None, "partition", node=0)


def test_a_silent_node_that_was_alive_is_reported() -> None:
    history = History()
    history.note(13.0, 0, "suspect", silent_s=3.0)["node"] = 3
    cause = history.lost(40.0, 3, silent_s=30.0)
    assert_cause(history.fail(40.1, cause).explain(), None, "node_silent", node=3)
    history.answers[3]["halted"] = True
    explanation = history.explain()
    assert explanation.cause is not None
    assert "SIGSTOP" in explanation.cause.diagnosis.words


@pytest.mark.parametrize("asked", [True, False])
def test_a_lost_lead_is_reported_whether_it_answers_or_not(asked: bool) -> None:
    history = History()
    history.killed(0, 10.0)
    why = "its supervisor is gone (connection refused)"
    causes = [history.lost_lead(12.0, node, why, silent_s=None) for node in (1, 2, 3)]
    history.stop_all(12.1, silent=[0])
    history.end(12.5, causes[0], "failed", silent=[0])
    explanation = history.explain("lost", {} if asked else {0: "connection refused"})
    assert_cause(explanation, None, "supervisor_killed" if asked else "node_down", node=0)


def test_all_supervisors_killed_at_once_leave_a_cause() -> None:
    history = History()
    for node in history.nodes:
        history.killed(node, 10.0 + node / 10)
    assert_cause(history.explain("lost"), None, "supervisor_killed", node=0)


def test_a_shutdown_of_a_node_begins_with_the_termination_of_its_processes() -> None:
    history = History()
    first = history.exit(10.0, "trainer2", -15)
    history.exit(10.05, "pserver2", -15)
    history.lost(18.0, 2, GONE)
    explanation = history.fail(10.1, first).explain()
    assert_cause(explanation, "trainer2", "signal", node=2)


# Clocks.


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
@pytest.mark.parametrize("set_since", [False, True])
def test_a_clock_that_is_an_hour_off_does_not_hide_the_first_failure(ahead_s: float, set_since: bool) -> None:
    """True even if the clock was corrected after the run, so that the offset measured now is wrong for it."""
    for first, second in (("trainer1", "trainer3"), ("trainer3", "trainer1")):
        history = History(skew_s={1: ahead_s}, measured_s={} if set_since else None)
        one = history.exit(5.0, first, 1, traceback("ValueError: the first"))
        history.exit(5.5, second, 1, traceback("ValueError: the second"))
        explanation = history.fail(5.6, one).explain()
        assert_cause(explanation, first, "exception")
        assert explanation.cause is not None
        assert abs(explanation.cause.onset - START_T - 5.0) < 0.7


# Time, hangs, restarts.


def test_a_stalled_process_is_the_cause_when_the_time_limit_ends_the_run() -> None:
    history = History()
    history.stalled(50.0, "trainer2")
    history.output(50.1, "trainer2", ['File "train.py", line 9 in f'])
    explanation = history.fail(60.0, {"kind": "time_limit", "message": "the time limit of 60 s is over"}).explain()
    assert_cause(explanation, "trainer2", "stalled")
    assert explanation.cause is not None
    assert explanation.cause.onset == START_T + 30.0
    assert [text for _, text in explanation.cause.lines] == ['File "train.py", line 9 in f']
    assert [one.kind for one in explanation.then] == ["time_limit"]


def test_a_stalled_process_is_reported_with_the_error_of_its_thread_and_without_its_kill() -> None:
    history = History()
    history.output(5.0, "trainer2", traceback("ValueError: shard 3: bad magic"))
    history.stalled(50.0, "trainer2")
    killed = history.exit(51.0, "trainer2", -9, stalled=True, message="stalled for 20 s")
    explanation = history.fail(51.1, killed).explain()
    assert_cause(explanation, "trainer2", "stalled")
    assert explanation.cause is not None
    assert explanation.cause.diagnosis.words == "it had raised ValueError: shard 3: bad magic"
    assert explanation.then == ()


@pytest.mark.parametrize("ending", ["time_limit", "stalled"])
def test_a_trainer_that_left_early_with_exit_code_0_is_the_cause_of_the_standstill(ending: str) -> None:
    history = History()
    history.step(5.0, 40)
    history.exit(5.2, "trainer2", 0, pushes=0)
    if ending == "stalled":
        history.note(50.0, 0, "standstill", stalled_s=45.0, message="the run stands still")
    explanation = history.fail(60.0, {"kind": ending, "message": "over"}).explain()
    assert_cause(explanation, "trainer2", "left_early")
    assert [one.kind for one in explanation.then] == [ending]


@pytest.mark.parametrize("why_not", ["said goodbye", "others go on", "all have left"])
def test_a_trainer_that_finished_has_not_left_early(why_not: str) -> None:
    history = History()
    history.step(5.0, 40)
    for rank in (0, 1, 2, 3) if why_not == "all have left" else (2,):
        history.exit(5.2, f"trainer{rank}", 0, pushes=40 if why_not == "said goodbye" else 0)
    if why_not == "others go on":
        history.step(30.0, 80)
    explanation = history.fail(60.0, {"kind": "time_limit", "message": "over"}).explain()
    assert_cause(explanation, None, "time_limit")
    assert not explanation.before


@pytest.mark.parametrize("state", ["succeeded", "failed"])
def test_the_stall_of_an_attempt_that_was_replaced_is_over(state: str) -> None:
    history = History()
    history.note(30.0, 2, "stalled", role="trainer", rank=2, attempt=1, stalled_s=20.0, message="stalled")
    history.restarting(31.1, history.exit(31.0, "trainer2", -9, stalled=True, message="stalled for 20 s"))
    if state == "failed":
        explanation = history.fail(60.0, {"kind": "time_limit", "message": "over"}).explain()
        assert_cause(explanation, None, "time_limit")
    else:
        history.end(60.0, None, state)
        explanation = history.explain()
    assert [(one.kind, one.process) for one in explanation.before] == [("stalled", "trainer2")]
    assert explanation.open == ()


def test_a_stopped_pserver_is_blamed_by_the_trainers_that_wait_for_it() -> None:
    history = History()
    history.stalled(30.0, "pserver1")
    gone = history.exit(40.0, "trainer3", 1, traceback(NOT_ANSWERED.format(1)))
    assert_cause(history.fail(40.1, gone).explain(), "pserver1", "stalled")


def test_a_crash_loop_is_reported_once_with_a_count() -> None:
    history = History()
    words = traceback("RuntimeError: bad batch 17")
    for attempt, at in ((1, 10.0), (2, 20.0), (3, 30.0)):
        history.restarting(at + 0.1, history.exit(at, "trainer1", 1, words, attempt=attempt))
    explanation = history.fail(40.1, history.exit(40.0, "trainer1", 1, words, attempt=4)).explain()
    assert_cause(explanation, "trainer1", "exception")
    assert explanation.cause is not None
    assert (explanation.cause.times, explanation.cause.since) == (4, START_T + 10.0)
    assert not explanation.before


def test_incidents_the_run_recovered_from_are_reported_but_not_blamed() -> None:
    history = History()
    history.restarting(10.1, history.exit(10.0, "pserver1", -9, fenced=True))
    last = history.exit(300.0, "trainer2", 1, traceback("ZeroDivisionError: division by zero"))
    explanation = history.fail(300.1, last).explain()
    assert_cause(explanation, "trainer2", "exception")
    assert [(one.process, one.diagnosis.kind, one.forgiven) for one in explanation.before] == [
        ("pserver1", "fenced", True)
    ]


def test_a_trainer_that_the_others_continued_without_is_not_blamed() -> None:
    history = History()
    history.exit(10.0, "trainer1", 1, traceback("ValueError: x"))
    history.note(10.1, 0, "lost", role="trainer", rank=1, message="ended with exit code 1")["node"] = 1
    explanation = history.fail(90.1, history.exit(90.0, "pserver3", -11)).explain()
    assert_cause(explanation, "pserver3", "segfault")


def test_events_a_now_silent_node_had_reported_to_the_lead_are_used() -> None:
    history = History()
    gone = history.exit(5.0, "trainer2", 1, traceback("ModuleNotFoundError: No module named 'pandas'"))
    explanation = history.fail(5.1, gone).explain(silent={2: "connection refused"})
    assert_cause(explanation, "trainer2", "import_error", node=2)


# No failure.


def test_a_run_that_the_user_stopped_has_not_failed() -> None:
    history = History()
    explanation = history.fail(9.0, {"kind": "stopped", "message": "stopped by the user"}, state="stopped").explain()
    assert explanation.cause is not None
    assert explanation.cause.kind == "stopped"
    assert not explanation.then


def test_a_run_that_is_running_or_has_succeeded_has_no_cause() -> None:
    history = History()
    history.restarting(10.1, history.exit(10.0, "trainer1", -9))
    history.step(20.0, 7)
    for state in ("running", "succeeded"):
        explanation = history.explain(state)
        assert explanation.cause is None
        assert [one.process for one in explanation.before] == ["trainer1"]
        assert explanation.step == 7


def test_the_last_step_and_the_checkpoint_to_resume_from_are_known() -> None:
    history = History()
    history.step(3.0, 100)
    history.saved(3.1, 80)
    history.saved(3.2, 100)
    explanation = history.fail(4.1, history.exit(4.0, "trainer1", 1, traceback("KeyError: 'x'"))).explain()
    assert (explanation.pass_, explanation.step) == (0, 100)
    assert explanation.checkpoint is not None
    assert explanation.checkpoint["tag"] == "step-000000100"


def test_damaged_events_do_no_harm() -> None:
    """An explanation exists whatever a node claims."""
    rng = random.Random(3)
    for _ in range(40):
        history = History()
        history.fail(3.1, history.exit(3.0, "trainer1", 1, traceback("KeyError: 'x'")))
        for event in history.answers[2]["events"]:
            for name in list(event):
                if rng.random() < 0.2:
                    event[name] = rng.choice([None, -1, "x", [], {}, 1e308])
        assert history.explain(reword=False).cause is not None


# Actions after the failure do not change its cause.


def lost_supervisor() -> History:
    """A run in which the supervisor of node 2 is killed and the lead gives the node up."""
    history = History()
    history.killed(2, 10.0)
    cause = history.lost(10.5, 2, GONE)
    return history.fail(10.5, cause, silent=[2])


def test_a_later_stop_is_not_a_sign_of_life() -> None:
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
    explanation = history.explain()
    assert_cause(explanation, None, reason, node=2)
    assert explanation.cause is not None
    assert explanation.cause.onset == START_T + 10.0


def test_a_paused_node_is_recognized_by_its_own_event() -> None:
    history = History()
    for node in (1, 2, 3):
        history.lost_lead(40.2, node)
    cause = history.lost(50.0, 3, "it had taken the lead for lost")
    history.note(50.1, 0, "paused", paused_s=40.0, message="the supervisor did not run for 40 s")
    explanation = history.fail(50.0, cause).explain()
    assert_cause(explanation, None, "paused", node=0)
    assert explanation.cause is not None
    assert "did not run for 40 s" in explanation.cause.diagnosis.words


def test_a_node_the_run_waits_for_is_open_until_it_is_back() -> None:
    history = History()
    history.killed(2, 10.0)
    history.lost(10.5, 2, GONE, waits=True)
    history.note(10.5, 0, "phase", phase="gathering")
    (node,) = history.explain("starting").open
    assert (node.node, node.awaited, node.diagnosis.kind) == (2, True, "supervisor_killed")
    history.note(60.0, 2, "took_over", seen=START_T + 10.0, rebooted=False, message="a new supervisor")
    history.note(60.1, 0, "rejoined")["node"] = 2
    history.answers[2]["state"] = "running"
    explanation = history.explain("running")
    assert explanation.open == ()
    assert [one.node for one in explanation.before] == [2]


def test_a_trainer_the_run_waits_for_is_open_until_it_starts_again() -> None:
    history = History()
    about = {"role": "trainer", "rank": 1}
    history.exit(3.0, "trainer1", 1, traceback("ValueError: bad shard"))
    history.note(3.1, 0, "held", message="the run waits", **about)["node"] = 1
    (trainer,) = history.explain("running").open
    assert (trainer.process, trainer.awaited) == ("trainer1", True)
    assert trainer.diagnosis.error == "ValueError: bad shard"
    history.note(60.0, 0, "rejoined", **about)["node"] = 1
    history.note(60.1, 1, "spawned", attempt=2, pid=7, **about)
    explanation = history.explain("running")
    assert explanation.open == ()
    assert [one.process for one in explanation.before] == ["trainer1"]


def test_the_cause_is_reported_while_the_run_is_still_stopping() -> None:
    history = History()
    cause = history.lost(10.5, 2, GONE)
    history.killed(2, 10.0)
    history.note(10.5, 0, "phase", phase="stopping", cause=cause)
    assert_cause(history.explain("running"), None, "supervisor_killed", node=2)


def test_a_stall_that_was_ended_by_a_stop_remains_open() -> None:
    history = History()
    history.step(3.0, 9)
    history.stalled(603.0, "trainer1", stalled_s=600.0)
    explanation = history.fail(700.0, {"kind": "stopped", "message": "stopped by the user"}, "stopped").explain()
    assert [one.process for one in explanation.open] == ["trainer1"]
    assert explanation.before == ()
