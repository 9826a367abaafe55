"""Python's tracebacks in the output of a program: which exceptions led to which, the first one first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

HEADER = "Traceback (most recent call last):"
DIRECT = "The above exception was the direct cause"
DURING = "During handling of the above exception"
FRAME = re.compile(r'\s*File "(.+)", line (\d+)(?:,? in (.+))?')
RAISED = re.compile(r"([A-Za-z_][\w.]*)(?:: ?(.*))?$")
GROUP = re.compile(r"^[ |+-]*\| ")  # what an exception group puts before its lines
LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen ", "/clusterctl/runtime/")
STACKS = re.compile(r"(?:Current t|T)hread 0x[0-9a-f]+ .*\(most recent call first\)")  # as faulthandler writes them
SHOWN_LINES = 20
LAST_LINES = 10  # where there is nothing to be seen in them
BEFORE = 2  # lines of what led there
CLEANING = ("__exit__", "__aexit__", "__del__")
MISTAKES = ("NameError", "AttributeError", "UnboundLocalError")  # in a handler: it hides what it should have told


@dataclass(frozen=True)
class Frame:
    """A call: its file, line and function, and its line of source, where the traceback shows it."""

    file: str
    line: str
    function: str = ""
    source: str = ""

    @property
    def is_own(self) -> bool:
        """Whether the program itself, and no library, is there."""
        return not any(part in self.file for part in LIBRARIES)

    @property
    def place(self) -> str:
        return f"{self.file.rpartition('/')[2]}:{self.line}"


@dataclass(frozen=True)
class Raised:
    """An exception: its dotted class, the first line of its message, its frames, the innermost last.

    `direct` says that the program raised it because of the one before. `begin` is the line where its traceback begins.
    """

    name: str
    message: str
    frames: tuple[Frame, ...] = ()
    direct: bool = False
    begin: int = 0

    @property
    def where(self) -> str | None:
        """`file.py:line` of the program's own last frame, else of the last one."""
        own = [frame for frame in self.frames if frame.is_own] or self.frames[-1:]
        return own[-1].place if own else None

    def tells_of(self, former: Raised) -> bool:
        """Whether it only says in other words, or hides, what `former` was: raised by who had caught that one, a
        mistake there, or met while cleaning up. Otherwise what the program tried in place of that has failed by itself.
        """
        cleaning = any(frame.function in CLEANING for frame in self.frames)
        if self.direct or cleaning or not self.frames or not former.frames:
            return self.direct or cleaning
        caught, raising = former.frames[0], self.frames[-1]
        same = (caught.file, caught.function) == (raising.file, raising.function)
        return same and (raising.source.startswith("raise") or self.name in MISTAKES)


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


def excerpt(lines: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """The lines, with their times, that are worth to be shown: the last exceptions or stacks, else the last lines."""
    texts = [text for _, text in lines]
    chain = raised(texts)
    stacks = [at for at, text in enumerate(texts) if STACKS.match(text)]
    if not chain and not stacks:
        return list(lines[-LAST_LINES:])
    begin = chain[0].begin if chain else stacks[0]
    kept = fold(lines[max(0, begin - BEFORE) :])
    if len(kept) <= SHOWN_LINES:
        return kept
    first, last = kept[: SHOWN_LINES // 3], kept[-2 * SHOWN_LINES // 3 :]
    return [*first, (last[0][0], "  ..."), *last]


def fold(lines: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Lines with their times, without those of calls inside libraries, where the program's own calls are shown too."""
    if not any((frame := FRAME.match(line)) and _frame(frame).is_own for _, line in lines):
        return list(lines)
    kept: list[tuple[float, str]] = []
    inside, hidden = False, 0
    for t, line in lines:
        frame = FRAME.match(line)
        inside = not _frame(frame).is_own if frame else inside and line[:1].isspace()
        if inside:
            hidden += frame is not None
            continue
        if hidden:
            kept.append((t, f"  ... {hidden} call{'s' * (hidden > 1)} inside libraries"))
            hidden = 0
        kept.append((t, line))
    return kept


def _frame(found: re.Match[str]) -> Frame:
    return Frame(found[1], found[2], found[3] or "")


def _block(lines: Sequence[str], start: int, end: int) -> tuple[int, Raised | None]:
    """(where its exception stands, the exception) of the traceback that begins at `start`."""
    prefix = lines[start][: lines[start].index(HEADER)]
    frames: list[Frame] = []
    for at, line in _plain(lines, start + 1, end, prefix):
        found = FRAME.match(line)
        if found:
            frames.append(_frame(found))
        elif line[:1].isspace() and frames and not frames[-1].source:
            frames[-1] = replace(frames[-1], source=line.strip())
        elif line and not line[0].isspace():
            told = RAISED.match(line)
            return at, Raised(told[1], (told[2] or "").strip(), tuple(frames), begin=start) if told else None
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
        frames = [(begin, frame) for begin in range(max(0, at - 4), at) if (frame := FRAME.match(lines[begin]))]
        if frames and found[1].endswith("Error"):
            begin, frame = frames[-1]
            return [Raised(found[1], (found[2] or "").strip(), (_frame(frame),), begin=begin)]
    return []
