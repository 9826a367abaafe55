"""Parameter servers and their trainers: the part of clusterctl that a training program imports.

Shipped to the nodes beside the package root; it needs numpy and pyzmq and imports nothing else of clusterctl.
Names are resolved on first use (PEP 562), so that stdlib-only code can import `clusterctl.runtime.manifest`
on a machine without numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterctl.runtime.connecting import connect
    from clusterctl.runtime.errors import RuntimeFailure
    from clusterctl.runtime.initial import constant, normal, uniform, zeros
    from clusterctl.runtime.models import load_model, merge_model
    from clusterctl.runtime.rules import SGD, Adagrad, Adam, Momentum

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "Momentum",
    "RuntimeFailure",
    "connect",
    "constant",
    "load_model",
    "merge_model",
    "normal",
    "uniform",
    "zeros",
]

_HOMES = {
    "connect": "connecting",
    "SGD": "rules",
    "Adagrad": "rules",
    "Adam": "rules",
    "Momentum": "rules",
    "uniform": "initial",
    "normal": "initial",
    "zeros": "initial",
    "constant": "initial",
    "load_model": "models",
    "merge_model": "models",
    "RuntimeFailure": "errors",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
