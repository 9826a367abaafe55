"""Run the same work for many nodes concurrently, and return the outcome of every node."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from clusterctl.errors import ClusterctlError, NodeError
from clusterctl.transport import failures
from clusterctl.transport.target import Destination

N = TypeVar("N", bound=Destination)
T = TypeVar("T")
INTERRUPT_WAIT_S = 3.0
POLL_S = 0.5  # a wait that ends, so that Ctrl-C is noticed at once on every platform


@dataclass(frozen=True)
class WorkOutcome(Generic[N, T]):
    """The result of the work for one node: a value or an error, and the time it took."""

    node: N
    value: T | None
    error: ClusterctlError | None
    seconds: float

    @property
    def ok(self) -> bool:
        return self.error is None

    def get(self) -> T:
        """Return the value, or raise the error if there is one."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # T itself may be None


class Cancellation(threading.local):
    """The signal for the threads of a fan-out to stop."""

    event: threading.Event | None = None

    def check(self, label: str) -> None:
        if self.event is not None and self.event.is_set():
            raise failures.interrupted(label)


def fan_out(
    nodes: Sequence[N],
    work: Callable[[N], T],
    *,
    max_workers: int,
    cancellation: Cancellation,
    on_interrupt: Callable[[], None],
    limit_s: float = math.inf,
) -> list[WorkOutcome[N, T]]:
    """Call `work` for every node and return the outcomes, in the order of the nodes.

    Work that takes longer than `limit_s` is an error, and goes on until it ends. A ClusterctlError or OSError from
    `work` becomes an outcome. Any other exception is a bug and is raised after all work has ended. One in the waiting
    thread, such as KeyboardInterrupt, calls `on_interrupt`, which must make running work fail, for which it waits.
    """
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, WorkOutcome[N, T], BaseException | None]] = queue.SimpleQueue()
    stop = threading.Event()
    began: dict[int, float] = {}
    for index in range(len(nodes)):
        todo.put(index)

    def worker() -> None:
        cancellation.event = stop
        while not stop.is_set():
            try:
                index = todo.get_nowait()
            except queue.Empty:
                return
            began[index] = time.monotonic()
            done.put((index, *_attempt(nodes[index], work)))

    threads: list[threading.Thread] = []

    def start_worker() -> None:
        # Daemon threads: work that cannot be interrupted must not delay the exit of the process.
        threads.append(threading.Thread(target=worker, daemon=True, name=f"fan-out-{len(threads)}"))
        threads[-1].start()

    finished: dict[int, tuple[WorkOutcome[N, T], BaseException | None]] = {}
    try:
        for _ in range(min(max_workers, len(nodes))):
            start_worker()
        while len(finished) < len(nodes):
            with contextlib.suppress(queue.Empty):
                index, outcome, bug = done.get(timeout=POLL_S)
                finished.setdefault(index, (outcome, bug))
                continue
            for index in _late(began, finished, limit_s):
                finished[index] = _overdue(nodes[index], limit_s), None
                start_worker()  # in the place of the one that waits
    except BaseException:
        stop.set()
        on_interrupt()
        _join(threads, INTERRUPT_WAIT_S)
        raise
    for _, bug in finished.values():
        if bug is not None:
            raise bug
    return [outcome for _, (outcome, _) in sorted(finished.items())]


def _late(began: Mapping[int, float], finished: Container[int], limit_s: float) -> list[int]:
    """Return the work that has taken too long: `began` has the times."""
    now = time.monotonic()
    return [index for index, t in list(began.items()) if index not in finished and now > t + limit_s]


def _overdue(node: N, limit_s: float) -> WorkOutcome[N, T]:
    return WorkOutcome(node, None, failures.overdue(node.label, node.label, "no answer", limit_s), limit_s)


def _attempt(node: N, work: Callable[[N], T]) -> tuple[WorkOutcome[N, T], BaseException | None]:
    began = time.monotonic()
    value: T | None = None
    error: ClusterctlError | None = None
    bug: BaseException | None = None
    try:
        value = work(node)
    except ClusterctlError as exc:
        error = exc
    except OSError as exc:
        error = NodeError(str(exc), node=node.label)
        error.__cause__ = exc
    except BaseException as exc:  # noqa: BLE001 - handed to the waiting thread, which raises it
        bug = exc
    return WorkOutcome(node, value, error, time.monotonic() - began), bug


def _join(threads: Sequence[threading.Thread], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        if thread.ident is not None:
            thread.join(max(0.0, deadline - time.monotonic()))
