"""Run the same work for many nodes concurrently, and return the outcome of every node."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
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
    workers = _Workers(nodes, work, cancellation)
    try:
        for _ in range(min(max_workers, len(nodes))):
            workers.start_one()
        while len(workers.finished) < len(nodes):
            if not workers.take_outcome():
                workers.give_up_late(limit_s)
    except BaseException:
        workers.stop.set()
        on_interrupt()
        _join(workers.threads, INTERRUPT_WAIT_S)
        raise
    for _, bug in workers.finished.values():
        if bug is not None:
            raise bug
    return [outcome for _, (outcome, _) in sorted(workers.finished.items())]


class _Workers(Generic[N, T]):
    """The threads of a fan-out. `finished` has the outcomes by the index of the node, each with its bug, if any."""

    def __init__(self, nodes: Sequence[N], work: Callable[[N], T], cancellation: Cancellation) -> None:
        self._nodes, self._work, self._cancellation = nodes, work, cancellation
        self._todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[int, WorkOutcome[N, T], BaseException | None]] = queue.SimpleQueue()
        self._began: dict[int, float] = {}
        self.threads: list[threading.Thread] = []
        self.stop = threading.Event()
        self.finished: dict[int, tuple[WorkOutcome[N, T], BaseException | None]] = {}
        for index in range(len(nodes)):
            self._todo.put(index)

    def start_one(self) -> None:
        # Daemon threads: work that cannot be interrupted must not delay the exit of the process.
        self.threads.append(threading.Thread(target=self._run, daemon=True, name=f"fan-out-{len(self.threads)}"))
        self.threads[-1].start()

    def _run(self) -> None:
        self._cancellation.event = self.stop
        while not self.stop.is_set():
            try:
                index = self._todo.get_nowait()
            except queue.Empty:
                return
            self._began[index] = time.monotonic()
            self._done.put((index, *_attempt(self._nodes[index], self._work)))

    def take_outcome(self) -> bool:
        """Wait for the next outcome; return False if none came for POLL_S."""
        try:
            index, outcome, bug = self._done.get(timeout=POLL_S)
        except queue.Empty:
            return False
        self.finished.setdefault(index, (outcome, bug))
        return True

    def give_up_late(self, limit_s: float) -> None:
        """Make work that takes longer than `limit_s` an error, and start another thread in the place of its own."""
        now = time.monotonic()
        for index, began in list(self._began.items()):
            if index not in self.finished and now > began + limit_s:
                node = self._nodes[index]
                late = failures.overdue(node.label, node.label, "no answer", limit_s)
                self.finished[index] = WorkOutcome(node, None, late, limit_s), None
                self.start_one()


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
