"""Geo mode: the trainer applies its own updates, and every k steps sends the changes to the pservers.

`s = copy(local); d = (s - base) / c; send d; receive G; local += G - s; base = G`, with c the number of trainers for
dense tables, so that their changes are averaged, and c = 1 for rows, of which only those touched are sent (Paddle's
Geo-SGD; Chen et al. 2020 call it local SGD with a parameter server). The exchange waits for the reply, so s is still
the local value when G arrives, and local becomes G. Rules and their state are on the trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np

from clusterctl.runtime.arrays import Floats, Ids
from clusterctl.runtime.store.dense import filled
from clusterctl.runtime.store.sparse import SparseGrad, SparseTable
from clusterctl.runtime.trainer.batches import StepContext
from clusterctl.runtime.trainer.client import Client
from clusterctl.runtime.trainer.guard import Guard
from clusterctl.runtime.trainer.handles import Dense, Embedding, IdBatch
from clusterctl.runtime.trainer.nan_policy import NanPolicy
from clusterctl.runtime.trainer.packing import Gradient, Handle
from clusterctl.runtime.trainer.parameters import Parameters, nothing

_ONE = np.float32(1)


@dataclass
class LocalDense:
    """A dense table's value at the last exchange, and the state of its rule."""

    base: Floats
    state: list[Floats]


class LocalRows:
    """Rows that the trainer changes between exchanges. `table` keeps the state of the rule from one to the next."""

    def __init__(self, handle: Embedding, seed: int) -> None:
        self._handle = handle
        self._seed = seed
        self.table = SparseTable(handle.spec, seed)
        self.begin()

    def begin(self) -> None:
        """Start over after an exchange: no row is touched, and rows pulled before are stale."""
        self.base = SparseTable(self._handle.spec, self._seed)
        self.touched: Ids = np.empty(0, np.int64)
        self.pulled: Ids = np.empty(0, np.int64)

    def take(self, ids: Ids, rows: Floats) -> None:
        """Store the pservers' rows of ids that were not touched since the last exchange."""
        self.table.restore(ids, {"rows": rows})
        self.base.restore(ids, {"rows": rows})
        self.pulled = np.union1d(self.pulled, ids)


class GeoParameters(Parameters):
    """Geo mode: values come from the trainer itself, and its changes go to the pservers every k steps."""

    def __init__(self, client: Client, trainers: int, guard: Guard, nan_policy: NanPolicy) -> None:
        super().__init__(client, guard, nan_policy)
        self._trainers = np.float32(trainers)
        self._every = client.mode.bound
        self._dense: dict[Dense, LocalDense] = {}
        self._rows: dict[Embedding, LocalRows] = {}
        self._steps = client.step * self._every
        self._since = 0
        self._samples = 0
        self._context: StepContext | None = None

    @property
    def step(self) -> int:
        return self._steps

    def push(
        self, gradient: Gradient, context: StepContext, samples: int, when_sent: Callable[[], None] = nothing
    ) -> None:
        if samples:
            self._update(gradient)
        self._steps += 1
        self._since += 1
        self._samples += samples
        self._context = context
        if self._since >= self._every or context.last:
            self._exchange()
        when_sent()

    def settle(self) -> None:
        self.make_tables()
        if self._since:
            self._exchange()
        super().settle()

    def pull_dense(self, handle: Dense) -> None:
        self.make_tables()

    def _pull_tables(self, handles: Collection[Handle], unset: Mapping[Handle, list[int]]) -> None:
        super()._pull_tables(handles, unset)
        for handle in handles:
            if isinstance(handle, Dense):
                self._dense[handle] = LocalDense(handle.flat.copy(), filled(handle.spec.rule, handle.flat.size))

    def pull_rows(self, handle: Embedding, batch: IdBatch) -> Floats:
        self._fetch(handle, batch.groups.distinct)
        return self._local(handle).table.pull(batch.groups.distinct, None)

    def prefetch(self, handle: Embedding, batch: IdBatch, most: int) -> None:
        """Do nothing: rows are local for most steps, and the others are fetched when they are pulled."""

    def _local(self, handle: Embedding) -> LocalRows:
        known = self._rows.get(handle)
        if known is None:
            known = self._rows[handle] = LocalRows(handle, self.client.seed)
        return known

    def _fetch(self, handle: Embedding, ids: Ids) -> None:
        """Pull the rows that were not pulled since the last exchange; `ids` distinct, ascending."""
        local = self._local(handle)
        missing = ids[~np.isin(ids, local.pulled, assume_unique=True)]
        if missing.size:
            local.take(missing, super().pull_rows(handle, handle.id_batch(missing)))

    def _update(self, gradient: Gradient) -> None:
        """Apply one step of the tables' rules to the trainer's own values."""
        t = self._steps + 1
        with np.errstate(all="ignore"):
            for handle, flat in gradient.dense.items():
                handle.spec.rule.update(handle.flat, self._dense[handle].state, flat.copy(), handle.flat, t)
            for embedding, (ids, rows) in gradient.sparse.items():
                self._fetch(embedding, ids)
                local = self._local(embedding)
                local.table.apply([SparseGrad(_ONE, ids, rows)], _ONE, self._steps)
                local.touched = np.union1d(local.touched, ids)

    def _exchange(self) -> None:
        """Send the changes since the last exchange, and continue from the pservers' new values."""
        assert self._context is not None
        batches, samples, self._since, self._samples = self._since, self._samples, 0, 0
        changed = Gradient()
        for handle, dense in self._dense.items():
            changed.dense[handle] = (handle.flat - dense.base) / self._trainers
        for embedding, rows in self._rows.items():
            if len(rows.touched):
                delta = rows.table.pull(rows.touched, None) - rows.base.pull(rows.touched, None)
                changed.sparse[embedding] = (rows.touched, delta)
        if samples and not self.nan_policy.admits(self._steps, changed, batches=batches, noun="change"):
            samples = 0
            for handle, dense in self._dense.items():
                handle.flat[:] = dense.base
        super().push(changed, self._context, samples)
        for handle, dense in self._dense.items():
            dense.base[:] = handle.flat
        for rows in self._rows.values():
            rows.begin()


def make_parameters(client: Client, trainers: int, guard: Guard, nan_policy: NanPolicy) -> Parameters:
    """Return the parameters of the job's mode."""
    if client.mode.name == "geo":
        return GeoParameters(client, trainers, guard, nan_policy)
    return Parameters(client, guard, nan_policy)
