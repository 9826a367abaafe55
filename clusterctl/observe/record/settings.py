"""The settings of a run as conf.py spells them, from its spec."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from clusterctl.common.run_spec import RunSpec
from clusterctl.config.settings import TABLE


def settings_of(spec: RunSpec) -> dict[str, str]:
    """Return the settings that the spec of a run has, as text, in the order of conf.py's reference.

    Settings that only the control machine uses are not among them, unless they were given with `--set`.
    """
    places = {one.name: one.spec.split(".") for one in TABLE if one.spec}
    values: dict[str, Any] = {name: reduce(getattr, path, spec) for name, path in places.items()}
    if spec.training.engine != "clusterctl":
        del values["MODE"]
    if not spec.saving.checkpoints:
        del values["SAVE_EVERY"]
    known = {name: _text(value) for name, value in values.items() if value is not None and value != {}}
    return {**known, **(spec.settings or {})}


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return str(value)
