"""A trainer's link to pserver processes: a DEALER socket to each lane, and a stream where the lane offers one; retries
of lost requests, notices of long waits.

Every request may be repeated safely. A lane with unanswered requests is sent a small probe each second: its reply lists
the requests that it holds (and the trainers it waits for); the others are sent again, in order. So a slow step never
resends megabytes. A silent lane gets a new connection, and well after the node's grace an error: the lead, which knows
whether the node is lost, decides first. When a stream breaks, or its lane is silent, all unanswered requests are sent
again over ZeroMQ, which carries everything from then on.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

import zmq

from clusterctl.runtime.environment import Environment
from clusterctl.runtime.errors import ForgottenError, ProcessError, UnreachableError, WireError
from clusterctl.runtime.stream.client import Opening, open_stream
from clusterctl.runtime.stream.framed import AT_ONCE, Stream
from clusterctl.runtime.supervisor_socket import print_line
from clusterctl.runtime.table.sharding import Layout, layout_of
from clusterctl.runtime.trainer.link import OnReply, raise_for_error
from clusterctl.runtime.wire import messages as wire
from clusterctl.runtime.wire.sockets import (
    CAN_RECEIVE,
    CAN_SEND,
    descriptor_of,
    events_of,
    open_context,
    open_dealer,
    receive_frames,
    send_frames,
)

_SLOWEST_BYTES_PER_S = 1e6
_NOTICES_S = (10.0, 60.0)
_GRACES = 1.5
_MORE_S = 1.0  # the lead checks its nodes about once a second
_FIRST_PROBE = 2**63
_OPENING_S = 30.0  # time for a stream to be opened; ZeroMQ carries everything meanwhile


@dataclass
class Request:
    """A request in flight. `bytes` is the length of its frames."""

    message: wire.Message
    frames: list[Any]
    on_reply: OnReply
    full: wire.Message | None
    bytes: int


@dataclass
class LaneConnection:
    """The connection to one lane: its socket, the requests in flight, and when the lane last answered.

    `stream` is what requests are sent over, `opening` one that will be, if the lane offers any; `over_zmq` means that a
    reply may come over ZeroMQ. `probes` are unanswered: their numbers, each with that of the newest request before it.
    """

    lane: int
    address: str
    server_key: str
    socket: zmq.Socket[bytes]
    requests: OrderedDict[int, Request] = field(default_factory=OrderedDict)
    unsent: deque[list[Any]] = field(default_factory=deque)
    bytes: int = 0
    heard_s: float = 0.0
    opened_s: float = 0.0
    probed_s: float = 0.0
    probes: dict[int, int] = field(default_factory=dict)
    newest: int = 0
    waiting: list[int] = field(default_factory=list)
    find: wire.Shared | None = None
    stream: Stream | None = None
    opening: Opening | None = None
    over_zmq: bool = False


class RemoteLink:
    """The link over ZeroMQ. Raises UnreachableError for a pserver that stays silent for well over the node's grace.

    `on_wait(facts)` is called about once a second during a wait: `trainers` that are waited for, the `pserver` that was
    silent for longest, and `for_s`, the seconds since the wait began or a reply came.
    `on_unanswered(pserver)` is called before UnreachableError.
    """

    def __init__(
        self,
        env: Environment,
        clock: Callable[[], float] = time.monotonic,
        probe_every_s: float = 1.0,
        on_wait: Callable[[dict[str, Any]], None] = lambda facts: None,
        on_unanswered: Callable[[int], None] = lambda pserver: None,
    ) -> None:
        if not env.pservers:
            raise ProcessError("this run has no pservers (PSERVERS = 0 in conf.py, or CLUSTERCTL_PSERVERS is empty)")
        self.layout: Layout = layout_of(env.spec.ports, len(env.pservers))
        self._clock = clock
        self._probe_every_s = probe_every_s
        self._patience_s = _GRACES * env.spec.timing.node_grace_s + _MORE_S
        self._keys = env.keys() if env.secure else None
        self._context = open_context()
        self._epoll = select.epoll()
        self._addresses = env.pservers
        self._connections: dict[int, LaneConnection] = {}
        self._by_descriptor: dict[int, LaneConnection] = {}
        self._openings = 0
        self._notices = 0
        self._on_wait = on_wait
        self._on_unanswered = on_unanswered
        self._notified_s = self._answered_s = clock()
        self._probes = _FIRST_PROBE
        for pserver, address in enumerate(env.pservers):
            self._add(pserver * self.layout.per_pserver, address)

    def open(self, lane: int, port: int) -> None:
        host = self._addresses[lane // self.layout.per_pserver].rpartition(":")[0]
        self._add(lane, f"{host}:{port}")

    def post(self, lane: int, message: wire.Message, on_reply: OnReply, full: wire.Message | None = None) -> None:
        connection = self._connections[lane]
        frames = wire.encode(message)
        size = sum([len(frame) for frame in frames])
        if not connection.requests:
            connection.heard_s = connection.opened_s = connection.probed_s = self._clock()
            connection.over_zmq = False
        connection.requests[message.request] = Request(message, frames, on_reply, full, size)
        connection.bytes += size
        connection.newest = max(connection.newest, message.request)  # a request in full may follow later ones
        self._send(connection, frames)

    def share(self, lane: int, find: wire.Shared) -> None:
        self._connections[lane].find = find

    def wait(self, done: Callable[[], bool], reply_bytes: int = 0) -> None:
        began = self._clock()
        self._notices = 0
        while not done():
            received, now = self._receive(), self._clock()
            if now - max(began, self._notified_s) >= self._probe_every_s:
                self._notified_s = now
                self._on_wait({**self._waited_for(), "for_s": round(now - max(began, self._answered_s), 3)})
            if received:
                continue
            for connection in self._connections.values():
                if connection.requests:
                    self._probe_or_reopen(connection, now, reply_bytes)
            self._print_notice(now - began, now)

    def close(self) -> None:
        for connection in self._connections.values():
            self._abandon(connection)
            connection.socket.close(linger=0)
        self._epoll.close()
        self._context.term()

    def _add(self, lane: int, address: str) -> None:
        server_key = str(self._keys["servers"][lane // self.layout.per_pserver]) if self._keys else ""
        connection = LaneConnection(lane, address, server_key, self._open(address, server_key))
        self._connections[lane] = connection
        self._register(connection)

    def _open(self, address: str, server_key: str) -> zmq.Socket[bytes]:
        return open_dealer(self._context, address, self._keys, server_key)

    def _register(self, connection: LaneConnection) -> None:
        connection.socket.setsockopt(zmq.RCVTIMEO, max(1, int(self._probe_every_s * 1000)))
        self._watch(descriptor_of(connection.socket), connection)

    def _watch(self, descriptor: int, connection: LaneConnection) -> None:
        self._by_descriptor[descriptor] = connection
        self._epoll.register(descriptor, select.EPOLLIN)

    def _forget(self, descriptor: int) -> None:
        del self._by_descriptor[descriptor]
        self._epoll.unregister(descriptor)

    def _reopen(self, connection: LaneConnection) -> None:
        """Replace the connection of a silent lane. What was not sent is lost with it."""
        self._abandon(connection)
        self._forget(descriptor_of(connection.socket))
        connection.socket.close(linger=0)
        connection.socket = self._open(connection.address, connection.server_key)
        connection.unsent.clear()
        self._register(connection)

    def _abandon(self, connection: LaneConnection) -> None:
        """Close the stream of a lane, and one that is being opened."""
        stream, opening, connection.stream, connection.opening = connection.stream, connection.opening, None, None
        if stream is not None:
            self._forget(stream.fileno())
            stream.close()
        if opening is not None:
            self._openings -= 1
            self._forget(opening.sock.fileno())
            opening.close()

    def _fall_back(self, connection: LaneConnection) -> None:
        """Go on over ZeroMQ: the stream is broken, and any request that is not answered may be lost."""
        self._abandon(connection)
        for request in list(connection.requests.values()):
            self._send(connection, request.frames)

    def _send(self, connection: LaneConnection, frames: list[Any]) -> None:
        if connection.stream is not None:
            self._send_over(connection, connection.stream, frames)
            return
        connection.over_zmq = True
        if connection.unsent or not _try_send(connection.socket, frames):
            connection.unsent.append(frames)

    def _send_over(self, connection: LaneConnection, stream: Stream, frames: list[Any]) -> None:
        was_queued = stream.is_queued
        try:
            stream.send(frames)
        except OSError:
            self._fall_back(connection)
            return
        if stream.is_queued and not was_queued:
            self._epoll.modify(stream.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _receive(self) -> bool:
        """Handle the available replies, or wait briefly for some; return False if nothing came."""
        busy = [connection for connection in self._connections.values() if connection.requests]
        if len(busy) == 1 and not self._openings:
            only = busy[0]
            if only.stream is None and not only.unsent:
                return self._take(only, 0)
            if only.stream is not None and not only.stream.is_queued and not only.over_zmq:
                return self._take_from(only, only.stream, 0)
        came = [self._use_socket(connection) for connection in busy if connection.over_zmq]
        ready = self._epoll.poll(0 if any(came) else self._probe_every_s)
        for descriptor, event in ready:
            connection = self._by_descriptor.get(descriptor)
            if connection is not None:
                self._use(connection, descriptor, event)
        return bool(ready) or any(came)

    def _use(self, connection: LaneConnection, descriptor: int, event: int) -> None:
        """Use what is ready at a descriptor of a connection."""
        stream, opening = connection.stream, connection.opening
        if stream is not None and stream.fileno() == descriptor:
            if event & select.EPOLLOUT:
                self._flush(connection, stream)
            if event & ~select.EPOLLOUT and connection.stream is stream:
                self._take_from(connection, stream, AT_ONCE)
        elif opening is not None and opening.sock.fileno() == descriptor:
            self._advance(connection, opening)
        else:
            self._use_socket(connection)

    def _use_socket(self, connection: LaneConnection) -> bool:
        """Send what a lane's socket takes, and handle a reply that it has; return False if it has none."""
        events = events_of(connection.socket)
        if connection.unsent and events & CAN_SEND:
            while connection.unsent and _try_send(connection.socket, connection.unsent[0]):
                connection.unsent.popleft()
        return bool(events & CAN_RECEIVE) and self._take(connection, zmq.NOBLOCK)

    def _flush(self, connection: LaneConnection, stream: Stream) -> None:
        try:
            stream.flush()
        except OSError:
            self._fall_back(connection)
            return
        if not stream.is_queued:
            self._epoll.modify(stream.fileno(), select.EPOLLIN)

    def _take(self, connection: LaneConnection, flags: int) -> bool:
        try:
            frames = receive_frames(connection.socket, flags)
        except zmq.Again:
            return False
        self._deliver(connection, [frame.buffer for frame in frames])
        return True

    def _take_from(self, connection: LaneConnection, stream: Stream, flags: int) -> bool:
        """Handle the replies that a stream has; return False if there was none within the time that it may wait."""
        came = False
        while not came or (stream.is_buffered and connection.stream is stream):
            try:
                frames = stream.receive(AT_ONCE if came else flags)
            except (OSError, WireError):
                self._fall_back(connection)
                return True
            if frames is None:
                break
            came = True
            self._deliver(connection, frames)
        return came

    def _deliver(self, connection: LaneConnection, frames: Sequence[wire.Buffer]) -> None:
        try:
            reply = wire.decode(frames, connection.find)
        except WireError:
            return
        if reply.request in connection.probes:
            self._handle_probe_reply(connection, reply)
            return
        request = connection.requests.pop(reply.request, None)
        if request is not None:
            connection.heard_s = self._answered_s = self._clock()
            connection.bytes -= request.bytes
            self._handle_reply(connection, request, reply)

    def _handle_reply(self, connection: LaneConnection, request: Request, reply: wire.Message) -> None:
        try:
            raise_for_error(reply)
        except ForgottenError:
            if request.full is None:
                raise
            self.post(connection.lane, request.full, request.on_reply)
            return
        if request.message.kind == wire.HELLO:
            self._begin_stream(connection, reply)
        request.on_reply(reply)

    def _begin_stream(self, connection: LaneConnection, hello: wire.Message) -> None:
        """Begin to open the stream that the reply to a hello offers."""
        with contextlib.suppress(WireError):
            offer, host = hello.json().get("stream"), connection.address.rpartition(":")[0]
            opening = open_stream(offer, host, hello.rank, self._clock() + _OPENING_S)
            if opening is not None:
                self._abandon(connection)
                connection.opening = opening
                self._openings += 1
                self._watch(opening.sock.fileno(), connection)
                self._epoll.modify(opening.sock.fileno(), select.EPOLLOUT)

    def _advance(self, connection: LaneConnection, opening: Opening) -> None:
        """Continue to open a stream; use it once the lane has accepted it."""
        try:
            stream = opening.advance(self._probe_every_s)
        except OSError:
            self._abandon(connection)
            return
        if stream is not None:
            self._openings -= 1
            connection.stream, connection.opening = stream, None
        if opening.is_sent:
            self._epoll.modify(opening.sock.fileno(), select.EPOLLIN)

    def _handle_probe_reply(self, connection: LaneConnection, reply: wire.Message) -> None:
        """Send again the requests that the lane did not have when the probe came: they were lost.

        The reply of a busy lane may come after later probes were sent; it is as good.
        """
        raise_for_error(reply)
        state = reply.json()
        connection.heard_s, newest = self._clock(), connection.probes[reply.request]
        connection.probes.clear()
        held = set(state.get("held", []))
        connection.waiting = [int(rank) for rank in state.get("waiting", [])] if held else []
        for number, request in connection.requests.items():
            if number <= newest and number not in held:
                self._send(connection, request.frames)

    def _probe_or_reopen(self, connection: LaneConnection, now: float, reply_bytes: int) -> None:
        silent_s = now - connection.heard_s
        patience_s = self._patience_s + (connection.bytes + reply_bytes) / _SLOWEST_BYTES_PER_S
        if silent_s >= patience_s:
            pserver = connection.lane // self.layout.per_pserver
            self._on_unanswered(pserver)
            raise UnreachableError(
                f"pserver {pserver} ({connection.address}) has not answered for {silent_s:.0f} s",
                remedy="see its server.log, and check that the network lets this node reach that port",
            )
        if now - max(connection.heard_s, connection.opened_s) >= patience_s / 3:
            connection.opened_s = now
            self._reopen(connection)
            for request in connection.requests.values():
                self._send(connection, request.frames)
        if connection.opening is not None and now >= connection.opening.until_s:
            self._abandon(connection)
        if now - connection.probed_s >= self._probe_every_s and not connection.unsent:
            connection.probed_s = now
            self._probes += 1
            connection.probes[self._probes] = connection.newest
            oldest = next(iter(connection.requests.values())).message
            self._send(
                connection,
                wire.encode(wire.Message(wire.PROBE, oldest.rank, self._probes, oldest.epoch, oldest.attempt)),
            )

    def _waited_for(self) -> dict[str, Any]:
        """Return the `trainers` that pservers wait for, and the `pserver` that was silent for longest."""
        busy = [(connection.heard_s, lane) for lane, connection in self._connections.items() if connection.requests]
        ranks = {rank for _, lane in busy for rank in self._connections[lane].waiting}
        return {"trainers": sorted(ranks), "pserver": min(busy)[1] // self.layout.per_pserver if busy else None}

    def _print_notice(self, waited_s: float, now: float) -> None:
        """Print the cause of this trainer's wait after 10 s, 60 s, and every further minute."""
        due_s = _NOTICES_S[self._notices] if self._notices < 2 else 60.0 * self._notices
        busy = [(lane, connection) for lane, connection in self._connections.items() if connection.requests]
        if not busy or waited_s < due_s:
            return
        self._notices += 1
        lane, connection = min(busy, key=lambda item: item[1].heard_s)
        pserver = lane // self.layout.per_pserver
        ranks = sorted({rank for _, other in busy for rank in other.waiting})
        if now - connection.heard_s > 3 * self._probe_every_s:
            print_line(
                f"waiting for pserver {pserver} ({connection.address}), silent for {now - connection.heard_s:.0f} s"
            )
        elif ranks:
            step = next(iter(connection.requests.values())).message.step
            print_line(f"waiting for trainers {ranks} at step {step} for {waited_s:.0f} s")
        else:
            print_line(f"waiting for pserver {pserver} ({connection.address}), busy, for {waited_s:.0f} s")


def _try_send(socket: zmq.Socket[bytes], frames: Sequence[Any]) -> bool:
    try:
        send_frames(socket, frames)
    except zmq.Again:
        return False
    return True
