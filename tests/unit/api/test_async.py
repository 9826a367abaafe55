"""The forms of events and wait for asyncio: what they return, and that a cancellation leaves no thread behind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clusterctl.api.run import Run
from clusterctl.errors import NodeError
from clusterctl.observe.follow import News

STEP = {"event": "step", "t": 1.0, "step": 3}


class MadeUpRun(Run):
    """A run whose news are made up: events if there are any, then ticks until it is left."""

    def __init__(self, events: int = 0, *, ends: bool = True, error: NodeError | None = None) -> None:
        super().__init__(cast("Any", None), "JOB", 1, cast("Any", SimpleNamespace(nodes=(), lead=0)))
        self.made, self.ends, self.error = events, ends, error
        self.threads: set[str] = set()
        self.is_closed = False

    def _news(self, errors: Any, wanted: Any) -> Any:
        try:
            for _ in range(self.made):
                self.threads.add(threading.current_thread().name)
                yield News(cast("Any", SimpleNamespace(id=0)), events=(STEP,))
            while not self.ends:
                time.sleep(0.01)
                yield None
            if self.error is not None:
                errors.append(self.error)
        finally:
            self.is_closed = True

    def _await_end(self, is_late: Callable[[], bool], timeout: float | None) -> None:
        while not self.ends and not is_late():
            time.sleep(0.01)
        self.is_closed = True

    def outcome(self) -> Any:
        return SimpleNamespace(ok=True, state="succeeded")


def threads() -> Iterator[str]:
    return (one.name for one in threading.enumerate() if one.name.startswith("clusterctl"))


def no_thread_is_left() -> bool:
    deadline = time.monotonic() + 30
    while any(threads()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(threads())


def test_events_come_from_a_thread_and_the_loop_goes_on_meanwhile() -> None:
    run = MadeUpRun(3)

    async def follow() -> list[int]:
        return [cast("Any", event).step async for event in run.events_async()]

    assert asyncio.run(follow()) == [3, 3, 3]
    assert run.is_closed
    assert threading.current_thread().name not in run.threads
    assert no_thread_is_left()


def test_errors_of_nodes_come_after_the_events() -> None:
    async def follow() -> None:
        async for _ in MadeUpRun(1, error=NodeError("the disk is full")).events_async():
            pass

    with pytest.raises(NodeError, match="the disk is full"):
        asyncio.run(follow())


def test_leaving_the_loop_early_ends_the_thread() -> None:
    run = MadeUpRun(2, ends=False)

    async def follow() -> None:
        events = run.events_async()
        async for _ in events:
            break
        await cast("Any", events).aclose()

    asyncio.run(follow())
    assert run.is_closed
    assert no_thread_is_left()


@pytest.mark.parametrize("form", ["events", "wait"])
def test_a_cancellation_ends_cleanly_while_nothing_happens(form: str) -> None:
    run = MadeUpRun(0, ends=False)

    async def follow() -> None:
        if form == "wait":
            await run.wait_async()
        async for _ in run.events_async():
            pass

    async def cancelled() -> None:
        task = asyncio.create_task(follow())
        await asyncio.sleep(0.1)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert run.is_closed

    asyncio.run(cancelled())
    assert no_thread_is_left()


def test_several_runs_are_awaited_at_once() -> None:
    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(MadeUpRun().wait_async(check=True) for _ in range(40)))

    assert {one.state for one in asyncio.run(all_of_them())} == {"succeeded"}
    assert no_thread_is_left()
