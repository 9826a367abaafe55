"""Parameter servers and their trainers: the part of clusterctl that a training program imports.

Shipped to the nodes: imports numpy, pyzmq, `common` and `transfer` only, and runs on Python 3.9. Names are resolved on
first use (PEP 562), so that importing one does not load the others. Start reading at `connector.py`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterctl.runtime.checkpoint.model import load_model, merge_model, save_model, torch_state_dict
    from clusterctl.runtime.connector import connect
    from clusterctl.runtime.errors import RuntimeFailure
    from clusterctl.runtime.table.initializers import constant, from_rank0, normal, uniform, zeros
    from clusterctl.runtime.table.retention import Retention, after_sightings, fraction, older_than, score_below
    from clusterctl.runtime.table.rules import SGD, Adagrad, Adam, AdamW, Ftrl, Momentum, RMSProp
    from clusterctl.runtime.table.schedules import constant_rate, cosine, exponential, polynomial, step_decay
    from clusterctl.runtime.trainer.clipping import clip_by_norm, clip_by_value

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Ftrl",
    "Momentum",
    "RMSProp",
    "Retention",
    "RuntimeFailure",
    "after_sightings",
    "clip_by_norm",
    "clip_by_value",
    "connect",
    "constant",
    "constant_rate",
    "cosine",
    "exponential",
    "fraction",
    "from_rank0",
    "load_model",
    "merge_model",
    "normal",
    "older_than",
    "polynomial",
    "save_model",
    "score_below",
    "step_decay",
    "torch_state_dict",
    "uniform",
    "zeros",
]

_HOMES = {
    "connect": "connector",
    "SGD": "table.rules",
    "Adagrad": "table.rules",
    "Adam": "table.rules",
    "AdamW": "table.rules",
    "Momentum": "table.rules",
    "RMSProp": "table.rules",
    "Ftrl": "table.rules",
    "constant_rate": "table.schedules",
    "step_decay": "table.schedules",
    "exponential": "table.schedules",
    "polynomial": "table.schedules",
    "cosine": "table.schedules",
    "clip_by_value": "trainer.clipping",
    "clip_by_norm": "trainer.clipping",
    "uniform": "table.initializers",
    "normal": "table.initializers",
    "zeros": "table.initializers",
    "constant": "table.initializers",
    "from_rank0": "table.initializers",
    "load_model": "checkpoint.model",
    "merge_model": "checkpoint.model",
    "save_model": "checkpoint.model",
    "RuntimeFailure": "errors",
    "Retention": "table.retention",
    "after_sightings": "table.retention",
    "fraction": "table.retention",
    "older_than": "table.retention",
    "score_below": "table.retention",
    "torch_state_dict": "checkpoint.model",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
