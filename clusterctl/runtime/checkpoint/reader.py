"""Read a checkpoint onto any number of pservers and lanes.

The caller provides the pieces of some or all pservers, those that have the requested values. If the checksum of a file
is known, from a manifest beside it, it must match before any of the file's tensors is used.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from clusterctl.common.manifest import all_files, piece_name, read_manifest
from clusterctl.common.safe_json import parse
from clusterctl.runtime.arrays import Floats, Ids
from clusterctl.runtime.checkpoint.model import PIECES, checksum, read_tables
from clusterctl.runtime.checkpoint.safetensors import TensorFile
from clusterctl.runtime.checkpoint.writer import FORMAT, newest_cursors
from clusterctl.runtime.errors import ModelError
from clusterctl.runtime.table.sharding import BLOCK_ELEMENTS, SLOTS, block_count
from clusterctl.runtime.table.spec import TableSpec


class SavedRows(NamedTuple):
    """Rows of an embedding: `ids` ascending, `columns` ("rows", "state/0", ...) with a row for each id; and the ids not
    admitted yet, ascending, with their counts."""

    ids: Ids
    columns: dict[str, npt.NDArray[Any]]
    candidate_ids: Ids
    counts: Ids


class OpenPiece(NamedTuple):
    """An open piece, and the size and sha256 that its file must have; None if they are unknown or were verified."""

    file: TensorFile
    expected: tuple[int, str] | None


def open_checkpoint(directory: Path) -> Checkpoint:
    """Open the checkpoint whose pieces are in `directory`. Raises ModelError."""
    files = [TensorFile(path) for path in sorted(directory.glob(PIECES))]
    sums = checksums(directory)
    return Checkpoint(directory, [OpenPiece(file, sums.get(file.path.name)) for file in files])


def checksums(directory: Path) -> dict[str, tuple[int, str]]:
    """Return the sizes and sha256 of files that the manifest in a directory names. Raises ModelError."""
    try:
        files = all_files(read_manifest(directory) or {"files": []})
        return {str(f["file"]): (int(f["bytes"]), str(f["sha256"])) for f in files}
    except (OSError, KeyError, TypeError, ValueError) as exc:
        raise ModelError(f"the manifest in {directory} cannot be read ({exc})") from exc


class Checkpoint:
    """A checkpoint: `step`, `pass_`, `tag`, `mode`, `seed`, and `cursors`, per trainer a dict as in `writer`.

    Thread-safe. `path` is its name in messages.
    """

    def __init__(self, path: Path, pieces: Sequence[OpenPiece]) -> None:
        self.path = path
        if not pieces:
            raise ModelError(
                f"no pieces of a checkpoint in {path}", remedy="start without --resume to train from the beginning"
            )
        self._pieces = [_VerifiedPiece(*piece) for piece in pieces]
        self._take_facts(self._pieces[0])
        for piece in self._pieces:
            piece.require_cut_of(self._pieces[0])
        self._homes = {name: piece for piece in self._pieces for name in piece.file.names}
        self._tables = self._pieces[0].tables

    def _take_facts(self, piece: _VerifiedPiece) -> None:
        facts = piece.file.metadata
        try:
            self.tag, self.mode = facts["tag"], facts["mode"]
            self.step, self.pass_, self.seed = int(facts["step"]), int(facts["pass"]), int(facts["seed"])
            self.pservers = int(facts["pservers"])
            all_cursors = [parse(each.file.metadata["cursors"]) for each in self._pieces]
            self.cursors: list[dict[str, Any]] = [dict(cursor) for cursor in newest_cursors(all_cursors)]
        except (KeyError, TypeError, ValueError) as exc:
            raise ModelError(f"{piece.file.path} is not a piece of a checkpoint ({exc!r})") from exc

    @property
    def names(self) -> list[str]:
        """The names of its tables."""
        return list(self._tables)

    def dense(self, spec: TableSpec, start: int, stop: int) -> tuple[Floats, list[Floats]] | None:
        """Return elements start to stop of the flattened table, and of each array of its rule's state: new arrays.

        `start` is at the start of a block. None for a table that the checkpoint lacks.
        """
        if not self._has(spec):
            return None
        suffixes = ["", *(f"/state/{s}" for s in range(spec.rule.states))]
        values, *state = [self._run(spec.name, suffix, start, stop) for suffix in suffixes]
        return values, state

    def base(self, spec: TableSpec, start: int, stop: int) -> Floats | None:
        """Return the base of these elements: a new array; None for a table that was saved without one."""
        saved = self._tables.get(spec.name, {}).get("wire")
        return None if saved is None else self._run(spec.name, "/base", start, stop)

    def _run(self, name: str, suffix: str, start: int, stop: int) -> Floats:
        out = np.empty(stop - start, np.float32)
        for block in range(start // BLOCK_ELEMENTS, block_count(stop)):
            at, end = block * BLOCK_ELEMENTS, min((block + 1) * BLOCK_ELEMENTS, stop)
            values = self._tensor(f"{name}/block/{block}{suffix}")
            if len(values) < end - at:
                raise ModelError(f"block {block} of table {name!r} in {self.path} has another size")
            out[at - start : end - start] = values[: end - at]
        return out

    def sparse(self, spec: TableSpec, lane: int, lanes: int) -> SavedRows | None:
        """Return the rows of all slots K with K % lanes == lane; None for a table that the checkpoint lacks."""
        if not self._has(spec):
            return None
        self._require_slots(spec.name, lane, lanes)
        slots = [f"{spec.name}/slot/{slot}" for slot in range(lane, SLOTS, lanes)]
        rows = [slot for slot in slots if f"{slot}/ids" in self._homes]
        ids, order = self._ascending(f"{slot}/ids" for slot in rows)
        if spec.rows is not None and len(ids) and not (ids[0] >= 0 and ids[-1] < spec.rows):
            raise ModelError(f"table {spec.name!r} in {self.path} has ids outside 0..{spec.rows - 1}")
        columns = {
            column: np.concatenate([self._tensor(f"{slot}/{column}") for slot in rows]).take(order, axis=0)
            for column in self._columns(rows)
        }
        waiting = [slot for slot in slots if f"{slot}/candidates/ids" in self._homes]
        candidates, order = self._ascending(f"{slot}/candidates/ids" for slot in waiting)
        counts = [self._tensor(f"{slot}/candidates/counts") for slot in waiting]
        return SavedRows(ids, columns or _no_rows(spec), candidates, _joined(counts).take(order))

    def _ascending(self, tensors: Iterable[str]) -> tuple[Ids, Ids]:
        """Return the ids of all these tensors, ascending, and the order that sorts them."""
        ids = _joined([self._tensor(name) for name in tensors])
        order = np.argsort(ids, kind="stable")
        return ids.take(order), order

    def _columns(self, slots: list[str]) -> list[str]:
        """Return the columns beside the ids of a slot; all slots of a table have the same columns."""
        prefix = f"{slots[0]}/" if slots else None
        names = [name[len(prefix) :] for name in self._homes if prefix and name.startswith(prefix)]
        return [name for name in names if name != "ids" and not name.startswith("candidates/")]

    def _require_slots(self, name: str, lane: int, lanes: int) -> None:
        """Raise ModelError if a piece is missing. Slots without rows are in no file: the files' slot lists decide."""
        if len(self._pieces) == self.pservers:
            return
        held = {slot for piece in self._pieces for slot in piece.slots()}
        if not held.issuperset(range(lane, SLOTS, lanes)):
            raise ModelError(f"{self._missing()} of {self.path} is missing: it has rows of table {name!r}")

    def _missing(self) -> str:
        here = {piece.file.path.name for piece in self._pieces}
        names = [piece_name(p) for p in range(self.pservers) if piece_name(p) not in here]
        return ", ".join(names) or "no piece"

    def _tensor(self, name: str) -> npt.NDArray[Any]:
        piece = self._homes.get(name)
        if piece is None:
            raise ModelError(f"{name} is not in {self.path}; missing: {self._missing()}")
        return piece.tensor(name)

    def _has(self, spec: TableSpec) -> bool:
        table = self._tables.get(spec.name)
        if table is None:
            return False
        mine, rule = spec.to_json(), table.get("rule")
        theirs = {key: table.get(key) for key in ("kind", "shape", "rows")}
        differing = [f"{key} {mine[key]}, saved {theirs[key]}" for key in theirs if mine[key] != theirs[key]]
        if not isinstance(rule, dict) or rule.get("rule") != mine["rule"]["rule"]:
            differing.append(f"rule {mine['rule']}, saved {rule}")
        if differing:
            raise ModelError(
                f"table {spec.name!r} differs from the checkpoint in {self.path} ({'; '.join(differing)})",
                remedy="declare it as it was saved, or start without --resume",
            )
        return True


class _VerifiedPiece:
    """One file; its checksum is verified before its first tensor is read."""

    def __init__(self, file: TensorFile, expected: tuple[int, str] | None) -> None:
        self.file = file
        self.file.require_whole()
        self.tables = read_tables(self.file, FORMAT)
        self.expected = expected
        self._lock = threading.Lock()

    def require_cut_of(self, other: _VerifiedPiece) -> None:
        mine, theirs = self.file.metadata, other.file.metadata
        common = ("job", "run", "tag", "pass", "step", "mode", "seed", "pservers", "block_elements", "slots")
        differing = [key for key in common if mine.get(key) != theirs.get(key)]
        if differing or sorted(self.tables) != sorted(other.tables):
            what = ", ".join(differing) or "tables"
            raise ModelError(f"{self.file.path} is of another cut than {other.file.path} ({what} differ)")

    def slots(self) -> set[int]:
        """Return the slots whose rows, if any, are in this file."""
        try:
            first, after, of = (int(n) for n in parse(self.file.metadata["places"]))
            return {slot for slot in range(SLOTS) if first <= slot % of < after}
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as exc:
            raise ModelError(f"{self.file.path}: the metadata is damaged ({exc!r})") from exc

    def tensor(self, name: str) -> npt.NDArray[Any]:
        with self._lock:
            if self.expected is not None and checksum(self.file.path) != self.expected:
                raise ModelError(f"{self.file.path} is damaged: it differs from the manifest")
            self.expected = None
        return self.file.tensor(name)


def _joined(arrays: list[npt.NDArray[Any]]) -> Ids:
    return np.concatenate([np.empty(0, np.int64), *arrays])


def _no_rows(spec: TableSpec) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of every embedding, without rows."""
    names = ("rows", *(f"state/{s}" for s in range(spec.rule.states)))
    return {name: np.empty((0, spec.dim), np.float32) for name in names}
