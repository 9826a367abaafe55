"""A connected socket that carries messages, each a list of frames, as ZeroMQ does.

On the socket a frame is its length in bytes (uint32, little-endian; the highest bit says that another frame of the
message follows) and its bytes. Short frames are copied out of a buffer that is used again; a long one is received in
memory of its own, of which the kernel provides the pages as the bytes arrive, so that no claim alone takes memory.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from clusterctl.runtime.errors import WireError
from clusterctl.runtime.wire import messages as wire

_LENGTH = struct.Struct("<I")
_MORE = 1 << 31
_MOST_FRAMES = wire.MAX_PARTS + 1
_BUFFER_BYTES = 65_536
#: Longer frames get memory of their own.
SHORT_BYTES = 32_768
#: Reads before other streams get their turn.
_READS = 64
_MOST_VECTORS = 1_024  # IOV_MAX of Linux

AT_ONCE = int(socket.MSG_DONTWAIT)
Frames = list[wire.Buffer]


class Stream:
    """One end of a stream. `rank` is the trainer's; at most `most_queued` messages wait to be sent.

    All methods raise OSError or WireError if the stream is broken: then only `close` may follow. Not thread-safe.
    """

    def __init__(self, sock: socket.socket, rank: int, most_queued: int | None = None) -> None:
        self.rank = rank
        self.sock = sock
        sock.setblocking(True)  # with a timeout of Python's, it would wait in spite of AT_ONCE
        self._most_queued = most_queued
        self._queue: deque[list[Any]] = deque()
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._begin = self._end = 0
        self._frames: Frames = []
        self._long: memoryview | None = None
        self._filled = 0
        self._more = False

    def fileno(self) -> int:
        return self.sock.fileno()

    def close(self) -> None:
        self._queue.clear()
        with contextlib.suppress(OSError):
            self.sock.close()

    @property
    def is_queued(self) -> bool:
        """True if messages wait until the socket takes more: call `flush` then."""
        return bool(self._queue)

    @property
    def is_buffered(self) -> bool:
        """True if bytes have been read of which no message was returned yet."""
        return self._begin < self._end

    def send(self, frames: Sequence[Any]) -> bool:
        """Send a message, or queue it; return False, without it, if too many are queued.

        The bytes must not change before they are sent.
        """
        pieces = [piece for frame in frames[:-1] for piece in (_LENGTH.pack(len(frame) | _MORE), frame)]
        pieces += (_LENGTH.pack(len(frames[-1])), frames[-1])
        if not self._queue:
            if self._write(pieces):
                return True
        elif self._most_queued is not None and len(self._queue) >= self._most_queued:
            return False
        self._queue.append(pieces)
        return True

    def flush(self) -> None:
        """Send what is queued, as far as the socket takes it."""
        while self._queue and self._write(self._queue[0]):
            self._queue.popleft()

    def receive(self, flags: int = AT_ONCE) -> Frames | None:
        """Return the next message, None if it has not arrived. With `flags` 0, wait as long as the socket waits."""
        try:
            message = self._next()
            for _ in range(_READS):
                if message is not None:
                    break
                self._read(flags)
                message = self._next()
        except BlockingIOError:
            return None
        return message

    def _write(self, pieces: list[Any]) -> bool:
        """Send pieces, and remove from the list what was sent; return True if that is everything."""
        try:
            sent = self.sock.sendmsg(pieces[:_MOST_VECTORS], (), AT_ONCE)
        except BlockingIOError:
            return False
        for number, piece in enumerate(pieces):
            if sent < len(piece):
                pieces[: number + 1] = [memoryview(piece)[sent:]]
                return False
            sent -= len(piece)
        return True

    def _read(self, flags: int) -> None:
        if self._long is not None:
            count = self._receive_into(self._long[self._filled :], flags)
            self._filled += count
        else:
            count = self._receive_into(self._buffer[self._end :], flags)
            self._end += count
        if count == 0:
            raise ConnectionError("the other end has closed the stream")

    def _receive_into(self, place: memoryview, flags: int) -> int:
        return self.sock.recv_into(place, 0, flags)

    def _next(self) -> Frames | None:
        """Return a message whose bytes have all been read, None if there is none."""
        if self._long is not None:
            if self._filled < len(self._long):
                return None
            frame, self._long = self._long, None
            if self._add(frame.toreadonly(), self._more):
                return self._taken()
        while self._end - self._begin >= _LENGTH.size:
            (word,) = _LENGTH.unpack_from(self._buffer, self._begin)
            size, more = word & ~_MORE, bool(word & _MORE)
            if size > wire.MAX_FRAME_BYTES:
                raise WireError(f"a stream with a frame of {size} bytes")
            if size > SHORT_BYTES:
                self._begin_long(size, more)
                return None if self._filled < size else self._next()
            begin, end = self._begin + _LENGTH.size, self._begin + _LENGTH.size + size
            if end > self._end:
                break
            self._begin = end
            if self._add(bytes(self._buffer[begin:end]), more):
                return self._taken()
        self._move_to_front()
        return None

    def _begin_long(self, size: int, more: bool) -> None:
        begin = self._begin + _LENGTH.size
        self._long, self._more = np.empty(size, np.uint8).data, more
        self._filled = min(size, self._end - begin)
        self._long[: self._filled] = self._buffer[begin : begin + self._filled]
        self._begin = begin + self._filled

    def _move_to_front(self) -> None:
        """Make room for a whole short frame behind the bytes that are left."""
        left = self._end - self._begin
        if left and self._begin:
            self._buffer[:left] = bytes(self._buffer[self._begin : self._end])
        self._begin, self._end = 0, left

    def _add(self, frame: wire.Buffer, more: bool) -> bool:
        """Add a frame to the message; return True if that is its last."""
        self._frames.append(frame)
        if more and len(self._frames) >= _MOST_FRAMES:
            raise WireError(f"a stream with a message of more than {_MOST_FRAMES} frames")
        return not more

    def _taken(self) -> Frames:
        frames, self._frames = self._frames, []
        return frames
