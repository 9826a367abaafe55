"""Pull values from the pservers and push gradients to them at each step. `geo` does so every k steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from clusterctl.runtime.arrays import Floats, Ids, Sketch, as_array, scatter, sketch
from clusterctl.runtime.shm.region import LEAST_BYTES
from clusterctl.runtime.table.initializers import Initial
from clusterctl.runtime.trainer.batches import StepContext
from clusterctl.runtime.trainer.client import Ask, Client, PendingReplies
from clusterctl.runtime.trainer.guard import Guard
from clusterctl.runtime.trainer.handles import Dense, Embedding, IdBatch, given_values
from clusterctl.runtime.trainer.ids import checked_floats
from clusterctl.runtime.trainer.nan_policy import NanPolicy
from clusterctl.runtime.trainer.packing import Gradient, GradientPacker, Handle, initial_pieces
from clusterctl.runtime.wire import messages as wire

#: The tables of a request that declares them: their names, of up to 200 characters, fit into `MAX_JSON_BYTES`.
_ROUND = 400
_MOST_SKETCHES = 4_096
_COPIED_BYTES = 2**20
_PULL_BYTES = 4 * 2**20
#: A lane, and the number of a table in the round that it is given.
Place = tuple[int, int]
_NO_VALUES = np.empty(0, np.float32)
_NO_IDS = np.empty(0, np.int64)


def nothing() -> None:
    pass


@dataclass
class PendingRows:
    """Requested rows of `ids`; `rows` is complete when `replies` has no unanswered request."""

    ids: Ids
    rows: Floats
    replies: PendingReplies = field(default_factory=PendingReplies)


class Parameters:
    """Sync, async and ssp: every push goes to the pservers, which apply the rules, and values come from them."""

    def __init__(self, client: Client, guard: Guard, nan_policy: NanPolicy) -> None:
        self.client = client
        self.guard = guard
        self.nan_policy = nan_policy
        self.rank = client.rank
        self.layout = client.layout
        self.before_push: Callable[[], None] = nothing
        self.packer = GradientPacker(client.half, client.key_cache)
        self._ahead: dict[Embedding, list[PendingRows]] = {}
        #: Tables whose values the program has given since the last push, and True if a save was asked for since.
        self.assigned: dict[str, Dense] = {}
        self.is_saved = False
        self.tables: dict[str, Dense] = {}
        self.is_behind = False  # tables are declared and not made yet
        self._declared: list[tuple[Handle, Floats | None]] = []
        self._place: dict[str, int] = {}
        self._lock = threading.RLock()

    @property
    def step(self) -> int:
        return self.client.step

    def push(
        self, gradient: Gradient, context: StepContext, samples: int, when_sent: Callable[[], None] = nothing
    ) -> None:
        """Send a push, call `when_sent` (which may request rows), and wait until the mode lets the trainer continue."""
        self.make_tables()
        self.before_push()
        client = self.client
        self.send_assigned()
        assigned = self.sketches()
        self.assigned.clear()
        sent = Gradient() if samples == 0 else gradient if client.window == 1 else gradient.copied()
        client.push(self.packer.pack(sent, client.used, context.rates), context, samples, assigned)
        when_sent()
        client.settle(client.window - 1)
        self.nan_policy.check_taken(self.step)

    def assign(self, table: Dense, value: Any) -> None:
        """Let the next step begin from a value of a table. Raises UseError for another shape or dtype."""
        table.value[...] = checked_floats(f"the value for table {table.name!r}", as_array(value), table.shape)
        self.assigned[table.name] = table
        self.is_saved = False

    def sketches(self) -> dict[int, Sketch]:
        """Return what shows if all trainers have assigned equal values; of so many tables as fit into a message."""
        tables = list(self.assigned.values())[:_MOST_SKETCHES]
        return {table.key: sketch(table.value) for table in tables} if self.client.trainers > 1 else {}

    def send_assigned(self, *, by_all: bool = False) -> None:
        """Send the values that the program has given: the next step and saves begin with those of trainer 0.

        With `by_all` every trainer sends them, which are equal: a save follows, and may be made at its first request.
        """
        if self.rank == 0 or by_all:
            for table in self.assigned.values():
                lanes = {lane for lane, _, _ in table.runs}
                self.client.set_values(initial_pieces(table, table.value, lanes), wire.ASSIGNS)

    def settle(self) -> None:
        """Make the tables that are declared, wait until all pushes are applied, and discard prefetched rows."""
        self.make_tables()
        self.client.settle()
        self.nan_policy.check_taken(self.step)
        self._ahead.clear()

    def declare(self, handle: Handle, pass_: int, batch: int) -> None:
        """Declare a table at a place of the program. It is made before its first use, with all that are declared then.

        The handle does not keep the array that the program has given for initial values: it is copied, or sent at once.
        """
        if not self._declared:
            self.settle()
        values, spec = given_values(handle.spec, self.rank), handle.spec
        if self.rank != 0:  # the values have been checked, and are not sent
            values = None
        if spec.init.is_from_rank0:
            handle.spec = replace(spec, init=Initial(spec.init.kind))
        at_once = self.client.is_local or (values is not None and values.nbytes > _COPIED_BYTES)
        self._declared.append((handle, values if values is None or at_once else values.copy()))
        self._place = {"pass_": pass_, "batch": batch}
        self.is_behind = True
        if at_once:
            self.make_tables()

    def make_tables(self) -> None:
        """Make the tables that are declared. Thread-safe; raises UseError in a forked process."""
        if not self.is_behind:
            return
        if not self.guard.is_of_this_process:
            self.guard.check("the first use of a table")
        with self._lock:
            declared, self._declared = self._declared, []
            try:
                for first in range(0, len(declared), _ROUND):
                    self._make(dict(declared[first : first + _ROUND]))
            finally:
                self.is_behind = bool(self._declared)

    def _make(self, declared: Mapping[Handle, Floats | None]) -> None:
        """Make a round of tables; wait until all have their initial values, and pull the dense ones.

        Trainer 0 sends its values of those that have none yet.
        """
        unset = self._create(declared)
        for handle in declared:
            self.client.use(handle.lanes, 4 * handle.spec.elements if isinstance(handle, Dense) else 0)
        given = {handle: values for handle, values in declared.items() if values is not None and handle in unset}
        self.client.set_values(p for h, values in given.items() for p in initial_pieces(h, values, unset[h]))
        for handle in declared:
            if isinstance(handle, Dense):
                lanes = [lane for lane, start, stop in handle.runs if 4 * (stop - start) >= LEAST_BYTES]
                self.client.memory.map_table(lanes, handle.key)
        self._pull_tables(declared, unset)
        for handle in declared:
            handle.is_made = True
            if isinstance(handle, Dense):
                self.tables[handle.name] = handle

    def _create(self, handles: Collection[Handle]) -> dict[Handle, list[int]]:
        """Declare tables to their lanes, and all of them to lane 0. Return the lanes that have no values of a table."""
        own: dict[int, list[Handle]] = {0: []}
        for handle in handles:
            for lane in handle.lanes:
                own.setdefault(lane, []).append(handle)
        others = {handle.name: handle.spec.kind for handle in handles if 0 not in handle.lanes}
        first = {0: own.pop(0)} if others else {}  # lane 0 gets all pushes, and knows all tables
        unset: dict[Handle, list[int]] = {}
        declare = self._declare_round if self.client.takes_rounds else self._declare_singly
        for tables in filter(None, (first, own)):
            for lane, number in declare(tables, others):
                unset.setdefault(tables[lane][number], []).append(lane)
        return unset

    def _declare_round(self, tables: Mapping[int, list[Handle]], others: Mapping[str, str]) -> Iterator[Place]:
        """Declare tables to lanes, and to lane 0 also the kind of the `others`.

        Yield each lane that has no values of a table, with the number of the table there.
        """
        facts = {"round": True, "cursor": self.client.position}
        heads = {lane: {**facts, "others": dict(others)} if lane == 0 and others else facts for lane in tables}
        parts = {lane: [heads[lane], *(handle.spec.to_json() for handle in own)] for lane, own in tables.items()}
        encoded = {lane: [wire.json_part(one) for one in own] for lane, own in parts.items()}
        for lane, reply in self.client.create(encoded, self._place).items():
            yield from ((lane, number) for number in reply["unset"])

    def _declare_singly(self, tables: Mapping[int, list[Handle]], others: Mapping[str, str]) -> Iterator[Place]:
        """Declare tables to pservers of which some have an older version, in the way of that."""
        at = {"cursor": self.client.position}
        if others and 0 in tables and self.client.mode.name != "sync":
            self.client.create({0: [wire.json_part(at)]}, self._place)
        for number in range(max(map(len, tables.values()))):
            own = {lane: handles[number].spec.to_json() for lane, handles in tables.items() if number < len(handles)}
            parts = {lane: [wire.json_part({**spec, **at})] for lane, spec in own.items()}
            for lane, reply in self.client.create(parts, self._place).items():
                if reply.get("unset"):
                    yield lane, number

    def _pull_tables(self, handles: Collection[Handle], unset: Mapping[Handle, list[int]]) -> None:
        """Pull dense tables, many at a time, and wait until rows have initial values."""
        known = {handle.spec.key: handle for handle in handles if isinstance(handle, Dense)}
        asks: dict[int, list[wire.Part]] = {}
        size = 0

        def take(lane: int, reply: wire.Message) -> None:
            for part in reply.parts:
                if part.table in known:
                    self.refresh(known[part.table], part)

        for handle in handles:
            if isinstance(handle, Dense):
                empty = wire.Part(wire.DENSE, _NO_VALUES, handle.key)
                lanes, bytes_ = [lane for lane, _, _ in handle.runs], handle.flat.nbytes
            else:
                empty, lanes, bytes_ = wire.Part(wire.IDS, _NO_IDS, handle.spec.key), unset.get(handle, []), 0
            for lane in lanes:
                asks.setdefault(lane, []).append(empty)
            size += bytes_
            if size >= _PULL_BYTES:
                self._pull_all({lane: (parts, None) for lane, parts in asks.items()}, take)
                asks, size = {}, 0
        self._pull_all({lane: (parts, None) for lane, parts in asks.items()}, take)
        self.nan_policy.check_taken(self.step)

    def _pull_all(self, asks: Mapping[int, Ask], take: Callable[[int, wire.Message], None]) -> None:
        pending = PendingReplies()
        self.client.pull(pending, asks, take)
        self.client.wait_for(pending)

    def pull_dense(self, handle: Dense) -> None:
        self.make_tables()
        self._pull_tables([handle], {})

    def refresh(self, handle: Dense, part: wire.Part) -> None:
        """Store a part of a dense table from a reply."""
        handle.refresh(part)
        if part.kind == wire.DENSE16:
            self.nan_policy.took(handle.name, handle.flat[part.offset : part.offset + len(part.array)], part.offset)

    def pull_rows(self, handle: Embedding, batch: IdBatch) -> Floats:
        """Return the rows of the distinct ids of `batch`, (n, dim)."""
        pending = self._prefetched(handle, batch.groups.distinct) or self._request(handle, batch)
        self.client.wait_for(pending.replies)
        self.nan_policy.took(handle.name, pending.rows)
        self.nan_policy.check_taken(self.step)
        return pending.rows

    def prefetch(self, handle: Embedding, batch: IdBatch, most: int) -> None:
        """Request the rows of a later batch. At most `most` requests are kept; in sync mode only this one."""
        earlier = [] if self.client.mode.name == "sync" else self._ahead.get(handle, [])
        self._ahead[handle] = [*earlier, self._request(handle, batch)][-most:]

    def _prefetched(self, handle: Embedding, ids: Ids) -> PendingRows | None:
        ahead = self._ahead.get(handle, [])
        for number, candidate in enumerate(ahead):
            if candidate.ids is ids or np.array_equal(candidate.ids, ids):
                del ahead[: number + 1]
                return candidate
        return None

    def _request(self, handle: Embedding, batch: IdBatch) -> PendingRows:
        self.make_tables()
        ids = batch.groups.distinct
        pending = PendingRows(ids, np.empty((len(ids), handle.dim), np.float32))
        asks, held = {}, {}
        for lane, positions in batch.shares:
            whole = len(positions) == len(ids)
            held[lane] = positions
            pairs = list(self.packer.ids(lane, handle, ids if whole else ids.take(positions)))
            pairs = [self._leased(pending.replies, lane, handle.dim, *pair) for pair in pairs]
            brief, full = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
            asks[lane] = (brief, full if any(b is not f for b, f in pairs) else None)

        def take(lane: int, reply: wire.Message) -> None:
            arrays = [part.array for part in reply.parts]
            rows = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
            own = rows.astype(np.float32, copy=False).reshape(len(held[lane]), handle.dim)
            if len(own) == len(pending.rows):
                pending.rows[:] = own
            else:
                scatter(pending.rows, held[lane], own)

        self.client.pull(pending.replies, asks, take)
        return pending

    def _leased(
        self, pending: PendingReplies, lane: int, dim: int, brief: wire.Part, full: wire.Part
    ) -> tuple[wire.Part, wire.Part]:
        """Return the parts that request rows, with the position in shared memory where a lane may put them."""
        lease = self.client.memory.lease_for(lane, 4 * dim * len(full.array))
        if lease is None:
            return brief, full
        pending.leases.append(lease)
        placed = brief._replace(position=lease.position)
        return placed, placed if brief is full else full._replace(position=lease.position)
