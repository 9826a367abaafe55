"""A simulated network: links that are slow or cut, in one direction or both, and connections like those of TCP."""

from __future__ import annotations

import errno
import json
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clusterctl.agent.lead.channel import LeadFrame, parse_frame
from clusterctl.agent.lead.connection import HANDSHAKE_S

if TYPE_CHECKING:
    from simulation.machine import Machine, Process
    from simulation.time import Time

SYN_S = (0.0, 1.0, 3.0)  # when the kernel sends a SYN
MOST_BACKOFF_S = 5.0  # until a kernel tries a link again that is back
HI, END = "hi", "end"


class Network:
    """Links between `machines`, by their numbers. `cut` has the directions that are interrupted."""

    def __init__(self, time: Time, lot: random.Random) -> None:
        self.time = time
        self.lot = lot
        self.machines: list[Machine] = []
        self.cut: set[tuple[int, int]] = set()
        self.slowest_s = lot.choice((0.001, 0.02, 0.3))
        self.blocked: dict[Wire, None] = {}

    def latency_s(self) -> float:
        return self.lot.uniform(0.0002, self.slowest_s)

    def reaches(self, source: Machine, target: Machine) -> bool:
        """True if a packet arrives now."""
        linked = source is target or (source.number, target.number) not in self.cut
        return linked and target.is_on and not target.frozen

    def answers(self, source: Machine, target: Machine) -> bool:
        """True if a packet arrives now, and so does its answer."""
        return self.reaches(source, target) and self.reaches(target, source)

    def look(self) -> None:
        """Let kernels try again, soon, what did not get through: something may be better now."""
        for wire in list(self.blocked):
            self.time.after(self.lot.uniform(0.01, MOST_BACKOFF_S), wire.pump)

    def connect(
        self, process: Process, address: tuple[str, int], limit_s: float, done: Callable[[Any, int], None]
    ) -> None:
        """Connect a process to a listener, as `EventLoop.connect` does."""
        source, target = process.machine, self.machines[int(address[0].removeprefix("host"))]
        settled = False

        def settle(error: int) -> None:
            nonlocal settled
            if not settled:
                settled = True
                ours = Socket(self, process)
                if error == 0:
                    theirs = Socket(self, target.listeners[address[1]].process)
                    ours.pair(theirs)
                    target.listeners[address[1]].connected(theirs, (f"host{source.number}", 0))
                process.call(lambda: done(ours, error))

        def answer(error: int) -> None:
            if self.reaches(target, source):
                if error == 0 and not _listens(target, address[1]):
                    error = errno.ECONNREFUSED
                settle(error)

        def arrive() -> None:
            if self.reaches(source, target):
                self.time.after(self.latency_s(), lambda: answer(0))

        for at in SYN_S:
            if at < limit_s:
                self.time.after(at + self.latency_s(), arrive)
        self.time.after(limit_s, lambda: settle(errno.ETIMEDOUT))


def _listens(target: Machine, port: int) -> bool:
    return port in target.listeners and not target.listeners[port].process.dead


class Listener:
    """A listening socket of a process."""

    def __init__(self, process: Process, port: int) -> None:
        self.process = process
        self.port = port
        self.on_connected: Callable[[], None] = lambda: None
        self._waiting: deque[tuple[Socket, tuple[str, int]]] = deque()
        process.machine.listeners[port] = self

    def getsockname(self) -> tuple[str, int]:
        return (f"host{self.process.machine.number}", self.port)

    def connected(self, socket: Socket, address: tuple[str, int]) -> None:
        self._waiting.append((socket, address))
        self.process.call(self.on_connected)

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        if not self._waiting:
            raise BlockingIOError
        return self._waiting.popleft()


class Wire:
    """One direction of a connection: what is sent arrives once, in order, when the link allows it."""

    def __init__(self, network: Network, source: Socket, target: Socket) -> None:
        self.network = network
        self.source = source
        self.target = target
        self._queue: deque[tuple[float, Any]] = deque()
        self._last = 0.0

    def send(self, item: Any) -> None:
        time = self.network.time
        self._last = max(self._last, time.now + self.network.latency_s())
        self._queue.append((self._last, item))
        time.after(self._last - time.now, self.pump)

    def pump(self) -> None:
        while self._queue and self._queue[0][0] <= self.network.time.now:
            if self.source.is_of_earlier_boot:  # its kernel does not repeat it any more
                self._queue.clear()
            elif not self.network.reaches(self.source.machine, self.target.machine):
                self.network.blocked[self] = None
                return
            else:
                self.target.arrive(self._queue.popleft()[1])
        self.network.blocked.pop(self, None)


class Socket:
    """One end of a connection. What arrives before a `Connection` reads it waits."""

    def __init__(self, network: Network, process: Process) -> None:
        self.network = network
        self.process = process
        self.machine = process.machine
        self._boot = self.machine.boots
        self.out: Wire | None = None
        self.closed = False
        self.reader: Callable[[Any], None] | None = None
        self._inbox: list[Any] = []
        process.sockets.append(self)

    def pair(self, other: Socket) -> None:
        self.out, other.out = Wire(self.network, self, other), Wire(self.network, other, self)

    @property
    def is_of_earlier_boot(self) -> bool:
        return self._boot != self.machine.boots or not self.machine.is_on

    def fileno(self) -> int:
        return 3

    def setblocking(self, flag: bool) -> None:
        pass

    def setsockopt(self, *option: int) -> None:
        pass

    def send(self, item: Any) -> None:
        if not self.closed and self.out is not None:
            self.out.send(item)

    def close(self) -> None:
        self.send(END)
        self.closed = True

    def arrive(self, item: Any) -> None:
        """Take a packet; a connection of an earlier boot is reset."""
        if self.is_of_earlier_boot and item != END:
            self.network.time.after(self.network.latency_s(), self._reset)
        elif not (self.is_of_earlier_boot or self.closed or self.process.dead):
            self.process.call(lambda: self._read(item))

    def _reset(self) -> None:
        assert self.out is not None
        other = self.out.target
        if self.network.reaches(self.machine, other.machine) and not (other.closed or other.process.dead):
            other.process.call(lambda: other._read(END))

    def _read(self, item: Any) -> None:
        if self.reader is None:
            self._inbox.append(item)
        elif not self.closed:
            self.reader(item)

    def read(self, reader: Callable[[Any], None]) -> None:
        self.reader = reader
        inbox, self._inbox = self._inbox, []
        for item in inbox:
            self._read(item)


class Connection:
    """Stands in for a `LeadConnection`: the same calls, over a simulated socket."""

    def __init__(
        self,
        loop: Any,
        sock: Socket,
        on_open: Callable[[Any, int], None],
        on_frame: Callable[[LeadFrame], None],
        on_closed: Callable[[OSError | None], None] = lambda error: None,
    ) -> None:
        self._sock = sock
        self._on_open = on_open
        self.on_frame = on_frame
        self.on_closed = on_closed
        self._is_open = False
        self._closed = False
        self._outgoing: list[bytes] = []
        sock.send(HI)
        loop.after(HANDSHAKE_S, self._expect_open)
        loop.after(0.0, lambda: sock.read(self._read))

    def _expect_open(self) -> None:
        if not self._is_open:
            self.close(TimeoutError("no handshake"))

    def _read(self, item: Any) -> None:
        if self._closed:
            return
        if item == END:
            self.close(ConnectionResetError("closed by the other side"))
        elif item == HI:
            assert self._sock.out is not None
            self._on_open(self, self._sock.out.target.machine.number)
            self._is_open = True
            outgoing, self._outgoing = self._outgoing, []
            for frame in outgoing:
                self._sock.send(frame)
        else:
            self.on_frame(parse_frame(item))

    def send(self, frame: LeadFrame) -> None:
        if self._closed:
            return
        data = json.dumps(frame, separators=(",", ":")).encode()
        if self._is_open:
            self._sock.send(data)
        else:
            self._outgoing.append(data)

    def idle(self) -> bool:
        return True

    def close(self, error: OSError | None = None) -> None:
        if not self._closed:
            self._closed = True
            self._sock.close()
            self.on_closed(error)
