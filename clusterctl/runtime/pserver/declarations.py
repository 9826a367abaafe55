"""The tables that trainers have declared, as the first lane of the run knows them: it gets all declarations and pushes.

Trainers that declare different tables would train apart. What counts is what a trainer had declared when it ended a
step, not what it pushed: a table without a gradient counts as zero. The same holds for values that they assign.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from clusterctl.common.errors import first_of
from clusterctl.runtime.arrays import Sketch, may_be_equal
from clusterctl.runtime.errors import TableError
from clusterctl.runtime.table.sharding import table_key
from clusterctl.runtime.table.spec import TensorNames

_MOST_NAMED = 4
_SUM = 2**64
_ASSIGN = "call ps.assign with equal values at the same point of every trainer"


class DeclarationPoint(NamedTuple):
    """How far a trainer was when it declared a table: the number of its pushes, and its pass and batch."""

    pushes: int
    cursor: tuple[int, int]


class Declared:
    """The tables that one attempt of a trainer has declared, by name. `sum` is the same for the same names."""

    def __init__(self) -> None:
        self.places: dict[str, DeclarationPoint] = {}
        self.sum = 0

    def add(self, name: str, place: DeclarationPoint) -> None:
        if name not in self.places:
            self.places[name] = place
            self.sum = (self.sum + table_key(name)) % _SUM


class TrainerProgress(NamedTuple):
    """What a trainer has declared, and how far it is."""

    declared: Declared
    pushes: int
    cursor: tuple[int, int]

    def is_beyond(self, place: DeclarationPoint) -> bool:
        return self.pushes > place.pushes and self.cursor > place.cursor


#: The ranks that have declared a table, and those that have not.
Differ = tuple[list[int], list[int]]


class Declarations:
    """Checks what trainers declare. `failure` is set once they are found to differ; then every request is refused."""

    def __init__(self) -> None:
        self.failure: TableError | None = None
        self.names = TensorNames()
        self._first: dict[tuple[int, str], DeclarationPoint] = {}  # of any attempt
        self._saved: dict[tuple[str, int], tuple[int, Mapping[int, Sketch]]] = {}  # of the first that asked

    def take(self, rank: int, declared: Declared, tables: Iterable[tuple[str, str]], place: DeclarationPoint) -> None:
        """Take tables that a trainer declares, as (name, kind). Raises TableError if a name collides with another."""
        for name, kind in tables:
            self.names.add(name, kind)
            declared.add(name, self._first.setdefault((rank, name), place))

    def check_step(self, step: int, of_all: Mapping[int, Declared | None]) -> None:
        """Compare what trainers had declared, by rank, when they ended a step of sync."""
        known = {rank: declared for rank, declared in of_all.items() if declared is not None}
        if len({declared.sum for declared in known.values()}) > 1:
            self._fail(_lacking(known, known), f" before the end of step {step}")

    def check_progress(self, of_all: Mapping[int, TrainerProgress], ranks: Collection[int]) -> None:
        """Compare what these `ranks` have declared outside sync with what all others have.

        A trainer lacks a table of another one if both have pushed beyond the place where the other one declared it.
        """
        known = {rank: reached.declared for rank, reached in of_all.items()}
        if len({declared.sum for declared in known.values()}) < 2:
            return
        found: dict[str, Differ] = {}
        for name, (has, lacks) in _lacking(known, ranks).items():
            first = {r: known[r].places[name] for r in has if of_all[r].pushes > known[r].places[name].pushes}
            beyond = [rank for rank in lacks if any(of_all[rank].is_beyond(place) for place in first.values())]
            if beyond:
                found[name] = (list(first), beyond)
        self._fail(found, ", though both have trained since")

    def check_assigned(self, step: int, of_all: Mapping[int, Mapping[int, Sketch]], late: Collection[int]) -> None:
        """Compare the values that programs have given to tables before a step of sync, by rank and key of the table.

        Trainers that are `late`, except trainer 0, need not have given any.
        """
        for key in {key: None for own in of_all.values() for key in own}:
            has = [rank for rank, own in of_all.items() if key in own]
            lacks = [rank for rank in of_all if rank not in has and (rank not in late or rank == 0)]
            others = [rank for rank in has[1:] if not may_be_equal(of_all[has[0]][key], of_all[rank][key])]
            if lacks:
                what = f"was assigned a value by {_names(has)} and not by {_names(lacks)} before step {step}"
            elif 0 not in of_all:
                what = f"was assigned a value before step {step}, which only trainer 0 can send, and it has left"
            elif others:
                what = f"was assigned a value by {_names(has[:1])} before step {step}, and another by {_names(others)}"
            else:
                continue
            self._refuse(key, what)
            return

    def check_saved(self, tag: str, step: int, rank: int, own: Mapping[int, Sketch]) -> None:
        """Compare values that programs have given to tables before they asked for a save, after the same step."""
        first, values = self._saved.setdefault((tag, step), (rank, own))
        for key in own:
            if key in values and not may_be_equal(values[key], own[key]):
                what = f"was assigned a value by trainer {first} before the save {tag!r}, and another by trainer {rank}"
                self._refuse(key, what)
                return

    def _refuse(self, key: int, what: str) -> None:
        name = next((name for _, name in self._first if table_key(name) == key), "")
        self.failure = TableError(f"table {name!r} {what}", remedy=_ASSIGN)

    def _fail(self, found: Mapping[str, Differ], since: str) -> None:
        if not found or self.failure is not None:
            return
        (name, (has, lacks)), *others = found.items()
        more = f" (others that differ: {first_of([repr(other) for other, _ in others], _MOST_NAMED)})" if others else ""
        self.failure = TableError(
            f"table {name!r} was declared by {_names(has)} and not by {_names(lacks)}{since}{more}",
            remedy="declare the same tables, with the same names, in every trainer",
        )


def _lacking(known: Mapping[int, Declared], ranks: Collection[int]) -> dict[str, Differ]:
    """Return the tables that some trainers have declared and some of `ranks` have not, with the ranks of both."""
    names = dict.fromkeys(name for declared in known.values() for name in declared.places)
    out = {}
    for name in names:
        lacks = [rank for rank in ranks if rank in known and name not in known[rank].places]
        if lacks:
            out[name] = ([rank for rank in known if name in known[rank].places], lacks)
    return out


def _names(ranks: list[int]) -> str:
    return first_of([f"trainer {rank}" for rank in ranks], _MOST_NAMED)
