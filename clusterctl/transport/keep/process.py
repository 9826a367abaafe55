"""A running command behind the helper: its streams are frames on a socket."""

from __future__ import annotations

import contextlib
import select
import socket
import threading

from clusterctl.common.safe_json import parse
from clusterctl.errors import ClusterctlError
from clusterctl.transport import failures
from clusterctl.transport.keep import frames
from clusterctl.transport.keep.frames import Frames
from clusterctl.transport.keep.values import error_from_json
from clusterctl.transport.remote_process import SLICE_S, Deadline, ProcessOnFiles, Take

ENDING_S = 10.0  # the helper closes its end of the input just before it reports why
PIECE_BYTES = 32 * 1024  # so little that a socket that can be written to takes all of it


class KeptProcess(ProcessOnFiles):
    """A command that the helper has started on a node, or with `resumed` an agent that it has kept.

    One thread may write while another reads. The helper ends the command's streams when this socket closes.
    """

    def __init__(
        self,
        sock: socket.socket,
        received: Frames,
        *,
        resumed: bool,
        label: str,
        where: str,
        what: str,
        stderr_limit: int,
    ) -> None:
        super().__init__(label=label, where=where, what=what, stderr_limit=stderr_limit)
        self.resumed = resumed
        self._sock, self._received = sock, received
        self._ahead = bytearray()
        self._exit_code: int | None = None
        self._error: ClusterctlError | None = None
        self._reading, self._writing = threading.Lock(), threading.Lock()
        self._output_ended = False

    def close_stdin(self) -> None:
        with contextlib.suppress(OSError, ClusterctlError), self._using(), self._writing:
            self._sock.sendall(frames.frame(frames.INPUT_ENDS))

    def wait(self, deadline_s: float | None = None) -> int:
        deadline = Deadline(deadline_s)
        with self._using(), self._reading:
            while self._exit_code is None:
                self._await_frames(self._to_buffers)
                self._check(deadline)
            return self._exit_code

    def keep(self, beat: bytes, every_s: float) -> None:
        message = {"beat": beat.decode(), "every_s": every_s}
        with contextlib.suppress(OSError, ClusterctlError), self._using(), self._writing:
            self._sock.sendall(frames.json_frame(frames.KEEP, message))
        self.close()

    def close(self) -> None:
        with self._lock:
            was_closed, self._closed = self._closed, True
            self._close_unused()
        if not was_closed:
            self.on_close()

    def abort(self) -> None:
        """Wake every thread that waits, which raises UnreachableError."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _send(self, view: memoryview) -> int:
        piece = view[:PIECE_BYTES]
        with self._using(), self._writing:
            if not self._can(select.POLLOUT):
                return 0
            try:
                self._sock.sendall(frames.frame(frames.INPUT, piece))
            except OSError as exc:
                raise self._unwritable() from exc
        return len(piece)

    def _unwritable(self) -> ClusterctlError:
        """Return the error of the connection if there is one; else the command ended before it read its input."""
        deadline = Deadline(ENDING_S)
        with contextlib.suppress(ClusterctlError), self._reading:
            while self._exit_code is None and not deadline.passed:
                self._await_frames(self._to_buffers)
        if self._exit_code is None:
            return self._error or self.lost()
        return failures.input_closed(self._label, self._where, self._what)

    def _receive(self, size: int) -> bytes | None:
        with self._using(), self._reading:
            if not self._ahead and not self._output_ended:
                self._await_frames(self._to_buffers)
            piece = bytes(self._ahead[:size])
            del self._ahead[:size]
            return piece if piece or self._output_ended else None

    def _pump(self, take: Take, deadline: Deadline) -> None:
        with self._using(), self._reading:
            if early := self._stderr.take():
                take(early, True)
            if early := bytes(self._buffer + self._ahead):
                self._buffer, self._ahead = bytearray(), bytearray()
                take(early, False)
            while not self._output_ended:
                self._await_frames(take)
                self._check(deadline)

    def _to_buffers(self, piece: bytes, is_error: bool) -> None:
        if is_error:
            self._stderr.add(piece)
        else:
            self._ahead += piece

    def _await_frames(self, take: Take) -> None:
        """Wait a slice for frames, and take what they bring. Raises the error that they bring."""
        if self._error is not None:
            raise self._error
        has_ended = False
        try:
            if not self._take_arrived(take):  # some may have come with the answer to the request
                if not self._can(select.POLLIN):
                    return
                has_ended = not self._received.fill()
                self._take_arrived(take)
        except OSError as exc:
            raise self.lost() from exc
        if has_ended and self._exit_code is None:
            self._error = self._error or self.lost()
        if self._error is not None:
            raise self._error

    def _take_arrived(self, take: Take) -> bool:
        """Process the frames that have been read. Return False if there are none."""
        arrived = list(self._received.arrived())
        for kind, data in arrived:
            self._take_frame(kind, data, take)
        return bool(arrived)

    def _take_frame(self, kind: bytes, data: bytes, take: Take) -> None:
        if kind in (frames.OUTPUT, frames.ERRORS):
            take(data, kind == frames.ERRORS)
        elif kind == frames.OUTPUT_ENDS:
            self._output_ended = True
        elif kind == frames.EXIT:
            self._output_ended, self._exit_code = True, int(data)
        elif kind == frames.FAILURE:
            self._error = error_from_json(parse(data), self._label)

    def _can(self, event: int, timeout_s: float = SLICE_S) -> bool:
        poller = select.poll()
        poller.register(self._sock, event)
        return bool(poller.poll(timeout_s * 1000))

    def _close_unused(self) -> None:
        if self._closed:
            self.abort()
            if not self._users:
                self._sock.close()
