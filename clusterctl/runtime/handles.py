"""What a trainer holds of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from clusterctl.runtime import wire
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.grouping import checked_floats, checked_ids, is_finite, share_out, sum_by_id
from clusterctl.runtime.placement import owned_elements
from clusterctl.runtime.tables import PART_ELEMENTS

if TYPE_CHECKING:
    from clusterctl.runtime.session import Session
    from clusterctl.runtime.spec import TableSpec

Floats = npt.NDArray[np.float32]
PartsByPserver = list[list[wire.Part]]


class Dense:
    """A dense table. `value` is this trainer's current copy, float32 of the table's shape, refreshed in place."""

    def __init__(self, session: Session, spec: TableSpec) -> None:
        self._session = session
        self.spec = spec
        self.name = spec.name
        self.shape = spec.shape
        self._flat = np.zeros(spec.elements, np.float32)
        self.value: Floats = self._flat.reshape(spec.shape)
        count = session.pservers
        self._owned = [owned_elements(spec.elements, spec.key, p, count) for p in range(count)]

    def pull(self) -> Floats:
        """Fetches the values of the current step into `value` and returns it."""
        empty = np.empty(0, np.float32)
        ask = [wire.Part(wire.DENSE, empty, self.spec.key)]
        self._session.pull({p: ask for p, (start, stop) in enumerate(self._owned) if stop > start})
        return self.value

    def refresh(self, part: wire.Part) -> None:
        """Takes a part of the table out of a reply."""
        self._flat[part.offset : part.offset + len(part.array)] = part.array

    def gradient(self, gradient: Any) -> tuple[PartsByPserver, bool]:
        """The parts of a push for each pserver, and whether all values are finite. Views, not copies."""
        what = f"the gradient of table {self.name!r} from trainer {self._session.rank}"
        flat = checked_floats(what, gradient, self.shape).reshape(-1)
        parts = [
            [
                wire.Part(wire.DENSE, flat[a : min(a + PART_ELEMENTS, stop)], self.spec.key, a)
                for a in range(start, stop, PART_ELEMENTS)
            ]
            for start, stop in self._owned
        ]
        return parts, is_finite(flat)


class Embedding:
    """A sparse table: rows of width `dim` by int64 id, bounded by `rows` or unbounded."""

    def __init__(self, session: Session, spec: TableSpec) -> None:
        self._session = session
        self.spec = spec
        self.name = spec.name
        self.dim = spec.dim
        self.rows = spec.rows

    def pull(self, ids: Any) -> Floats:
        """The rows of `ids`, float32 of shape (len(ids), dim), at the current step; ids may repeat and be negative.

        Makes no row: an id that nobody pushed has its initial value. Ids of more dimensions give `ids.shape + (dim,)`.
        """
        wanted = checked_ids(self.name, ids, self.rows)
        distinct, inverse = np.unique(wanted.reshape(-1), return_inverse=True)
        shares = share_out(distinct, self.rows, self._session.pservers)
        asks: dict[int, list[wire.Part]] = {}
        for pserver, positions in enumerate(shares.positions):
            if len(positions):
                asks[pserver] = [wire.Part(wire.IDS, part, self.spec.key) for part in self._cut(distinct[positions])]
        out = np.empty((len(distinct), self.dim), np.float32)
        for pserver, parts in self._session.pull(asks).items():
            rows = [part.array for part in parts]
            out[shares.positions[pserver]] = rows[0] if len(rows) == 1 else np.concatenate(rows)
        return out.take(inverse.reshape(-1), axis=0).reshape(*wanted.shape, self.dim)

    def gradient(self, gradient: Any) -> tuple[PartsByPserver, bool]:
        """The parts of a push for each pserver, and whether all values are finite. Duplicate ids are summed."""
        what = f"the gradient of table {self.name!r} from trainer {self._session.rank}"
        if not isinstance(gradient, tuple) or len(gradient) != 2:
            raise UseError(f"{what} is not a pair", remedy="push {embedding: (ids, gradients)}")
        ids = checked_ids(self.name, gradient[0], self.rows)
        values = checked_floats(what, gradient[1], (*ids.shape, self.dim)).reshape(-1, self.dim)
        distinct, sums = sum_by_id(ids.reshape(-1), values)
        shares = share_out(distinct, self.rows, self._session.pservers)
        parts: PartsByPserver = []
        for positions in shares.positions:
            own_ids, own = distinct[positions], sums.take(positions, axis=0)
            pairs = zip(self._cut(own_ids), self._cut(own)) if len(positions) else ()
            parts.append(
                [
                    p
                    for i, r in pairs
                    for p in (wire.Part(wire.IDS, i, self.spec.key), wire.Part(wire.ROWS, r, self.spec.key))
                ]
            )
        return parts, is_finite(sums)

    def _cut(self, array: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        length = max(1, PART_ELEMENTS // max(2, self.dim))
        return [array[a : a + length] for a in range(0, len(array), length)]
