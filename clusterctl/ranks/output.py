"""The output of a rank's trainer, which mpirun prints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from clusterctl.common.files import write_all

READ_BYTES = 1 << 20


class Output:
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
        new = self._read()
        data = self._rest + new
        whole = len(data) if final or not new else data.rfind(b"\n") + 1
        self._rest = data[whole:]
        try:
            write_all(self._fd, data[:whole])
        except OSError:
            self._fd = -1

    def _read(self) -> bytes:
        new = b""
        try:
            self._file = self._file or self._open()
            while True:
                is_old = os.fstat(self._file.fileno()).st_ino != self._log.stat().st_ino
                while piece := self._file.read(READ_BYTES):
                    new += piece
                if not is_old:
                    break
                self._file.close()
                self._file = self._open()
        except OSError:  # it has printed nothing yet, or the log is just being rotated
            return new
        return new

    def _open(self) -> BinaryIO:
        return self._log.open("rb", buffering=0)
