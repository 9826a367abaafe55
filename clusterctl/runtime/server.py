"""The pserver process around the core: one ROUTER socket, one thread that handles messages, one that writes files.

While a save is being written, the values must not change: probes are answered at once, everything else waits in
`_later`, which is bounded because a trainer has one request out at a time and repeats what gets lost.
"""

from __future__ import annotations

import queue
import socket as sockets
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable

import zmq

from clusterctl.runtime import wire
from clusterctl.runtime.core import ServerCore
from clusterctl.runtime.errors import WireError
from clusterctl.runtime.members import Output, Reply, Save
from clusterctl.runtime.zap import rank_of

_LATER_PER_TRAINER = 8
# A signal that comes just before the wait, or to another thread, is seen only when Python runs again.
_WAKE_MS = 250
_BATCH = 64

if TYPE_CHECKING:
    from typing import TypeGuard

Arrival = tuple[bytes, int, wire.Message]


class Server:
    """Runs until `finish` is called, from any thread. `write(save)` writes files and may raise; then so does `run`."""

    def __init__(
        self,
        core: ServerCore,
        router: zmq.Socket[bytes],
        write: Callable[[Save], None],
        secure: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._core = core
        self._router = router
        self._write = write
        self._secure = secure
        self._clock = clock
        self._routes: dict[int, bytes] = {}
        self._arrived: dict[int, tuple[int, float]] = {}
        self._saves: deque[Save] = deque()
        self._later: deque[Arrival] = deque()
        self._results: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._finishing = False
        self._writing = False
        self._began = clock()
        self._alarm, self._bell = sockets.socketpair()
        self._alarm.setblocking(False)
        self.refused: Counter[str] = Counter()

    def finish(self) -> None:
        """Lets `run` return once nothing is being written."""
        self._finishing = True
        self._ring()

    def run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._alarm, zmq.POLLIN)
        while not (self._finishing and not self._saves):
            ready = dict(poller.poll(_WAKE_MS))
            if self._alarm.fileno() in ready:
                self._hear()
            if self._router in ready:
                self._receive()

    def close(self) -> None:
        self._alarm.close()
        self._bell.close()

    def _ring(self) -> None:
        self._bell.send(b"!")

    def _hear(self) -> None:
        self._alarm.recv(4_096)
        while not self._results.empty():
            failure = self._results.get()
            self._writing = False
            if failure is not None:
                raise failure
            self._send(self._core.saved(self._saves.popleft().tag))
        while self._later and not self._saves:
            self._handle(self._later.popleft())

    def _receive(self) -> None:
        for _ in range(_BATCH):
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            arrival = self._read(frames)
            if arrival is None:
                continue
            if not self._saves:
                self._handle(arrival)
            elif arrival[2].kind == wire.PROBE:
                self._say_busy(arrival)
            elif sum(rank == arrival[1] for _, rank, _ in self._later) < _LATER_PER_TRAINER:
                self._later.append(arrival)

    def _read(self, frames: Sequence[zmq.Frame]) -> Arrival | None:
        """The message in `frames` with its sender's route and proven rank; None for what is not a message."""
        try:
            message = wire.decode([frame.buffer for frame in frames[1:]])
        except WireError as exc:
            self._refuse(str(exc))
            return None
        rank = message.rank
        if self._secure:
            rank = rank_of(_user(frames[1]))
        if rank < 0:
            self._refuse("a sender that is not a trainer")
            return None
        return frames[0].bytes, rank, message

    def _handle(self, arrival: Arrival) -> None:
        route, rank, message = arrival
        if self._secure and message.rank != rank:
            self._refuse(f"trainer {rank} spoke as trainer {message.rank}")
        self._began = self._clock()
        known = self._arrived.get(rank)
        if message.kind in (wire.PUSH, wire.PULL) and (known is None or known[0] != message.request):
            self._arrived[rank] = (message.request, self._began)
        outputs = self._core.handle(rank, message)
        if _is_refusal(outputs, message):
            self._answer(route, outputs[0].message)
            return
        self._routes[rank] = route
        self._send(outputs)

    def _send(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            if isinstance(output, Save):
                self._saves.append(output)
            elif output.rank in self._routes:
                request, arrived = self._arrived.get(output.rank, (0, 0.0))
                held_s = self._began - arrived if request == output.message.request else 0.0
                output.message.held_us = int(held_s * 1e6)
                self._answer(self._routes[output.rank], output.message)
        self._write_next()

    def _answer(self, route: bytes, message: wire.Message) -> None:
        frames: list[Any] = [route, *wire.encode(message)]
        try:
            self._router.send_multipart(frames, zmq.NOBLOCK, copy=False)
        except zmq.ZMQError:
            return  # the peer is gone or slow: it asks again

    def _say_busy(self, arrival: Arrival) -> None:
        route, rank, message = arrival
        if rank == message.rank:
            facts = {"held": True, "waiting": [], "step": self._core.step, "busy": "saving"}
            self._answer(route, message.answer(wire.STATE, parts=[wire.json_part(facts)]))

    def _write_next(self) -> None:
        if self._saves and not self._writing:
            self._writing = True
            threading.Thread(target=self._write_one, args=(self._saves[0],), daemon=True).start()

    def _write_one(self, save: Save) -> None:
        try:
            self._write(save)
            self._results.put(None)
        except BaseException as failure:  # noqa: BLE001 - handed to the main thread, which raises it
            self._results.put(failure)
        self._ring()

    def _refuse(self, reason: str) -> None:
        self.refused[reason] += 1
        if self.refused[reason] == 1 and len(self.refused) <= 100:
            sys.stderr.write(f"pserver {self._core.pserver}: refused {reason}\n")


def _user(frame: zmq.Frame) -> str:
    """The ZAP user id that libzmq attached to a frame (not to the route before it); empty when there is none."""
    try:
        return str(frame.get("User-Id") or "")
    except zmq.ZMQError:
        return ""


def _is_refusal(outputs: Sequence[Output], message: wire.Message) -> TypeGuard[Sequence[Reply]]:
    """Whether the only output is an error that answers this very message."""
    if len(outputs) != 1 or not isinstance(outputs[0], Reply):
        return False
    reply = outputs[0].message
    return reply.kind == wire.ERROR and reply.request == message.request
