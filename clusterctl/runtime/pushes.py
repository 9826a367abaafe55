"""Reading the parts of a request against the tables: what a pserver accepts from a trainer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from clusterctl.runtime import wire
from clusterctl.runtime.errors import TableError, WireError
from clusterctl.runtime.placement import Ids, owners_of
from clusterctl.runtime.sparse import SparseGrad, SparseTable
from clusterctl.runtime.spec import TableSpec
from clusterctl.runtime.tables import PART_ELEMENTS, DenseGrad, DenseTable, Table, Tables

_MAX_SAMPLES = 2**53


@dataclass
class Push:
    """A checked push that waits for its step: gradients by table key, and the request to answer."""

    message: wire.Message
    dense: dict[int, DenseGrad] = field(default_factory=dict)
    sparse: dict[int, SparseGrad] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        return self.message.samples


def read_push(message: wire.Message, tables: Tables, place: tuple[int, int], weight: float) -> Push:
    """Checks every part of a push; `place` is (pserver, pservers). Raises WireError or TableError, changes nothing."""
    if message.piece != 0:
        raise WireError(
            f"trainer {message.rank} sent piece {message.piece} of step {message.step}; there is only piece 0"
        )
    if message.samples > _MAX_SAMPLES:
        raise WireError(f"trainer {message.rank} claims {message.samples} samples at step {message.step}")
    push = Push(message)
    for key, parts in _by_table(message.parts):
        table = known(tables, key)
        if isinstance(table, DenseTable):
            push.dense[key] = _dense_grad(table, parts, np.float32(weight))
        else:
            push.sparse[key] = _sparse_grad(table, parts, place, np.float32(weight))
    return push


def known(tables: Tables, key: int) -> Table:
    table = tables.get(key)
    if table is None:
        raise TableError(f"a message names a table that was never made (key {key:#x})")
    return table


def check_ids(spec: TableSpec, ids: Ids, place: tuple[int, int]) -> None:
    """Ids must ascend strictly, be within the table's bound, and belong to this pserver."""
    if len(ids) == 0:
        return
    if not bool((ids[1:] > ids[:-1]).all()):
        raise WireError(f"ids for table {spec.name!r} do not ascend")
    if spec.rows is not None and not (ids[0] >= 0 and ids[-1] < spec.rows):
        raise TableError(f"ids for table {spec.name!r} are outside 0..{spec.rows - 1}")
    if not bool((owners_of(ids, spec.rows, place[1]) == place[0]).all()):
        raise WireError(f"ids for table {spec.name!r} came to the wrong pserver, {place[0]} of {place[1]}")


def _by_table(parts: list[wire.Part]) -> Iterator[tuple[int, list[wire.Part]]]:
    grouped: dict[int, list[wire.Part]] = {}
    for part in parts:
        grouped.setdefault(part.table, []).append(part)
    return iter(grouped.items())


def _dense_grad(table: DenseTable, parts: list[wire.Part], weight: np.float32) -> DenseGrad:
    expected = [(table.start + a, min(PART_ELEMENTS, table.count - a)) for a in range(0, table.count, PART_ELEMENTS)]
    got = [(p.offset, len(p.array)) for p in parts]
    if any(p.kind != wire.DENSE for p in parts) or got != expected:
        raise WireError(f"the gradient of table {table.spec.name!r} has parts {got[:4]}, not {expected[:4]}")
    return DenseGrad(weight, [p.array for p in parts])


def _sparse_grad(table: SparseTable, parts: list[wire.Part], place: tuple[int, int], weight: np.float32) -> SparseGrad:
    spec = table.spec
    ids, rows = [p.array for p in parts[::2]], [p.array for p in parts[1::2]]
    paired = [p.kind for p in parts] == [wire.IDS, wire.ROWS] * len(rows)
    if not paired or any(r.shape != (len(i), spec.dim) for i, r in zip(ids, rows)):
        raise WireError(f"the gradient of table {spec.name!r} is not made of ids and rows of width {spec.dim}")
    all_ids, all_rows = (ids[0], rows[0]) if len(ids) == 1 else (np.concatenate(ids), np.concatenate(rows))
    check_ids(spec, all_ids, place)
    return SparseGrad(weight, all_ids, all_rows)


def answer_pull(message: wire.Message, tables: Tables, place: tuple[int, int], version: int | None) -> list[wire.Part]:
    """The parts that a pull asks for, at `version` (None: the newest)."""
    out: list[wire.Part] = []
    for part in message.parts:
        table = known(tables, part.table)
        if part.kind == wire.DENSE and isinstance(table, DenseTable):
            out += dense_parts(table, version)
        elif part.kind == wire.IDS and isinstance(table, SparseTable):
            check_ids(table.spec, part.array, place)
            out.append(wire.Part(wire.ROWS, table.pull(part.array, version), part.table))
        else:
            raise WireError(f"a pull of table {table.spec.name!r} asks for the wrong kind of part")
    return out


def dense_parts(table: DenseTable, version: int | None, copy: bool = False) -> list[wire.Part]:
    values = table.at(version)
    values = values.copy() if copy else values
    return [wire.Part(wire.DENSE, array, table.spec.key, offset) for offset, array in table.parts(values)]
