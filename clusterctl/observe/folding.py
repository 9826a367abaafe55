"""Identical lines of several processes, folded into one."""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from clusterctl.observe.follow import OutputLine

WINDOW_S = 1.0
MOST_LINES = 2000
MOST_CHARS = 8 << 20


@dataclass
class FoldedLine:
    """A line that processes `ranks` of one role printed. `first` is the first of them."""

    first: OutputLine
    ranks: set[int]
    number: int = field(compare=False)
    since: float = field(compare=False)


class Folder:
    """Folds identical lines that processes of one role print within WINDOW_S. Not thread-safe.

    Each process's lines keep their order, and a process that repeats a line is shown repeating it. A line is complete
    once all processes of its role have printed it: `processes` has their number by role. `now` is the time of the lines
    if they come in time order, else a monotonic clock; whoever changes between the two takes all lines before.
    """

    def __init__(self, processes: Mapping[str, int]) -> None:
        self._processes = processes
        self._open: deque[FoldedLine] = deque()
        self._alike: dict[tuple[str, str], list[FoldedLine]] = {}
        self._last: dict[tuple[str, int], int] = {}  # the number of the last line of each process
        self._count = 0
        self._chars = 0

    def add(self, line: OutputLine, now: float) -> Iterator[FoldedLine]:
        """Add a line, and yield the folded lines that nothing can join any more."""
        yield from self.due(now)
        folded = self._joinable(line)
        if folded is None:
            folded = self._begin(line, now)
        folded.ranks.add(line.rank)
        self._last[line.role, line.rank] = folded.number
        yield from self.due(now)

    def _joinable(self, line: OutputLine) -> FoldedLine | None:
        """Return the next line after the process's last one that has the same text, and about the same time."""
        alike = self._alike.get((line.role, line.text), [])
        last = self._last.get((line.role, line.rank), -1)
        at = bisect.bisect_right(alike, last, key=lambda folded: folded.number)
        return next((one for one in alike[at : at + 1] if abs(line.t - one.first.t) <= WINDOW_S), None)

    def _begin(self, line: OutputLine, now: float) -> FoldedLine:
        folded = FoldedLine(line, set(), self._count, now)
        self._count += 1
        self._chars += len(line.text)
        self._open.append(folded)
        self._alike.setdefault((line.role, line.text), []).append(folded)
        return folded

    def due(self, now: float) -> Iterator[FoldedLine]:
        """Yield the lines that are complete or WINDOW_S old, unless one before them is not. Memory stays bounded."""
        while self._open and (
            len(self._open[0].ranks) >= self._processes.get(self._open[0].first.role, math.inf)
            or now - self._open[0].since > WINDOW_S
            or len(self._open) > MOST_LINES
            or self._chars > MOST_CHARS
        ):
            yield self._close()

    def rest(self) -> Iterator[FoldedLine]:
        """Yield all lines that are left."""
        while self._open:
            yield self._close()

    def _close(self) -> FoldedLine:
        folded = self._open.popleft()
        self._chars -= len(folded.first.text)
        key = (folded.first.role, folded.first.text)
        alike = self._alike[key]
        del alike[0]
        if not alike:
            del self._alike[key]
        return folded
