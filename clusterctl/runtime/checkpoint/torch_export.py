"""Saved models for other libraries."""

from __future__ import annotations

from typing import Any

from clusterctl.runtime.checkpoint.model import PathLike, load_model
from clusterctl.runtime.torch_interop import tensor


def torch_state_dict(path: PathLike) -> dict[str, Any]:
    """The dense tables of a saved model or checkpoint as float32 torch tensors by name, for `load_state_dict`.

    Embeddings are left out: `load_model` has their ids and rows. Raises ModelError as that does, and UseError when
    torch is not installed.
    """
    return {name: tensor(value) for name, value in load_model(path).items() if not isinstance(value, tuple)}
