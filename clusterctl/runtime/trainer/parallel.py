"""`ps.parallel`: the parts of a batch in threads, and their gradients merged into one.

The merge is that of `accumulation`, in the order of the parts: its bits depend on the parts, not on the number of
threads or on which part ends first. A single part with samples comes back unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

import numpy as np

from clusterctl.runtime.arrays import is_tensor
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.trainer.accumulation import Accumulator
from clusterctl.runtime.trainer.batches import checked_loss, checked_samples, whole_number
from clusterctl.runtime.trainer.guard import PART_THREADS
from clusterctl.runtime.trainer.handles import Dense, Embedding
from clusterctl.runtime.trainer.packing import Handle

#: The gradients of a part or of all, by table; their samples; the mean loss.
Result = tuple[dict[Handle, Any], int, "float | None"]
Work = Callable[[Any], Any]
Split = Callable[[Any, int], Iterable[Any]]

_FORM = "({table: gradient}, samples, loss)"


class PartPool:
    """Up to `threads` threads of one trainer, from the first batch until `close`. Not thread-safe."""

    def __init__(self, threads: int, rank: int) -> None:
        self._threads = threads
        self._rank = rank
        self._pool: ThreadPoolExecutor | None = None

    def run(self, f: Work, batch: Any, parts: int | None, split: Split | None, step: int) -> Result:
        """Return the merged results of `f(part)` for all parts of `batch`; see `Session.parallel`."""
        if not callable(f):
            raise UseError(f"ps.parallel: f={f!r} is not callable", remedy=f"pass f(part) that returns {_FORM}")
        count = self._threads if parts is None else whole_number("parts", parts, 1)
        futures = [
            self._started().submit(self._part, f, number, part, step)
            for number, part in enumerate(divided(batch, count, split))
        ]
        for future in futures:
            future.exception()  # waits
        return merged([future.result() for future in futures])

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _started(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix=PART_THREADS)
        return self._pool

    def _part(self, f: Work, number: int, part: Any, step: int) -> Result:
        """Return the checked result of a part: float32, dense gradients of their shape, ids (n,), rows (n, dim)."""
        result = f(part)
        if not isinstance(result, tuple) or len(result) != 3:
            what = f"a tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
            raise UseError(f"f returned {what} for part {number}", remedy=f"return {_FORM}")
        gradients, samples, loss = result
        if not isinstance(gradients, Mapping):
            what = type(gradients).__name__
            raise UseError(f"f returned gradients of type {what} for part {number}", remedy=f"return {_FORM}")
        checked: dict[Handle, Any] = {}
        for handle, gradient in gradients.items():
            if isinstance(handle, Dense):
                checked[handle] = handle.checked(gradient).reshape(handle.shape)
            elif isinstance(handle, Embedding):
                checked[handle] = handle.pair(gradient)
            else:
                raise UseError(f"f returned a gradient of {handle!r} for part {number}, which is not a table")
        return checked, checked_samples(samples, self._rank, step), checked_loss(loss)


def divided(batch: Any, parts: int, split: Split | None) -> Sequence[Any]:
    """Return at most `parts` parts of a batch, or those of `split(batch, parts)`.

    Arrays are cut by rows without a copy, into parts whose sizes differ by at most one row, and none is empty.
    """
    if split is None:
        arrays = batch if isinstance(batch, tuple) else (batch,)
        rows = _rows_of(batch, arrays)
        count = min(parts, rows)
        cuts = [slice(number * rows // count, (number + 1) * rows // count) for number in range(count)]
        if not isinstance(batch, tuple):
            return [batch[cut] for cut in cuts]
        make = getattr(batch, "_make", tuple)  # a named tuple keeps its names
        return [make(array[cut] for array in arrays) for cut in cuts]
    if not callable(split):
        raise UseError(f"split={split!r} is not callable", remedy="pass split(batch, parts) that returns the parts")
    found = split(batch, parts)
    if not isinstance(found, Iterable):
        raise UseError(f"split returned {type(found).__name__}", remedy="return the parts as a list")
    return list(found)


def _rows_of(batch: Any, arrays: tuple[Any, ...]) -> int:
    if not arrays or not all(isinstance(array, np.ndarray) or is_tensor(array) for array in arrays):
        raise UseError(
            f"a batch of type {type(batch).__name__} cannot be cut by rows",
            remedy="pass an array, a tuple of arrays, or split=",
        )
    if any(array.ndim == 0 for array in arrays):
        raise UseError("an array without rows cannot be cut", remedy="pass arrays of at least one dimension")
    lengths = [len(array) for array in arrays]
    if len(set(lengths)) > 1:
        raise UseError(
            f"the arrays of a batch have {', '.join(map(str, lengths))} rows", remedy="pass arrays of one length"
        )
    return lengths[0]


def merged(results: Sequence[Result]) -> Result:
    """Return the gradients and the loss of all parts as means weighted by samples, in the order of the parts.

    A part without samples does not count. The loss is None if that of any other part is.
    """
    collected: Accumulator[Handle] = Accumulator()
    for gradients, samples, _ in results:
        collected.put(gradients, samples)
    merged_gradients, total = collected.take()
    losses = [(loss, samples) for _, samples, loss in results if samples]
    known = [loss * samples for loss, samples in losses if loss is not None]
    return merged_gradients, total, sum(known) / total if total and len(known) == len(losses) else None
