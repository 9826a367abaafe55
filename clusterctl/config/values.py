"""Types of the settings that have more than one part, and what the spec of a run has in their place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from clusterctl.common.modes import SaveInterval
from clusterctl.common.run_spec import KeepBest

#: The engine whose programs use our runtime.
OUR_ENGINE: Final = "clusterctl"
#: Settings of earlier versions, which may stay in a conf.py and have no effect, each with what replaces it.
RETIRED: Final = {
    "KEEP_CONNECTIONS_S": "to keep connections open, use ssh as the carrier, with ControlPersist: see docs/carriers.md"
}
#: The values of WIRE for the outer mode.
QUANTIZED: Final = ("int8", "int4")


class Restarts(NamedTuple):
    """The number of times that a process of each role may be restarted within an hour."""

    pserver: int
    trainer: int

    @classmethod
    def parse(cls, value: object) -> Restarts:
        """Parse a number such as 3, or {"pserver": 1, "trainer": 5}. Raises ValueError."""
        given = value if isinstance(value, Mapping) else dict.fromkeys(cls._fields, value)
        numbers: list[Any] = [given.get(role, 0) for role in cls._fields]
        if not set(given) <= set(cls._fields) or any(type(n) is not int or n < 0 for n in numbers):
            raise ValueError('must be a whole number, 0 or more, or {"pserver": 1, "trainer": 5}')
        return cls(*numbers)


@dataclass(frozen=True)
class Best:
    """The criterion for the best checkpoint: the highest ("max") or lowest ("min") `metric`."""

    metric: str
    direction: str

    def __str__(self) -> str:
        return f"{self.metric}:{self.direction}"

    @classmethod
    def parse(cls, value: object) -> Best:
        """Parse a string such as "auc:max" or "loss:min". Raises ValueError."""
        match = re.fullmatch(r"(\w[\w.-]*):(max|min)", value) if isinstance(value, str) else None
        if not match:
            raise ValueError('must look like "auc:max" or "loss:min"')
        return cls(match[1], match[2])


def best_in_spec(best: Best | None) -> KeepBest | None:
    """Return KEEP_BEST as the spec of a run has it."""
    return KeepBest(name=best.metric, direction=best.direction) if best else None


def models_in_spec(every: SaveInterval | None) -> SaveInterval | None:
    """Return SAVE_MODEL_EVERY as the spec of a run has it: None for the default, the end of every pass."""
    if every is None:
        return SaveInterval("end", 0)
    return None if (every.unit, every.n) == ("pass", 1) else every
