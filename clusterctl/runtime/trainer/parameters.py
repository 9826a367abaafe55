"""Pull values from the pservers and push gradients to them at each step. `geo` does so every k steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from clusterctl.runtime.arrays import Floats, Ids, scatter
from clusterctl.runtime.table.initializers import Initial
from clusterctl.runtime.trainer.batches import StepContext
from clusterctl.runtime.trainer.client import Ask, Client, PendingReplies
from clusterctl.runtime.trainer.guard import Guard
from clusterctl.runtime.trainer.handles import Dense, Embedding, IdBatch, IdsOf, given_values
from clusterctl.runtime.trainer.nan_policy import NanPolicy
from clusterctl.runtime.trainer.packing import Gradient, Handle, Packer, initial_pieces
from clusterctl.runtime.wire import messages as wire


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
        self.packer = Packer(client.half, client.key_cache)
        self._ahead: dict[Embedding, list[PendingRows]] = {}

    @property
    def step(self) -> int:
        return self.client.step

    def push(
        self, gradient: Gradient, context: StepContext, samples: int, when_sent: Callable[[], None] = nothing
    ) -> None:
        """Send a push, call `when_sent` (which may request rows), and wait until the mode lets the trainer continue."""
        self.before_push()
        client = self.client
        sent = Gradient() if samples == 0 else gradient if client.window == 1 else gradient.copied()
        client.push(self.packer.pack(sent, client.used, context.rates), context, samples)
        when_sent()
        client.settle(client.window - 1)
        self.nan_policy.check_taken(self.step)

    def settle(self) -> None:
        """Wait until all pushes are applied, and discard prefetched rows."""
        self.client.settle()
        self.nan_policy.check_taken(self.step)
        self._ahead.clear()

    def begin(self, handle: Handle, unset: Collection[int]) -> None:
        """Begin to use a table; the lanes in `unset` have no values yet. A dense table is pulled.

        Trainer 0 sends them its values, and the others wait until they have them. The handle does not keep the array
        that the program has given.
        """
        values, spec = given_values(handle.spec, self.rank), handle.spec
        if spec.init.is_from_rank0:
            handle.spec = replace(spec, init=Initial(spec.init.kind))
        if values is not None and unset and self.rank == 0:
            self.client.set_values(initial_pieces(handle, values, unset))
        if isinstance(handle, Dense):
            self.client.memory.map_table((lane for lane, _, _ in handle.runs), spec.key)
            self.pull_dense(handle)
        elif unset:
            no_ids = wire.Part(wire.IDS, np.empty(0, np.int64), spec.key)
            self._pull_all({lane: ([no_ids], None) for lane in unset}, lambda lane, reply: None)

    def _pull_all(self, asks: Mapping[int, Ask], take: Callable[[int, wire.Message], None]) -> None:
        pending = PendingReplies()
        self.client.pull(pending, asks, take)
        self.client.wait_for(pending)

    def pull_dense(self, handle: Dense) -> None:
        empty = np.empty(0, np.float32)
        asks = {lane: ([wire.Part(wire.DENSE, empty, handle.spec.key)], None) for lane, _, _ in handle.runs}

        def take(lane: int, reply: wire.Message) -> None:
            for part in reply.parts:
                self.refresh(handle, part)

        self._pull_all(asks, take)
        self.nan_policy.check_taken(self.step)

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


class Prefetcher:
    """Requests the rows of each batch once, for the embeddings that `ids_of` names."""

    def __init__(self, parameters: Parameters, mode: str) -> None:
        self.ids_of: IdsOf = {}
        self._parameters = parameters
        self._is_sync = mode == "sync"
        self._requested: dict[Embedding, tuple[int, int]] = {}

    def request(self, context: StepContext) -> None:
        """Request the rows of the batches ahead that were not requested yet."""
        batches = context.ahead[:1] if self._is_sync else context.ahead
        for handle, ids_of in self.ids_of.items():
            for number, batch in enumerate(batches, context.batch + 1):
                if self._requested.get(handle, (-1, -1)) < (context.pass_, number):
                    self._requested[handle] = (context.pass_, number)
                    self._parameters.prefetch(handle, handle.id_batch(ids_of(batch)), len(batches))
