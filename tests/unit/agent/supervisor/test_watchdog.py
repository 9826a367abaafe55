"""Stalls, with a fake clock: only processes that report are watched, and the supervisor's own absence never counts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from clusterctl.agent.event_loop import EventLoop
from clusterctl.agent.lead.process_table import name_of
from clusterctl.agent.supervisor.watchdog import Watchdog
from clusterctl.common.procfs import Identity, identify
from unit.agent.specs import make_context, make_process

STALL_S, NODE_GRACE_S = 60.0, 10.0
# Exits with 7 when it gets the signal that follows the supervisor's own ones.
SPEAKER = """
import os, signal
signal.signal(signal.SIGRTMIN + 4, lambda *_: os._exit(7))
print("up", flush=True)
signal.pause()
"""


class Fake:
    """A child with the attributes that `Watchdog` uses."""

    def __init__(self, role: str, identity: Identity | None = None) -> None:
        self.role, self.serves, self.name = role, role != "trainer", f"{role}0"
        self.rank, self.attempt = 0, 1
        self.plan = make_process(role, 0, ours=self.serves)
        self.state = "ready" if self.serves else "running"
        self.alive, self.identity = True, identity
        self.stalled: str | None = None
        self.sent: list[Any] = []
        self.remarks: list[str] = []
        self.signals: list[int] = []
        self.send, self.remark, self.signal = self.sent.append, self.remarks.append, self.signals.append

    def lived_s(self, t: float) -> float:
        return 30.0


class Play:
    def __init__(self, *children: Fake, on_stall: str = "warn") -> None:
        self.now, self.over = 1000.0, False
        self.events: list[dict[str, Any]] = []
        self.paces: list[tuple[str, str, str | None]] = []
        self.loop = EventLoop(lambda: self.now)
        context = make_context(
            loop=self.loop,
            record=lambda event, child: self.events.append({**event, "who": child.name if child else None}),
            send=lambda message: self.paces.append(
                (name_of((message["role"], message["rank"])), message["pace"], message.get("message"))
            ),
            is_over=lambda: self.over,
            stall_s=STALL_S,
            node_grace_s=NODE_GRACE_S,
            on_stall=on_stall,
        )
        self.watchdog = Watchdog(context, lambda: children)  # type: ignore[arg-type,return-value]

    def says(self, child: Fake, event: str, **more: Any) -> None:
        self.watchdog.receive(child, {"event": event, **more})  # type: ignore[arg-type]

    def passes(self, seconds: float) -> None:
        """Let time pass, with the supervisor's regular checks."""
        end = self.now + seconds
        while self.now < end:
            self.now += self.watchdog.period_s
            self.watchdog.look()

    def timers(self) -> None:
        """Return everything that is due within the next second, except the checks."""
        self.loop.after(1.1, self.loop.stop)
        self.now += 1.2
        self.loop.run()


@pytest.fixture
def speaker() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", SPEAKER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_trainer_is_stalled_after_it_was_silent_too_long_and_runs_again_when_it_reports() -> None:
    trainer = Fake("trainer")
    play = Play(trainer)
    play.says(trainer, "step")
    play.passes(STALL_S - 5)
    play.says(trainer, "waiting", trainers=[1])
    play.passes(STALL_S)
    assert (trainer.state, play.events) == ("running", [])
    play.passes(10)
    assert trainer.state == "stalled"
    play.says(trainer, "step")
    assert trainer.state == "running"
    assert [event.get("over", False) for event in play.events] == [False, True]
    assert trainer.signals == []


def test_a_program_that_never_reports_is_never_stalled() -> None:
    trainer, server = Fake("trainer"), Fake("pserver")
    server.plan = server.plan.replace(ours=False)
    play = Play(trainer, server)
    play.passes(10 * STALL_S)
    assert (play.events, server.sent) == ([], [])


def assert_stalls_unconnected(play: Play, trainer: Fake) -> None:
    """Assert that the trainer, which others wait for, is stalled as one that never connected, and killed."""
    play.passes(STALL_S - 30)
    assert trainer.state == "running"
    play.passes(10)
    assert (trainer.state, play.events[0]["unconnected"]) == ("stalled", True)
    play.timers()
    assert trainer.signals == [signal.SIGKILL]


def test_a_trainer_that_never_reports_is_stalled_once_others_wait_for_it_counted_from_its_start() -> None:
    trainer = Fake("trainer")
    play = Play(trainer, on_stall="fail")
    play.passes(10 * STALL_S)
    play.watchdog.carry_out({"do": "awaited", "role": "trainer", "rank": 0, "attempt": 2})
    play.passes(STALL_S)
    assert play.events == [], "that attempt is not here"
    play.watchdog.carry_out({"do": "awaited", "role": "trainer", "rank": 0, "attempt": 1})
    assert_stalls_unconnected(play, trainer)
    play.says(trainer, "stacks")
    assert trainer.state == "running"


def test_a_trainer_that_others_wait_for_is_watched_even_if_the_order_comes_before_its_restart() -> None:
    trainer = Fake("trainer")
    trainer.alive = False
    play = Play(trainer, on_stall="fail")
    play.watchdog.carry_out({"do": "awaited", "role": "trainer", "rank": 0, "attempt": 2})
    play.passes(10)
    trainer.alive, trainer.attempt = True, 2
    assert_stalls_unconnected(play, trainer)


def test_a_pserver_is_pinged_again_only_after_it_answered_and_is_stalled_if_it_does_not() -> None:
    server = Fake("pserver")
    play = Play(server)
    for _ in range(20):
        play.passes(2)
        play.says(server, "pong")
    assert play.events == []
    asked = len(server.sent)
    play.says(server, "step")
    play.passes(NODE_GRACE_S + 5)
    assert (server.state, len(server.sent)) == ("stalled", asked + 1)
    play.says(server, "step")
    assert server.state == "stalled", "one of its lanes is active, but all of them have to answer"
    play.says(server, "pong")
    assert server.state == "ready"


def test_a_pserver_is_busy_as_long_as_what_it_writes_or_reads_advances() -> None:
    server = Fake("pserver")
    play = Play(server)

    def answers(seconds: float, **facts: int) -> list[str]:
        """Let it answer each ping; return the paces that were reported."""
        before = len(play.paces)
        for _ in range(int(seconds / play.watchdog.period_s)):
            play.passes(play.watchdog.period_s)
            play.says(server, "pong", **facts)
        return [pace for _, pace, _ in play.paces[before:]]

    assert answers(STALL_S) == []
    assert answers(STALL_S - 5, progress=7) == ["busy"]
    assert answers(STALL_S - 5, progress=8) == []
    play.says(server, "step")
    assert answers(STALL_S + 5, progress=8) == ["moves"]
    assert answers(STALL_S - 5, progress=9) == ["busy"]
    assert answers(5) == ["moves"]
    assert play.events == []


def test_no_process_is_blamed_for_the_time_in_which_the_supervisor_itself_was_paused() -> None:
    trainer, server = Fake("trainer"), Fake("pserver")
    play = Play(trainer, server)
    play.says(trainer, "step")
    play.passes(2)
    play.now += 10 * STALL_S
    play.watchdog.look()
    assert play.events == []


@pytest.mark.parametrize("pid_of", ["speaker", "stranger", "nobody"])
def test_the_signal_for_stacks_goes_only_to_the_process_it_was_agreed_with(
    speaker: subprocess.Popen[str], pid_of: str
) -> None:
    session = identify(os.getpid() if pid_of == "stranger" else speaker.pid)
    trainer = Fake("trainer", session)
    play = Play(trainer)
    if pid_of == "nobody":
        play.says(trainer, "step")
    else:
        play.says(trainer, "stacks", signal=signal.SIGRTMIN + 4, pid=speaker.pid)
    play.passes(STALL_S + 10)
    assert trainer.state == "stalled"
    if pid_of == "speaker":
        assert speaker.wait(180) == 7
        assert trainer.remarks == ["trainer0 has made no step for 60 s: stalled; the stacks of its threads follow"]
    else:
        assert (speaker.poll(), trainer.remarks) == (None, [])


@pytest.mark.parametrize("number", [-1, 9, 10**30, "10"])
def test_an_invalid_signal_or_process_does_no_harm(speaker: subprocess.Popen[str], number: Any) -> None:
    one, other = Fake("trainer", identify(speaker.pid)), Fake("trainer", identify(speaker.pid))
    play = Play(one, other)
    play.says(one, "stacks", signal=number, pid=speaker.pid)
    play.says(other, "stacks", signal=signal.SIGRTMIN + 4, pid=number)
    play.passes(STALL_S + 10)
    assert (one.state, other.state, speaker.poll()) == ("stalled", "stalled", None)


@pytest.mark.parametrize("goes_on", [False, True])
def test_fail_kills_a_process_that_is_still_stalled_after_its_stacks(
    speaker: subprocess.Popen[str], goes_on: bool
) -> None:
    trainer = Fake("trainer", identify(speaker.pid))
    play = Play(trainer, on_stall="fail")
    play.says(trainer, "stacks", signal=signal.SIGRTMIN + 4, pid=speaker.pid)
    play.passes(STALL_S + 10)
    if goes_on:
        play.says(trainer, "step")
    play.timers()
    assert trainer.signals == ([] if goes_on else [signal.SIGKILL])
    assert trainer.stalled == (None if goes_on else "stalled for 60 s")


def test_nothing_stalls_while_the_run_is_being_stopped() -> None:
    trainer = Fake("trainer")
    play = Play(trainer, on_stall="fail")
    play.says(trainer, "step")
    play.over = True
    play.passes(STALL_S + 10)
    assert (play.events, trainer.signals) == ([], [])


def test_the_lead_is_notified_when_one_wait_takes_too_long_and_when_the_trainer_moves_or_stalls() -> None:
    trainer = Fake("trainer")
    play = Play(trainer)
    play.says(trainer, "step")
    play.says(trainer, "waiting", for_s=STALL_S, trainers=[], pserver=0)
    assert play.paces == []
    for for_s in (2 * STALL_S, 3 * STALL_S):
        play.says(trainer, "waiting", for_s=for_s, trainers=[], pserver=0)
    play.says(trainer, "waiting", for_s=0.5, trainers=[], pserver=0)
    play.says(trainer, "waiting", for_s=2 * STALL_S, trainers=[0, 1, "x", 2], pserver=0)
    play.passes(STALL_S + 10)
    play.says(trainer, "step")
    assert play.paces == [
        ("trainer0", "waits", "pserver0"),
        ("trainer0", "moves", None),
        ("trainer0", "waits", "trainer1, trainer2"),
        ("trainer0", "stalled", None),
        ("trainer0", "moves", None),
    ]


@pytest.mark.parametrize("for_s", ["9999", float("nan")])
def test_an_invalid_waiting_time_is_a_sign_of_life_and_no_more(for_s: Any) -> None:
    trainer = Fake("trainer")
    play = Play(trainer)
    play.says(trainer, "waiting", for_s=for_s)
    assert (play.paces, trainer.state) == ([], "running")


@pytest.mark.parametrize("halted", [True, False])
def test_the_event_of_a_stall_has_a_field_for_a_process_stopped_by_a_signal(
    speaker: subprocess.Popen[str], halted: bool
) -> None:
    if halted:
        speaker.send_signal(signal.SIGSTOP)
        os.waitpid(speaker.pid, os.WUNTRACED)
    trainer = Fake("trainer", identify(speaker.pid))
    play = Play(trainer)
    play.says(trainer, "step")
    play.passes(STALL_S + 10)
    assert [event["halted"] for event in play.events] == [halted]
