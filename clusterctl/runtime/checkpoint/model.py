"""Read saved models: the pieces of pservers, or one merged file.

`load_model` and `merge_model` are for users and `collect`; `open_model` is for pservers that start from a model.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Union

import numpy as np

from clusterctl.common.manifest import MERGED_FORMAT, MERGED_NAME, is_cut, piece_name, read_manifest
from clusterctl.common.safe_json import parse
from clusterctl.runtime.arrays import Array, Floats, Ids, as_array, as_tensor, is_finite
from clusterctl.runtime.checkpoint.buffers import SUFFIX, SavedBuffers
from clusterctl.runtime.checkpoint.safetensors import TensorEntry, TensorFile, aligned, write_tensors
from clusterctl.runtime.checkpoint.writer import FORMAT
from clusterctl.runtime.errors import ModelError
from clusterctl.runtime.table.sharding import BLOCK_ELEMENTS, SLOTS, block_count, owners_of
from clusterctl.runtime.table.spec import TableSpec, TensorNames

Value = Union[Array, "tuple[Ids, Floats]"]
PathLike = Union[str, "os.PathLike[str]"]
Select = Callable[[Ids], Ids]

PIECES = "pserver-*.safetensors"
COLLECTED = "model"  # the directory of the merged model in one that `collect` made


def load_model(directory: PathLike) -> dict[str, Value]:
    """Return the tables of a saved model by name: an array of the table's shape, or `(ids, rows)` with ids ascending.

    Also the buffers of a torch model, if it has any: arrays of their own types, float32 for bfloat16.
    `directory` holds the pieces of all pservers, or a merged `model.safetensors`, or is such a file, or is a directory
    that `collect` made. Raises ModelError if anything is missing or damaged; it never returns part of a model.
    """
    model = _open([Path(directory)])
    tables: dict[str, Value] = {
        name: model.dense_table(name) if kind == "dense" else model.sparse_table(name) for name, kind in model.kinds()
    }
    return {**tables, **model.buffers.values()}


def save_model(directory: PathLike, tables: Mapping[str, Any]) -> Path:
    """Write a model that was made elsewhere, such as pretrained vectors, and return the path of its file.

    `tables` maps names to arrays, for dense tables, or to `(ids, rows)`, for embeddings: distinct int64 ids of shape
    (n,) and rows of shape (n, dim). torch tensors are accepted. Values become float32. `load_model`, `connect(load=)`
    and `torch_state_dict` read the result, `directory/model.safetensors`; it is written atomically. Raises ModelError
    if a table has another form, a value is not finite, or the names of two tensors would be the same.
    """
    entries: list[TensorEntry] = []
    described: dict[str, Any] = {}
    names = TensorNames(ModelError)
    for name, table in tables.items():
        if not isinstance(name, str):
            raise ModelError(f"the name of a table is {name!r}", remedy="use a string")
        names.add(name, "sparse" if isinstance(table, tuple) else "dense")
        if isinstance(table, tuple):
            ids, rows = _checked_rows(name, table)
            described[name] = {"kind": "sparse", "shape": [rows.shape[1]], "rows": None, "held": len(ids)}
            entries += _row_entries(name, ids, rows)
        else:
            values = _checked_values(name, table)
            described[name] = {"kind": "dense", "shape": list(values.shape), "rows": None, "held": values.size}
            entries.append(TensorEntry(name, "F32", values.shape, functools.partial(np.asarray, values)))
    out_file = Path(directory) / MERGED_NAME
    write_tensors(out_file, aligned(entries), {"format": MERGED_FORMAT, "tables": json.dumps(described)})
    return out_file


def _row_entries(name: str, ids: Ids, rows: Floats) -> list[TensorEntry]:
    own = (("ids", "I64", ids), ("rows", "F32", rows))
    return [TensorEntry(f"{name}/{part}", dtype, a.shape, functools.partial(np.asarray, a)) for part, dtype, a in own]


def _checked_rows(name: str, table: tuple[Any, ...]) -> tuple[Ids, Floats]:
    """Return ids, ascending, and their rows. Raises ModelError."""
    arrays = [np.asarray(as_array(one)) for one in table]
    shapes = [array.shape for array in arrays]
    if len(arrays) != 2 or [len(shape) for shape in shapes] != [1, 2] or shapes[0][0] != shapes[1][0]:
        raise ModelError(
            f"table {name!r} has the shapes {shapes}", remedy="give (ids, rows) of shapes (n,) and (n, dim)"
        )
    if not np.issubdtype(arrays[0].dtype, np.integer):
        raise ModelError(f"table {name!r}: its ids are {arrays[0].dtype}", remedy="give integers")
    ids, order = np.unique(arrays[0].astype(np.int64), return_index=True)
    if len(ids) < shapes[0][0]:
        raise ModelError(f"table {name!r}: {shapes[0][0] - len(ids):,} ids occur more than once")
    return ids, _checked_values(name, arrays[1][order])


def _checked_values(name: str, values: Any) -> Floats:
    array = np.asarray(as_array(values))
    if array.dtype.kind not in "fiub":
        raise ModelError(f"table {name!r} is of dtype {array.dtype}", remedy="give numbers")
    with np.errstate(over="ignore", invalid="ignore"):
        floats: Floats = np.array(array, np.float32, order="C")
        if not is_finite(floats):
            raise ModelError(f"table {name!r} has values that are not finite")
    return floats


def merge_model(sources: Sequence[PathLike], out_file: PathLike) -> Path:
    """Merge the pieces in the directories `sources` into one safetensors file, and return its path.

    Its tensors are `NAME` for dense tables and buffers, `NAME/ids` (ascending) and `NAME/rows` for sparse tables.
    Nothing is written unless all pieces are present, undamaged and of one cut; the file is written atomically.
    """
    return merge_pieces(sources, out_file, {})


def merge_pieces(sources: Sequence[PathLike], out_file: PathLike, marks: Mapping[str, str]) -> Path:
    """Merge like `merge_model`, and add `marks` to the metadata."""
    model = PieceSet(_open_files([Path(source) for source in sources]))
    entries: list[TensorEntry] = []
    for name, kind in model.kinds():
        if kind == "dense":
            shape = tuple(model.tables[name]["shape"])
            entries.append(TensorEntry(name, "F32", shape, functools.partial(model.dense_table, name)))
        else:
            entries += _row_entries(name, *model.sparse_table(name))
    entries += (buffers := model.buffers.entries())
    if buffers:
        marks = {**marks, "buffers": json.dumps([entry.name for entry in buffers])}
    kept = ("job", "run", "tag", "pass", "step", "mode", "seed")
    metadata = {key: model.metadata[key] for key in kept if key in model.metadata}
    metadata.update(format=MERGED_FORMAT, tables=json.dumps(model.tables), **marks)
    write_tensors(Path(out_file), aligned(entries), metadata)
    return Path(out_file)


def torch_state_dict(path: PathLike) -> dict[str, Any]:
    """Return the dense tables of a saved model or checkpoint as float32 torch tensors by name, for `load_state_dict`,
    with the buffers of a model.

    It omits embeddings; `load_model` returns their ids and rows. Raises ModelError like `load_model`, and UseError if
    torch is not installed.
    """
    return {name: as_tensor(value) for name, value in load_model(path).items() if not isinstance(value, tuple)}


def open_model(path: Path) -> ModelView:
    """Open a saved model for a pserver to read its own part. Raises ModelError."""
    return ModelView(_open([path]), path)


class MergedFile:
    """A merged model."""

    def __init__(self, path: Path) -> None:
        self._file = TensorFile(path)
        self._file.require_whole()
        self.tables = read_tables(self._file, MERGED_FORMAT)
        self.buffers = SavedBuffers([self._file])

    def kinds(self) -> list[tuple[str, str]]:
        return [(name, str(table["kind"])) for name, table in self.tables.items()]

    def dense_table(self, name: str) -> Floats:
        return np.array(self._file.tensor(name))

    def dense_run(self, name: str, start: int, stop: int) -> Floats:
        out: Floats = self._file.tensor(name).reshape(-1)[start:stop]
        return out

    def sparse_table(self, name: str) -> tuple[Ids, Floats]:
        return self.sparse_rows(name, (), lambda ids: np.arange(len(ids)))

    def sparse_rows(self, name: str, slots: Iterable[int], select: Select) -> tuple[Ids, Floats]:
        """Return the ids at the positions that `select` returns, ascending, and their rows, whatever their slots."""
        ids = self._file.tensor(f"{name}/ids")
        own = select(ids)
        return ids[own], self._file.tensor(f"{name}/rows").take(own, axis=0)


class PieceSet:
    """The pieces of one cut, checked for completeness."""

    def __init__(self, files: Sequence[TensorFile]) -> None:
        for file in files:
            file.require_whole()
        self.metadata = files[0].metadata
        self.tables = read_tables(files[0], FORMAT)
        self._files = _by_pserver(files)
        for name, table in self.tables.items():
            table["held"] = sum(int(read_tables(f, FORMAT)[name]["held"]) for f in self._files)
        self._homes = {tensor: file for file in self._files for tensor in file.names}
        self.buffers = SavedBuffers(self._files, SUFFIX)
        self._check()

    def kinds(self) -> list[tuple[str, str]]:
        return [(name, str(table["kind"])) for name, table in self.tables.items()]

    def dense_table(self, name: str) -> Floats:
        shape = tuple(self.tables[name]["shape"])
        return self.dense_run(name, 0, _elements(self.tables[name])).reshape(shape)

    def dense_run(self, name: str, start: int, stop: int) -> Floats:
        """Return elements start to stop of the flattened table, a new array; `start` is at the start of a block."""
        out = np.empty(stop - start, np.float32)
        for block in range(start // BLOCK_ELEMENTS, block_count(stop)):
            at = block * BLOCK_ELEMENTS
            tensor = f"{name}/block/{block}"
            values = self._homes[tensor].tensor(tensor)[: stop - at]
            out[at - start : at - start + len(values)] = values
        return out

    def sparse_table(self, name: str) -> tuple[Ids, Floats]:
        """Return all ids, ascending, and their rows."""
        return self.sparse_rows(name, range(SLOTS), lambda ids: np.arange(len(ids)))

    def sparse_rows(self, name: str, slots: Iterable[int], select: Select) -> tuple[Ids, Floats]:
        """Return the ids of these slots at the positions that `select` returns, ascending, and their rows."""
        ids, rows = [np.empty(0, np.int64)], [np.empty((0, int(self.tables[name]["shape"][0])), np.float32)]
        for slot in (f"{name}/slot/{slot}" for slot in slots):
            home = self._homes.get(f"{slot}/ids")
            if home is None:
                continue
            slot_ids = home.tensor(f"{slot}/ids")
            own = select(slot_ids)
            ids.append(slot_ids[own])
            rows.append(home.tensor(f"{slot}/rows").take(own, axis=0))
        all_ids = np.concatenate(ids)
        order = np.argsort(all_ids, kind="stable")
        return all_ids[order], np.concatenate(rows).take(order, axis=0)

    def _check(self) -> None:
        for name, table in self.tables.items():
            if table["kind"] == "dense":
                self._check_blocks(name, _elements(table))
            else:
                self._check_slots(name, int(table["held"]))

    def _check_blocks(self, name: str, elements: int) -> None:
        for block in range(block_count(elements)):
            tensor = f"{name}/block/{block}"
            size = min(BLOCK_ELEMENTS, elements - block * BLOCK_ELEMENTS)
            if tensor not in self._homes or self._homes[tensor].shape(tensor) != (size,):
                raise ModelError(f"block {block} of table {name!r} is missing or has another size")

    def _check_slots(self, name: str, held: int) -> None:
        slots = (f"{name}/slot/{slot}/ids" for slot in range(SLOTS))
        rows = sum(self._homes[slot].shape(slot)[0] for slot in slots if slot in self._homes)
        if rows != held:
            raise ModelError(f"table {name!r} should have {held} rows, but the pieces have {rows}")


class ModelView:
    """One pserver's view of a saved model; `None` for a table that the model lacks."""

    def __init__(self, model: PieceSet | MergedFile, path: Path) -> None:
        self._model = model
        self._path = path

    @property
    def names(self) -> list[str]:
        """The names of its tables."""
        return list(self._model.tables)

    def dense(self, spec: TableSpec, start: int, stop: int) -> Floats | None:
        if not self._has(spec):
            return None
        return self._model.dense_run(spec.name, start, stop)

    def sparse(self, spec: TableSpec, pserver: int, pservers: int) -> tuple[Ids, Floats] | None:
        if not self._has(spec):
            return None

        def own(ids: Ids) -> Ids:
            if spec.rows is not None and len(ids) and not (ids[0] >= 0 and ids[-1] < spec.rows):
                raise ModelError(f"table {spec.name!r} in {self._path} has ids outside 0..{spec.rows - 1}")
            return np.flatnonzero(owners_of(ids, spec.rows, pservers) == pserver)

        was_bounded = self._model.tables[spec.name].get("rows") is not None  # then ids had other slots
        slots = range(pserver, SLOTS, pservers) if was_bounded == (spec.rows is not None) else range(SLOTS)
        return self._model.sparse_rows(spec.name, slots, own)

    def _has(self, spec: TableSpec) -> bool:
        table = self._model.tables.get(spec.name)
        if table is None:
            return False
        saved = (table["kind"], tuple(table["shape"]))
        if saved != (spec.kind, spec.shape):
            raise ModelError(
                f"table {spec.name!r} is {spec.kind} {spec.shape}, but in {self._path} it is {saved[0]} {saved[1]}",
                remedy="declare it as it was saved, or rename it",
            )
        return True


def _open(directories: Sequence[Path]) -> PieceSet | MergedFile:
    path = directories[0]
    if path.is_file():
        return MergedFile(path)
    if not path.is_dir():
        raise ModelError(f"{path} does not exist", remedy="give a directory of saved pieces, or a merged model file")
    files = [file for file in (path / MERGED_NAME, path / COLLECTED / MERGED_NAME) if file.is_file()]
    piece = next(iter(sorted(path.glob(PIECES))), None)
    merged = next((file for file in files if piece is None or _is_of(file, piece)), None)
    return PieceSet(_open_files(directories)) if merged is None else MergedFile(merged)


def _open_files(directories: Sequence[Path]) -> list[TensorFile]:
    paths = _find_pieces(directories)
    if not paths:
        raise ModelError(f"no pieces of a model in {_names(directories)}", remedy="give the directories of one tag")
    return [TensorFile(path) for path in paths]


def _is_of(merged: Path, piece: Path) -> bool:
    """Return True for a model that was merged from these pieces; not for an older one, or a file of the program."""
    about, of = TensorFile(merged).metadata, TensorFile(piece).metadata
    moment = ("job", "run", "step") if is_cut(of) else ("job", "run")
    return about.get("format") == MERGED_FORMAT and all(about.get(key) == of.get(key) for key in moment)


def _find_pieces(directories: Iterable[Path]) -> list[Path]:
    """Return the piece files. If any of the directories has a manifest, its checksums must match."""
    pieces: dict[str, Path] = {}
    sums: dict[str, tuple[int, str]] = {}
    for directory in directories:
        for path in sorted(directory.glob(PIECES)):
            if path.name in pieces and checksum(path) != checksum(pieces[path.name]):
                raise ModelError(
                    f"{path} and {pieces[path.name]} differ", remedy="give the pieces of one run and tag only"
                )
            pieces[path.name] = path
        try:
            manifest = read_manifest(directory)
        except (OSError, ValueError) as exc:
            raise ModelError(f"the manifest in {directory} cannot be read ({exc})") from exc
        if manifest is not None:
            sums.update({str(f["file"]): (int(f["bytes"]), str(f["sha256"])) for f in manifest["files"]})
    for name, expected in sums.items():
        if name not in pieces:
            raise ModelError(f"{name} is in the manifest but missing", remedy="collect it from its node")
        if checksum(pieces[name]) != expected:
            raise ModelError(f"{pieces[name]} is damaged: it differs from the manifest", remedy="collect it again")
    return [pieces[name] for name in sorted(pieces)]


def checksum(path: Path) -> tuple[int, str]:
    """Return the size and sha256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        return file.tell(), digest.hexdigest()


def _by_pserver(files: Sequence[TensorFile]) -> list[TensorFile]:
    """Return the files ordered by pserver. Raises ModelError if one is missing or they are not of one cut."""
    first = files[0]
    moment = ("pass", "step") if is_cut(first.metadata) else ()
    common = ("job", "run", "tag", *moment, "pservers", "block_elements", "slots")
    for file in files:
        differing = [key for key in common if file.metadata.get(key) != first.metadata.get(key)]
        if differing or sorted(read_tables(file, FORMAT)) != sorted(read_tables(first, FORMAT)):
            raise ModelError(
                f"{file.path} is of another cut than {first.path} ({', '.join(differing) or 'tables'} differ)"
            )
    sizes = (first.metadata.get("block_elements"), first.metadata.get("slots"))
    if sizes != (str(BLOCK_ELEMENTS), str(SLOTS)):
        raise ModelError(f"{first.path} has blocks and slots {sizes}; this version reads {(BLOCK_ELEMENTS, SLOTS)}")
    by_number = {file.metadata.get("pserver"): file for file in files}
    count = _whole(first.metadata.get("pservers"), first.path)
    missing = [piece_name(p) for p in range(count) if str(p) not in by_number]
    if missing or len(files) != count:
        raise ModelError(f"found {len(files)} of {count} pieces; missing: {', '.join(missing) or 'none'}")
    return [by_number[str(p)] for p in range(count)]


def read_tables(file: TensorFile, expected: str) -> dict[str, dict[str, Any]]:
    """Return the table descriptions of a file of format `expected`, by name. Raises ModelError."""
    if file.metadata.get("format") != expected:
        raise ModelError(f"{file.path} has format {file.metadata.get('format')!r}, expected {expected!r}")
    try:
        tables: dict[str, dict[str, Any]] = parse(file.metadata["tables"])
        return {str(name): {**table, "kind": str(table["kind"])} for name, table in tables.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise ModelError(f"{file.path}: the metadata is damaged ({exc})") from exc


def _elements(table: dict[str, Any]) -> int:
    count = 1
    for n in table["shape"]:
        count *= int(n)
    return count


def _whole(text: str | None, path: Path) -> int:
    if text is None or not text.isdigit():
        raise ModelError(f"{path}: the metadata is damaged (pservers={text!r})")
    return int(text)


def _names(paths: Iterable[Path]) -> str:
    return ", ".join(str(path) for path in paths) or "no directory at all"
