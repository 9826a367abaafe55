"""The state of one lane, shared by its core, its update policy and its saver; and the outputs of a lane."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Union

import numpy as np

from clusterctl.common.modes import Mode, SaveInterval
from clusterctl.runtime.arrays import Floats
from clusterctl.runtime.checkpoint.buffers import Buffers
from clusterctl.runtime.checkpoint.writer import Save
from clusterctl.runtime.errors import RefusedError
from clusterctl.runtime.modes import EACH_PASS, CutSchedule
from clusterctl.runtime.pserver.copying import LaneCopies
from clusterctl.runtime.pserver.declarations import Declarations
from clusterctl.runtime.pserver.requests import RequestValidator
from clusterctl.runtime.pserver.trainers import TrainerState, TrainerStates
from clusterctl.runtime.shm.region import LEAST_BYTES
from clusterctl.runtime.store.dense import DenseTable
from clusterctl.runtime.store.factory import Lender, Tables
from clusterctl.runtime.store.sparse import SparseGrad, SparseTable
from clusterctl.runtime.table.sharding import Layout
from clusterctl.runtime.wire import messages as wire
from clusterctl.runtime.wire.key_cache import KeyCache


class BufferBook:
    """Buffers by the step that they are of: the newest, and those before, which a save that is due may need."""

    def __init__(self) -> None:
        self._by_step: dict[int, Buffers] = {}

    def __bool__(self) -> bool:
        return bool(self._by_step)

    def take(self, message: wire.Message) -> Buffers:
        """Take buffers from a trainer, and return them. Raises ModelError if they are malformed."""
        data = b"".join(part.array.tobytes() for part in message.parts if part.kind == wire.BYTES)
        newest = Buffers(data, f"the buffers of trainer {message.rank}")
        older = [step for step in self._by_step if step < message.step]
        self._by_step = {step: self._by_step[step] for step in older[-1:]}
        self._by_step[message.step] = newest
        return newest

    def at(self, step: int) -> Buffers | None:
        """Return the newest buffers that are not of a later step, or None."""
        return self._by_step.get(max((known for known in self._by_step if known <= step), default=-1))


class Reply(NamedTuple):
    """A reply to the trainer `rank`."""

    rank: int
    message: wire.Message


class DueCut(NamedTuple):
    """A cut is due for a purpose (see `cuts`). Only the first lane of the run says so, and not in sync."""

    purpose: int


class HeldCut(NamedTuple):
    """The lane holds pushes back for a cut. `counts` are those it has of each trainer, by rank, begun ones included;
    `step` is its own step once it has applied them, and `passes` are those that all trainers have ended."""

    cut: int
    counts: tuple[int, ...]
    step: int
    passes: int


class CopiedCut(NamedTuple):
    """The copies of a lane for a cut. `table_sum` says which tables it has."""

    cut: int
    saves: tuple[Save, ...]
    table_sum: int


CutOutput = Union[DueCut, HeldCut, CopiedCut]
Output = Union[Reply, Save, CutOutput]


@dataclass
class Unset:
    """The initial values of a table that have come so far: the pieces of the newest attempt of trainer 0."""

    attempt: int = 0
    arrived: set[int] = field(default_factory=set)


@dataclass
class LaneState:
    """The settings and state of one lane.

    `lane` is one of `layout.lanes`; `step` counts steps applied (sync), or pushes of all trainers (other modes).
    `dense` and `sparse` are the `tables` of a kind, by ascending key; `unset` are those that wait for their initial
    values from trainer 0. `has_assigned` means that tables have values which the program gave them for the next step.
    `declarations` are those of all tables, on the first lane of the run.
    """

    lane: int
    layout: Layout
    trainer_count: int
    seed: int = 0
    mode: Mode = field(default_factory=Mode)
    save_every: SaveInterval | None = None
    save_model_every: SaveInterval = EACH_PASS
    half: bool = False
    key_cache: bool = False
    lender: Lender | None = None
    epoch: int = 0
    step: int = 0
    tables: Tables = field(default_factory=dict)
    dense: dict[int, DenseTable] = field(default_factory=dict)
    sparse: dict[int, SparseTable] = field(default_factory=dict)
    unset: dict[int, Unset] = field(default_factory=dict)
    has_assigned: bool = False
    buffers: BufferBook = field(default_factory=BufferBook)
    copying: LaneCopies = field(default_factory=LaneCopies)
    declarations: Declarations = field(default_factory=Declarations)

    def __post_init__(self) -> None:
        self.pserver = self.lane // self.layout.per_pserver
        self.cut_schedule = CutSchedule(self.save_every, self.save_model_every)
        self.trainers = TrainerStates({rank: TrainerState() for rank in range(self.trainer_count)})
        place = self.layout.place_of(self.lane, "sparse")
        self.validator = RequestValidator(
            self.tables, self.unset, KeyCache(self.key_cache), place, weighted=self.mode.name == "sync"
        )

    @property
    def has_values(self) -> bool:
        """True if the lane has something to save."""
        return bool(self.tables) or bool(self.buffers)

    def add(self, tables: Tables) -> None:
        """Add new tables."""
        self.tables.update(tables)
        self.dense = {key: one for key, one in sorted(self.tables.items()) if isinstance(one, DenseTable)}
        self.sparse = {key: one for key, one in sorted(self.tables.items()) if isinstance(one, SparseTable)}

    def set_tables(self) -> Tables:
        """Return the tables that have values, by ascending key."""
        return {key: table for key, table in sorted(self.tables.items()) if key not in self.unset}

    def fill(self, message: wire.Message) -> bool:
        """Take initial values of trainer 0; return True if the table has all of them now, and had not before.

        A table that has values keeps them. A later attempt starts over, as its values may be others.
        """
        key, number, values = self.validator.initial(message)
        unset, table = self.unset.get(key), self.tables[key]
        if unset is None:
            return False
        if unset.attempt != message.attempt:
            unset.attempt, unset.arrived = message.attempt, set()
        if isinstance(table, DenseTable):
            assert not isinstance(values, SparseGrad)
            table.fill(table.bounds(number)[0], values)
        else:
            assert isinstance(values, SparseGrad)
            table.restore(values.ids, {"rows": values.rows})
        unset.arrived.add(number)
        if len(unset.arrived) < (table.parts if isinstance(table, DenseTable) else message.pieces):
            return False
        del self.unset[key]
        return True

    def assign(self, message: wire.Message) -> None:
        """Take values that the program gives a dense table before the next step. What is late is ignored."""
        table, number, values = self.validator.assigned(message)
        if message.step > self.step:
            raise RefusedError(f"trainer {message.rank} assigns values at step {message.step}, not {self.step}")
        if message.step == self.step and len(values):
            table.assign(table.bounds(number)[0], values)
            self.has_assigned = True

    def part(self, rank: int, table: DenseTable, number: int, run: Floats, *, has_last: bool = False) -> wire.Part:
        """Return a part of `run`, the lane's run of a table: for a trainer that shares memory, only its position.

        If the trainer `has_last`, the values before the last step, the change is enough.
        """
        start, stop = table.bounds(number)
        key, values, offset = table.key, run[start:stop], table.start + start
        lender = self.lender if 4 * table.count >= LEAST_BYTES else None
        position = None if lender is None else lender.position(rank, self.lane, key, values)
        if position is not None:
            return wire.Part(wire.DENSE, values, key, offset, position)
        if has_last and number in table.changes:
            return wire.Part(wire.CHANGE, table.changes[number], key, offset)
        if self.half:
            return wire.Part(wire.DENSE16, values.astype(np.float16), key, offset)
        if self.mode.name != "sync":  # values change in place, perhaps before these are sent
            values = values.copy()
        return wire.Part(wire.DENSE, values, key, offset)

    def parts(self, rank: int, table: DenseTable, run: Floats, *, has_last: bool = False) -> list[wire.Part]:
        """Return all of `run`, the lane's run of a table, as parts."""
        return [self.part(rank, table, number, run, has_last=has_last) for number in range(table.parts)]

    def newest(self, rank: int, tables: Iterable[DenseTable], *, has_last: bool = False) -> wire.Parts:
        """Return the newest values of some tables, as `part` does."""
        fresh, is_plain = wire.Parts(), not self.half and self.mode.name == "sync"
        for table in tables:
            if is_plain and table.parts == 1 and 4 * table.count < LEAST_BYTES and not table.changes:
                # what `part` makes of it
                fresh.append(wire.as_part((wire.DENSE, table.current, table.key, table.start, None)))
            else:
                fresh += self.parts(rank, table, table.current, has_last=has_last)
        return fresh

    def are_sent(self, tables: Iterable[DenseTable]) -> bool:
        """Return True if the values of these tables are sent to all trainers alike, to none in shared memory."""
        return self.lender is None or all(4 * table.count < LEAST_BYTES for table in tables)
