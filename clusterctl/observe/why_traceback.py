"""Python's tracebacks in the output of a program: which exceptions led to which, the first one first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

HEADER = "Traceback (most recent call last):"
DIRECT = "The above exception was the direct cause"
DURING = "During handling of the above exception"
FRAME = re.compile(r'\s*File "(.+)", line (\d+)')
RAISED = re.compile(r"([A-Za-z_][\w.]*)(?:: ?(.*))?$")
GROUP = re.compile(r"^[ |+-]*\| ")  # what an exception group puts before its lines
LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen ", "/clusterctl/runtime/")


@dataclass(frozen=True)
class Raised:
    """An exception: its dotted class, the first line of its message, `file.py:line` of the program's own last frame.

    `direct` says that the program raised it because of the one before.
    """

    name: str
    message: str
    where: str | None = None
    direct: bool = False


def raised(lines: Sequence[str]) -> list[Raised]:
    """The last exceptions that led to each other; none when there is no traceback."""
    chain: list[Raised] = []
    starts = [i for i, line in enumerate(lines) if HEADER in line]
    ends = [*starts[1:], len(lines)][: len(starts)]
    linked = ""
    for start, end in zip(starts, ends, strict=True):
        at, block = _block(lines, start, end)
        if block is None:
            continue
        chain = [*chain, replace(block, direct=linked == DIRECT)] if linked else [block]
        linked = _link(lines[at:end])
    return chain or _without_header(lines)


def _block(lines: Sequence[str], start: int, end: int) -> tuple[int, Raised | None]:
    """(where its exception stands, the exception) of the traceback that begins at `start`."""
    prefix = lines[start][: lines[start].index(HEADER)]
    where = None
    for at, line in _plain(lines, start + 1, end, prefix):
        frame = FRAME.match(line)
        if frame:
            own = not any(part in frame[1] for part in LIBRARIES)
            where = f"{frame[1].rpartition('/')[2]}:{frame[2]}" if own or where is None else where
        elif line and not line[0].isspace():
            found = RAISED.match(line)
            return at, Raised(found[1], (found[2] or "").strip(), where) if found else None
    return end, None


def _plain(lines: Sequence[str], start: int, end: int, prefix: str) -> Iterator[tuple[int, str]]:
    """The lines without what a launcher or an exception group puts before each of them."""
    for at in range(start, end):
        line = lines[at]
        if prefix and line.startswith(prefix):
            line = line[len(prefix) :]
        elif prefix.strip():
            line = GROUP.sub("", line)
        yield at, line


def _link(after: Sequence[str]) -> str:
    """Whether what follows an exception says that it led to another."""
    for words in (DIRECT, DURING):
        if any(words in line for line in after):
            return words
    return ""


def _without_header(lines: Sequence[str]) -> list[Raised]:
    """What cannot even be compiled has no traceback: a file and a line, the source, the error."""
    for at in range(len(lines) - 1, 0, -1):
        found = RAISED.match(lines[at])
        if not found or not lines[at - 1][:1].isspace():
            continue
        frames = [frame for line in lines[max(0, at - 4) : at] if (frame := FRAME.match(line))]
        if frames and found[1].endswith("Error"):
            where = f"{frames[-1][1].rpartition('/')[2]}:{frames[-1][2]}"
            return [Raised(found[1], (found[2] or "").strip(), where)]
    return []
