"""Write one pserver's piece of a save: its tables as named tensors, and metadata.

A model has `NAME/block/K` (float32, the K-th block of the flattened table), `NAME/slot/K/ids` (int64, ascending) and
`NAME/slot/K/rows` (float32, one row per id). A checkpoint also has, with the arrays of a rule's state numbered
from 0, `NAME/block/K/state/S`, `NAME/slot/K/state/S`, `NAME/block/K/base` of a table with `wire`, the other columns of
an embedding as `NAME/slot/K/COLUMN`, and the ids not admitted yet as `NAME/slot/K/candidates/ids` and `/counts`
(int64). Empty slots are omitted. The piece of pserver 0 in a model may have `NAME/buffer`, see `buffers`, and their
names in the metadata.

The metadata, strings only: `format`, `job`, `run`, `tag`, `pass`, `step`, `mode`, `seed`, `pserver`, `pservers`,
`block_elements`, `slots`, and `tables`, a JSON object `NAME -> kind, shape, rows, rule, init, held` with the elements
or rows that this file holds. A checkpoint also has `lanes`, JSON `[dense, sparse]` per pserver; `places`, JSON
`[first, after, of]`: it holds the slots K with first <= K % of < after; and `cursors`, a JSON list of
`{"rank", "step", "pass", "batch", "passes", "left"}`, with `position` if the reader sets `ps.cursor`, and `"state":
true` if the trainer has a state of its own; the first may have `positions`, those of the trainers of a run with another
number of them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Protocol, Union, runtime_checkable

import numpy as np
import numpy.typing as npt

from clusterctl.common.manifest import piece_name
from clusterctl.runtime.arrays import Ids, is_finite
from clusterctl.runtime.checkpoint.buffers import Buffers
from clusterctl.runtime.checkpoint.safetensors import TensorEntry, aligned, write_tensors
from clusterctl.runtime.environment import Environment
from clusterctl.runtime.errors import ModelError
from clusterctl.runtime.table.sharding import BLOCK_ELEMENTS, SLOTS, Layout, slots_of
from clusterctl.runtime.table.spec import Column, TableSpec

FORMAT = "clusterctl-pieces/1"


class DenseRun(Protocol):
    """Elements `start` to `start + count` of a dense table; `start` is at the start of a block."""

    spec: TableSpec
    start: int
    count: int
    current: npt.NDArray[np.float32]

    @property
    def base(self) -> npt.NDArray[np.float32] | None: ...
    @property
    def state(self) -> Sequence[npt.NDArray[np.float32]]: ...


@runtime_checkable
class SparseLane(Protocol):
    """Rows of an embedding, of some of its slots."""

    @property
    def spec(self) -> TableSpec: ...
    def live(self) -> Ids: ...
    def ids_at(self, positions: Ids) -> Ids: ...
    def columns(self) -> Sequence[Column]: ...
    def read(self, name: str, positions: Ids) -> npt.NDArray[Any]: ...
    def candidates(self) -> tuple[Ids, Ids]: ...


Part = Union[DenseRun, SparseLane]


class Save(NamedTuple):
    """A request to write `tables`, copies of one moment, under `tag`, and to call `ServerCore.saved(tag)` afterwards.

    A checkpoint has the trainers' cursors. `at_cut` means that the next save of this kind replaces it if other lanes
    have not made it. `pause_s` is the time it took to make the copies, while pushes waited.
    """

    tag: str
    step: int
    pass_: int
    tables: tuple[Any, ...] = ()
    checkpoint: bool = False
    cursors: tuple[dict[str, Any], ...] = ()
    at_cut: bool = False
    pause_s: float = 0.0
    buffers: Buffers | None = None


class Cut(NamedTuple):
    """The run and the moment of a save; identical for all pservers except `pserver`."""

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


def newest_cursors(of_all: Sequence[Sequence[dict[str, Any]]]) -> tuple[dict[str, Any], ...]:
    """Return of each trainer the cursor with the most pushes, given those of several lanes or pservers.

    One that a pserver has after a restart may lack pushes, until the trainer makes a table there.
    """
    return tuple(max(of_one, key=_place) for of_one in zip(*of_all))


def _place(cursor: Mapping[str, Any]) -> tuple[int, ...]:
    """Return how far a trainer is. Of one that has left, a pserver that was restarted knows the pushes only."""
    return tuple(int(cursor[name]) for name in ("step", "pass", "batch"))


def write_piece(
    output_dir: Path,
    cut: Cut,
    tables: Iterable[Part],
    *,
    cursors: Sequence[Mapping[str, Any]] | None = None,
    lanes: tuple[int, int] = (1, 1),
    buffers: Buffers | None = None,
    on_tensor: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Write `output_dir/TAG/pserver-0000P.safetensors`; return the receipt (see `manifest`).

    `tables` (`DenseRun`, `SparseLane`) may have several disjoint parts of one name. With `cursors`, one per trainer, it
    is a checkpoint: it includes the state of rules, and the receipt marks it. A model may have `buffers`. `on_tensor`
    is called before each tensor is written.
    Raises OSError, such as on a full disk, which leaves an earlier file of this name unchanged.
    """
    parts = sorted(tables, key=lambda table: table.spec.name)
    places = None if cursors is None else _places(cut, lanes)
    not_finite: set[str] = set()
    own = [(part.spec.name, entry) for part in parts for entry in _entries(part, places)]
    entries = [_watched(entry, table, not_finite, on_tensor) for table, entry in own]
    entries += buffers.entries() if buffers is not None else ()
    described: dict[str, Any] = {}
    for part in parts:
        _describe(part, described)
    metadata = {name: str(value) for name, value in cut.to_json().items()}
    metadata.update(format=FORMAT, block_elements=str(BLOCK_ELEMENTS), slots=str(SLOTS), tables=json.dumps(described))
    more: dict[str, Any] = {}
    if buffers is not None:
        metadata["buffers"] = json.dumps(buffers.names)
    if cursors is not None:
        extra = {"cursors": [dict(cursor) for cursor in cursors], "lanes": lanes, "places": places}
        metadata.update({name: json.dumps(value) for name, value in extra.items()})
        more = {"checkpoint": True, "trainers": len(cursors), "lanes": list(lanes), **_own_steps(cut, cursors)}
        if states := [cursor["rank"] for cursor in cursors if cursor.get("state")]:
            more["states"] = states  # of these trainers belong to the checkpoint
    path = output_dir / cut.tag / piece_name(cut.pserver)
    size, digest = write_tensors(path, aligned(entries), metadata)
    brief = {n: {k: d[k] for k in ("kind", "shape", "rows", "held")} for n, d in described.items()}
    if not_finite:
        more["not_finite"] = sorted(not_finite)
    return {**cut.to_json(), "file": path.name, "bytes": size, "sha256": digest, "tables": brief, **more}


def _watched(entry: TensorEntry, table: str, not_finite: set[str], on_tensor: Callable[[], None]) -> TensorEntry:
    """Return the entry, which adds its table to `not_finite` if it has such a value when it is written."""

    def read() -> npt.NDArray[Any]:
        on_tensor()
        array = entry.read()
        with np.errstate(over="ignore", invalid="ignore"):
            if array.dtype == np.float32 and not is_finite(array):
                not_finite.add(table)
        return array

    return TensorEntry(entry.name, entry.dtype, entry.shape, read)


def write_save(
    env: Environment, layout: Layout, pserver: int, save: Save, on_tensor: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Write a pserver's piece of a save to the output directory, or of a checkpoint to the run's directory."""
    mode = env.spec.training.mode
    cut = Cut(env.job, env.run, save.tag, save.pass_, save.step, mode, env.seed, pserver, layout.pservers)
    if not save.checkpoint:
        return write_piece(env.output_dir, cut, save.tables, buffers=save.buffers, on_tensor=on_tensor)
    lanes = (layout.dense, layout.sparse)
    return write_piece(env.checkpoint_dir, cut, save.tables, cursors=save.cursors, lanes=lanes, on_tensor=on_tensor)


def _own_steps(cut: Cut, cursors: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the trainers' steps. In sync mode all are at the cut's step; in other modes each has its own."""
    steps = [cursor["step"] for cursor in sorted(cursors, key=lambda cursor: cursor["rank"])]
    return {} if cut.mode == "sync" else {"steps": steps}


def _places(cut: Cut, lanes: tuple[int, int]) -> tuple[int, int, int]:
    """Return the pserver's places among all that serve embeddings: `first`, `after`, `of` (see `sharding.Layout`)."""
    each = lanes[1] or lanes[0]
    return cut.pserver * each, (cut.pserver + 1) * each, cut.pservers * each


def _describe(part: Part, described: dict[str, Any]) -> None:
    """Add a part to the description of its table."""
    table = described.setdefault(part.spec.name, {**part.spec.to_json(), "held": 0})
    table["held"] += len(part.live()) if isinstance(part, SparseLane) else part.count


def _entries(part: Part, places: tuple[int, int, int] | None) -> list[TensorEntry]:
    return _slots(part, places) if isinstance(part, SparseLane) else _blocks(part, whole=places is not None)


def _blocks(run: DenseRun, *, whole: bool) -> list[TensorEntry]:
    arrays = {"": run.current, **({f"/state/{s}": array for s, array in enumerate(run.state)} if whole else {})}
    if whole and run.base is not None:
        arrays["/base"] = run.base
    out = []
    for a in range(0, run.count, BLOCK_ELEMENTS):
        number = (run.start + a) // BLOCK_ELEMENTS
        for suffix, array in arrays.items():
            block = array[a : a + BLOCK_ELEMENTS]
            name = f"{run.spec.name}/block/{number}{suffix}"
            out.append(TensorEntry(name, "F32", block.shape, functools.partial(np.asarray, block)))
    return out


def _slots(lane: SparseLane, places: tuple[int, int, int] | None) -> list[TensorEntry]:
    columns = [column for column in lane.columns() if places or column.name == "rows"]
    positions = lane.live()
    out = []
    for slot, at in _by_slot(lane.ids_at(positions), lane.spec.rows):
        if places and not places[0] <= slot % places[2] < places[1]:
            raise ModelError(f"table {lane.spec.name!r} has rows of slot {slot}, which is outside places {places}")
        name, own = f"{lane.spec.name}/slot/{slot}", positions[at]
        out.append(TensorEntry(f"{name}/ids", "I64", own.shape, functools.partial(lane.ids_at, own)))
        for column in columns:
            shape = own.shape if column.width is None else (len(own), column.width)
            read = functools.partial(lane.read, column.name, own)
            out.append(TensorEntry(f"{name}/{column.name}", column.dtype, shape, read))
    return [*out, *_candidates(lane)] if places else out


def _candidates(lane: SparseLane) -> list[TensorEntry]:
    ids, counts = lane.candidates()
    out = []
    for slot, at in _by_slot(ids, lane.spec.rows):
        name = f"{lane.spec.name}/slot/{slot}/candidates"
        out.append(TensorEntry(f"{name}/ids", "I64", at.shape, functools.partial(_taken, ids, at)))
        out.append(TensorEntry(f"{name}/counts", "I64", at.shape, functools.partial(_taken, counts, at)))
    return out


def _taken(array: Ids, at: Ids) -> Ids:
    return array[at]


def _by_slot(ids: Ids, rows: int | None) -> Iterable[tuple[int, Ids]]:
    """Return the slots of the `ids`, each with the positions of its ids, by ascending id."""
    slots = slots_of(ids, rows)
    order = np.lexsort((ids, slots))
    starts = np.searchsorted(slots[order], np.arange(SLOTS + 1))
    return [(slot, order[starts[slot] : starts[slot + 1]]) for slot in np.flatnonzero(np.diff(starts)).tolist()]
