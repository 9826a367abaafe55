"""torch, where a training program uses it: tensors in and out, on CPU over the same memory."""

from __future__ import annotations

import importlib
from typing import Any

from clusterctl.runtime.errors import UseError


def is_tensor(values: Any) -> bool:
    return type(values).__module__.partition(".")[0] == "torch"


def as_array(values: Any) -> Any:
    """A tensor's memory as an array, a copy only if it is on another device; anything else as it is."""
    return values.detach().cpu().numpy() if is_tensor(values) else values


def tensor(array: Any) -> Any:
    """A tensor over an array's memory. Raises UseError when torch is not installed."""
    try:
        return importlib.import_module("torch").from_numpy(array)
    except ImportError as exc:
        raise UseError("torch is not installed", remedy="pip install torch") from exc
