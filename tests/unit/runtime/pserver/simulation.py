"""The parts of a simulated run: real sessions and lanes, with simulated links and pservers between and around them.

Each trainer is a thread, but only one runs at a time, and only until it waits: the test decides what happens next.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clusterctl.common.modes import SaveInterval
from clusterctl.common.run_spec import RunSpec
from clusterctl.runtime import SGD
from clusterctl.runtime.checkpoint.writer import Save, newest_cursors
from clusterctl.runtime.environment import Environment
from clusterctl.runtime.errors import RuntimeFailure
from clusterctl.runtime.modes import EACH_PASS
from clusterctl.runtime.pserver.core import ServerCore
from clusterctl.runtime.pserver.cut_part import CutPart
from clusterctl.runtime.pserver.lane_state import CutOutput, Output, Reply
from clusterctl.runtime.pserver.lanes import Server
from clusterctl.runtime.supervisor_socket import SupervisorSocket
from clusterctl.runtime.table.sharding import Layout
from clusterctl.runtime.trainer.link import OnReply, raise_for_error
from clusterctl.runtime.trainer.session import Session
from clusterctl.runtime.wire import messages as wire

PASSES = 2
IDS = np.arange(6)
Frames = list[bytes]


@dataclass(frozen=True)
class Setting:
    """The settings of a run and the number of its faults. `batches` are those of each trainer in a pass.

    With `late` the trainers make their embedding after some steps. `checkpoints` are announced as if due by the clock.
    `loss` is the probability that a message is lost. With `slices` tables are copied while other things happen.
    """

    mode: str
    layout: Layout
    batches: tuple[int, ...]
    dense: bool = True
    late: bool = False
    save_every: SaveInterval | None = None
    save_model_every: SaveInterval = EACH_PASS
    checkpoints: int = 0
    loss: float = 0.0
    killed: int = 0
    dropped: int = 0
    lost_pservers: int = 0
    slices: bool = False


class SimulatedLink:
    """A trainer's link. By lane: the messages on their way, `sent` and `replies`, and `pending` requests by number.

    `wait_until` lets the rest of the run go on.
    """

    def __init__(self, layout: Layout, wait_until: Callable[[Callable[[], bool]], None]) -> None:
        self.layout = layout
        self.sent: list[deque[Frames]] = [deque() for _ in range(layout.lanes)]
        self.replies: list[deque[Frames]] = [deque() for _ in range(layout.lanes)]
        self.pending: list[dict[int, tuple[wire.Message, Frames, OnReply]]] = [{} for _ in range(layout.lanes)]
        self._wait_until = wait_until
        self._error: RuntimeFailure | None = None

    def open(self, *_: object) -> None:
        pass

    share = close = open

    def post(self, lane: int, message: wire.Message, on_reply: OnReply, full: wire.Message | None = None) -> None:
        frames = to_bytes(message)
        self.pending[lane][message.request] = (message, frames, on_reply)
        self.sent[lane].append(frames)

    def wait(self, done: Callable[[], bool], reply_bytes: int = 0) -> None:
        self._wait_until(lambda: done() or self._error is not None)
        if self._error is not None:
            raise self._error

    def take(self, lane: int) -> None:
        """Handle the next reply of a lane; `wait` raises its error."""
        reply = wire.decode(self.replies[lane].popleft())
        if reply.request in self.pending[lane] and not self._is_error(reply):
            self.pending[lane].pop(reply.request)[-1](reply)

    def probe(self, lane: int, core: ServerCore) -> bool:
        """Send what a silent lane does not hold again, as `RemoteLink` does; return True if there is anything."""
        if self.sent[lane] or self.replies[lane] or not self.pending[lane]:
            return False
        oldest, *_ = next(iter(self.pending[lane].values()))
        probe = wire.Message(wire.PROBE, oldest.rank, 2**63, oldest.epoch, oldest.attempt)
        [state] = core.handle(oldest.rank, probe)
        assert isinstance(state, Reply)
        held = () if self._is_error(state.message) else state.message.json()["held"]
        lost = [frames for request, (_, frames, _) in self.pending[lane].items() if request not in held]
        self.sent[lane].extend(lost)
        return bool(lost)

    def _is_error(self, reply: wire.Message) -> bool:
        try:
            raise_for_error(reply)
        except RuntimeFailure as error:
            self._error = error
        return self._error is not None


def to_bytes(message: wire.Message) -> Frames:
    return [bytes(frame) for frame in wire.encode(message)]


class Killed(BaseException):
    """Ends the thread of a trainer."""


class Trainer:
    """One attempt of a trainer: a real session, in a thread that runs during `resume` only."""

    def __init__(self, setting: Setting, rank: int, attempt: int) -> None:
        self.rank = rank
        self.attempt = attempt
        self.link = SimulatedLink(setting.layout, self._wait_until)
        self.pushes: int | None = None  # once it has left the run
        self._setting = setting
        self._is_ready: Callable[[], bool] = lambda: True
        self._is_killed = False
        self._failure: BaseException | None = None
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        return self.pushes is None and self._is_ready()

    def resume(self) -> None:
        """Let the thread run until it waits or ends. Raises the error that ended it."""
        self._go.release()
        self._stopped.acquire()
        if self._failure is not None:
            raise self._failure

    def kill(self) -> None:
        self._is_killed = True
        self._go.release()
        self._thread.join()

    def _wait_until(self, done: Callable[[], bool] = lambda: True) -> None:
        self._is_ready = done
        self._stopped.release()
        self._await_turn()

    def _await_turn(self) -> None:
        self._go.acquire()
        if self._is_killed:
            raise Killed

    def _run(self) -> None:
        here, spec, trainers = Path(), RunSpec(job="JOB", run="0001", node=0), len(self._setting.batches)
        env = Environment("trainer", self.rank, trainers, "JOB", "0001", here, here, 7, spec, self.attempt)
        try:
            self._await_turn()
            with Session(env, self.link, SupervisorSocket(None), None) as session:
                self._train(session)
            self.pushes = session._client.step
        except BaseException as failure:  # noqa: BLE001 - `resume` raises it
            self._failure = failure
        finally:
            self._stopped.release()

    def _train(self, session: Session) -> None:
        dense = session.dense("w", 8, SGD(1.0)) if self._setting.dense else None
        rows = None if self._setting.late else session.embedding("e", 2, SGD(1.0))
        for pass_, batch in session.steps(self._read, PASSES):
            self._wait_until()
            if rows is None and (pass_ > 0 or batch > 1):
                rows = session.embedding("e", 2, SGD(1.0))
            gradients: dict[Any, Any] = {} if dense is None else {dense: np.ones(8)}
            if rows is not None:
                gradients[rows] = (IDS, rows.pull(IDS))
            self._wait_until()
            session.push(gradients, samples=1)

    def _read(self, pass_: int, rng: object) -> Iterator[tuple[int, int]]:
        return ((pass_, batch) for batch in range(self._setting.batches[self.rank]))


class SimulatedLane:
    """A real core without a socket, and tasks for it."""

    def __init__(self, core: ServerCore) -> None:
        self.core = core
        self.tasks: deque[Callable[[ServerCore], list[Output]]] = deque()
        self.tasks_at_any_time: deque[Callable[[ServerCore], list[Output]]] = deque()

    @property
    def ready_tasks(self) -> deque[Callable[[ServerCore], list[Output]]]:
        """The tasks of which the first may be done now."""
        return self.tasks if self.tasks and not self.core.state.copying.holds else self.tasks_at_any_time

    def submit(self, task: Callable[[ServerCore], list[Output]], *, at_any_time: bool = False) -> None:
        (self.tasks_at_any_time if at_any_time else self.tasks).append(task)

    def pause(self) -> None:
        self.core.state.copying.is_paused = True

    def resume(self) -> None:
        self.submit(lambda core: core.go_on(), at_any_time=True)


class SimulatedPServer:
    """The lanes of a pserver, and the real `Server` that puts their saves together; `files` are yet to be written.

    `reports` are on their way to the lead, and `orders` from it.
    """

    def __init__(self, cores: Sequence[ServerCore]) -> None:
        for core in cores:
            core._saver._save = _without_tables(core, core._saver._save)  # type: ignore[method-assign]
        self.lanes = [SimulatedLane(core) for core in cores]
        self.files: deque[Save] = deque()
        self._server = Server(self.lanes, self.files.append)  # type: ignore[arg-type]
        self.reports: deque[dict[str, Any]] = deque()
        self.orders: deque[dict[str, Any]] = deque()
        self.cuts = CutPart(self._server, lambda phase, facts: self.reports.append({"phase": phase, **facts}), None)

    def take(self, lane: SimulatedLane, output: Save | CutOutput) -> None:
        """Take a lane's part of a save, or what it says about a cut."""
        if isinstance(output, Save):
            self._server.take(lane, output)  # type: ignore[arg-type]
        else:
            self.cuts.take(lane, output)  # type: ignore[arg-type]
        self._take_jobs()

    def obey(self) -> None:
        """Carry out the next order of the lead."""
        order = self.orders.popleft()
        self.cuts.order(order["order"], order["cut"], order)
        self._take_jobs()

    def _take_jobs(self) -> None:
        while not self._server._jobs.empty():
            job = self._server._jobs.get()
            assert job is not None
            if job.counts:
                self._server._make_room()
            self.files.append(job.save)

    def write(self) -> Save:
        """Write the next file and return it; the lanes will be notified."""
        file = self.files.popleft()
        for lane in self.lanes:
            lane.tasks.append(lambda core: core.saved(file.tag))
        return file


def _without_tables(core: ServerCore, copy: Callable[..., list[Save]]) -> Callable[..., list[Save]]:
    """Return `copy` with the cursors of the lane, and who had a table there, in the place of its tables.

    What has become of the tables is compared with what they were when the copying began.
    """

    def values(table: Any) -> list[Any]:
        """Return what a table or a copy of it has."""
        if hasattr(table, "current"):
            return [table.current.copy(), *map(np.copy, table.state)]
        at = table.live()
        return [table.ids_at(at), *(table.read(column.name, at) for column in table.columns())]

    def compare(tables: Sequence[Any], before: list[list[Any]]) -> Iterator[None]:
        for one, other in zip(tables, before, strict=True):
            for copied, own in zip(values(one), other, strict=True):
                np.testing.assert_array_equal(copied, own)
        yield from ()

    def copied(*args: Any) -> list[Save]:
        out = []
        before = [values(table) for table in core.state.set_tables().values()]
        saves = copy(*args)
        if saves:
            core.state.copying.begin([compare(saves[0].tables, before)])
        for save in saves:
            own = tuple({**cursor, "declared": core.trainers[cursor["rank"]].declared} for cursor in save.cursors)
            out.append(save._replace(tables=(own,) if save.tables else ()))
        return out

    return copied


class Checkpoint:
    """A checkpoint for pservers to resume from. It lacks the tables, whose values do not matter here."""

    mode = ""
    names: tuple[str, ...] = ()

    def __init__(self, files: Sequence[Save]) -> None:
        """Join the files of all pservers. Raises AssertionError unless they are of one moment, of a trainer
        on the lanes where it had a table.
        """
        self.step, self.cursors = files[0].step, list(newest_cursors([file.cursors for file in files]))
        assert all(file.step == self.step for file in files), f"{files[0].tag} has other steps on other pservers"
        lanes = [cursors for file in files for cursors in file.tables]
        left = {cursor["rank"] for cursors in lanes for cursor in cursors if cursor["left"]}
        for newest in self.cursors:
            own = [cursor for cursors in lanes for cursor in cursors if cursor["rank"] == newest["rank"]]
            steps = [cursor["step"] for cursor in own if cursor["declared"]]
            agree = newest["rank"] in left or set(steps) <= {newest["step"]}
            assert agree, f"{files[0].tag} differs from lane to lane: {steps}, {newest}"

    def dense(self, *_: object) -> None:
        pass

    sparse = dense
