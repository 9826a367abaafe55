"""An edit: a few paths of a job get other contents, modes or times, and none is added, removed or of another kind.

The lists of the job's files are not parsed and made again, for thousands of rows: the changed rows are replaced in
their text. Whatever is unusual is no edit, and takes the long way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clusterctl.agent.dispatch.in_place import finish_directory, has_other_bytes, make_writable, place, seal
from clusterctl.agent.node.content import FEW, PathLists, Row, Stamp, encode_row, read_list, row_line, sums_of
from clusterctl.common.paths import JobPaths
from clusterctl.common.safe_json import dumps, loads
from clusterctl.common.tree import DIRECTORY, FILE, Entry, is_sound

GAP = "\0\0"  # between the lines of a seal
NEXT = b'],["'  # between the rows of a list
BLANK = Entry("", "", 0, 0)


class Edit:
    """The tree after an edit of a job.

    `entries` has the changed rows at their places, `listed` is all of them as JSON. `numbers`: the changed rows,
    `files`: those with other bytes. `sums` counts all rows, `same` those whose bytes stay.
    """

    def __init__(self, job: JobPaths, listing: str, changes: list[Entry]) -> None:
        """`listing` is that of the seal. Raises ValueError, TypeError or OSError if it is no edit."""
        if len(changes) > FEW:
            raise ValueError("too many changes")
        self._text, sums = read_list(job.dir)
        self._manifest = (job.meta / "manifest").read_bytes()
        self._listing = f"{GAP}{listing}{GAP}"
        count = listing.count(GAP)
        if self._text.count(NEXT) != count or not self._manifest.endswith(b"]]"):  # a path may look like NEXT
            raise ValueError("the rows are ambiguous")
        self.entries = [BLANK] * (count + 1)
        self._old: dict[int, Row] = {}
        for entry in changes:
            number, row = self._find(entry.path)
            if row.entry.kind != entry.kind or not is_sound(entry):
                raise ValueError("a path becomes something else")
            self.entries[number], self._old[number] = entry, row
        above = {entry.path.rpartition("/")[0] for entry in changes} - {""}
        self._above = dict(map(self._find, above))
        self.numbers = sorted(self._old)
        self.files = [n for n in self.numbers if has_other_bytes(self._old[n], self.entries[n])]
        if any(self.entries[n].digest.encode() in self._text for n in self.files):
            raise ValueError("the job has the same bytes elsewhere")
        self.same = sums.plus(sums_of([self._old[n].entry for n in self.files]), -1)
        self.sums = self.same.plus(sums_of([self.entries[n] for n in self.files]))
        self.listed = self._text
        for number in self.numbers:
            self.listed = _replaced(self.listed, dumps(self._old[number].entry), dumps(self.entries[number]))

    def _find(self, path: str) -> tuple[int, Row]:
        """Return the number and the row of a path of the job."""
        start = self._text.index(dumps([path])[:-1] + b",")
        end = self._text.find(NEXT, start)
        entry = Entry(*loads(self._text[start : end + 1 if end >= 0 else -1]))
        if entry.path != path or entry.kind not in (FILE, DIRECTORY):
            raise ValueError("not a row of a file or a directory")
        row = Row(entry, self._stamp_of(entry) if entry.kind == FILE else None)
        if self._manifest.count(encode_row(row)) != 1 or self._listing.count(_line(row)) != 1:
            raise ValueError("the lists of the job differ")
        return self._text.count(NEXT, 0, start + 2), row

    def _stamp_of(self, entry: Entry) -> Stamp:
        start = self._listing.index(f"{GAP}{entry.path}\0") + len(f"{GAP}{entry.path}\0")
        _, _, *times = self._listing[start : self._listing.index(GAP, start)].split(" ")
        return Stamp(*map(int, times))

    def apply(self, tree: Path, staging: Path, record: dict[str, Any]) -> None:
        """Change the job directory `tree`. If this is interrupted, `in_place.recover` completes it."""
        known = {row.entry.path: row for row in self._old.values()}
        for row in self._above.values():
            make_writable(tree, row.entry)
        rows = {number: place(tree, staging, known, number, self.entries[number]) for number in self.numbers}
        directories = {number: row.entry for number, row in {**self._above, **rows}.items()}
        for number in sorted(directories, reverse=True):
            if directories[number].kind == DIRECTORY:
                finish_directory(tree / directories[number].path, directories[number])
        manifest, listing = self._manifest, self._listing
        for number, row in rows.items():
            manifest = _replaced(manifest, encode_row(self._old[number]), encode_row(row))
            listing = _replaced(listing, _line(self._old[number]), _line(row))
        seal(JobPaths(tree), record, PathLists(manifest, listing[len(GAP) : -len(GAP)], self.listed, self.sums))


def _line(row: Row) -> str:
    return f"{GAP}{row_line(row)}{GAP}"


def _replaced(text: Any, old: Any, new: Any) -> Any:
    """Return the text with something else in place of `old`. Raises ValueError unless it has that exactly once."""
    if text.count(old) != 1:
        raise ValueError("the lists of the job differ")
    return text.replace(old, new)
