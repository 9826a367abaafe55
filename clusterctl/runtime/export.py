"""Saved models for other libraries."""

from __future__ import annotations

import importlib
from typing import Any

from clusterctl.runtime.errors import UseError
from clusterctl.runtime.models import PathLike, load_model


def torch_state_dict(path: PathLike) -> dict[str, Any]:
    """The dense tables of a saved model or checkpoint as float32 torch tensors by name, for `load_state_dict`.

    Embeddings are left out: `load_model` has their ids and rows. Raises ModelError as that does, and UseError when
    torch is not installed.
    """
    try:
        torch = importlib.import_module("torch")
    except ImportError as exc:
        raise UseError("torch_state_dict needs torch, which is not installed", remedy="pip install torch") from exc
    dense = {name: value for name, value in load_model(path).items() if not isinstance(value, tuple)}
    return {name: torch.from_numpy(value) for name, value in dense.items()}
