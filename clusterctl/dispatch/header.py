"""Signs in the first records of a data file that it is a table: a header, and records of several lines."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence

from clusterctl.escape import is_number

TABLES = (".csv", ".tsv")
SEPARATORS = "\t,;| "
LOOKED_AT = 20  # records after the first
MOST_BYTES = 64 << 10  # of a record
MOST_COLUMNS = 10_000
NAME_CHARS = 64
NAME = re.compile(r"[^\W\d]")


def has_header(records: Sequence[bytes], ending: str) -> bool:
    """Return True if the first of these records looks like a header. `ending`: of the file's name, such as `.csv`.

    A header has only names. Either a column has numbers below its name, or the file is a table by its ending and no
    column repeats its name.
    """
    rows = _rows(records[: LOOKED_AT + 1])
    if len(rows) < 2 or not rows[0] or not _are_names(rows[0]):
        return False
    below = [row for row in rows[1:] if any(row)]
    whole = bool(below) and all(len(row) == len(rows[0]) for row in below)
    if whole and any(all(is_number(row[column]) for row in below) for column in range(len(rows[0]))):
        return True
    repeated = any(name and name in row[number : number + 1] for row in below for number, name in enumerate(rows[0]))
    return ending in TABLES and not repeated


def spans_lines(records: Sequence[bytes]) -> bool:
    """Return True if a quoted field of these records goes on in the next one."""
    return any(b'"' in record and record.count(b'"') % 2 for record in records)


def _rows(records: Sequence[bytes]) -> list[list[str]]:
    """Return the fields of records that are text, split where the first one seems to be; [] if it is no text."""
    first = records[0] if records else b""
    if len(first) > MOST_BYTES or b"\0" in first or first.lstrip()[:1] in (b"{", b"["):
        return []
    texts = [record[:MOST_BYTES].decode("utf-8-sig", "replace").strip("\r\n") for record in records]
    separator = max(SEPARATORS, key=lambda one: (texts[0].count(one) > 0 and one != " ", texts[0].count(one)))
    rows = []
    for text in texts:
        try:
            rows.append([field.strip() for field in next(csv.reader([text], delimiter=separator), [])][:MOST_COLUMNS])
        except csv.Error:  # a field that is too long
            return []
    return rows


def _are_names(fields: Sequence[str]) -> bool:
    """Return True if these may be the names of columns: all different, and at most one is empty, that of an index."""
    named = [field for field in fields if field]
    return (
        len(named) >= max(1, len(fields) - 1)
        and len(set(named)) == len(named)
        and all(len(field) <= NAME_CHARS and NAME.search(field) and not is_number(field) for field in named)
    )
