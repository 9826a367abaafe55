"""Python tracebacks in the output of a program: the chain of exceptions, first one first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
HEADER = "Traceback (most recent call last):"
DIRECT = "The above exception was the direct cause"
DURING = "During handling of the above exception"
FRAME = re.compile(r'\s*File "(.+)", line (\d+)(?:,? in (.+))?')
RAISED = re.compile(r"([A-Za-z_][\w.]*)(?:: ?(.*))?$")
GROUP = re.compile(r"^[ |+-]*\| ")  # the prefix of lines in an exception group
LIBRARIES = (
    *("/site-packages/", "/dist-packages/", "/lib/python", "/lib64/python", ".egg/", ".zip/"),
    *("/clusterctl/runtime/", "/clusterctl/torch/", "/clusterctl/agent/"),
)
#: Compiled code, whose frames Cython and others name by the file that it was built from.
COMPILED = (".pxi", ".pyx", ".pxd", ".c", ".cc", ".cpp", ".cxx", ".cu", ".h", ".hpp", ".rs", ".f90")
TYPED_IN = ("<stdin>", "<string>")  # other names in brackets are of code that a library made
STACKS = re.compile(r"(?:Current t|T)hread 0x[0-9a-f]+ .*\(most recent call first\)")  # as faulthandler writes them
#: How Python and logging announce an exception that they ignored, or a warning.
IGNORED = re.compile(
    r"Exception ignored (?:in|on|while)\b|Error in atexit\._run_exitfuncs:|"
    r"(?P<logging>--- Logging error ---)|(?P<warning>\S+:\d+: \w*Warning: )"
)
SOURCE = re.compile(r"  \S")
END_OF_LOGGING_ERROR = "Arguments: "
#: How Python and asyncio announce an exception that ended only a thread or a task.
OF_A_PART = re.compile(
    r"Exception in thread |(?:.*\b)?Task exception was never retrieved|(?:.*\b)?Exception in callback "
)
ANNOUNCED_WITHIN = 3  # lines
REST_LINES = 20
SHOWN_LINES = 20
LAST_LINES = 10  # of output without a traceback
BEFORE = 2  # lines of context before a traceback
AGAIN = re.compile(r"raise [a-z_]\w*$")  # of an exception caught before
CLEANING = ("__exit__", "__aexit__", "__del__")
MISTAKES = (
    "NameError",
    "AttributeError",
    "UnboundLocalError",
)  # in a handler: they hide the exception it should have reported


@dataclass(frozen=True)
class TracebackFrame:
    """A call: its file, line and function, and its line of source if the traceback shows it."""

    file: str
    line: str
    function: str = ""
    source: str = ""

    @property
    def is_own(self) -> bool:
        """True if the code is the program's own, not a library's."""
        return self.is_readable and not any(part in self.file for part in LIBRARIES)

    @property
    def is_readable(self) -> bool:
        """True if it is a line of Python that somebody wrote."""
        made = self.file.startswith("<") and self.file not in TYPED_IN
        return not (made or self.file.endswith(COMPILED))

    @property
    def location(self) -> str:
        return f"{self.file.rpartition('/')[2]}:{self.line}"


@dataclass(frozen=True)
class RaisedException:
    """An exception: its dotted class, the first line of its message, and its frames, innermost last.

    `direct`: it was raised `from` the one before. `begin` is the index of the line where its traceback starts, `end` of
    the line that names it. `rest` are the lines that follow, up to an empty one, if it is the last one in the output:
    most often of its message.
    """

    name: str
    message: str
    frames: tuple[TracebackFrame, ...] = ()
    direct: bool = False
    begin: int = 0
    end: int = 0
    rest: tuple[str, ...] = ()

    @property
    def has_own(self) -> bool:
        """True if a call in the program's own code is among the frames."""
        return any(frame.is_own for frame in self.frames)

    @property
    def where(self) -> str | None:
        """`file.py:line` of the innermost frame in the program's own code, or else of the innermost frame."""
        own = [frame for frame in self.frames if frame.is_own]
        readable = own or [frame for frame in self.frames if frame.is_readable] or self.frames[-1:]
        return readable[-1].location if readable else None

    def restates(self, former: RaisedException) -> bool:
        """Return True if it only rephrases or hides `former`: it was raised by the handler of that one, by a mistake in
        the handler, or during clean-up. Otherwise a fallback of the program failed on its own.
        """
        if not self.direct and any(AGAIN.match(frame.source) for frame in self.frames):
            return False
        cleaning = any(frame.function in CLEANING for frame in self.frames)
        if self.direct or cleaning or not self.frames or not former.frames:
            return self.direct or cleaning
        caught, raising = former.frames[0], self.frames[-1]
        same = (caught.file, caught.function) == (raising.file, raising.function)
        return same and (raising.source.startswith("raise") or self.name in MISTAKES)


def without_stacks(lines: Sequence[str]) -> list[str]:
    """Return the lines without stacks that were written while the process went on, or as it crashed."""
    kept: list[str] = []
    inside = False
    for line in lines:
        inside = STACKS.match(line) is not None or (inside and (not line.strip() or FRAME.match(line) is not None))
        if not inside:
            kept.append(line)
    return kept


def crashed_at(lines: Sequence[str]) -> str | None:
    """`file.py:line` in the program's own code where it crashed, if faulthandler wrote that."""
    fatal = next((at for at, line in enumerate(lines) if line.startswith("Fatal Python error:")), len(lines))
    current = next((at for at in range(fatal, len(lines)) if lines[at].startswith("Current thread ")), len(lines))
    frames = [_frame(match) for match in takewhile(bool, map(FRAME.match, lines[current + 1 :])) if match]
    return RaisedException("", "", tuple(reversed(frames))).where


def raised(lines: Sequence[str], uncaught: str | None = None) -> list[RaisedException]:
    """Return the last chain of exceptions that may have ended the process, or an empty list.

    The exception of a thread or a task counts only if there is no other. `uncaught` is the class of the exception that
    ended the process, if known; exceptions of other classes count only if none of this class was printed. For an
    exception group, the exceptions in it count.
    """
    uncaught = None if (uncaught or "").endswith("Group") else uncaught
    lines = without_ignored(lines)
    main: list[RaisedException] = []
    of_parts: list[RaisedException] = []
    for chain in _chains(lines):
        announced = lines[max(0, chain[0].begin - ANNOUNCED_WITHIN) : chain[0].begin]
        if any(OF_A_PART.match(line) for line in announced):
            of_parts = chain
        elif not uncaught or uncaught != _ended_by(main) or uncaught == _ended_by(chain):
            main = chain
    return main or of_parts or _without_header(lines)


def _ended_by(chain: Sequence[RaisedException]) -> str:
    return chain[-1].name.rpartition(".")[2] if chain else ""


def without_ignored(lines: Sequence[str]) -> Sequence[str]:
    """Return the lines with "" for those about exceptions that Python or logging ignored, unless nothing else is left.

    They did not end the process.
    """
    kept = list(lines)
    for at, line in enumerate(lines):
        ignored = IGNORED.match(line)
        if ignored and kept[at]:
            end = _end_of_ignored(lines, at, ignored)
            kept[at : end + 1] = [""] * (end + 1 - at)
    return kept if any(line.strip() for line in kept) else lines


def _end_of_ignored(lines: Sequence[str], at: int, announced: re.Match[str]) -> int:
    """Return the index of the last line about the ignored exception, or the warning, that is announced at `at`."""
    if announced["warning"]:
        return at + 1 if at + 1 < len(lines) and SOURCE.match(lines[at + 1]) else at
    if announced["logging"]:
        ends = (i for i in range(at, len(lines)) if lines[i].startswith(END_OF_LOGGING_ERROR))
        return next(ends, at)
    header = next((i for i in range(at + 1, min(at + 1 + ANNOUNCED_WITHIN, len(lines))) if HEADER in lines[i]), None)
    if header is not None:
        return min(_block(lines, header, len(lines))[0], len(lines) - 1)
    return at + 1 if at + 1 < len(lines) and RAISED.match(lines[at + 1]) else at


def _chains(lines: Sequence[str]) -> list[list[RaisedException]]:
    """Return every chain of exceptions in the output."""
    chains: list[list[RaisedException]] = []
    starts = [i for i, line in enumerate(lines) if HEADER in line]
    ends = [*starts[1:], len(lines)][: len(starts)]
    linked = ""
    for start, end in zip(starts, ends, strict=True):
        at, block = _block(lines, start, end)
        if block is None:
            continue
        if not linked:
            chains.append([])
        rest = tuple(_plain_rest(lines, at, lines[start], block.message)) if end == len(lines) else ()
        chains[-1].append(replace(block, direct=linked == DIRECT, rest=rest))
        linked = _link(lines[at:end])
    return chains


def excerpt(lines: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return the lines worth showing, with their times: the last exceptions or stacks, or else the last lines."""
    texts = [COLOUR.sub("", text) for _, text in lines]
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
    """Fold the calls inside libraries in lines with times, if calls of the program itself are shown too."""
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


def _frame(match: re.Match[str]) -> TracebackFrame:
    return TracebackFrame(match[1], match[2], match[3] or "")


def _block(lines: Sequence[str], start: int, end: int) -> tuple[int, RaisedException | None]:
    """(index of the exception's line, the exception) of the traceback that starts at `start`."""
    prefix = lines[start][: lines[start].index(HEADER)]
    frames: list[TracebackFrame] = []
    for at, line in _plain(lines, start + 1, end, prefix):
        frame = FRAME.match(line)
        if frame:
            frames.append(_frame(frame))
        elif line[:1].isspace() and frames and not frames[-1].source:
            frames[-1] = replace(frames[-1], source=line.strip())
        elif line and not line[0].isspace():
            error = RAISED.match(line)
            if error is None:
                return at, None
            message = (error[2] or "").strip()
            return at, RaisedException(error[1], message, tuple(frames), begin=start, end=at)
    return end, None


def _plain(lines: Sequence[str], start: int, end: int, prefix: str) -> Iterator[tuple[int, str]]:
    """The lines without the prefix that a launcher or an exception group puts before each of them."""
    for at in range(start, end):
        line = lines[at]
        if prefix and line.startswith(prefix):
            line = line[len(prefix) :]
        elif prefix.strip():
            line = GROUP.sub("", line)
        yield at, line


def _plain_rest(lines: Sequence[str], at: int, header: str, message: str) -> Iterator[str]:
    """The further lines of a message: up to an empty one, unless the first line announces more."""
    prefix = header[: header.index(HEADER)]
    for _, line in _plain(lines, at + 1, min(at + 1 + REST_LINES, len(lines)), prefix):
        if line.strip():
            yield line.strip()
        elif not message.endswith(":"):
            return


def _link(after: Sequence[str]) -> str:
    """Return the text after an exception that links it to the next one; "" if there is none."""
    return next((link for link in (DIRECT, DURING) if any(link in line for line in after)), "")


def _without_header(lines: Sequence[str]) -> list[RaisedException]:
    """An error of compilation, which has no traceback header: a file and a line, the source, the error."""
    for at in range(len(lines) - 1, 0, -1):
        error = RAISED.match(lines[at])
        if not error or not lines[at - 1][:1].isspace():
            continue
        frames = [(begin, frame) for begin in range(max(0, at - 4), at) if (frame := FRAME.match(lines[begin]))]
        if frames and error[1].endswith("Error"):
            begin, frame = frames[-1]
            return [RaisedException(error[1], (error[2] or "").strip(), (_frame(frame),), begin=begin, end=at)]
    return []
