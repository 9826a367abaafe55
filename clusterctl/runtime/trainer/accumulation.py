"""Gradient accumulation: several batches of a trainer as one push, their mean weighted by samples.

A dense gradient is `sum of float32(n_i) * g_i, in order, from +0.0, divided by float32(sum of n_i)`, which is how
pservers merge the gradients of trainers. Rows are scaled by `float32(n_i / sum of n_i)` and concatenated in order;
duplicate ids are left for `ids.sum_by_id`. A table or row that a batch does not name counts as zero; a batch without
samples does not count. All arrays are float32 and ids int64.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar, Union

import numpy as np

from clusterctl.runtime.arrays import Floats, Ids

#: For a dense table an array of its shape; for a sparse one ids, and rows of shape (len(ids), dim).
Gradient = Union[Floats, tuple[Ids, Floats]]
Table = TypeVar("Table", bound=Hashable)


class Accumulator(Generic[Table]):
    """Collects the gradients of batches by table. Not thread-safe."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        #: Batches added, including those without samples, and the samples of all.
        self.batches = 0
        self.samples = 0
        self._first: dict[Table, Gradient] = {}  # as given: nothing is rounded until there is a second batch
        self._first_samples = 0
        self._sums: dict[Table, Floats] = {}
        self._rows: dict[Table, list[tuple[Ids, Floats, int]]] = {}

    def add(self, gradients: Mapping[Table, Gradient], samples: int) -> None:
        """Add a batch that others will follow. Its arrays are copied and may be changed afterwards."""
        self.put({table: _copied(gradient) for table, gradient in gradients.items()} if samples else {}, samples)

    def last(self, gradients: Mapping[Table, Gradient], samples: int) -> tuple[dict[Table, Gradient], int]:
        """`add` and `take` without a copy: a single batch with samples comes back as the very arrays given."""
        self.put(dict(gradients), samples)
        return self.take()

    def take(self) -> tuple[dict[Table, Gradient], int]:
        """Return the mean gradients by table and their samples, ({}, 0) without any; then start over."""
        merged = self._first if self._first_samples == self.samples else self._mean()
        samples = self.samples
        self._reset()
        return merged, samples

    def put(self, gradients: dict[Table, Gradient], samples: int) -> None:
        """`add` without a copy: the arrays must not change before `take`."""
        self.batches += 1
        if samples == 0:
            return
        if self.samples == 0:
            self._first, self._first_samples = gradients, samples
        else:
            self._fold(self._first, self._first_samples)
            self._first, self._first_samples = {}, 0
            self._fold(gradients, samples)
        self.samples += samples

    def _fold(self, gradients: dict[Table, Gradient], samples: int) -> None:
        for table, gradient in gradients.items():
            if isinstance(gradient, tuple):
                self._rows.setdefault(table, []).append((*gradient, samples))
            else:
                total = self._sums.setdefault(table, np.zeros_like(gradient))
                total += gradient * np.float32(samples)

    def _mean(self) -> dict[Table, Gradient]:
        n = np.float32(self.samples)
        merged: dict[Table, Gradient] = {table: np.divide(s, n, out=s) for table, s in self._sums.items()}
        for table, parts in self._rows.items():
            scaled = [rows * np.float32(samples / self.samples) for _, rows, samples in parts]
            merged[table] = np.concatenate([ids for ids, _, _ in parts]), np.concatenate(scaled)
        return merged


def _copied(gradient: Gradient) -> Gradient:
    if isinstance(gradient, tuple):
        ids, rows = gradient
        return ids.copy(), rows.copy()
    copy: Floats = gradient.copy()
    return copy
