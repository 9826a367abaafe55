"""The output of a rank's trainer, which mpirun prints."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from clusterctl.common.files import write_all

READ_BYTES = 1 << 20
LONGEST_LINE = 64 << 10


class LogForwarder:
    """Passes on what is added to a log, also after it was rotated.

    Whole lines, if they are complete by the next look: mpirun mixes what ranks write.
    """

    def __init__(self, log: Path, fd: int = 1) -> None:
        self._log = log
        self._fd = fd
        self._file: BinaryIO | None = None
        self._rest = b""

    def pass_on(self, *, final: bool = False) -> None:
        """Write what is new; with `final` to its end. If nobody reads, nothing is written any more."""
        if self._fd < 0:
            return
        count = 0
        try:
            for piece in self._pieces():
                self._take(piece)
                count += len(piece)
            if final or not count:
                write_all(self._fd, self._rest)
                self._rest = b""
        except OSError:
            self._fd = -1

    def _take(self, piece: bytes) -> None:
        """Write whole lines. The rest is held back until it is complete, or long."""
        data = self._rest + piece
        whole = data.rfind(b"\n") + 1
        if len(data) - whole > LONGEST_LINE:
            whole = len(data)
        self._rest = data[whole:]
        write_all(self._fd, data[:whole])

    def _pieces(self) -> Iterator[bytes]:
        """Yield what was added to the log; nothing more while it does not exist, or is just being rotated."""
        with contextlib.suppress(OSError):
            self._file = self._file or self._open()
            while True:
                is_old = os.fstat(self._file.fileno()).st_ino != self._log.stat().st_ino
                while piece := self._file.read(READ_BYTES):
                    yield piece
                if not is_old:
                    break
                self._file.close()
                self._file = self._open()

    def _open(self) -> BinaryIO:
        return self._log.open("rb", buffering=0)
