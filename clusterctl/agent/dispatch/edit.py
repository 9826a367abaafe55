"""An edit: a few paths of a job get other contents, modes or times, and none is added, removed or of another kind.

The lists of the job's files are not made again from thousands of rows: the changed rows are replaced in their text.
"""

from __future__ import annotations

from clusterctl.agent.dispatch.in_place import finish_directory, has_other_bytes, make_writable, place, seal
from clusterctl.agent.node.content import FEW, Row, encode_row, row_line
from clusterctl.common.fastjson import dumps
from clusterctl.common.paths import JobPaths
from clusterctl.common.tree import DIRECTORY, FILE, Entry, is_sound

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any, TypeVar

    T = TypeVar("T", bytes, str)

    from clusterctl.agent.node.content import Held

GAP = "\0\0"  # between the lines of a seal


class Edit:
    """The tree after an edit of what a job holds. `numbers`: the changed rows, `files`: those with other bytes."""

    def __init__(self, held: Held, listing: str, changes: list[Entry]) -> None:
        """`listing` is that of the seal. Raises ValueError if these are other changes, or too many."""
        if len(changes) > FEW:
            raise ValueError("too many")
        self._held = held
        self._listing = listing
        self._by_path = {entry.path: number for number, entry in enumerate(held.entries)}
        self.numbers = sorted(self._number_of(entry) for entry in changes)
        self.entries = list(held.entries)
        for entry in changes:
            self.entries[self._by_path[entry.path]] = entry
        self.files = [n for n in self.numbers if has_other_bytes(held.row(n), self.entries[n])]
        for number in self.numbers:
            row = held.row(number)
            _check_once(encode_row(row), held.text)
            _check_once(f"{GAP}{row_line(row)}{GAP}", f"{GAP}{listing}{GAP}")
        self.listed = dumps(self.entries)

    def _number_of(self, entry: Entry) -> int:
        number = self._by_path.get(entry.path, -1)
        same_kind = number >= 0 and self._held.entries[number].kind == entry.kind
        if not same_kind or entry.kind not in (FILE, DIRECTORY) or not is_sound(entry):
            raise ValueError(entry.path)
        return number

    def apply(self, tree: Path, staging: Path, record: dict[str, Any]) -> None:
        """Change the job directory `tree`. If this is interrupted, `in_place.recover` completes it."""
        known = {self.entries[number].path: self._held.row(number) for number in self.numbers}
        above = {self._by_path.get(self.entries[n].path.rpartition("/")[0], -1) for n in self.numbers} - {-1}
        for number in sorted(above):
            make_writable(tree, self._held.entries[number])
        rows = {number: place(tree, staging, known, number, self.entries[number]) for number in self.numbers}
        directories = {number for number in self.numbers if self.entries[number].kind == DIRECTORY}
        for number in sorted(above | directories, reverse=True):
            finish_directory(f"{tree}/{self.entries[number].path}", self.entries[number])
        seal(JobPaths(tree), record, self._patched(rows))

    def _patched(self, rows: dict[int, Row]) -> tuple[bytes, str]:
        """Return the manifest and the listing with these rows."""
        text, listing = self._held.text, f"{GAP}{self._listing}{GAP}"
        for number, row in rows.items():
            old = self._held.row(number)
            text = text.replace(encode_row(old), encode_row(row), 1)
            listing = listing.replace(f"{GAP}{row_line(old)}{GAP}", f"{GAP}{row_line(row)}{GAP}", 1)
        return text, listing[len(GAP) : -len(GAP)]


def _check_once(piece: T, text: T) -> None:
    """Raise ValueError unless the text has this piece exactly once."""
    if text.count(piece) != 1:  # type: ignore[arg-type]
        raise ValueError("its place is uncertain")
