"""The output of a rank's trainer, which mpirun prints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from clusterctl.common.files import write_all

READ_BYTES = 1 << 20


class Output:
    """Passes on what is added to a log, also after it was rotated."""

    def __init__(self, log: Path, fd: int = 1) -> None:
        self._log = log
        self._fd = fd
        self._file: BinaryIO | None = None

    def pass_on(self) -> None:
        """Write what is new. It is the end of it if nobody reads."""
        if self._fd < 0:
            return
        try:
            self._pass_on()
        except FileNotFoundError:  # it has printed nothing yet, or is just being rotated
            return
        except OSError:
            self._fd = -1

    def _pass_on(self) -> None:
        self._file = self._file or self._open()
        while True:
            is_old = os.fstat(self._file.fileno()).st_ino != self._log.stat().st_ino
            while data := self._file.read(READ_BYTES):
                write_all(self._fd, data)
            if not is_old:
                return
            self._file.close()
            self._file = self._open()

    def _open(self) -> BinaryIO:
        return self._log.open("rb", buffering=0)
