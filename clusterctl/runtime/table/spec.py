"""The definition of a table, which trainers declare, pservers compare and files carry."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from clusterctl.runtime.errors import RuntimeFailure, TableError, UseError
from clusterctl.runtime.table.initializers import Initial, initial_from_json
from clusterctl.runtime.table.quantization import QUANTIZERS, Quantizer
from clusterctl.runtime.table.retention import Retention, retention_from_json
from clusterctl.runtime.table.rules import Rule, rule_from_json
from clusterctl.runtime.table.sharding import table_key

_NAME = re.compile(r"[\w.:+-][\w.:+/ -]{0,199}")
_MAX_ELEMENTS = 2**40
_RESERVED = ("__metadata__",)


class Column(NamedTuple):
    """A column of the rows of an embedding, such as `rows` or `state/0`.

    `width` numbers of `dtype` "F32" or "I64" per row, or one number if `width` is None.
    """

    name: str
    dtype: str
    width: int | None = None


@dataclass(frozen=True)
class TableSpec:
    """A table. `kind` is "dense" (of `shape`) or "sparse" (`shape` is `(dim,)`, `rows` bounds the ids or is None).

    `wire` is the format in which gradients and changes of a dense table are sent, of `quantization`; None is float32.
    `place`, modulo the number of places, is the place of a dense table's first block; None chooses it by the name.
    `every` is the number of batches of a round of the outer mode, which is to be that of all trainers.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    rule: Rule
    init: Initial
    rows: int | None = None
    load: str | None = None
    retention: Retention | None = None
    wire: str | None = None
    place: int | None = None
    every: int | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name in _RESERVED or self.name.endswith("/"):
            raise UseError(f"table name {self.name!r} is invalid", remedy="use letters, digits and ._:+-/")
        if self.kind not in ("dense", "sparse"):
            raise UseError(f"table {self.name!r}: kind {self.kind!r} is unknown")
        if self.kind == "sparse" and len(self.shape) != 1:
            raise UseError(f"table {self.name!r}: a sparse table has one width, not {self.shape}")
        if any(n < 1 for n in self.shape) or self.elements > _MAX_ELEMENTS:
            raise UseError(f"table {self.name!r}: shape {self.shape} is invalid", remedy="make each size at least 1")
        if not isinstance(self.rule, Rule) or not isinstance(self.init, Initial):
            raise UseError(
                f"table {self.name!r}: rule={self.rule!r}, init={self.init!r}",
                remedy="pass for example Adagrad(0.05) and uniform(0.1)",
            )
        if self.rows is not None and not 1 <= self.rows <= 2**62:
            raise UseError(f"table {self.name!r}: rows={self.rows} is invalid", remedy="use rows=None for no bound")
        if self.retention is not None and not isinstance(self.retention, Retention):
            raise UseError(
                f"table {self.name!r}: retention={self.retention!r}",
                remedy="pass for example Retention(max_rows=1_000_000)",
            )
        if self.kind == "dense" and self.retention is not None:
            raise UseError(f"table {self.name!r}: retention is for embeddings, not for dense tables")
        if self.wire is not None and (self.kind != "dense" or self.wire not in QUANTIZERS):
            raise UseError(f"table {self.name!r}: wire={self.wire!r}", remedy='use "int8" or "int4", for a dense table')
        if self.place is not None and not 0 <= self.place < 2**32:
            raise UseError(f"table {self.name!r}: place={self.place}")
        if self.init.is_from_rank0 and self.kind == "sparse" and (self.rows is None or self.retention is not None):
            raise UseError(
                f"table {self.name!r}: from_rank0 gives all rows their values, which then stay",
                remedy="pass rows=, and no retention",
            )

    @property
    def elements(self) -> int:
        """The number of elements of a dense table, or of one row of a sparse table."""
        count = 1
        for n in self.shape:
            count *= n
        return count

    @property
    def full_shape(self) -> tuple[int, ...]:
        """The shape of all values; of an embedding with `rows` the rows and the width."""
        return self.shape if self.rows is None else (self.rows, *self.shape)

    @property
    def dim(self) -> int:
        return self.shape[0]

    @property
    def quantizer(self) -> Quantizer | None:
        """The quantizer of the gradients and changes of a table with `wire`."""
        return None if self.wire is None else QUANTIZERS[self.wire]

    @functools.cached_property
    def key(self) -> int:
        return table_key(self.name)

    @property
    def first_place(self) -> int:
        """The place of the first block, modulo the number of places."""
        return self.key if self.place is None else self.place

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "shape": list(self.shape),
            "rows": self.rows,
            "rule": self.rule.to_json(),
            "init": self.init.to_json(),
            "load": self.load,
            "retention": None if self.retention is None else self.retention.to_json(),
            **({} if self.wire is None else {"wire": self.wire}),
            **({} if self.place is None else {"place": self.place}),
            **({} if self.every is None else {"every": self.every}),
        }

    def require_same(self, other: TableSpec, rank: int) -> None:
        """Raise TableError naming each difference between this spec and the one that trainer `rank` declares."""
        mine, theirs = self.to_json(), other.to_json()
        differing = [
            f"{k}: {mine.get(k)} here, {theirs.get(k)} there"
            for k in {**mine, **theirs}
            if mine.get(k) != theirs.get(k)
        ]
        if differing:
            raise TableError(
                f"table {self.name!r} differs from what trainer {rank} declares ({'; '.join(differing)})",
                remedy="declare it the same way in every trainer",
            )


def merged_tensors(name: str, kind: str) -> tuple[str, ...]:
    """Return the names of the tensors of a table in a merged model."""
    return (name,) if kind == "dense" else (f"{name}/ids", f"{name}/rows")


class TensorNames:
    """The names of the tensors of a model when it is merged. Raises `error` if two of them would be the same."""

    def __init__(self, error: type[RuntimeFailure] = TableError) -> None:
        self._error = error
        self._kinds: dict[str, str] = {}
        self._owners: dict[str, str] = {}
        self._buffers: set[str] = set()

    def add(self, name: str, kind: str) -> None:
        """Add a table, "dense" or "sparse". One that is there already is not added again."""
        known = self._kinds.get(name)
        if known == kind:
            return
        if known is not None:
            what = f"table {name!r} is declared as {known} and as {kind}"
            raise self._error(what, remedy="give the two tables different names")
        tensors = merged_tensors(name, kind)
        for tensor in tensors:
            if tensor in self._owners:
                self._refuse(f"table {name!r} and table {self._owners[tensor]!r}", tensor)
        for saved in (name, *tensors):
            if saved in self._buffers:
                self._refuse(f"table {name!r} and buffer {saved!r} of the model", saved)
        self._kinds[name] = kind
        self._owners.update(dict.fromkeys(tensors, name))

    def add_buffer(self, name: str) -> None:
        """Add a buffer of a torch model, which is saved under its own name."""
        owner = name if name in self._kinds else self._owners.get(name)
        if owner is not None:
            self._refuse(f"table {owner!r} and buffer {name!r} of the model", name)
        self._buffers.add(name)

    def _refuse(self, both: str, saved: str) -> None:
        raise self._error(f"{both} would both be saved as {saved!r}", remedy="rename one of them")


def spec_from_json(data: dict[str, Any]) -> TableSpec:
    """Return the table in JSON of `TableSpec.to_json`. Raises UseError for anything else."""
    try:
        rows, load, wire = data["rows"], data["load"], data.get("wire")
        place, every = data.get("place"), data.get("every")
        return TableSpec(
            name=str(data["name"]),
            kind=str(data["kind"]),
            shape=tuple(int(n) for n in data["shape"]),
            rule=rule_from_json(data["rule"]),
            init=initial_from_json(data["init"]),
            rows=None if rows is None else int(rows),
            load=None if load is None else str(load),
            retention=retention_from_json(data.get("retention")),
            wire=None if wire is None else str(wire),
            place=None if place is None else int(place),
            every=None if every is None else int(every),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as exc:
        raise UseError(f"table definition {data!r} is malformed") from exc
