"""Reading saved models: the pieces of pservers, or one merged file.

`load_model` and `merge_model` are for people and for `collect`; `open_model` is for pservers that start from a model.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Union

import numpy as np

from clusterctl.common.manifest import is_cut, piece_name, read_manifest
from clusterctl.runtime.arrays import Floats, Ids, as_tensor
from clusterctl.runtime.checkpoint.safetensors import Entry, TensorFile, write_tensors
from clusterctl.runtime.checkpoint.writer import FORMAT
from clusterctl.runtime.errors import ModelError
from clusterctl.runtime.table.sharding import BLOCK_ELEMENTS, SLOTS, block_count, owners_of
from clusterctl.runtime.table.spec import TableSpec

Value = Union[Floats, "tuple[Ids, Floats]"]
PathLike = Union[str, "os.PathLike[str]"]

MERGED_FORMAT = "clusterctl-model/1"
MERGED_NAME = "model.safetensors"


def load_model(directory: PathLike) -> dict[str, Value]:
    """The tables of a saved model by name: an array of the table's shape, or `(ids, rows)` with ids ascending.

    `directory` holds the pieces of all pservers, or a merged `model.safetensors`, or is such a file. Raises
    ModelError, naming what is missing or damaged, rather than return part of a model.
    """
    model = _open([Path(directory)])
    return {
        name: model.dense_table(name) if kind == "dense" else model.sparse_table(name) for name, kind in model.kinds()
    }


def merge_model(sources: Sequence[PathLike], out_file: PathLike) -> Path:
    """Merges the pieces in the directories `sources` into one safetensors file, and returns its path.

    Its tensors are `NAME` for dense tables, `NAME/ids` (ascending) and `NAME/rows` for sparse ones.

    Checks that all pieces are there, of one cut and undamaged, before it writes; the file appears whole or not at all.
    """
    model = PieceSet([Path(source) for source in sources])
    entries: list[Entry] = []
    for name, kind in model.kinds():
        if kind == "dense":
            shape = tuple(model.tables[name]["shape"])
            entries.append(Entry(name, "F32", shape, functools.partial(model.dense_table, name)))
        else:
            ids, rows = model.sparse_table(name)
            entries.append(Entry(f"{name}/ids", "I64", ids.shape, functools.partial(np.asarray, ids)))
            entries.append(Entry(f"{name}/rows", "F32", rows.shape, functools.partial(np.asarray, rows)))
    entries.sort(key=lambda entry: entry.dtype, reverse=True)
    kept = ("job", "run", "tag", "pass", "step", "mode", "seed")
    metadata = {key: model.metadata[key] for key in kept if key in model.metadata}
    metadata.update(format=MERGED_FORMAT, tables=json.dumps(model.tables))
    write_tensors(Path(out_file), entries, metadata)
    return Path(out_file)


def torch_state_dict(path: PathLike) -> dict[str, Any]:
    """The dense tables of a saved model or checkpoint as float32 torch tensors by name, for `load_state_dict`.

    Embeddings are left out: `load_model` has their ids and rows. Raises ModelError as that does, and UseError when
    torch is not installed.
    """
    return {name: as_tensor(value) for name, value in load_model(path).items() if not isinstance(value, tuple)}


def open_model(path: Path) -> ModelView:
    """A saved model that a pserver reads its own part from; raises ModelError."""
    return ModelView(_open([path]), path)


class MergedFile:
    """A merged model."""

    def __init__(self, path: Path) -> None:
        self._file = TensorFile(path)
        self._file.require_whole()
        self.tables = read_tables(self._file, MERGED_FORMAT)

    def kinds(self) -> list[tuple[str, str]]:
        return [(name, str(table["kind"])) for name, table in self.tables.items()]

    def dense_table(self, name: str) -> Floats:
        return np.array(self._file.tensor(name))

    def dense_run(self, name: str, start: int, stop: int) -> Floats:
        out: Floats = self._file.tensor(name).reshape(-1)[start:stop]
        return out

    def sparse_table(self, name: str) -> tuple[Ids, Floats]:
        return np.array(self._file.tensor(f"{name}/ids")), np.array(self._file.tensor(f"{name}/rows"))


class PieceSet:
    """The pieces of one cut, from one or several directories, checked for completeness."""

    def __init__(self, directories: Sequence[Path]) -> None:
        found = _find_pieces(directories)
        if not found:
            raise ModelError(f"no pieces of a model in {_names(directories)}", remedy="give the directories of one tag")
        files = [TensorFile(path) for path in found]
        for file in files:
            file.require_whole()
        self.metadata = files[0].metadata
        self.tables = read_tables(files[0], FORMAT)
        self._files = _by_pserver(files)
        for name, table in self.tables.items():
            table["held"] = sum(int(read_tables(f, FORMAT)[name]["held"]) for f in self._files)
        self._homes = {tensor: file for file in self._files for tensor in file.names}
        self._check()

    def kinds(self) -> list[tuple[str, str]]:
        return [(name, str(table["kind"])) for name, table in self.tables.items()]

    def dense_table(self, name: str) -> Floats:
        shape = tuple(self.tables[name]["shape"])
        return self.dense_run(name, 0, _elements(self.tables[name])).reshape(shape)

    def dense_run(self, name: str, start: int, stop: int) -> Floats:
        """Elements start to stop of the flattened table, a new array; `start` is at the beginning of a block."""
        out = np.empty(stop - start, np.float32)
        for block in range(start // BLOCK_ELEMENTS, block_count(stop)):
            at = block * BLOCK_ELEMENTS
            tensor = f"{name}/block/{block}"
            values = self._homes[tensor].tensor(tensor)[: stop - at]
            out[at - start : at - start + len(values)] = values
        return out

    def sparse_table(self, name: str) -> tuple[Ids, Floats]:
        """All ids, ascending, and their rows."""
        slots = [f"{name}/slot/{slot}" for slot in range(SLOTS) if f"{name}/slot/{slot}/ids" in self._homes]
        dim = int(self.tables[name]["shape"][0])
        ids = [self._homes[f"{slot}/ids"].tensor(f"{slot}/ids") for slot in slots]
        rows = [self._homes[f"{slot}/ids"].tensor(f"{slot}/rows") for slot in slots]
        all_ids = np.concatenate([np.empty(0, np.int64), *ids])
        order = np.argsort(all_ids, kind="stable")
        return all_ids[order], np.concatenate([np.empty((0, dim), np.float32), *rows]).take(order, axis=0)

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
            raise ModelError(f"table {name!r} should hold {held} rows, the pieces hold {rows}")


class ModelView:
    """One pserver's view of a saved model: `None` for a table that the model does not have."""

    def __init__(self, model: PieceSet | MergedFile, path: Path) -> None:
        self._model = model
        self._path = path

    def dense(self, spec: TableSpec, start: int, stop: int) -> Floats | None:
        if not self._has(spec):
            return None
        return self._model.dense_run(spec.name, start, stop)

    def sparse(self, spec: TableSpec, pserver: int, pservers: int) -> tuple[Ids, Floats] | None:
        if not self._has(spec):
            return None
        ids, rows = self._model.sparse_table(spec.name)
        if spec.rows is not None and len(ids) and not (ids[0] >= 0 and ids[-1] < spec.rows):
            raise ModelError(f"table {spec.name!r} in {self._path} has ids outside 0..{spec.rows - 1}")
        own = np.flatnonzero(owners_of(ids, spec.rows, pservers) == pserver)
        return ids[own], rows.take(own, axis=0)

    def _has(self, spec: TableSpec) -> bool:
        table = self._model.tables.get(spec.name)
        if table is None:
            return False
        saved = (table["kind"], tuple(table["shape"]))
        if saved != (spec.kind, spec.shape):
            raise ModelError(
                f"table {spec.name!r} is {spec.kind} {spec.shape}, in {self._path} it is {saved[0]} {saved[1]}",
                remedy="declare it as it was saved, or rename it",
            )
        return True


def _open(directories: Sequence[Path]) -> PieceSet | MergedFile:
    path = directories[0]
    if path.is_file():
        return MergedFile(path)
    if not path.is_dir():
        raise ModelError(f"{path} does not exist", remedy="give a directory of saved pieces, or a merged model file")
    if (path / MERGED_NAME).is_file() and not list(path.glob("pserver-*.safetensors")):
        return MergedFile(path / MERGED_NAME)
    return PieceSet(directories)


def _find_pieces(directories: Iterable[Path]) -> list[Path]:
    """The piece files; where a manifest is beside them or in another directory, its checksums must hold."""
    found: dict[str, Path] = {}
    sums: dict[str, tuple[int, str]] = {}
    for directory in directories:
        for path in sorted(directory.glob("pserver-*.safetensors")):
            if path.name in found and checksum(path) != checksum(found[path.name]):
                raise ModelError(
                    f"{path} and {found[path.name]} differ", remedy="give the pieces of one run and tag only"
                )
            found[path.name] = path
        try:
            manifest = read_manifest(directory)
        except (OSError, ValueError) as exc:
            raise ModelError(f"the manifest in {directory} cannot be read ({exc})") from exc
        if manifest is not None:
            sums.update({str(f["file"]): (int(f["bytes"]), str(f["sha256"])) for f in manifest["files"]})
    for name, expected in sums.items():
        if name not in found:
            raise ModelError(f"{name} is missing, the manifest lists it", remedy="collect it from its node")
        if checksum(found[name]) != expected:
            raise ModelError(f"{found[name]} is damaged: it differs from the manifest", remedy="collect it again")
    return [found[name] for name in sorted(found)]


def checksum(path: Path) -> tuple[int, str]:
    """Size and sha256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        return file.tell(), digest.hexdigest()


def _by_pserver(files: Sequence[TensorFile]) -> list[TensorFile]:
    """The files by pserver; raises ModelError when one is missing or they are not of one cut."""
    first = files[0]
    moment = ("pass", "step") if is_cut(first.metadata) else ()
    alike = ("job", "run", "tag", *moment, "pservers", "block_elements", "slots")
    for file in files:
        differing = [key for key in alike if file.metadata.get(key) != first.metadata.get(key)]
        if differing or sorted(read_tables(file, FORMAT)) != sorted(read_tables(first, FORMAT)):
            raise ModelError(
                f"{file.path} is of another cut than {first.path} ({', '.join(differing) or 'tables'} differ)"
            )
    sizes = (first.metadata.get("block_elements"), first.metadata.get("slots"))
    if sizes != (str(BLOCK_ELEMENTS), str(SLOTS)):
        raise ModelError(f"{first.path} has blocks and slots {sizes}, this version reads {(BLOCK_ELEMENTS, SLOTS)}")
    by_number = {file.metadata.get("pserver"): file for file in files}
    count = _whole(first.metadata.get("pservers"), first.path)
    missing = [piece_name(p) for p in range(count) if str(p) not in by_number]
    if missing or len(files) != count:
        raise ModelError(f"of {count} pieces there are {len(files)}; missing: {', '.join(missing) or 'none'}")
    return [by_number[str(p)] for p in range(count)]


def read_tables(file: TensorFile, expected: str) -> dict[str, dict[str, Any]]:
    """What a file of format `expected` says of its tables, by name; raises ModelError."""
    if file.metadata.get("format") != expected:
        raise ModelError(f"{file.path} has format {file.metadata.get('format')!r}, expected {expected!r}")
    try:
        tables: dict[str, dict[str, Any]] = json.loads(file.metadata["tables"])
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
