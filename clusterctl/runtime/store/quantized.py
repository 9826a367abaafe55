"""A dense table whose gradients and changes are sent in few bits, see `table.quantization`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

import numpy as np

from clusterctl.runtime.arrays import Floats
from clusterctl.runtime.store.dense import DenseTable, Weighted
from clusterctl.runtime.table.quantization import Quantizer, cuts
from clusterctl.runtime.table.rules import Rule
from clusterctl.runtime.table.spec import TableSpec


class QuantizedTable(DenseTable):
    """A table in sync mode that has a base beside its values: what every trainer has of them.

    Base is what pulls give, so `current` and `previous` are base here, in two versions. A step changes the values, then
    base by Q(value - base), and trainers get this change alone. What the change lacks remains in value - base.
    """

    def __init__(
        self,
        spec: TableSpec,
        quantizer: Quantizer,
        place: int,
        places: int,
        seed: int,
        allocate: Callable[[int], tuple[Floats, Floats]] | None = None,
    ) -> None:
        super().__init__(spec, place, places, seed, allocate)
        self._quantizer = quantizer
        self._values: Floats = self.current.copy()

    @property
    def values(self) -> Floats:
        return self._values

    @property
    def base(self) -> Floats:
        return self.current

    def fill(self, start: int, values: Floats, base: Floats | None = None) -> None:
        super().fill(start, values if base is None else base)
        self._values[start : start + len(values)] = values

    def apply(
        self,
        part: int,
        grads: Sequence[Weighted],
        total: int,
        t: int,
        rule: Rule,
        in_place: bool,
        rate: float | None = None,
    ) -> Floats:
        """Apply a part of step `t`, as `DenseTable`, and return the part's new base. Values always change in place."""
        super().apply(part, grads, total, t, rule, True, rate)
        run = slice(*self.bounds(part))
        values, base, after = self._values[run], self.current[run], self.previous[run]
        changes = []
        with np.errstate(all="ignore"):
            for cut in cuts(len(base)):
                packed, change = self._quantizer.pack(values[cut] - base[cut])
                np.add(base[cut], change, out=after[cut])
                changes.append(packed)
        self.changes[part] = np.concatenate(changes)
        return after

    def keep(self, part: int) -> None:
        super().keep(part)
        self.changes.pop(part, None)
