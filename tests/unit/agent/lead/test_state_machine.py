"""The lead's decisions: sequences of messages from supervisors, replayed against a fake clock."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.agent.lead.actions import SendOrder
from clusterctl.agent.lead.failure_detector import SUSPECT_S
from clusterctl.agent.lead.state_machine import MOST_ATTEMPTS, STOP_MARGIN_S
from unit.agent.plays import GRACE_S, NODE_GRACE_S, PHASES, Play


def test_a_run_without_failures_goes_through_all_phases_and_succeeds() -> None:
    play = Play(nodes=3).reach("finishing")
    for rank in range(3):
        play.exits("pserver", rank)
        play.says(rank, "idle")
    assert play.phases() == ["pservers", "trainers", "running", "finishing"]
    assert play.orders() == ["spawn", "spawn", "finish", "end"]
    assert play.ended() == {"event": "ended", "state": "succeeded", "cause": None, "not_heard_of": [], "warnings": []}


def test_trainers_start_only_when_every_pserver_is_ready_and_learn_their_addresses_by_rank() -> None:
    play = Play(nodes=3).reach("pservers")
    play.ready(2)
    play.ready(0)
    assert play.lead.phase == "pservers"
    play.ready(1)
    spawn = [action.message for action in play.actions if isinstance(action, SendOrder)][-1]
    hosts = ["host:7000", "host:7001", "host:7002"]
    endpoints = {f"pserver{rank}": host for rank, host in enumerate(hosts)}
    assert spawn == {"do": "spawn", "epoch": 0, "role": "trainer", "pservers": hosts, "endpoints": endpoints}


def last_order(play: Play) -> dict[str, Any]:
    return [action.message for action in play.actions if isinstance(action, SendOrder)][-1]


TORCH = [("trainer", 0, 0), ("trainer", 1, 1)]


def test_if_another_process_takes_a_port_all_start_again_with_other_ports() -> None:
    play = Play(nodes=2, processes=TORCH)
    play.says(1, "hello")
    play.says(0, "hello", endpoints={"trainer0": "a:7164"})
    play.running(1)
    play.exits("trainer", 0, 1, port_taken=True)
    order = last_order(play)
    assert (order["do"], order["epoch"], order["attempts"]) == ("again", 1, {"trainer0": 2, "trainer1": 2})
    play.says(0, "idle", epoch=0, attempts={"trainer0": 1})
    play.says(1, "running", role="trainer", rank=1, attempt=1)
    play.says(1, "hello", epoch=1)
    assert play.lead.phase == "gathering"
    play.says(0, "hello", epoch=1, endpoints={"trainer0": "a:7165"})
    assert last_order(play)["endpoints"] == {"trainer0": "a:7165"}
    assert last_order(play)["epoch"] == 1
    for rank in (0, 1):
        play.says(rank, "running", role="trainer", rank=rank, attempt=2)
        play.exits("trainer", rank)
        play.says(rank, "idle", epoch=1, attempts={f"trainer{rank}": 2})
    assert play.ended()["state"] == "succeeded"


def test_the_run_fails_if_ports_are_taken_again_and_again() -> None:
    play = Play(nodes=2, processes=TORCH)
    for epoch in range(MOST_ATTEMPTS):
        play.says(0, "hello", epoch=epoch)
        play.says(1, "hello", epoch=epoch)
        assert play.lead.phase == "trainers"
        play.exits("trainer", 0, 1, port_taken=True)
    play.says(0, "idle")
    play.says(1, "idle")
    assert play.orders().count("again") == MOST_ATTEMPTS - 1
    assert play.ended()["state"] == "failed"
    assert play.ended()["cause"]["rank"] == 0


@pytest.mark.parametrize(("leave", "state"), [(True, "succeeded"), (False, "failed")])
def test_pservers_may_exit_before_the_trainers_only_if_the_engine_allows_it(leave: bool, state: str) -> None:
    play = Play(nodes=1, pservers_leave=leave).reach("running")
    play.exits("pserver", 0)
    play.exits("trainer", 0)
    play.says(0, "idle")
    assert play.ended()["state"] == state


def test_a_trainer_that_is_done_before_another_has_started_does_not_end_the_run() -> None:
    play = Play(nodes=2).reach("trainers")
    play.running(0)
    play.exits("trainer", 0)
    play.running(1)
    assert play.lead.phase == "running"
    play.exits("trainer", 1)
    assert play.lead.phase == "finishing"


@pytest.mark.parametrize("phase", PHASES)
def test_a_failing_process_stops_the_whole_run_in_any_phase(phase: str) -> None:
    play = Play().reach(phase)
    play.exits("pserver", 1, 3)
    assert play.orders()[-1] == "stop"
    play.says(0, "idle")
    play.says(1, "idle")
    ended = play.ended()
    assert ended["state"] == "failed"
    cause = ended["cause"]
    assert {key: cause[key] for key in ("kind", "node", "role", "rank", "exit_code", "tail")} == {
        "kind": "exit",
        "node": 1,
        "role": "pserver",
        "rank": 1,
        "exit_code": 3,
        "tail": ["last words"],
    }


@pytest.mark.parametrize("phase", PHASES)
def test_the_user_can_stop_the_run_in_any_phase(phase: str) -> None:
    play = Play().reach(phase)
    play.says(1, "stop_wanted")
    play.says(0, "stop_wanted")
    assert play.orders().count("stop") == 1
    play.exits("trainer", 0, -15, stopping=True)
    play.says(0, "idle")
    play.says(1, "idle")
    ended = play.ended()
    assert (ended["state"], ended["cause"]["kind"]) == ("stopped", "stopped")


@pytest.mark.parametrize("phase", PHASES)
def test_a_lost_node_fails_the_run_in_any_phase_and_is_not_waited_for(phase: str) -> None:
    play = Play().reach(phase)
    play.lose(1)
    assert play.orders()[-1] == "stop"
    play.says(0, "idle")
    ended = play.ended()
    assert (ended["state"], ended["not_heard_of"]) == ("failed", [1])
    assert (ended["cause"]["kind"], ended["cause"]["node"]) == ("node_lost", 1)


@pytest.mark.parametrize("phase", PHASES[:-1])
def test_a_pserver_that_exits_too_early_is_a_failure_even_with_exit_code_0(phase: str) -> None:
    play = Play().reach(phase)
    play.exits("pserver", 0, 0)
    assert play.lead.phase == "stopping"
    assert play.noted("phase")[-1]["cause"]["exit_code"] == 0


def test_only_the_first_failure_is_the_cause() -> None:
    play = Play(nodes=3).reach("running")
    play.exits("trainer", 2, 1)
    play.exits("pserver", 0, -11)
    play.says(1, "failed", message="later trouble")
    play.lose(1)
    for node in (0, 2):
        play.says(node, "idle")
    assert play.ended()["cause"]["rank"] == 2
    assert play.orders().count("stop") == 1


def test_a_failure_after_the_user_stopped_the_run_does_not_make_it_failed() -> None:
    play = Play().reach("running")
    play.says(0, "stop_wanted")
    play.exits("trainer", 1, 1)
    play.lose(1)
    play.says(0, "idle")
    assert play.ended()["state"] == "stopped"


def test_a_silent_node_is_suspect_then_lost() -> None:
    play = Play(nodes=2).reach("running")
    play.alive(0, 1)
    play.pass_time(SUSPECT_S, alive=(0,))
    assert play.noted("suspect") == []
    play.pass_time(1, alive=(0,))
    assert [note["node"] for note in play.noted("suspect")] == [1]
    play.pass_time(NODE_GRACE_S - SUSPECT_S - 1, alive=(0,))
    assert play.noted("lost") == []
    play.pass_time(1, alive=(0,))
    (lost,) = play.noted("lost")
    assert (lost["node"], lost["silent_s"], lost["why"]) == (1, NODE_GRACE_S + 0.5, lost["message"])
    assert play.noted("phase")[-1]["cause"]["why"] == lost["why"]
    assert play.lead.phase == "stopping"


def test_a_suspect_node_that_sends_again_has_rejoined_and_nothing_is_stopped() -> None:
    play = Play().reach("running")
    play.pass_time(10, alive=(0,))
    play.pass_time(60, alive=(0, 1))
    assert [note["event"] for note in play.noted("suspect") + play.noted("rejoined")] == ["suspect", "rejoined"]
    assert play.noted("lost") == []
    assert play.lead.phase == "running"


def test_an_idle_node_may_be_silent() -> None:
    play = Play().reach("running")
    play.exits("trainer", 1)
    play.exits("pserver", 1, 0, stopping=True)
    play.says(1, "idle")
    play.pass_time(3 * NODE_GRACE_S, alive=(0,))
    assert play.noted("lost") == play.noted("suspect") == []


def test_a_node_that_never_answers_a_stop_does_not_delay_the_end_forever() -> None:
    play = Play().reach("running")
    play.says(0, "stop_wanted")
    play.says(0, "idle")
    play.pass_time(GRACE_S + STOP_MARGIN_S - 1, alive=(0, 1))
    assert play.lead.phase == "stopping"
    play.pass_time(2, alive=(0, 1))
    ended = play.ended()
    assert (ended["state"], ended["not_heard_of"]) == ("stopped", [1])
