"""The handles of tables that a training program holds: `Dense` and `Embedding`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from clusterctl.runtime.arrays import Floats, Ids, as_array, as_tensor, is_tensor
from clusterctl.runtime.errors import TableError, UseError
from clusterctl.runtime.table.initializers import FromRank0
from clusterctl.runtime.table.quantization import Bytes, cuts
from clusterctl.runtime.table.sharding import Layout, owned_elements
from clusterctl.runtime.table.spec import TableSpec
from clusterctl.runtime.trainer.guard import Guard
from clusterctl.runtime.trainer.ids import Groups, check_range, checked_floats, checked_ids, group, share_out
from clusterctl.runtime.wire import messages as wire

_REMEMBERED = 8
_SAMPLED = 32
_FLOAT32 = np.dtype(np.float32)


class TableOwner(Protocol):
    """The parameters of a trainer, as its handles see them."""

    rank: int
    layout: Layout
    guard: Guard

    def make_tables(self) -> None:
        """Make the tables that are declared and not made yet."""
        ...

    def pull_dense(self, handle: Dense) -> None:
        """Pull the values of the current step into the handle."""
        ...

    def pull_rows(self, handle: Embedding, batch: IdBatch) -> Floats:
        """Return the rows of the distinct ids of `batch`, (n, dim)."""
        ...


class Dense:
    """A dense table of the pservers, which is made before its first use."""

    def __init__(self, owner: TableOwner, spec: TableSpec) -> None:
        self._owner = owner
        self.spec = spec
        self.key = spec.key
        self.name = spec.name
        self.shape = spec.shape
        self.flat = np.zeros(spec.elements, np.float32)
        self._value: Floats = self.flat.reshape(spec.shape)
        self.is_made = False
        self._error = np.zeros(spec.elements if spec.wire else 0, np.float32)
        self.lanes = owner.layout.places("dense")
        #: `(lane, start, stop)` of each run of the flattened table that has elements.
        self.runs = list(self._runs(self.lanes))

    def _runs(self, lanes: list[int]) -> Iterator[tuple[int, int, int]]:
        for place, lane in enumerate(lanes):
            start, stop = owned_elements(self.spec.elements, self.spec.first_place, place, len(lanes))
            if stop > start:
                yield lane, start, stop

    @property
    def value(self) -> Floats:
        """This trainer's current copy, float32 of the table's shape, refreshed in place. Thread-safe."""
        if not self.is_made:
            self._owner.make_tables()
            if not self.is_made:
                raise TableError(f"table {self.name!r} could not be made: an error that was caught says why")
        return self._value

    def pull(self) -> Floats:
        """Pull the values of the current step into `value` and return it."""
        self._owner.guard.check(f"pull of {self.name!r}")
        self._owner.pull_dense(self)
        return self.value

    def tensor(self) -> Any:
        """Return `value` as a torch tensor over the same memory; needs torch."""
        return as_tensor(self.value)

    def refresh(self, part: wire.Part) -> None:
        """Store a part of the table from a reply."""
        kind, array, _, offset, _ = part
        quantizer = self.spec.quantizer if kind == wire.CHANGE else None
        if quantizer is None:
            self.flat[offset : offset + len(array)] = array
        else:
            change = quantizer.unpack(array)[: len(self.flat) - offset]
            self.flat[offset : offset + len(change)] += change

    def packed(self, gradient: Floats, start: int) -> Bytes:
        """Return the gradient of the elements from `start` as bytes, for a table with `wire`.

        What the bytes lack of it is added to the next gradient of these elements.
        """
        assert self.spec.quantizer is not None
        error, out = self._error[start : start + len(gradient)], []
        with np.errstate(all="ignore"):
            for cut in cuts(len(gradient)):
                owed = error[cut] + gradient[cut]
                packed, sent = self.spec.quantizer.pack(owed)
                np.subtract(owed, sent, out=error[cut])
                out.append(packed)
        return np.concatenate(out)

    def wire_state(self) -> dict[str, Floats]:
        """Return copies of what a successor needs to push the same bits: of a table with `wire`, `error` of its shape.

        It changes with each push that has samples and this table.
        """
        return {"error": self._error.reshape(self.shape).copy()} if self.spec.wire else {}

    def load_wire_state(self, state: Mapping[str, Any]) -> None:
        """Continue with a state of `wire_state`. Raises UseError for that of another table."""
        what, names = f"the state of table {self.name!r}", ["error"] if self.spec.wire else []
        if sorted(state) != names:
            raise UseError(f"{what} has {sorted(state)}, not {names}")
        for name in names:
            self._error[:] = checked_floats(what, as_array(state[name]), self.shape).reshape(-1)

    def checked(self, gradient: Any) -> Floats:
        """Return the flattened gradient, a view where possible. Raises UseError for a wrong shape or dtype."""
        if type(gradient) is np.ndarray and gradient.dtype is _FLOAT32 and gradient.shape == self.shape:
            flat: Floats = gradient.reshape(-1)
            return flat
        what = f"the gradient of table {self.name!r} from trainer {self._owner.rank}"
        return checked_floats(what, as_array(gradient), self.shape).reshape(-1)


class Embedding:
    """A sparse table: rows of width `dim` by int64 id, bounded by `rows` or unbounded."""

    def __init__(self, owner: TableOwner, spec: TableSpec) -> None:
        self._owner = owner
        self.spec = spec
        self.name = spec.name
        self.dim = spec.dim
        self.rows = spec.rows
        self.is_made = False
        self.lanes = owner.layout.places("sparse")
        self._recent: deque[IdBatch] = deque(maxlen=_REMEMBERED)

    def pull(self, ids: Any) -> Any:
        """Return the rows of `ids`, float32 of shape (len(ids), dim), at the current step; ids may repeat or be < 0.

        Pulling creates no row: an id that was never pushed has its initial value. Ids of more dimensions give
        `ids.shape + (dim,)`. A torch tensor of ids gives a torch tensor.
        """
        groups, rows = self.pull_distinct(ids)
        out: Floats = rows.take(groups.inverse, axis=0).reshape(*np.shape(as_array(ids)), self.dim)
        return as_tensor(out) if is_tensor(ids) else out

    def pull_distinct(self, ids: Any) -> tuple[Groups, Floats]:
        """Return ids of any shape, grouped, and the rows of the distinct ones, (n, dim), as the caller's own array.

        A gradient of the very array of distinct ids that this returns is pushed without being grouped again.
        """
        self._owner.guard.check(f"pull of {self.name!r}")
        batch = self.id_batch(ids)
        return batch.groups, self._owner.pull_rows(self, batch)

    def id_batch(self, ids: Any) -> IdBatch:
        """Check and group ids of any shape. The newest batches are kept: rows are usually pulled and pushed by the
        same ids."""
        checked = checked_ids(self.name, as_array(ids)).reshape(-1)
        sample = _sample(checked)
        for known in reversed(self._recent):
            if known.sample == sample and known.is_of(checked):
                return known
        check_range(self.name, checked, self.rows)
        self._recent.append(IdBatch(self, checked))
        return self._recent[-1]

    def checked(self, gradient: Any) -> tuple[Ids, Floats]:
        """Return the distinct ids, ascending, and the sum of each id's gradients in order of occurrence."""
        ids, values = self.pair(gradient)
        if any(known.groups.distinct is gradient[0] for known in self._recent):
            return gradient[0], values
        batch = self.id_batch(ids)
        return batch.groups.distinct, batch.groups.sum(values)

    def pair(self, gradient: Any) -> tuple[Ids, Floats]:
        """Return the ids (n,) and the rows (n, dim) of a gradient as they are, views where possible. Raises UseError
        for a wrong shape or dtype. Thread-safe."""
        what = f"the gradient of table {self.name!r} from trainer {self._owner.rank}"
        if not isinstance(gradient, tuple) or len(gradient) != 2:
            raise UseError(f"{what} is not a pair", remedy="push {embedding: (ids, gradients)}")
        ids = checked_ids(self.name, as_array(gradient[0]))
        rows = checked_floats(what, as_array(gradient[1]), (*ids.shape, self.dim))
        return ids.reshape(-1), rows.reshape(-1, self.dim)

    def shared_out(self, ids: Ids) -> list[tuple[int, Ids]]:
        """Return `(lane, positions)` of distinct ascending ids, for the lanes that own any of them."""
        for known in self._recent:
            if known.groups.distinct is ids:
                return known.shares
        shares = share_out(ids, self.rows, len(self.lanes)).positions
        return [(lane, positions) for lane, positions in zip(self.lanes, shares) if len(positions)]


class IdBatch:
    """Ids from the training program, (n,), grouped and partitioned by lane. `ids` is a copy."""

    def __init__(self, table: Embedding, ids: Ids) -> None:
        self.ids = ids.copy()
        self.sample = _sample(ids)
        self.groups: Groups = group(self.ids)
        self.shares = table.shared_out(self.groups.distinct)

    def is_of(self, ids: Ids) -> bool:
        return np.array_equal(self.ids, ids)


def _sample(ids: Ids) -> bytes:
    """Return a sample of the ids: other lists mostly differ in it, so that most full comparisons are avoided."""
    return ids[:: max(1, ids.size // _SAMPLED)].tobytes()


#: Functions that return the ids of a batch for an embedding.
IdsOf = Mapping[Embedding, Callable[[Any], Any]]


def checked_ids_of(ids: IdsOf, handles: Mapping[int, object]) -> IdsOf:
    """Return the functions in `ids` if they are for embeddings among `handles`, by the keys of the tables."""
    for handle, of in ids.items():
        known = isinstance(handle, Embedding) and handles.get(handle.spec.key) is handle
        if not known or not callable(of):
            raise UseError(f"ids={{{handle!r}: {of!r}}}", remedy="map an embedding to a function of a batch")
    return dict(ids)


def given_values(spec: TableSpec, rank: int) -> Floats | None:
    """Return the values that a trainer passed to `from_rank0`, of the shape of the whole table; None if there are none.

    Raises UseError if they have another shape, or if trainer 0 has none.
    """
    init = spec.init
    if not isinstance(init, FromRank0):
        return None
    what = f"init=from_rank0(...) of table {spec.name!r} from trainer {rank}"
    if init.values is not None:
        return checked_floats(what, as_array(init.values), spec.full_shape)
    if rank == 0:
        raise UseError(f"{what} is None", remedy=f"pass an array of shape {spec.full_shape}")
    return None
