"""Validation of the parts of a request against the tables of a lane."""

from __future__ import annotations

import functools
import json
import math
import threading
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple

import numpy as np

from clusterctl.runtime.arrays import Floats, Ids, Sketch
from clusterctl.runtime.errors import TableError, WireError
from clusterctl.runtime.pserver.declarations import Declared
from clusterctl.runtime.store.dense import DenseTable
from clusterctl.runtime.store.factory import Table, Tables
from clusterctl.runtime.store.sparse import SparseGrad, SparseTable
from clusterctl.runtime.table.rules import is_rate
from clusterctl.runtime.table.sharding import PART_ELEMENTS, owners_of
from clusterctl.runtime.table.spec import TableSpec
from clusterctl.runtime.wire import messages as wire
from clusterctl.runtime.wire.key_cache import KeyCache

_SLICE_S = 0.05  # in which the lane answers nothing


class ReadJob:
    """A job that reads files. `slices` does it; after that, `result` raises its error if it had one."""

    def __init__(self, job: Callable[[], object]) -> None:
        self._job = job
        self._future: Future[object] = Future()
        self._clock: int | None = None

    @property
    def is_done(self) -> bool:
        return self._future.done()

    def result(self) -> None:
        self._future.result()

    def slices(self) -> Iterator[None]:
        """Do the job in a thread. Each slice is a short wait for it."""
        threading.Thread(target=self._run, name="clusterctl-reading", daemon=True).start()
        while wait([self._future], _SLICE_S).not_done:
            yield

    def progress(self) -> int:
        """Return the nanoseconds that the thread has computed, which stand still while its disk does. Thread-safe."""
        try:
            return 0 if self._clock is None else time.clock_gettime_ns(self._clock)
        except OSError:  # it has ended
            return 0

    def _run(self) -> None:
        try:
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
            with np.errstate(all="ignore"):  # like the lane
                self._future.set_result(self._job())
        except BaseException as failure:  # noqa: BLE001 - the lane raises it
            self._future.set_exception(failure)


_MAX_SAMPLES = 2**53
_ONE = np.float32(1)
_OPENINGS_KEPT = 256
NOT_TOLD = object()  # the position of a push that does not say any: it has not changed
_LONGEST_KEY = 20  # digits of 2**64


class Opening(NamedTuple):
    """An opening of whole gradients of short dense tables and nothing else, as its directory shows: the tables, by
    ascending key, and their keys in the order of the parts. It is one object for all pushes with the same directory.
    """

    tables: tuple[DenseTable, ...]
    keys: tuple[int, ...]


_NOTHING = Opening((), ())


@dataclass
class Push:
    """A checked push: its opening without parts, gradients by table key, and the pieces that arrived.

    `dense` has the parts of each table that arrived and are not applied yet, by number; `later` the number of parts of
    a table that come as separate pieces; `requests` the request to answer for each of these; `applied` the pieces that
    are applied, except in sync mode; `position` the value of `ps.cursor` that belongs to the push; `rates` the learning
    rates that replace those of rules, by table; `state` means that the trainer has a state of its own. `opening` is set
    if the push is nothing else, and has all of `dense`. `declared` are the tables of the attempt that has sent it,
    `assigned` the values that its program has given to tables, as the first lane gets them.
    """

    message: wire.Message
    dense: dict[int, dict[int, Floats]] = field(default_factory=dict)
    sparse: dict[int, SparseGrad] = field(default_factory=dict)
    later: dict[int, int] = field(default_factory=dict)
    requests: dict[tuple[int, int], wire.Message] = field(default_factory=dict)
    applied: set[tuple[int, int]] = field(default_factory=set)
    weight: np.float32 = _ONE
    position: Any = NOT_TOLD
    rates: dict[int, float] = field(default_factory=dict)
    state: bool = False
    opening: Opening | None = field(default=None, repr=False)
    declared: Declared | None = None
    assigned: Mapping[int, Sketch] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        return self.message.samples

    def announces(self) -> tuple[object, ...]:
        """Return the facts that must match when a trainer's successor pushes the step again."""
        return self.message.samples, sorted(self.later.items())


class RequestValidator:
    """Checks every part of a message. If it raises WireError or TableError, nothing has changed."""

    def __init__(
        self, tables: Tables, unset: Container[int], keys: KeyCache, place: tuple[int, int], weighted: bool
    ) -> None:
        self._tables = tables
        self._unset = unset
        self._keys = keys
        self._place = place  # (place, places) of this lane for sparse tables
        self._weighted = weighted
        # By directory of an opening that was checked. Tables stay, and once they have values, so does the result.
        self._openings: dict[wire.Directory, Opening] = {}

    def opening(self, message: wire.Message) -> Push:
        """Return the push that piece 0 opens."""
        if message.samples > _MAX_SAMPLES:
            raise WireError(f"trainer {message.rank} claims {message.samples} samples at step {message.step}")
        parts, message.parts = message.parts, []
        push = Push(message)
        if parts and parts[-1].kind == wire.JSON:
            push.position, push.rates, push.state, push.assigned = self._facts(parts.pop())
        if self._weighted:
            push.weight = _weight(message.samples)
        if not parts:
            push.opening = _NOTHING
            return push
        directory = parts.directory if isinstance(parts, wire.Parts) else None
        known = None if directory is None else self._openings.get(directory)
        if known is not None:
            push.opening, push.dense = known, {key: {0: part.array} for key, part in zip(known.keys, parts)}
            return push
        self._check(push, parts)
        if directory is not None and not push.sparse and not push.later:
            self._keep(directory, push, parts)
        return push

    def _keep(self, directory: wire.Directory, push: Push, parts: Sequence[wire.Part]) -> None:
        """Keep that a directory is that of an `Opening`, of which nothing depends on other bytes."""
        tables = [self._tables[key] for key in sorted(push.dense)]
        dense = tuple([table for table in tables if isinstance(table, DenseTable) and table.parts == 1])
        is_all = len(dense) == len(parts) == len(directory.entries)
        if is_all and all(part.kind == wire.DENSE for part in parts):
            if len(self._openings) == _OPENINGS_KEPT:
                self._openings.clear()
            self._openings[directory] = Opening(dense, tuple(push.dense))

    def _check(self, push: Push, parts: Sequence[wire.Part]) -> None:
        """Sort the parts of an opening into the push. Raises for those that do not fit."""
        for key, own in _by_table(parts).items():
            table = self.table(key)
            if key in self._unset:
                raise TableError(f"a push needs table {table.spec.name!r}, which has no values from trainer 0 yet")
            if isinstance(table, SparseTable):
                push.sparse[key] = self._sparse(table, own, push)
            elif own[0].kind == wire.LATER:
                push.later[key] = self._announced(table, own)
            elif table.count or len(own) != 1 or len(own[0].array):
                push.dense[key] = dict(self._part(table, own))

    def piece(self, message: wire.Message, push: Push) -> tuple[int, int, Floats]:
        """Return a later piece of `push`: the table's key, the number of the part, and its gradient."""
        if len(message.parts) != 1 or message.parts[0].table not in push.later:
            raise WireError(f"piece {message.piece} of step {message.step} was not announced")
        key = message.parts[0].table
        table = self.table(key)
        assert isinstance(table, DenseTable)
        [(number, grad)] = self._part(table, message.parts)
        return key, number, grad

    def repeated(self, message: wire.Message) -> tuple[DenseTable, int]:
        """Return the table and the number of the part of a piece of an earlier push."""
        table = self.table(message.parts[0].table) if message.parts else None
        if not isinstance(table, DenseTable):
            raise WireError(f"piece {message.piece} of step {message.step} is not of a dense table")
        [(number, _)] = self._part(table, message.parts)
        return table, number

    def initial(self, message: wire.Message) -> tuple[int, int, Floats | SparseGrad]:
        """Return initial values from trainer 0: the table's key, the number of the piece, and its values or rows."""
        table = self.table(message.parts[0].table if message.parts else -1)
        if not table.spec.init.is_from_rank0:
            raise TableError(f"table {table.spec.name!r} does not take its initial values from a trainer")
        if any(part.table != table.spec.key for part in message.parts) or message.piece >= message.pieces:
            raise WireError(f"the initial values of table {table.spec.name!r} are not one piece of them")
        if isinstance(table, SparseTable):
            return table.spec.key, message.piece, self._sparse(table, message.parts, Push(message))
        if not table.count and len(message.parts) == 1 and not message.parts[0].array.size:
            return table.spec.key, 0, np.empty(0, np.float32)
        [(number, values)] = self._part(table, message.parts, is_gradient=False)
        return table.spec.key, number, values

    def assigned(self, message: wire.Message) -> tuple[DenseTable, int, Floats]:
        """Return values that a program assigns: the dense table, the number of the piece, and its values."""
        table = self.table(message.parts[0].table if message.parts else -1)
        if not isinstance(table, DenseTable) or table.spec.wire or not self._weighted or table.key in self._unset:
            raise TableError(f"table {table.spec.name!r} takes no values from a program")
        if len(message.parts) != 1:
            raise WireError(f"the values for table {table.spec.name!r} are not one piece of them")
        [(number, values)] = self._part(table, message.parts, is_gradient=False)
        return table, number, values

    def table(self, key: int) -> Table:
        table = self._tables.get(key)
        if table is None:
            raise TableError(f"a message names an unknown table (key {key:#x})")
        return table

    def ids(self, table: SparseTable, part: wire.Part, rank: int) -> Ids:
        """Return the ids of a part, given in full or by the digest of a list that this trainer sent before."""
        if part.kind == wire.SAME:
            return self._keys.recall(rank, table.spec.key, part.array.tobytes())
        ids: Ids = part.array
        if part.kind != wire.IDS:
            raise WireError(f"a part for table {table.spec.name!r} has the wrong kind")
        check_ids(table.spec, ids, self._place)
        self._keys.remember(rank, table.spec.key, ids)
        return ids

    def _facts(self, part: wire.Part) -> tuple[Any, dict[int, float], bool, dict[int, Sketch]]:
        """Return the JSON part that ends an opening: the value of `ps.cursor`, the rates by table, if there is a state,
        and what the program has assigned.
        """
        facts = wire.Message(wire.PUSH, parts=[part]).json()
        position, rates = facts.get("cursor", NOT_TOLD), facts.get("rates", {})
        if part.array.nbytes > wire.MAX_POSITION_BYTES and _length(position) > wire.MAX_POSITION_BYTES:
            raise WireError("a cursor is too long")
        if not isinstance(rates, dict):
            raise WireError("the rates of a push are not an object")
        by_table = dict(self._rate(name, rate) for name, rate in rates.items())
        return position, by_table, facts.get("state") is True, assigned_values(facts)

    def _rate(self, name: str, rate: Any) -> tuple[int, float]:
        key = int(name) if _is_key(name) else -1
        if key not in self._tables:
            raise WireError(f"a push has a rate of an unknown table, {name[:_LONGEST_KEY]!r}")
        if not is_rate(rate):
            raise WireError(f"a push has the rate {str(rate)[:_LONGEST_KEY]} of table {self._tables[key].spec.name!r}")
        return key, float(rate)

    def _announced(self, table: DenseTable, parts: list[wire.Part]) -> int:
        if len(parts) != 1 or parts[0].offset != table.parts:
            raise WireError(f"the gradient of table {table.spec.name!r} should follow in {table.parts} pieces")
        return table.parts

    def _part(self, table: DenseTable, parts: list[wire.Part], *, is_gradient: bool = True) -> list[tuple[int, Floats]]:
        part, quantizer = parts[0], table.spec.quantizer if is_gradient else None
        number, odd = divmod(part.offset - table.start, PART_ELEMENTS)
        start, stop = table.bounds(number)
        length = stop - start if quantizer is None else quantizer.size(stop - start)
        fits = len(parts) == 1 and odd == 0 and 0 <= number < table.parts and len(part.array) == length
        kinds = (wire.DENSE, wire.DENSE16) if quantizer is None else (wire.CHANGE,)
        if part.kind not in kinds or not fits:
            raise WireError(f"the gradient of table {table.spec.name!r} does not fit the lane's run of it")
        if quantizer is not None:
            return [(number, quantizer.unpack(part.array)[: stop - start])]
        return [(number, part.array.astype(np.float32, copy=False))]

    def _sparse(self, table: SparseTable, parts: list[wire.Part], push: Push) -> SparseGrad:
        spec, rank = table.spec, push.message.rank
        rows = [part.array for part in parts[1::2]]
        if len(parts) % 2 or any(part.kind not in (wire.ROWS, wire.ROWS16) for part in parts[1::2]):
            raise WireError(f"the gradient of table {spec.name!r} is not made of ids and rows")
        ids = [self.ids(table, part, rank) for part in parts[::2]]
        if any(r.shape != (len(i), spec.dim) for i, r in zip(ids, rows)):
            raise WireError(f"the gradient of table {spec.name!r} is not made of ids and rows of width {spec.dim}")
        all_ids, all_rows = (ids[0], rows[0]) if len(ids) == 1 else (np.concatenate(ids), np.concatenate(rows))
        if len(ids) > 1:
            check_ids(spec, all_ids, self._place)
        return SparseGrad(push.weight, all_ids, all_rows.astype(np.float32, copy=False))


@functools.lru_cache(256)
def _weight(samples: int) -> np.float32:
    """Return the weight of a push. The same object shows at once that weights are equal."""
    weight: np.float32 = np.float32(samples)
    return weight


def assigned_values(facts: Mapping[str, Any]) -> dict[int, Sketch]:
    """Return the values that a program has assigned, by key of the table. Raises WireError."""
    given = facts.get("assigned", {})
    if not isinstance(given, dict) or not all(_is_key(key) and _is_sketch(own) for key, own in given.items()):
        raise WireError("the assigned values of a request are malformed")
    return {int(key): own for key, own in given.items()}


def _is_key(name: str) -> bool:
    return name.isdecimal() and len(name) <= _LONGEST_KEY


def _is_sketch(value: Any) -> bool:
    """Return True for two finite numbers, or none."""
    if not isinstance(value, list) or len(value) not in (0, 2):
        return False
    return all(type(number) is float and math.isfinite(number) for number in value)


def _length(position: Any) -> int:
    return 0 if position is NOT_TOLD else len(json.dumps(position))


def check_ids(spec: TableSpec, ids: Ids, place: tuple[int, int]) -> None:
    """Raise unless ids ascend strictly, are within the table's bound, and belong to `place`, (place, places)."""
    if len(ids) == 0:
        return
    if not bool((ids[1:] > ids[:-1]).all()):
        raise WireError(f"ids for table {spec.name!r} do not ascend")
    if spec.rows is not None and not (ids[0] >= 0 and ids[-1] < spec.rows):
        raise TableError(f"ids for table {spec.name!r} are outside 0..{spec.rows - 1}")
    if place[1] > 1 and not bool((owners_of(ids, spec.rows, place[1]) == place[0]).all()):
        raise WireError(f"ids for table {spec.name!r} were sent to the wrong lane, {place[0]} of {place[1]}")


def _by_table(parts: Sequence[wire.Part]) -> dict[int, list[wire.Part]]:
    grouped: dict[int, list[wire.Part]] = {}
    for part in parts:
        grouped.setdefault(part.table, []).append(part)
    return grouped
