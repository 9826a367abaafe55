"""The threads of a pserver: one with the sockets of each lane, and one that writes files.

A lane's thread waits in one place, for its ROUTER socket and its streams. Other threads wake it by an empty message
over inproc to the ROUTER; such a message from outside the process could do no more than wake it.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Callable, NamedTuple, Union

import numpy as np
import zmq

from clusterctl.runtime.checkpoint.writer import Save
from clusterctl.runtime.errors import WireError
from clusterctl.runtime.pserver.core import ServerCore
from clusterctl.runtime.pserver.lane_state import CutOutput, Output, Reply
from clusterctl.runtime.pserver.saves import joined
from clusterctl.runtime.shm.server import ShmServer
from clusterctl.runtime.stream.framed import Stream
from clusterctl.runtime.stream.server import StreamServer
from clusterctl.runtime.wire import messages as wire
from clusterctl.runtime.wire.sockets import CAN_RECEIVE, descriptor_of, events_of, rank_of, receive_frames, send_frames

_WAKE = b""
#: Saves that may wait for the one being written before lanes wait too; the lead sees to it that cuts are few.
_SAVES_WAITING = 1
_ROUTES_KNOWN = 4_096
_ARRIVALS_KNOWN = 65_536  # waiting requests whose time of arrival is kept
#: Where a message came from: a connection to the ROUTER, or a stream.
Route = Union[bytes, Stream]
_LONGEST_COPYING_S = 0.25  # in which a lane that copies tables answers no request
_LOOK_S = 0.5  # a signal that comes just before a wait does not end it; its handler runs afterwards
_ENDING_S = 2.0  # time for a lane to finish its current work when the process must end


class Lane:
    """Handles the messages of one lane until `finish`. Only `finish`, `saved` and `submit` are thread-safe.

    `on_save(lane, save)` receives copies of the lane's tables; it may `pause` the lane. `on_cut(lane, output)` receives
    what the lane says about cuts outside sync. `shm` reads arrays in shared memory. `streams` are offered to trainers.
    `on_second` is called about once a second while messages come.
    """

    def __init__(
        self,
        core: ServerCore,
        router: zmq.Socket[bytes],
        on_save: Callable[[Lane, Save], None],
        on_cut: Callable[[Lane, CutOutput], None],
        secure: bool,
        shm: ShmServer | None = None,
        streams: StreamServer | None = None,
        on_second: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.core = core
        self._copying = core.state.copying
        self.router = router
        self.refused: Counter[str] = Counter()
        self.sent_s = 0.0  # seconds spent encoding replies and giving them to the socket; other threads read it
        self._on_save = on_save
        self._on_cut = on_cut
        self._secure = secure
        self._shm = shm
        self._streams = streams
        self._router_changed = True
        if streams is not None:
            core.offer_stream = streams.offer
            streams.on_refused = self._refuse
            streams.watch(descriptor_of(router))
        self._clock = clock
        self._routes: dict[int, Route] = {}
        self._ranks: dict[bytes, int] = {}
        self._arrived: dict[tuple[int, int], float] = {}
        self._tasks: queue.SimpleQueue[Callable[[ServerCore], list[Output]]] = queue.SimpleQueue()
        self._tasks_at_any_time: queue.SimpleQueue[Callable[[ServerCore], list[Output]]] = queue.SimpleQueue()
        self._finishing = False
        self._lock = threading.Lock()
        self._on_second = on_second
        self._second_s = 0.0
        self._cut_every_s = core.state.cut_schedule.timed() if core.state.lane == 0 else {}
        self._cut_s = dict.fromkeys(self._cut_every_s, clock())
        address = f"inproc://lane-{id(self):x}"
        router.bind(address)
        self._waker: zmq.Socket[bytes] = router.context.socket(zmq.DEALER)
        self._waker.setsockopt(zmq.LINGER, 0)
        self._waker.connect(address)

    def finish(self) -> None:
        """Let `run` return. Thread-safe."""
        self._finishing = True
        self._wake()

    def pause(self) -> None:
        """Change no table until `resume`; for `on_save`, which is called in the lane's thread."""
        self._copying.is_paused = True

    def resume(self) -> None:
        """Go on after a pause. Thread-safe."""
        self.submit(lambda core: core.go_on(), at_any_time=True)

    def saved(self, tag: str) -> None:
        """Report that the file of `tag` is in place. Thread-safe."""
        self.submit(lambda core: core.saved(tag))

    def submit(self, task: Callable[[ServerCore], list[Output]], *, at_any_time: bool = False) -> None:
        """Run `task` with the core in the lane's thread, not while tables are copied unless `at_any_time`. Thread-safe.

        A task that may run at any time must not change tables.
        """
        (self._tasks_at_any_time if at_any_time else self._tasks).put(task)
        self._wake()

    def run(self) -> None:
        with np.errstate(all="ignore"):  # numbers that are not finite stay so, and trainers report them
            while not self._finishing:
                began = self._clock() if self._copying.is_under_way else None
                if self._streams is not None:
                    self._receive_any(self._streams)
                elif began is None or events_of(self.router) & CAN_RECEIVE:
                    self._receive(receive_frames(self.router))
                if self._copying.is_under_way:
                    self._copy(0.0 if began is None else self._clock() - began)
            while self._copying.holds or not (self._tasks.empty() and self._tasks_at_any_time.empty()):
                self._send(self.core.go_on())  # also after a pause, since nothing else is left to wait for
                while self._copying.is_under_way:
                    self._copy()
                self._do_tasks()

    def _copy(self, seconds: float = 0.0) -> None:
        """Copy slices of the tables for saves for as long as requests took, at least one. Pushes wait for the end.

        After the last one, give the copies away, and go on.
        """
        until = self._clock() + min(seconds, _LONGEST_COPYING_S) if seconds else 0.0
        self._send(self.core.copy())
        while seconds and self._copying.is_under_way and self._clock() < until:
            self._send(self.core.copy())
        if not self._copying.holds:
            self._send(self.core.go_on())
            self._do_tasks()

    def close(self) -> None:
        if self._streams is not None:
            self._streams.close()
        self._waker.close()
        self.router.close()

    def _wake(self) -> None:
        with self._lock:
            self._waker.send(_WAKE)

    def _receive_any(self, streams: StreamServer) -> None:
        """Handle a message of the ROUTER, if it has one, and what the streams have; wait if there is nothing."""
        came = self._router_changed and events_of(self.router) & CAN_RECEIVE
        if came:
            self._receive(receive_frames(self.router))
        self._router_changed = bool(came)
        for stream, frames in streams.receive(wait=not came and not self._copying.is_under_way):
            self._decode(stream, stream.rank, frames)
        self._router_changed |= streams.is_signalled

    def _receive(self, frames: Sequence[zmq.Frame]) -> None:
        if len(frames) == 2 and len(frames[1]) == 0:
            self._do_tasks()
            return
        route = frames[0].bytes
        try:
            rank = self._rank(route, frames)
        except WireError as exc:
            self._refuse(str(exc))
            return
        self._decode(route, rank, [frame.buffer for frame in frames[1:]])

    def _decode(self, route: Route, rank: int, frames: Sequence[wire.Buffer]) -> None:
        try:
            shared = None if self._shm is None else self._shm.view_of(rank)
            message = wire.decode(frames, shared)
        except WireError as exc:
            self._refuse(str(exc))
            return
        self._handle(route, rank, message)

    def _do_tasks(self) -> None:
        while not self._tasks_at_any_time.empty():
            self._send(self.core.do(self._tasks_at_any_time.get()))
        while not self._tasks.empty() and not self._copying.holds:
            self._send(self.core.do(self._tasks.get()))
        self._announce_cuts(self._clock())

    def _rank(self, route: bytes, frames: Sequence[zmq.Frame]) -> int:
        """Return the trainer whose key opened this connection; without keys, the rank that the message claims."""
        known = self._ranks.get(route)
        if known is not None:
            return known
        rank = -1
        if len(frames) > 1:
            rank = rank_of(_user(frames[1])) if self._secure else wire.rank_of(frames[1].buffer)
        if rank < 0:
            raise WireError("a sender that is not a trainer")
        chosen_by_libzmq = route[:1] == b"\0"  # then it identifies one connection
        if self._secure and chosen_by_libzmq and len(self._ranks) < _ROUTES_KNOWN:
            self._ranks[route] = rank
        return rank

    def _handle(self, route: Route, rank: int, message: wire.Message) -> None:
        if message.rank != rank:
            self._refuse(f"a message of trainer {rank} as trainer {message.rank}")
        now = self._clock()
        if now - self._second_s >= 1.0:
            self._second_s = now
            self._announce_cuts(now)
            self._on_second()
        outputs = self.core.handle(rank, message)
        if len(outputs) == 1 and isinstance(outputs[0], Reply) and outputs[0].message.request == message.request:
            if outputs[0].message.kind != wire.ERROR:
                self._routes[rank] = route
            self._arrived.pop((rank, message.request), None)
            self._answer(route, outputs[0].message)
            return
        self._routes[rank] = route
        if message.kind in (wire.PUSH, wire.PULL) and len(self._arrived) < _ARRIVALS_KNOWN:
            self._arrived.setdefault((rank, message.request), now)
        self._send(outputs)

    def _announce_cuts(self, now: float) -> None:
        """Announce the cuts that are due by the clock. Outside sync one stays due until there are new pushes."""
        for purpose, every_s in self._cut_every_s.items():
            if now - self._cut_s[purpose] >= every_s:
                due = self.core.request_cut(purpose)
                if due or self.core.state.mode.name == "sync":
                    self._cut_s[purpose] = now
                self._send(due)

    def _send(self, outputs: Sequence[Output]) -> None:
        now = self._clock()
        for output in outputs:
            if isinstance(output, Save):
                self._on_save(self, output)
            elif not isinstance(output, Reply):
                self._on_cut(self, output)
            elif output.rank in self._routes:
                arrived = self._arrived.pop((output.rank, output.message.request), now)
                output.message.held_us = min(int((now - arrived) * 1e6), 2**32 - 1)
                self._answer(self._routes[output.rank], output.message)

    def _answer(self, route: Route, message: wire.Message) -> None:
        began = time.perf_counter()
        try:
            frames = wire.encode(message)
            if isinstance(route, bytes):
                self._router_changed = True  # its signal may have been taken
                send_frames(self.router, [route, *frames])
            elif self._streams is not None:
                self._streams.send(route, frames)
        except zmq.ZMQError:
            return  # the peer is gone or slow; it will send the request again
        self.sent_s += time.perf_counter() - began

    def _refuse(self, reason: str) -> None:
        self.refused[reason] += 1
        if self.refused[reason] == 1 and len(self.refused) <= 100:
            sys.stderr.write(f"pserver {self.core.state.pserver}: refused {reason}\n")


class _SaveJob(NamedTuple):
    """A save to be written; if it `counts`, lanes wait while too many of them do."""

    save: Save
    counts: bool = False


class Server:
    """Runs the lanes of one pserver until `finish` is called.

    `write(save)` writes the tables of all lanes. If it raises, so does `run`.
    """

    def __init__(self, lanes: Sequence[Lane], write: Callable[[Save], None]) -> None:
        self.lanes = list(lanes)
        self._write = write
        self._lock = threading.Lock()
        self._parts: dict[str, dict[int, Save]] = {}
        self._whole: set[str] = set()  # tags of complete saves; a lane without tables may give its part later
        self._jobs: queue.SimpleQueue[_SaveJob | None] = queue.SimpleQueue()
        self._waiting = 0  # jobs that count
        self._unwritten = 0  # jobs that are not done
        self._paused: list[Lane] = []
        self._failures: list[BaseException] = []
        self._over = threading.Event()
        self._abandoned = threading.Event()  # drop queued saves: their temporary files would stay
        self._is_used = False

    def finish(self) -> None:
        """Let `run` return once nothing is being written. Thread-safe."""
        self._over.set()

    def run(self) -> None:
        threads = [threading.Thread(target=self._run_lane, args=(lane,), daemon=True) for lane in self.lanes]
        writer = threading.Thread(target=self._write_all, daemon=True)
        ending_s: float | None = _ENDING_S
        completed = False
        try:
            for thread in (*threads, writer):
                thread.start()
            while not self._over.wait(_LOOK_S):
                pass
            completed = True
            ending_s = None if not self._failures else _ENDING_S
        finally:  # SIGTERM raises here
            if not completed:
                self._abandoned.set()
            for lane in self.lanes:
                lane.finish()
            for thread in threads:
                if thread.ident is not None:
                    thread.join(ending_s)
            self._is_used = any(thread.is_alive() for thread in threads)
        if not self._failures:
            self._end_writer(writer)
        if self._failures:
            raise self._failures[0]

    def _end_writer(self, writer: threading.Thread) -> None:
        """Wait until all saves are written, or one failed."""
        self._jobs.put(None)
        writer.join()

    def close(self) -> bool:
        """Close the sockets and return True, or return False if a thread still uses them."""
        if not self._is_used:
            for lane in self.lanes:
                lane.close()
        return not self._is_used

    def take(self, lane: Lane, save: Save) -> None:
        """Take a lane's part of a save; queue the file when all lanes that have tables have given theirs."""
        with self._lock:
            if save.tag in self._whole:
                return
            if save.at_cut:
                self._discard_older(lane.core.state.lane, save)
            parts = self._parts.setdefault(save.tag, {})
            parts[lane.core.state.lane] = save
            needed = [other for other in self.lanes if other.core.state.has_values] or self.lanes[:1]
            if any(other.core.state.lane not in parts for other in needed):
                return
            del self._parts[save.tag]
            self._whole.add(save.tag)
            self._put(_SaveJob(joined([part for _, part in sorted(parts.items())]), counts=True))
            self._waiting += 1
            if self._waiting > _SAVES_WAITING:
                self._paused.append(lane)
                lane.pause()

    def write(self, parts: Sequence[Save]) -> None:
        """Write the parts that all lanes have made of a save at a cut. Does not block."""
        with self._lock:
            self._put(_SaveJob(joined(parts)))

    def _put(self, job: _SaveJob) -> None:
        self._unwritten += 1
        self._jobs.put(job)

    @property
    def is_writing(self) -> bool:
        """True while a save is written, or waits for that. Thread-safe."""
        return self._unwritten > 0

    def _discard_older(self, lane: int, newer: Save) -> None:
        """Discard a lane's parts of cuts that the other lanes made at another moment: none will complete."""
        for tag, parts in list(self._parts.items()):
            older = parts.get(lane)
            if older and older.at_cut and older.checkpoint == newer.checkpoint and older.step < newer.step:
                del parts[lane]
            if not parts:
                del self._parts[tag]

    def _run_lane(self, lane: Lane) -> None:
        try:
            lane.run()
        except BaseException as failure:  # noqa: BLE001 - the main thread raises it
            self._fail(failure)

    def _write_all(self) -> None:
        try:
            while (job := self._jobs.get()) is not None and not self._abandoned.is_set():
                if job.counts:
                    self._make_room()
                self._write(job.save)
                with self._lock:
                    self._unwritten -= 1
                for lane in self.lanes:
                    lane.saved(job.save.tag)
        except BaseException as failure:  # noqa: BLE001 - the same
            self._fail(failure)

    def _make_room(self) -> None:
        with self._lock:
            self._waiting -= 1
            resumed = self._paused if self._waiting <= _SAVES_WAITING else []
            self._paused = [lane for lane in self._paused if lane not in resumed]
        for lane in resumed:
            lane.resume()

    def _fail(self, failure: BaseException) -> None:
        self._failures.append(failure)
        self._over.set()


def _user(frame: zmq.Frame) -> str:
    """Return the ZAP user id that libzmq attached to a frame (not to the route before it), or an empty string."""
    try:
        return str(frame.get("User-Id") or "")
    except zmq.ZMQError:
        return ""
