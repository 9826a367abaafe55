"""Programs on a terminal of their own."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

FREE_OF_COLOUR = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")  # variables of whoever runs the tests


class Shown(NamedTuple):
    """The exit code of a program and everything that it wrote to the terminal."""

    code: int
    text: str


class Terminal:
    """A program on a new terminal, TERM=xterm unless `environment` has another one. A context manager."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        *,
        columns: int = 120,
        lines: int = 40,
        keys: bool = True,
    ) -> None:
        self._terminal, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        inherited = {name: value for name, value in os.environ.items() if name not in FREE_OF_COLOUR}
        self.process = subprocess.Popen(
            argv,
            env={**inherited, "TERM": "xterm", **environment},
            stdin=other if keys else subprocess.DEVNULL,
            stdout=other,
            stderr=other,
            start_new_session=True,
            preexec_fn=_take_terminal if keys else None,  # noqa: PLW1509 - so that Ctrl-C reaches it
        )
        os.close(other)
        self._text = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)

    def press(self, keys: str) -> None:
        """Type keys; `\x03` is Ctrl-C."""
        os.write(self._terminal, keys.encode())

    def expect(self, text: str, timeout_s: float = 180) -> str:
        """Wait until the program writes `text`; return what it has written since the last call, up to there."""
        deadline = time.monotonic() + timeout_s
        while text.encode() not in self._text:
            assert self._read(deadline), f"{text!r} did not come: {self._text[-4000:]!r}"
        before, _, self._text = self._text.partition(text.encode())
        return before.decode(errors="replace") + text

    def wait(self, timeout_s: float = 180) -> Shown:
        """Wait for the end of the program; return its exit code and what it has written since `expect`."""
        deadline = time.monotonic() + timeout_s
        while self._read(deadline):
            pass
        return Shown(self.process.wait(timeout_s), self._text.decode(errors="replace").replace("\r\n", "\n"))

    def _read(self, deadline: float) -> bool:
        """Read some more. Return False if the program has closed the terminal."""
        assert select.select([self._terminal], [], [], max(0.0, deadline - time.monotonic()))[0], self._text
        try:
            piece = os.read(self._terminal, 1 << 16)
        except OSError:  # EIO: the program has closed it
            piece = b""
        self._text += piece
        return bool(piece)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def run_on_terminal(
    argv: Sequence[str], environment: Mapping[str, str], *, columns: int = 120, timeout_s: float = 180
) -> Shown:
    """Run a program with its output on a new terminal, and no input."""
    with Terminal(argv, environment, columns=columns, keys=False) as terminal:
        return terminal.wait(timeout_s)
