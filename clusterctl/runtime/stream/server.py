"""A lane's end of streams: it offers them, admits trainers, and waits for all of them and its ROUTER together.

A trainer on the same host connects to a unix socket in the abstract namespace of their network, by the name in the
offer, and must be a process of this account. A trainer on another host connects to a TCP port, and in a run with keys
such a stream is sealed; without them, what a stream carries is as open as the messages of ZeroMQ.
"""

from __future__ import annotations

import errno
import os
import secrets
import select
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple

from clusterctl.common.port_claims import uid_of_peer
from clusterctl.runtime.errors import WireError
from clusterctl.runtime.stream.framed import Frames, Stream
from clusterctl.runtime.stream.sealed import SealedStream
from clusterctl.runtime.stream.tcp import tune
from clusterctl.runtime.stream.tokens import GREETING_BYTES, SEALED, Tokens, answer_to
from clusterctl.runtime.wire.sockets import TO_A_TRAINER

_GREETING_S = 10.0
_SWEEP_S = 1.0
#: Connections beside one for each trainer that may be without a token yet; after that the oldest is closed.
_MORE_STRANGERS = 64
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class _Stranger(NamedTuple):
    sock: socket.socket
    until_s: float
    said: bytearray


class StreamServer:
    """The streams of one of the run's lanes; only its thread uses them, except for `close`.

    `tcp` listens at a port, and the streams of its connections are `sealed` or not. `on_refused(reason)` is called for
    what breaks a stream and should not happen.
    """

    def __init__(
        self,
        lane: int,
        trainers: int,
        local: bool,
        tcp: socket.socket | None,
        sealed: bool = False,
        on_refused: Callable[[str], None] = lambda reason: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_refused = on_refused
        self._lane = lane
        self._sealed = sealed
        self._clock = clock
        self._trainers = trainers
        self._tokens = Tokens()
        self._most_strangers = trainers + _MORE_STRANGERS
        self._epoll = select.epoll()
        self._strangers: dict[int, _Stranger] = {}
        self._streams: dict[int, Stream] = {}
        self._by_rank: dict[int, Stream] = {}
        self._listeners: dict[int, socket.socket] = {}
        self._is_full = False  # no descriptors are left: nobody is accepted until a stream is offered again
        self._offer: dict[str, Any] = {}
        self.is_signalled = False
        if local:
            self._offer["name"] = f"clusterctl-stream-{os.getpid()}-{secrets.token_hex(8)}"
            unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            unix.bind(f"\0{self._offer['name']}")
            self._listen(unix)
        if tcp is not None:
            self._offer["port"] = tcp.getsockname()[1]
            if sealed:
                self._offer["sealed"] = SEALED
            self._listen(tcp)

    def offer(self, rank: int) -> dict[str, Any] | None:
        """Return the facts that a trainer needs for one stream; they must reach that trainer only.

        None if no trainer has this rank.
        """
        if not 0 <= rank < self._trainers:
            return None
        if self._is_full:
            self._is_full = False
            for listener in self._listeners:
                self._epoll.register(listener, select.EPOLLIN)
        return {**self._offer, "token": self._tokens.make(rank)}

    @property
    def strangers(self) -> int:
        """The number of connections that have not been admitted."""
        return len(self._strangers)

    def watch(self, descriptor: int) -> None:
        """Let `receive` return when this descriptor can be read, too; `is_signalled` is then True."""
        self._epoll.register(descriptor, select.EPOLLIN)

    def receive(self, wait: bool) -> Iterator[tuple[Stream, Frames]]:
        """Yield the messages that are there; `wait` until something can be read."""
        ready = self._epoll.poll((_SWEEP_S if self._strangers else None) if wait else 0)
        self.is_signalled = False
        for descriptor, event in ready:
            stream = self._streams.get(descriptor)
            if stream is not None:
                yield from self._messages(stream, event)
            elif descriptor in self._strangers:
                self._hear(descriptor)
            elif descriptor in self._listeners:
                self._accept(self._listeners[descriptor])
            else:
                self.is_signalled = True
        if self._strangers:
            self._sweep()

    def send(self, stream: Stream, frames: Sequence[Any]) -> None:
        """Send a message. It is lost if the stream breaks, or if too many are queued for a trainer that takes none."""
        was_queued = stream.is_queued
        try:
            stream.send(frames)
        except OSError:
            self._drop(stream)
            return
        if stream.is_queued and not was_queued:
            self._epoll.modify(stream.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def close(self) -> None:
        for sock in [*self._listeners.values(), *(stranger.sock for stranger in self._strangers.values())]:
            sock.close()
        for stream in self._streams.values():
            stream.close()
        self._epoll.close()

    def _listen(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.listen(self._most_strangers)
        self._listeners[sock.fileno()] = sock
        self._epoll.register(sock, select.EPOLLIN)

    def _messages(self, stream: Stream, event: int) -> Iterator[tuple[Stream, Frames]]:
        descriptor = stream.fileno()
        try:
            if event & select.EPOLLOUT:
                stream.flush()
                if not stream.is_queued:
                    self._epoll.modify(descriptor, select.EPOLLIN)
            if event & ~select.EPOLLOUT:
                frames = stream.receive()
                while frames is not None:
                    yield stream, frames
                    still = stream.is_buffered and self._streams.get(descriptor) is stream
                    frames = stream.receive() if still else None
        except WireError as exc:
            self.on_refused(f"{exc}, from trainer {stream.rank}")
            self._drop(stream)
        except OSError:
            self._drop(stream)

    def _drop(self, stream: Stream) -> None:
        if self._streams.get(stream.fileno()) is stream:
            del self._streams[stream.fileno()]
        if self._by_rank.get(stream.rank) is stream:
            del self._by_rank[stream.rank]
        stream.close()

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError as exc:
            if exc.errno in _NO_ROOM and not self._is_full:
                self._is_full = True
                for descriptor in self._listeners:
                    self._epoll.unregister(descriptor)
            return
        try:
            self._prepare(sock)
        except OSError:  # it is gone, or another account's
            sock.close()
            return
        if len(self._strangers) >= self._most_strangers:
            self._dismiss(next(iter(self._strangers)))
        self._strangers[sock.fileno()] = _Stranger(sock, self._clock() + _GREETING_S, bytearray())
        self._epoll.register(sock, select.EPOLLIN)

    def _prepare(self, sock: socket.socket) -> None:
        """Let a connection not wait. Raises OSError if it is not wanted."""
        sock.setblocking(False)
        if sock.family == socket.AF_UNIX:
            if uid_of_peer(sock) != os.geteuid():
                raise PermissionError("a process of another account")
        else:
            tune(sock)

    def _hear(self, descriptor: int) -> None:
        """Read what a connection says about itself; admit it, or close it."""
        sock, _, said = self._strangers[descriptor]
        try:
            heard = sock.recv(GREETING_BYTES - len(said))
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        said += heard
        if heard and len(said) < GREETING_BYTES:
            return
        redeemed = self._tokens.redeem(bytes(said)) if heard else None
        if redeemed is None:
            if heard:
                self.on_refused("a stream without a good token")
            self._dismiss(descriptor)
        else:
            self._admit(descriptor, *redeemed)

    def _admit(self, descriptor: int, rank: int, token: bytes) -> None:
        """Admit a trainer; the stream that it had before is closed."""
        sock = self._strangers[descriptor].sock
        try:
            sock.send(answer_to(token))
            stream = self._stream(sock, rank, token)
        except OSError:
            self._dismiss(descriptor)
            return
        del self._strangers[descriptor]
        earlier = self._by_rank.get(rank)
        if earlier is not None:
            self._drop(earlier)
        self._streams[descriptor] = self._by_rank[rank] = stream

    def _stream(self, sock: socket.socket, rank: int, token: bytes) -> Stream:
        if self._sealed and sock.family != socket.AF_UNIX:
            return SealedStream(sock, rank, self._lane, token, is_lane=True, most_queued=TO_A_TRAINER)
        return Stream(sock, rank, TO_A_TRAINER)

    def _sweep(self) -> None:
        now = self._clock()
        for descriptor in [one for one, stranger in self._strangers.items() if stranger.until_s <= now]:
            self._dismiss(descriptor)

    def _dismiss(self, descriptor: int) -> None:
        self._strangers.pop(descriptor).sock.close()
