"""Keys that are pressed while a screen is shown."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator

NAMES = {
    **dict.fromkeys((b"\x1b[A", b"\x1bOA"), "up"),
    **dict.fromkeys((b"\x1b[B", b"\x1bOB"), "down"),
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    **dict.fromkeys((b"\x1b[H", b"\x1b[1~", b"\x1bOH"), "home"),
    **dict.fromkeys((b"\x1b[F", b"\x1b[4~", b"\x1bOF"), "end"),
    b"\x1b": "escape",
}
MOST_BYTES = 64
Pressed = Callable[[], list[str]]


def names_of(data: bytes) -> list[str]:
    """Return the names of the keys in what a terminal sent; unknown sequences are dropped."""
    names = []
    while data:
        length = _length(data)
        key, data = data[:length], data[length:]
        if key in NAMES:
            names.append(NAMES[key])
        elif len(key) == 1 and 0x20 <= key[0] < 0x7F:
            names.append(key.decode())
    return names


def _length(data: bytes) -> int:
    """Return the length of the first key: an escape sequence ends with its first letter or tilde."""
    if data[:1] != b"\x1b" or data[1:2] not in (b"[", b"O"):
        return 1
    for at in range(2, len(data)):
        if 0x40 <= data[at] < 0x7F:
            return at + 1
    return len(data)


@contextlib.contextmanager
def keys(*, wanted: bool) -> Iterator[Pressed]:
    """Yield a function that returns the keys pressed since its last call; none unless `wanted` and on a terminal."""
    if not wanted or not sys.stdin.isatty():
        yield list
        return

    fd = sys.stdin.fileno()

    def pressed() -> list[str]:
        return names_of(os.read(fd, MOST_BYTES)) if select.select([fd], [], [], 0)[0] else []

    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
