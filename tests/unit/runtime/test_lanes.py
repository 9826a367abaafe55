"""Lanes with and without tables, uneven data, pushes in flight, and saves that are written while training continues."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import SGD
from clusterctl.runtime.modes import WINDOWS
from clusterctl.runtime.pserver import lanes
from clusterctl.runtime.trainer.session import Session
from clusterctl.runtime.wire import messages as wire
from clusterctl.runtime.wire.sockets import send_frames
from unit.runtime.cluster import DEADLINE_S, thread_cluster

MODES = ["sync", "async", "geo(2)"]


@pytest.mark.parametrize("mode", MODES)
def test_a_job_without_any_table_ends(tmp_path: Path, mode: str) -> None:
    def program(ps: Session) -> int:
        for _ in ps.steps(lambda pass_, rng: range(3), passes=2):
            ps.push({}, samples=1)
        return ps.step

    with thread_cluster(tmp_path, 2, 2, mode=mode, ports_num=2, ports_num_for_sparse=1) as cluster:
        assert cluster.train(program) == [6, 6]


@pytest.mark.parametrize("mode", ["sync", "geo(2)"])
def test_a_pserver_reports_how_long_it_applied_updates_and_sent_replies(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause_s, update = 0.01, SGD.update
    pauses: dict[str, list[float]] = {"apply_s": [], "send_s": []}  # of all lanes

    def pause(figure: str) -> None:
        began = time.perf_counter()
        time.sleep(pause_s)
        pauses[figure].append(time.perf_counter() - began)

    def slow_update(self: SGD, *arguments: Any) -> None:
        if threading.current_thread().name != "trainer":  # in geo mode trainers apply the rule, too
            pause("apply_s")
        update(self, *arguments)

    def slow_send(*arguments: Any) -> None:
        pause("send_s")
        send_frames(*arguments)

    def program(ps: Session) -> None:
        threading.current_thread().name = "trainer"
        w, e = ps.dense("w", 3_000, SGD(1.0)), ps.embedding("e", 2, SGD(1.0))
        for n in ps.steps(lambda pass_, rng: range(4), passes=1):
            ps.push({w: np.ones(3_000), e: ([n, 9], e.pull([n, 9]))}, samples=1)

    monkeypatch.setattr(SGD, "update", slow_update)
    monkeypatch.setattr(lanes, "send_frames", slow_send)
    with thread_cluster(tmp_path, 1, 1, mode=mode, ports_num=2, ports_num_for_sparse=1) as cluster:
        cluster.train(program)
    cluster.pservers[0].report()  # its lanes have ended: a trainer may get a reply before its sending is counted
    cluster.pservers[0].report()
    assert pauses["send_s"]
    assert pauses["apply_s"] or mode == "geo(2)"
    for figure, paused in pauses.items():
        assert sum(step[figure] for step in cluster.steps) >= sum(paused) - 1e-6 * len(cluster.steps)
        assert cluster.steps[-1][figure] == 0, "it is the time since the report before"


def test_a_window_of_async_pushes_is_in_flight_and_arrays_can_be_reused_at_once(tmp_path: Path) -> None:
    """The lane accepts a push only when the trainer waits, so the maximum number of pushes is in flight."""
    elements, pushes, permits = 100_000, 20, threading.Semaphore(0)
    sent = taken = most = 0

    def program(ps: Session) -> Any:
        nonlocal sent, most
        link: Any = ps._client._link
        post, wait = link.post, link.wait

        def count(lane: int, message: wire.Message, *rest: Any) -> None:
            nonlocal sent, most
            if message.kind == wire.PUSH and message.piece == 0:
                sent += 1
                most = max(most, sent - taken)
            post(lane, message, *rest)

        def permit(done: Any, reply_bytes: int = 0) -> None:
            permits.release(pushes if sent == pushes + 1 else 1)
            wait(done, reply_bytes)

        w, e = ps.dense("w", elements, SGD(1.0)), ps.embedding("e", 1, SGD(1.0), rows=9)
        link.post, link.wait = count, permit
        gradient, ids, row = np.empty(elements, np.float32), np.empty(2, np.int64), np.empty((2, 1), np.float32)
        for n in ps.steps(lambda pass_, rng: range(pushes), passes=1):
            gradient[:], ids[:], row[:] = -n, (1, 3), -n
            ps.push({w: gradient, e: (ids, row)}, samples=1)
            gradient[:], ids[:], row[:] = np.nan, 0, np.nan
            if n == pushes - 1:
                permits.release(pushes)
        return [w.pull().copy(), e.pull([0, 1, 3])[:, 0]]

    with thread_cluster(tmp_path, 1, 1, mode="async") as cluster:
        [core] = cluster.cores
        handle = core.handle

        def take(rank: int, message: wire.Message) -> Any:
            nonlocal taken
            if message.kind == wire.PUSH and message.piece == 0:
                assert permits.acquire(timeout=DEADLINE_S)
                taken += 1
            return handle(rank, message)

        core.handle = take  # type: ignore[method-assign]
        [(dense, rows)] = cluster.train(program)
    assert most == WINDOWS["async"]
    np.testing.assert_array_equal(dense, np.full(elements, sum(range(pushes))))
    np.testing.assert_allclose(rows, [0, sum(range(pushes)), sum(range(pushes))], rtol=0, atol=0.11)
