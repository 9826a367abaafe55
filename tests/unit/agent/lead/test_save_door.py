"""Requests for a checkpoint reach the lead's supervisor through a socket of its own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.agent.event_loop import EventLoop
from clusterctl.agent.lead import save_door
from clusterctl.agent.lead.save_door import MOST_WAITING, SaveDoor
from clusterctl.common.paths import JobPaths, RunPaths
from unit.agent.wires import Keys, Lead, run_until


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    made = JobPaths(tmp_path / "JOB").run("0001")
    made.dir.mkdir(parents=True)
    return made


@pytest.fixture
def asked() -> list[int]:
    return []


@pytest.fixture
def door(loop: EventLoop, run: RunPaths, asked: list[int]) -> Iterator[SaveDoor]:
    made = SaveDoor(loop, run, asked.append)
    yield made
    made._listener.close()


def knock(run: RunPaths) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(20)
    sock.connect(run.door)
    return sock


def receive(loop: EventLoop, sock: socket.socket) -> bytes:
    """Turn the loop until something arrives, or the end of file."""
    received: list[bytes] = []
    sock.setblocking(False)

    def arrives() -> bool:
        with contextlib.suppress(BlockingIOError):
            received.append(sock.recv(1000))
        return bool(received)

    run_until(loop, arrives)
    return received[0]


def test_each_connection_is_a_request_and_gets_its_answer(
    loop: EventLoop, run: RunPaths, door: SaveDoor, asked: list[int]
) -> None:
    with knock(run) as first, knock(run) as second:
        run_until(loop, lambda: len(asked) == 2)
        door.answer(asked[1], {"tag": "b", "step": 2})
        door.answer(asked[0], {"tag": "a", "step": 1})
        assert [json.loads(sock.makefile().readline())["tag"] for sock in (first, second)] == ["a", "b"]
        assert first.recv(1) == b"", "it is closed after the answer"


def test_only_so_many_may_wait(loop: EventLoop, run: RunPaths, door: SaveDoor, asked: list[int]) -> None:
    waiting = [knock(run) for _ in range(MOST_WAITING)]
    run_until(loop, lambda: len(asked) == MOST_WAITING)
    with knock(run) as late:
        assert receive(loop, late) == b""
    assert len(asked) == MOST_WAITING
    for sock in waiting:
        sock.close()
    run_until(loop, lambda: not door._waiting)
    with knock(run):
        run_until(loop, lambda: len(asked) == MOST_WAITING + 1)


def test_another_account_is_not_answered(
    loop: EventLoop, run: RunPaths, door: SaveDoor, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_door, "uid_of_peer", lambda sock: os.getuid() + 1)
    with knock(run) as stranger:
        assert receive(loop, stranger) == b""
    assert asked == []


def test_the_name_of_the_socket_is_that_of_the_run_by_any_path(run: RunPaths, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("JOB")
    assert JobPaths(tmp_path / "link").run("0001").door == run.door
    assert run.job.run("0002").door != run.door
    assert len(run.door) < 100, "whatever the path"


def test_the_lead_answers_a_request(loop: EventLoop, keys: Keys) -> None:
    leader = Lead(loop, keys)
    with knock(keys.of(0)) as sock:
        answer = json.loads(receive(loop, sock))
    assert answer == {"why": "the processes of the run are starting", "again": True}
    leader.lead._door._listener.close()
    loop.unwatch(leader.listener)
    leader.listener.close()
