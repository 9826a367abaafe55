"""Parameter servers and their trainers: the part of clusterctl that a training program imports.

Shipped to the nodes beside the package root; it needs numpy and pyzmq and imports nothing else of clusterctl.
Names are resolved on first use (PEP 562), so that stdlib-only code can import `clusterctl.common.manifest`
on a machine without numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterctl.runtime.clipping import clip_by_norm, clip_by_value
    from clusterctl.runtime.connecting import connect
    from clusterctl.runtime.errors import RuntimeFailure
    from clusterctl.runtime.export import torch_state_dict
    from clusterctl.runtime.initial import constant, normal, uniform, zeros
    from clusterctl.runtime.models import load_model, merge_model
    from clusterctl.runtime.retention import Retention, after_sightings, fraction, older_than, score_below
    from clusterctl.runtime.rules import SGD, Adagrad, Adam, Ftrl, Momentum, RMSProp
    from clusterctl.runtime.schedules import constant_rate, cosine, exponential, polynomial, step_decay

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
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
    "load_model",
    "merge_model",
    "normal",
    "older_than",
    "polynomial",
    "score_below",
    "step_decay",
    "torch_state_dict",
    "uniform",
    "zeros",
]

_HOMES = {
    "connect": "connecting",
    "SGD": "rules",
    "Adagrad": "rules",
    "Adam": "rules",
    "Momentum": "rules",
    "RMSProp": "rules",
    "Ftrl": "rules",
    "constant_rate": "schedules",
    "step_decay": "schedules",
    "exponential": "schedules",
    "polynomial": "schedules",
    "cosine": "schedules",
    "clip_by_value": "clipping",
    "clip_by_norm": "clipping",
    "uniform": "initial",
    "normal": "initial",
    "zeros": "initial",
    "constant": "initial",
    "load_model": "models",
    "merge_model": "models",
    "RuntimeFailure": "errors",
    "Retention": "retention",
    "after_sightings": "retention",
    "fraction": "retention",
    "older_than": "retention",
    "score_below": "retention",
    "torch_state_dict": "export",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
