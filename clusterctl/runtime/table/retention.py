"""The retention of an embedding: which ids get a row, and which rows are removed. Part of a table's definition.

It depends on ids, pushes and steps only, never on chance, the clock, or the number of pservers and lanes: the presence
of a row is as reproducible as its values. `store.eviction` enforces it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from clusterctl.runtime.arrays import Ids
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.table.sharding import SLOTS

SWEEP_EVERY = 100
_MOST = 2**62


@dataclass(frozen=True)
class Sightings:
    """Admission of an id in the step of its `count`-th push (several trainers may push it in one step)."""

    count: int

    def __post_init__(self) -> None:
        _whole("after_sightings", self.count, 1)


@dataclass(frozen=True)
class Fraction:
    """Admission of this share of all ids, chosen by a hash of the id."""

    share: float

    def __post_init__(self) -> None:
        _number("fraction", self.share, 0.0, 1.0)


@dataclass(frozen=True)
class Age:
    """Expiry of a row that was not pushed in the last `steps` steps."""

    steps: int

    def __post_init__(self) -> None:
        _whole("older_than", self.steps, 1)


@dataclass(frozen=True)
class Score:
    """Expiry of a row whose score is below `limit`: the number of its pushes, multiplied by `decay` in every step."""

    limit: float
    decay: float

    def __post_init__(self) -> None:
        _number("score_below: limit", self.limit, 0.0, math.inf)
        _number("score_below: decay", self.decay, 0.0, 1.0)
        if self.decay == 1:
            raise UseError("score_below: decay=1 never forgets", remedy="give a decay below 1, such as 0.999")


@dataclass(frozen=True)
class Retention:
    """The ids that an embedding admits and the rows that it removes; each part is optional.

    `admit`: `after_sightings(n)` or `fraction(p)`; until a row is made its gradients are dropped, and it has its
    initial value. `expire`: `older_than(steps)` or `score_below(limit, decay)`, checked after every `sweep_every`-th
    step. `max_rows`: a cap on the whole table, enforced after every step: each of the SLOTS slots has its share, above
    which the least recently pushed rows are removed, among equals those with smaller ids first. A removed row has its
    initial value again, and no state. Raises UseError for invalid numbers.
    """

    admit: Sightings | Fraction | None = None
    expire: Age | Score | None = None
    max_rows: int | None = None
    sweep_every: int = SWEEP_EVERY

    def __post_init__(self) -> None:
        if self.admit is not None and not isinstance(self.admit, (Sightings, Fraction)):
            raise UseError(f"admit={self.admit!r} is unknown", remedy="use after_sightings(n) or fraction(p)")
        if self.expire is not None and not isinstance(self.expire, (Age, Score)):
            raise UseError(
                f"expire={self.expire!r} is unknown", remedy="use older_than(steps) or score_below(limit, decay)"
            )
        if self.max_rows is not None:
            _whole("max_rows", self.max_rows, SLOTS)
        _whole("sweep_every", self.sweep_every, 1)

    def to_json(self) -> dict[str, Any]:
        return {
            "admit": _part_to_json(self.admit),
            "expire": _part_to_json(self.expire),
            "max_rows": self.max_rows,
            "sweep_every": self.sweep_every,
        }

    def slot_shares(self) -> Ids:
        """Return the maximum number of rows of each slot, (SLOTS,) int64; they add up to `max_rows`."""
        cuts = [slot * (self.max_rows or 0) // SLOTS for slot in range(SLOTS + 1)]
        shares: Ids = np.array(cuts[1:], np.int64) - np.array(cuts[:-1], np.int64)
        return shares


def after_sightings(count: int) -> Sightings:
    """Admit an id at its `count`-th push."""
    return Sightings(count)


def fraction(share: float) -> Fraction:
    """Admit this share of all ids, above 0 and at most 1; always the same ids."""
    return Fraction(share)


def older_than(steps: int) -> Age:
    """Remove rows that were not pushed in the last `steps` steps."""
    return Age(steps)


def score_below(limit: float, decay: float) -> Score:
    """Remove rows whose pushes, each worth `decay ** (steps since)`, add up to less than `limit`."""
    return Score(limit, decay)


_PARTS: dict[str, Any] = {
    "after_sightings": Sightings,
    "fraction": Fraction,
    "older_than": Age,
    "score_below": Score,
}


def _part_to_json(part: Any) -> dict[str, Any] | None:
    if part is None:
        return None
    kind = next(name for name, cls in _PARTS.items() if isinstance(part, cls))
    return {"kind": kind, **vars(part)}


def retention_from_json(data: Any) -> Retention | None:
    """Return the retention in JSON of `Retention.to_json`, None for None. Raises UseError for anything else."""
    if data is None:
        return None
    try:
        known = {"admit", "expire", "max_rows", "sweep_every"}
        if set(data) != known:
            raise KeyError(f"keys {sorted(data)}")
        parts = {name: _part_from_json(data[name]) for name in ("admit", "expire")}
        return Retention(**parts, max_rows=data["max_rows"], sweep_every=data["sweep_every"])
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise UseError(f"retention {data!r} is malformed") from exc


def _part_from_json(data: dict[str, Any] | None) -> Any:
    if data is None:
        return None
    return _PARTS[data["kind"]](**{name: value for name, value in data.items() if name != "kind"})


def _whole(what: str, number: Any, least: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= _MOST:
        raise UseError(f"{what}={number!r} must be an integer >= {least}")


def _number(what: str, number: Any, above: float, most: float) -> None:
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
        raise UseError(f"{what}={number!r} is not a finite number")
    if not above < number <= most:
        raise UseError(f"{what}={number!r} must be above {above:g}" + (f", at most {most:g}" if most < 2 else ""))
