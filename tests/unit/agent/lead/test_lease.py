"""The lease on a node's processes, on both ends of the lifeline."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from clusterctl.agent.lead import lease
from clusterctl.agent.lead.lease import GOODBYE, Lease, losses


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "LOOK_S", 0.01)


def test_processes_may_run_from_the_sending_of_what_was_answered(pipe: tuple[int, int]) -> None:
    clock = Clock()
    held = Lease(7.0, pipe[1], clock)
    clock.now = 105.0
    held.extend(104.0)
    held.extend(103.0)  # an answer to an earlier message came later
    clock.now = 110.9
    assert not held.expired
    clock.now = 111.0
    assert held.expired
    assert os.read(pipe[0], 100) == b"107.000\n111.000\n"


def test_a_guardian_acts_while_the_lease_is_expired_and_no_longer(pipe: tuple[int, int]) -> None:
    clock = Clock()
    held = Lease(7.0, pipe[1], clock)
    seen = losses(pipe[0], clock)
    clock.now = 107.0
    assert [next(seen), next(seen)] == ["expired", "expired"]
    held.extend(clock.now)
    os.write(pipe[1], b"114.5\n")
    clock.now = 114.4
    os.write(pipe[1], GOODBYE + b"\n")
    assert list(seen) == []


def test_the_end_of_a_supervisor_is_seen_whether_the_lease_is_expired_or_not() -> None:
    for now in (101.0, 200.0):
        read_end, write_end = os.pipe()
        clock = Clock()
        Lease(7.0, write_end, clock)
        clock.now = now
        os.close(write_end)
        assert list(losses(read_end, clock))[-1] == "died"
        os.close(read_end)


def test_a_new_guardian_gets_the_lease_and_a_halted_one_holds_nothing_up(pipe: tuple[int, int]) -> None:
    clock = Clock()
    held = Lease(7.0, pipe[1], clock)
    for second in range(20_000):
        held.extend(100.0 + second)
    read_end, write_end = os.pipe()
    held.hand_over(write_end)
    assert os.read(read_end, 100) == b"20106.000\n"
    os.close(read_end)
    os.close(write_end)


def test_deaths_are_put_down_to_the_guardian_until_shortly_after_the_lease_is_held_again(pipe: tuple[int, int]) -> None:
    clock = Clock()
    held = Lease(7.0, pipe[1], clock)
    clock.now = 106.0
    held.extend(104.0)
    assert not held.was_expired
    clock.now = 111.0
    assert held.was_expired
    held.extend(110.0)
    assert (held.expired, held.was_expired) == (False, True)
    clock.now += lease.REAPED_S
    assert not held.was_expired
