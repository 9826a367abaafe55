"""Make a lane's tables from their initial values, from a saved model, or from the checkpoint of the run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Callable, Protocol, Union

import numpy as np
import numpy.typing as npt

from clusterctl.common.modes import Mode
from clusterctl.runtime.arrays import Floats, Ids
from clusterctl.runtime.errors import ModelError, TableError, UseError
from clusterctl.runtime.store.dense import DenseTable
from clusterctl.runtime.store.quantized import QuantizedTable
from clusterctl.runtime.store.sparse import SparseTable
from clusterctl.runtime.table.rules import Delta
from clusterctl.runtime.table.sharding import Layout, owned_elements
from clusterctl.runtime.table.spec import TableSpec

Table = Union[DenseTable, SparseTable]
Tables = dict[int, Table]


class ModelSource(Protocol):
    """A saved model that tables start from."""

    @property
    def names(self) -> list[str]: ...

    def dense(self, spec: TableSpec, start: int, stop: int) -> Floats | None: ...

    def sparse(self, spec: TableSpec, pserver: int, pservers: int) -> tuple[Ids, Floats] | None: ...


class CheckpointSource(Protocol):
    """A checkpoint that a run resumes from: values, the state of rules and the trainers' cursors."""

    step: int
    mode: str
    cursors: list[dict[str, Any]]

    @property
    def names(self) -> list[str]: ...

    def dense(self, spec: TableSpec, start: int, stop: int) -> tuple[Floats, list[Floats]] | None: ...

    def base(self, spec: TableSpec, start: int, stop: int) -> Floats | None: ...

    def sparse(self, spec: TableSpec, lane: int, lanes: int) -> tuple[Ids, Mapping[str, Any], Ids, Ids] | None: ...


class Lender(Protocol):
    """Memory that this lane shares with trainers on the same host."""

    def greeting(self, rank: int) -> dict[str, Any]:
        """Return the facts that a trainer needs to connect."""
        ...

    def allocate(self, lane: int, key: int, count: int) -> tuple[Floats, Floats]:
        """Return the two buffers of a dense table's values."""
        ...

    def position(self, rank: int, lane: int, key: int, values: Floats) -> int | None:
        """Return the position of `values`, a view of such a buffer, for a trainer; None if it has not mapped them."""
        ...

    def room(self, rank: int, position: int, size: int) -> npt.NDArray[np.uint8] | None:
        """Return the memory of a trainer at `position`, to write bytes to; None if there is none."""
        ...


class TableMaker:
    """Makes the tables of one lane. `initial` has the keys of those without a checkpoint or saved model."""

    def __init__(
        self,
        lane: int,
        layout: Layout,
        seed: int,
        mode: Mode,
        open_model: Callable[[str], ModelSource] | None,
        restored: CheckpointSource | None,
        lender: Lender | None,
    ) -> None:
        self.initial: set[int] = set()
        self._lane = lane
        self._layout = layout
        self._pserver = lane // layout.per_pserver
        self._seed = seed
        self._mode = mode
        self._open_model = open_model
        self._restored = restored
        self._lender = lender
        self._models: dict[str, ModelSource] = {}
        self._ahead: dict[TableSpec, Table] = {}

    def must_read(self, declared: TableSpec) -> bool:
        """Return True if making this table reads files."""
        return self._restored is not None or declared.load is not None

    def must_open(self, load: str) -> bool:
        """Return True if `saved_tables` has to open a model."""
        return self._restored is None and self._open_model is not None and load not in self._models

    def make_ahead(self, declared: Iterable[TableSpec]) -> None:
        """Make tables that `make` will return, in any thread."""
        for one in declared:
            self._ahead[one] = self._made(one)

    def make(self, declared: TableSpec) -> Table:
        """Return a table with its initial values, or those of the checkpoint or saved model that it starts from."""
        return self._ahead.pop(declared) if declared in self._ahead else self._made(declared)

    def _made(self, declared: TableSpec) -> Table:
        if declared.wire is not None and self._mode.name != "sync":
            raise UseError(
                f"table {declared.name!r} has wire={declared.wire!r} in {self._mode} mode", remedy='use "sync"'
            )
        spec = replace(declared, rule=Delta()) if self._mode.name == "geo" else declared
        self._require_room(spec)
        try:
            if spec.kind == "dense":
                table: Table = self._dense(spec)
            else:
                table = SparseTable(spec, self._seed, *self._layout.place_of(self._lane, "sparse"))
            if not self._restore(table) and (spec.load is None or not self._load(table, spec.load)):
                self.initial.add(spec.key)
        except MemoryError as exc:
            raise TableError(f"table {spec.name!r} does not fit into the memory of pserver {self._pserver}") from exc
        return table

    def _require_room(self, spec: TableSpec) -> None:
        """Raise TableError if a table exceeds the machine's memory; the kernel would overcommit and kill later."""
        place, places = self._layout.place_of(self._lane, spec.kind)
        if spec.kind == "dense":
            start, stop = owned_elements(spec.elements, spec.first_place, place, places)
            needed = 4 * (stop - start) * (2 + (spec.wire is not None) + spec.rule.states)
        else:  # only `from_rank0` makes all rows
            rows = (spec.rows or 0) // places if spec.init.is_from_rank0 else 0
            needed = rows * (8 + 4 * spec.dim * (1 + spec.rule.states))
        there = memory_bytes()
        if needed > there:
            raise TableError(
                f"table {spec.name!r} needs {needed / 1e9:.1f} GB on pserver {self._pserver}, "
                f"whose machine has {there / 1e9:.1f} GB",
                remedy="use more pservers, or an embedding",
            )

    def _dense(self, spec: TableSpec) -> DenseTable:
        lender = self._lender
        lend = None if lender is None else lambda count: lender.allocate(self._lane, spec.key, count)
        place = self._layout.place_of(self._lane, "dense")
        if spec.quantizer is not None:
            return QuantizedTable(spec, spec.quantizer, *place, self._seed, lend)
        return DenseTable(spec, *place, self._seed, lend)

    def _restore(self, table: Table) -> bool:
        """Fill a table from the checkpoint of this run; return False if there is none, or it lacks the table."""
        source = self._restored
        if source is None:
            return False
        if isinstance(table, DenseTable):
            dense = source.dense(table.spec, table.start, table.stop)
            if dense is None:
                return False
            table.fill(0, dense[0], source.base(table.spec, table.start, table.stop))
            for state, saved in zip(table.state, dense[1]):
                state[:] = saved
            return True
        sparse = source.sparse(table.spec, *self._layout.place_of(self._lane, "sparse"))
        if sparse is None:
            return False
        ids, columns, candidates, counts = sparse
        table.restore(ids, columns)
        table.restore_candidates(candidates, counts)
        return True

    def saved_tables(self, load: str) -> dict[str, Any] | None:
        """Return `{"checkpoint": bool, "names": [...]}`: the tables of the checkpoint, or else of the model `load`.

        None if there is neither. Raises ModelError.
        """
        if self._restored is None and (not load or self._open_model is None):
            return None
        source = self._restored or self._model(load)
        return {"checkpoint": self._restored is not None, "names": source.names}

    def _model(self, path: str) -> ModelSource:
        if self._open_model is None:
            raise ModelError(f"pserver {self._pserver} cannot load {path}")
        return self._models.get(path) or self._models.setdefault(path, self._open_model(path))

    def _load(self, table: Table, path: str) -> bool:
        """Fill a table from the saved model at `path`; return False if the model lacks it."""
        try:
            source = self._model(path)
            if isinstance(table, DenseTable):
                values = source.dense(table.spec, table.start, table.stop)
                if values is not None:
                    table.fill(0, values)
                return values is not None
            rows = source.sparse(table.spec, *self._layout.place_of(self._lane, "sparse"))
            if rows is not None:
                table.restore(rows[0], {"rows": rows[1]})
            return rows is not None
        except (OSError, ValueError, KeyError) as exc:
            raise ModelError(
                f"pserver {self._pserver}: table {table.spec.name!r} of {path} is damaged ({exc})"
            ) from exc


def memory_bytes() -> int:
    """Return the size of the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
