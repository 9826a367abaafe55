"""The array types of the runtime, and torch tensors as arrays over the same memory."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from clusterctl.runtime.errors import UseError

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint64]

#: What is enough to see that two arrays are not equal, without sending them.
Sketch = list[float]

_FEW = 16_384
_WEIGHTS = np.linspace(0.5, 1.5, 65_536)
_ROUNDING = 1e-5
_FALSE = bytes(1)


def scatter(array: Array, positions: Ids, rows: Array) -> None:
    """`array[positions] = rows`, each row as one item: more than twice as fast. Both are contiguous, of one dtype."""
    item = np.dtype((np.void, array.itemsize * array.shape[1]))
    np.put(array.view(item).reshape(-1), positions, rows.view(item).reshape(-1))


def is_finite(values: Floats) -> bool:
    """Return True if all values are finite. The sum of squares decides in one cheap sweep unless it overflows."""
    flat = values.reshape(-1)
    if len(flat) <= _FEW:
        return _FALSE not in np.isfinite(flat).tobytes()  # half the time of `all`
    with np.errstate(over="ignore"):
        return math.isfinite(np.dot(flat, flat)) or bool(np.isfinite(flat).all())


def sketch(values: Floats) -> Sketch:
    """Return a weighted sum of the values and their scale; an empty sketch if these are not finite."""
    flat, total, squares = values.reshape(-1), 0.0, 0.0
    for at in range(0, len(flat), len(_WEIGHTS)):
        part = flat[at : at + len(_WEIGHTS)].astype(np.float64)
        total += float(part @ _WEIGHTS[: len(part)])
        squares += float(part @ part)
    scale = math.sqrt(len(flat) * squares)
    return [total, scale] if math.isfinite(scale) else []


def may_be_equal(one: Sketch, other: Sketch) -> bool:
    """Return False if the values of two sketches differ by more than rounding."""
    if len(one) != len(other):
        return False
    bound = _ROUNDING * max(map(abs, [*one, *other]), default=0.0)
    return all(abs(a - b) <= bound for a, b in zip(one, other))


def is_tensor(values: Any) -> bool:
    """Return True if `values` is a torch tensor; torch itself is not imported."""
    return type(values) is not np.ndarray and type(values).__module__.partition(".")[0] == "torch"


def as_array(values: Any) -> Any:
    """Return a tensor's memory as an array, a copy only if it is on another device; return anything else unchanged."""
    return values.detach().cpu().numpy() if is_tensor(values) else values


def as_tensor(array: Any) -> Any:
    """Return a tensor over an array's memory. Raises UseError when torch is not installed."""
    try:
        return importlib.import_module("torch").from_numpy(array)
    except ImportError as exc:
        raise UseError("torch is not installed", remedy="pip install torch") from exc
