"""Which rows of an embedding are made, and which go again: a value that a table's definition carries.

All of it follows from ids, pushes and steps, never from chance, the clock, or the number of pservers and lanes: whether
a row is there is as reproducible as what it holds. `store.eviction` carries it out.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from clusterctl.runtime.arrays import Ids
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.table.sharding import SLOTS

SWEEP_EVERY = 100
_MOST = 2**62


@dataclass(frozen=True)
class Sightings:
    """A row is made in the step that brings its id to `count` pushes (several trainers may name it in one step)."""

    count: int

    def __post_init__(self) -> None:
        _whole("after_sightings", self.count, 1)


@dataclass(frozen=True)
class Fraction:
    """Rows are made for this share of all ids, chosen by a hash of the id."""

    share: float

    def __post_init__(self) -> None:
        _number("fraction", self.share, 0.0, 1.0)


@dataclass(frozen=True)
class Age:
    """A row goes when none of the last `steps` steps pushed it."""

    steps: int

    def __post_init__(self) -> None:
        _whole("older_than", self.steps, 1)


@dataclass(frozen=True)
class Score:
    """A row goes when its score is below `limit`: pushes that named it, each worth `decay` less with every step."""

    limit: float
    decay: float

    def __post_init__(self) -> None:
        _number("score_below: limit", self.limit, 0.0, math.inf)
        _number("score_below: decay", self.decay, 0.0, 1.0)
        if self.decay == 1:
            raise UseError("score_below: decay=1 never forgets", remedy="give a decay below 1, such as 0.999")


@dataclass(frozen=True)
class Retention:
    """What an embedding admits and forgets; each part may be left out.

    `admit`: `after_sightings(n)` or `fraction(p)`; until a row is made its gradients are dropped, and it has its
    initial value. `expire`: `older_than(steps)` or `score_below(limit, decay)`, looked at after every `sweep_every`-th
    step. `max_rows`: a cap for the whole table, kept after every step: each of the SLOTS slots has its share of it, and
    above it the rows that were pushed longest ago go, of equal ones those of smaller ids first. A row that went has its
    initial value again, and no state. Raises UseError for numbers that mean nothing.
    """

    admit: Sightings | Fraction | None = None
    expire: Age | Score | None = None
    max_rows: int | None = None
    sweep_every: int = SWEEP_EVERY

    def __post_init__(self) -> None:
        if self.admit is not None and not isinstance(self.admit, (Sightings, Fraction)):
            raise UseError(f"admit={self.admit!r} is not known", remedy="use after_sightings(n) or fraction(p)")
        if self.expire is not None and not isinstance(self.expire, (Age, Score)):
            raise UseError(
                f"expire={self.expire!r} is not known", remedy="use older_than(steps) or score_below(limit, decay)"
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
        """The most rows of each slot, (SLOTS,) int64, which add up to `max_rows`."""
        cuts = [slot * (self.max_rows or 0) // SLOTS for slot in range(SLOTS + 1)]
        shares: Ids = np.array(cuts[1:], np.int64) - np.array(cuts[:-1], np.int64)
        return shares


def after_sightings(count: int) -> Sightings:
    """Admits an id at its `count`-th push."""
    return Sightings(count)


def fraction(share: float) -> Fraction:
    """Admits this share of all ids, above 0 and at most 1: always the same ones."""
    return Fraction(share)


def older_than(steps: int) -> Age:
    """Lets a row go that none of the last `steps` steps pushed."""
    return Age(steps)


def score_below(limit: float, decay: float) -> Score:
    """Lets a row go whose pushes, each worth `decay ** (steps since)`, add up to less than `limit`."""
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
    return {"kind": kind, **asdict(part)}


def retention_from_json(data: Any) -> Retention | None:
    """The inverse of `Retention.to_json`, None for None; raises UseError on anything else."""
    if data is None:
        return None
    try:
        known = {"admit", "expire", "max_rows", "sweep_every"}
        if set(data) != known:
            raise KeyError(f"keys {sorted(data)}")
        parts = {name: _part_from_json(data[name]) for name in ("admit", "expire")}
        return Retention(**parts, max_rows=data["max_rows"], sweep_every=data["sweep_every"])
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise UseError(f"retention {data!r} is not understood") from exc


def _part_from_json(data: dict[str, Any] | None) -> Any:
    if data is None:
        return None
    return _PARTS[data["kind"]](**{name: value for name, value in data.items() if name != "kind"})


def _whole(what: str, number: Any, least: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= _MOST:
        raise UseError(f"{what}={number!r} must be a whole number, at least {least}")


def _number(what: str, number: Any, above: float, most: float) -> None:
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
        raise UseError(f"{what}={number!r} is not a finite number")
    if not above < number <= most:
        raise UseError(f"{what}={number!r} must be above {above:g}" + (f", at most {most:g}" if most < 2 else ""))
