"""A carrier over a shared directory: commands for a node, which the first rank on it runs.

A call is a directory: `script` for /bin/sh, `in-00000000` and further pieces of its input, and from the node `out-`,
`err-` and `exit`. An empty piece is the end of the input. Every file is renamed into place, and removed by its reader.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO

from clusterctl.common.files import write_all
from clusterctl.ranks.errors import RankError, say
from clusterctl.ranks.private import PrivateDirectory, open_shared

SCRIPT, EXIT = "script", "exit"
PIECE_BYTES = 1 << 20
MOST_UNREAD = 64  # pieces of one stream
READS_PER_TURN = 8
QUICK_S, SLOW_S = 0.01, 0.1  # between looks at a call, while something happens and after a while
NO_SUCH_RUN, INTERRUPTED = 3, 143


class OutgoingPieces:
    """Pieces of one stream of a call."""

    def __init__(self, call: PrivateDirectory, name: str) -> None:
        self._call, self._name = call, name
        self._count = 0

    def put(self, piece: bytes) -> None:
        self._call.write(f"{self._name}-{self._count:08d}", piece)
        self._count += 1

    def has_room(self, names: Collection[str]) -> bool:
        """Return True if the reader has kept up; `names` are those of the call's files."""
        return sum(name.startswith(f"{self._name}-") for name in names) < MOST_UNREAD


class IncomingPieces:
    """Pieces of one stream of a call, from its other side."""

    def __init__(self, call: PrivateDirectory, name: str) -> None:
        self._call, self._name = call, name
        self._count = 0

    def take(self, names: Collection[str]) -> Iterator[bytes]:
        """Yield the pieces that have arrived, in order. `names` are those of the call's files."""
        while (name := f"{self._name}-{self._count:08d}") in names:
            piece = self._call.read(name)
            self._call.unlink(name)
            self._count += 1
            yield piece


def reach(calls: Path, script: str) -> int:
    """Run a script on the node of `calls` with the streams of this process, and return its exit code.

    Raises RankError if another account could have changed that directory, or can.
    """
    name = os.urandom(8).hex()
    try:
        with open_shared(calls.parent) as above, above.open(calls.name) as here:
            signal.signal(signal.SIGTERM, _interrupt)
            with here.make(name) as call:
                code = _run(call, script)
            here.remove(name)
            return code
    except FileNotFoundError:  # the first rank has removed it
        return _has_ended()


def _run(call: PrivateDirectory, script: str) -> int:
    call.write(SCRIPT, script.encode(errors="surrogateescape"))
    ours = OutgoingPieces(call, "in")
    try:
        return _attend(call, ours)
    except (KeyboardInterrupt, BrokenPipeError):
        ours.put(b"")  # as over SSH, whose connection would be closed
        return INTERRUPTED


def _has_ended() -> int:
    os.write(2, b"the run is not under way: its ranks have ended\n")
    return NO_SUCH_RUN


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _attend(call: PrivateDirectory, ours: OutgoingPieces) -> int:
    outputs = {1: IncomingPieces(call, "out"), 2: IncomingPieces(call, "err")}
    is_open, pause_s = True, QUICK_S
    while True:
        names = call.names()
        is_over = EXIT in names
        if is_over:
            names = call.names()  # all that came before the exit code
        listens = is_open and ours.has_room(names)
        if select.select([0] if listens else [], [], [], pause_s)[0]:
            piece = os.read(0, PIECE_BYTES)
            ours.put(piece)
            is_open, pause_s = bool(piece), QUICK_S
        for fd, output in outputs.items():
            for piece in output.take(names):
                write_all(fd, piece)
                pause_s = QUICK_S
        if is_over:
            return int(call.read(EXIT))
        pause_s = min(SLOW_S, 1.2 * pause_s)


class Call:
    """A script that runs on this node, with its streams in the files of a call."""

    def __init__(self, call: PrivateDirectory, environ: Mapping[str, str]) -> None:
        self._call = call
        script = call.read(SCRIPT).decode(errors="surrogateescape")
        call.unlink(SCRIPT)
        self._popen = subprocess.Popen(
            ["/bin/sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
            cwd="/",
            start_new_session=True,
        )
        self._stdin, out, err = (_fd(end) for end in (self._popen.stdin, self._popen.stdout, self._popen.stderr))
        self._input = IncomingPieces(call, "in")
        self._outputs = {out: OutgoingPieces(call, "out"), err: OutgoingPieces(call, "err")}
        self._unsent = bytearray()
        self._input_ended = False

    def turn(self) -> bool:
        """Pass on what has arrived on either side. Return True once the script has ended and all is passed on."""
        code = self._popen.poll()  # before the last look: what it wrote is in the pipes by then
        names = self._call.names()
        self._feed(names)
        for fd, output in self._outputs.items():
            if output.has_room(names) or code is not None:
                _drain(fd, output)
        if code is not None:
            self._call.write(EXIT, str(code if code >= 0 else 128 - code).encode())
            self.close()
        return code is not None

    def _feed(self, names: Collection[str]) -> None:
        if len(self._unsent) < PIECE_BYTES:
            for piece in self._input.take(names):
                self._unsent += piece
                self._input_ended = not piece
        try:
            while self._unsent:
                del self._unsent[: os.write(self._stdin, self._unsent[:PIECE_BYTES])]
        except BlockingIOError:
            return
        except OSError:  # it does not read any more
            self._unsent.clear()
        if self._input_ended and self._popen.stdin is not None:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()

    def close(self) -> None:
        """Close our ends. As over SSH, the script sees that, and ends if it likes."""
        for stream in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._call.close()


def _drain(fd: int, output: OutgoingPieces) -> None:
    for _ in range(READS_PER_TURN):
        try:
            piece = os.read(fd, PIECE_BYTES)
        except BlockingIOError:
            return
        if not piece:
            return
        output.put(piece)


def _fd(stream: IO[bytes] | None) -> int:
    assert stream is not None
    os.set_blocking(stream.fileno(), False)
    return stream.fileno()


class CallServer:
    """Runs the calls of this node: those of this account. `environ` is what their processes get."""

    def __init__(self, calls: Path, environ: Mapping[str, str]) -> None:
        self._path = calls
        self._environ = environ
        self._directory: PrivateDirectory | None = None
        self._live: dict[str, Call] = {}
        self._refused: set[str] = set()

    def serve(self) -> bool:
        """Do what there is to do now. Return True while a call is under way. Raises RankError, see `open_shared`."""
        with contextlib.suppress(FileNotFoundError):  # the other side has left
            if self._directory is None:
                with open_shared(self._path.parent) as above:
                    self._directory = above.open(self._path.name)
            for name in self._directory.names().difference(self._live, self._refused):
                self._begin(self._directory, name)
        for name, call in list(self._live.items()):
            if self._is_over(call):
                del self._live[name]
        return bool(self._live)

    def _begin(self, directory: PrivateDirectory, name: str) -> None:
        """Begin a call once its script is there. One that another account may have written is reported, and not run."""
        try:
            call = directory.open(name)
            if SCRIPT in call.names():
                self._live[name] = Call(call, self._environ)
            else:
                call.close()
        except RankError as exc:
            self._refused.add(name)
            say(f"refused a command: {exc}", exc.hint)

    @staticmethod
    def _is_over(call: Call) -> bool:
        try:
            return call.turn()
        except FileNotFoundError:  # the other side has left
            call.close()
            return True

    def close(self) -> None:
        for call in self._live.values():
            call.close()
        self._live.clear()
        if self._directory is not None:
            self._directory.close()
