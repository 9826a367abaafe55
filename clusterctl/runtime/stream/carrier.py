"""A trainer's ways to its lanes: to each a DEALER socket, and a stream once the lane has accepted one.

ZeroMQ opens every connection, and carries everything until there is a stream and after one broke. `LaneCarriers`
waits for all of them.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import zmq

from clusterctl.runtime.errors import WireError
from clusterctl.runtime.stream.client import PendingStream, open_stream
from clusterctl.runtime.stream.framed import AT_ONCE, Frames, Stream
from clusterctl.runtime.wire import sockets
from clusterctl.runtime.wire.sockets import CAN_RECEIVE, CAN_SEND, descriptor_of, events_of, receive_frames

_OPENING_S = 30.0  # time for a stream to be opened; ZeroMQ carries everything meanwhile
_READ, _WRITE = 1, 4  # EPOLLIN and EPOLLOUT: this module can be imported where there is no epoll


class Carrier:
    """The ways to one of the run's lanes, at `address`. Get one from `LaneCarriers`.

    `deliver(frames)` is called for each message that arrives; it may raise. `on_broken()` is called when the stream
    broke: requests that are not answered may be lost, and have to be sent again.
    """

    def __init__(
        self,
        carriers: LaneCarriers,
        lane: int,
        address: str,
        server_key: str,
        deliver: Callable[[Sequence[Any]], None],
        on_broken: Callable[[], None],
    ) -> None:
        self.address = address
        self._all = carriers
        self._lane = lane
        self._server_key = server_key
        self._deliver = deliver
        self._on_broken = on_broken
        self._unsent: deque[list[Any]] = deque()
        self._by_zmq = True  # requests that are not answered went over ZeroMQ
        self._stream: Stream | None = None
        self._opening: PendingStream | None = None
        self._socket = self._connect()

    @property
    def has_stream(self) -> bool:
        return self._stream is not None

    @property
    def is_queued(self) -> bool:
        """True if messages wait until a socket takes more."""
        return bool(self._unsent) or (self._stream is not None and self._stream.is_queued)

    def send(self, frames: list[Any], *, is_first: bool = False) -> None:
        """Send a message, or queue it.

        The first one, sent while no reply is due, chooses the way of those that follow until all are answered: a lane
        must get them in order, or it ignores one that comes too early.
        """
        if is_first or self._stream is None:
            self._by_zmq = self._stream is None
        if self._stream is None or self._by_zmq:
            if self._unsent or not _try_send(self._socket, frames):
                self._unsent.append(frames)
            return
        was_queued = self._stream.is_queued
        try:
            self._stream.send(frames)
        except OSError:
            self._fall_back()
            return
        if self._stream.is_queued and not was_queued:
            self._all.watch(self._stream.fileno(), self, _READ | _WRITE)

    def reopen(self) -> None:
        """Replace the connection over ZeroMQ, and give the stream up. What was not sent is lost."""
        self.close_streams()
        self._all.forget(descriptor_of(self._socket))
        self._socket.close(linger=0)
        self._unsent.clear()
        self._socket = self._connect()

    def begin_stream(self, offer: Any, rank: int) -> None:
        """Begin to open the stream that a lane offers in its reply to a hello."""
        self.close_streams()
        host, until_s = self.address.rpartition(":")[0], time.monotonic() + _OPENING_S
        self._opening = open_stream(offer, host, rank, self._lane, until_s, secure=self._all.secure)
        if self._opening is not None:
            self._all.openings += 1
            self._all.watch(self._opening.fileno(), self, _WRITE)

    def close_streams(self) -> None:
        """Close the stream, and one that is being opened."""
        if self._opening is not None:
            self._all.openings -= 1
        for one in (self._stream, self._opening):
            if one is not None:
                self._all.forget(one.fileno())
                one.close()
        self._stream = self._opening = None

    def close(self) -> None:
        self.close_streams()
        self._socket.close(linger=0)

    def wait(self) -> bool | None:
        """Deliver what arrives within a second or so; return False if nothing did.

        None means that this carrier needs more than one descriptor to be watched.
        """
        stream = self._stream
        if self._opening is not None or self.is_queued:
            return None
        if stream is None:
            return self._take(0)
        return None if self._by_zmq else self._take_from(stream, 0)

    def use_socket(self) -> bool:
        """Send what the DEALER takes, and deliver a message that it has; return False if it has none."""
        events = events_of(self._socket)
        if self._unsent and events & CAN_SEND:
            while self._unsent and _try_send(self._socket, self._unsent[0]):
                self._unsent.popleft()
        return bool(events & CAN_RECEIVE) and self._take(sockets.AT_ONCE)

    def use_signalled(self) -> bool:
        """Do the same if a reply may come over ZeroMQ: the signal at its descriptor may have been taken."""
        return self._by_zmq and self.use_socket()

    def use(self, descriptor: int, event: int) -> None:
        """Use what is ready at a descriptor."""
        stream, opening = self._stream, self._opening
        if stream is not None and stream.fileno() == descriptor:
            if event & _WRITE:
                self._flush(stream)
            if event & ~_WRITE and self._stream is stream:
                self._take_from(stream, AT_ONCE)
        elif opening is not None and opening.fileno() == descriptor:
            self._advance(opening)
        else:
            self.use_socket()

    def give_up_late(self, now_s: float) -> None:
        """Give up a stream that has been opening for too long."""
        if self._opening is not None and now_s >= self._opening.until_s:
            self.close_streams()

    def _connect(self) -> zmq.Socket[bytes]:
        socket = self._all.connect(self.address, self._server_key)
        self._all.watch(descriptor_of(socket), self, _READ)
        return socket

    def _take(self, flags: int) -> bool:
        try:
            frames = receive_frames(self._socket, flags)
        except zmq.Again:
            return False
        self._deliver([frame.buffer for frame in frames])
        return True

    def _take_from(self, stream: Stream, flags: int) -> bool:
        """Deliver what the stream has; return False if that was nothing."""
        frames = self._next(stream, flags)
        came = frames is not None
        while frames is not None:
            self._deliver(frames)
            more = stream.is_buffered and self._stream is stream
            frames = self._next(stream, AT_ONCE) if more else None
        return came

    def _next(self, stream: Stream, flags: int) -> Frames | None:
        try:
            return stream.receive(flags)
        except (OSError, WireError):
            self._fall_back()
            return None

    def _flush(self, stream: Stream) -> None:
        try:
            stream.flush()
        except OSError:
            self._fall_back()
            return
        if not stream.is_queued:
            self._all.watch(stream.fileno(), self, _READ)

    def _advance(self, opening: PendingStream) -> None:
        try:
            stream = opening.advance(self._all.wait_s)
        except OSError:
            self.close_streams()
            return
        if opening.is_connected:
            self._all.watch(opening.fileno(), self, _READ)
        if stream is not None:
            self._all.openings -= 1
            self._stream, self._opening = stream, None

    def _fall_back(self) -> None:
        self.close_streams()
        self._on_broken()


class LaneCarriers:
    """The carriers of a trainer. `wait_s` is how long one waits at most for a message. Not thread-safe.

    With `keys`, connections over ZeroMQ use CURVE, and streams to other hosts are sealed.
    """

    def __init__(self, keys: Mapping[str, Any] | None, wait_s: float) -> None:
        self.wait_s = wait_s
        self.openings = 0
        self._keys = keys
        self._context = sockets.open_context()
        self._epoll = select.epoll()
        self._by_descriptor: dict[int, Carrier] = {}
        self._carriers: list[Carrier] = []

    @property
    def secure(self) -> bool:
        return self._keys is not None

    def add(
        self,
        lane: int,
        address: str,
        pserver: int,
        deliver: Callable[[Sequence[Any]], None],
        on_broken: Callable[[], None],
    ) -> Carrier:
        """Return a carrier to a lane of this pserver at `host:port`."""
        server_key = str(self._keys["servers"][pserver]) if self._keys else ""
        self._carriers.append(Carrier(self, lane, address, server_key, deliver, on_broken))
        return self._carriers[-1]

    def receive(self, busy: Sequence[Carrier]) -> bool:
        """Deliver what arrives for the carriers from which replies are due; return False if nothing came in time."""
        if len(busy) == 1 and not self.openings:
            waited = busy[0].wait()
            if waited is not None:
                return waited
        came = [carrier.use_signalled() for carrier in busy]
        ready = self._epoll.poll(0 if any(came) else self.wait_s)
        for descriptor, event in ready:
            carrier = self._by_descriptor.get(descriptor)
            if carrier is not None:
                carrier.use(descriptor, event)
        return bool(ready) or any(came)

    def close(self) -> None:
        for carrier in self._carriers:
            carrier.close()
        self._epoll.close()
        self._context.term()

    def connect(self, address: str, server_key: str) -> zmq.Socket[bytes]:
        """Return a DEALER; for carriers."""
        socket = sockets.open_dealer(self._context, address, self._keys, server_key)
        socket.setsockopt(zmq.RCVTIMEO, max(1, int(self.wait_s * 1000)))
        return socket

    def watch(self, descriptor: int, carrier: Carrier, events: int) -> None:
        """Watch a descriptor of a carrier, or do so for other events; for carriers."""
        if descriptor in self._by_descriptor:
            self._epoll.modify(descriptor, events)
        else:
            self._epoll.register(descriptor, events)
            self._by_descriptor[descriptor] = carrier

    def forget(self, descriptor: int) -> None:
        """Watch a descriptor no more; for carriers."""
        del self._by_descriptor[descriptor]
        with contextlib.suppress(OSError):  # it may be closed
            self._epoll.unregister(descriptor)


def _try_send(socket: zmq.Socket[bytes], frames: Sequence[Any]) -> bool:
    try:
        sockets.send_frames(socket, frames)
    except zmq.Again:
        return False
    return True
