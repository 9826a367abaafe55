"""What one pserver saves: its tables as named tensors, and the metadata that says what is whole.

Tensors are `NAME/block/K` (float32, the K-th block of the flattened table), `NAME/slot/K/ids` (int64, ascending)
and `NAME/slot/K/rows` (float32, one row per id). Slots without rows are left out. The metadata, strings only:
`format`, `job`, `run`, `tag`, `pass`, `step`, `mode`, `seed`, `pserver`, `pservers`, `block_elements`, `slots`, and
`tables`, a JSON object `NAME -> kind, shape, rows, rule, init, held` with the elements or rows that this file holds.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clusterctl.runtime.manifest import piece_name
from clusterctl.runtime.placement import BLOCK_ELEMENTS, SLOTS, slots_of
from clusterctl.runtime.sparse import SparseTable
from clusterctl.runtime.tables import DenseTable, Table
from clusterctl.runtime.tensorfile import Entry, write_tensors

FORMAT = "clusterctl-pieces/1"


@dataclass(frozen=True)
class Cut:
    """Which moment of which run a save is of; the same for all pservers but `pserver`."""

    job: str
    run: str
    tag: str
    pass_: int
    step: int
    mode: str
    seed: int
    pserver: int
    pservers: int

    def to_json(self) -> dict[str, Any]:
        names = ("job", "run", "tag", "step", "mode", "seed", "pserver", "pservers")
        return {**{name: getattr(self, name) for name in names}, "pass": self.pass_}


def write_piece(output_dir: Path, cut: Cut, tables: Iterable[Table]) -> dict[str, Any]:
    """Writes `output_dir/TAG/pserver-0000P.safetensors`; returns the receipt (see `manifest`)."""
    ordered = sorted(tables, key=lambda table: table.spec.name)
    entries = [entry for table in ordered for entry in _entries(table)]
    entries.sort(key=lambda entry: entry.dtype, reverse=True)  # int64 first keeps every array aligned
    described = {t.spec.name: {**t.spec.to_json(), "held": _held(t)} for t in ordered}
    metadata = {name: str(value) for name, value in cut.to_json().items()}
    metadata.update(format=FORMAT, block_elements=str(BLOCK_ELEMENTS), slots=str(SLOTS), tables=json.dumps(described))
    path = output_dir / cut.tag / piece_name(cut.pserver)
    size, digest = write_tensors(path, entries, metadata)
    brief = {n: {k: d[k] for k in ("kind", "shape", "rows", "held")} for n, d in described.items()}
    return {**cut.to_json(), "file": path.name, "bytes": size, "sha256": digest, "tables": brief}


def _held(table: Table) -> int:
    return table.count if isinstance(table, DenseTable) else len(table)


def _entries(table: Table) -> list[Entry]:
    return _blocks(table) if isinstance(table, DenseTable) else _slots(table)


def _blocks(table: DenseTable) -> list[Entry]:
    values, out = table.current, []
    for a in range(0, table.count, BLOCK_ELEMENTS):
        block = values[a : a + BLOCK_ELEMENTS]
        number = (table.start + a) // BLOCK_ELEMENTS
        out.append(Entry(f"{table.spec.name}/block/{number}", "F32", block.shape, functools.partial(np.asarray, block)))
    return out


def _slots(table: SparseTable) -> list[Entry]:
    ids = table.ids
    slots = slots_of(ids, table.spec.rows)
    order = np.lexsort((ids, slots))
    starts = np.searchsorted(slots[order], np.arange(SLOTS + 1))
    out = []
    for slot in np.flatnonzero(np.diff(starts)).tolist():
        at = order[starts[slot] : starts[slot + 1]]
        name = f"{table.spec.name}/slot/{slot}"
        out.append(Entry(f"{name}/ids", "I64", (len(at),), functools.partial(table.ids_at, at)))
        out.append(Entry(f"{name}/rows", "F32", (len(at), table.spec.dim), functools.partial(table.rows_at, at)))
    return out
