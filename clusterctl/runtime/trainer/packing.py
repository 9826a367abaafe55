"""A gradient as messages: for each lane an opening, and long gradients in pieces after it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar, Union

import numpy as np
import numpy.typing as npt

from clusterctl.runtime.arrays import Floats, Ids, is_finite
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.table.rules import is_rate
from clusterctl.runtime.table.sharding import PART_ELEMENTS
from clusterctl.runtime.trainer.handles import Dense, Embedding
from clusterctl.runtime.trainer.ids import fits_half
from clusterctl.runtime.wire import messages as wire
from clusterctl.runtime.wire.key_cache import BYTES_PER_TRAINER, digest_of

Handle = Union[Dense, Embedding]
Made = TypeVar("Made", Dense, Embedding)
#: The number of a piece of initial values, the number of all pieces of a lane, and its parts.
InitialPiece = tuple[int, int, list[wire.Part]]
MakeParts = Callable[[], list[wire.Part]]

#: The gradient of a longer run of a dense table is sent in pieces.
_WHOLE_ELEMENTS = 16_384
#: So many fit into `MAX_JSON_BYTES`.
_MOST_RATES = 20_000
_by_key = attrgetter("key")


def checked_rates(rates: Mapping[Handle, float] | None, tables: Mapping[int, Handle], mode: str) -> dict[Handle, float]:
    """Return the learning rates that a push gives, by table of the session. Raises UseError."""
    if not rates:
        return {}
    if mode == "geo":
        raise UseError(f"rates={rates!r:.80} in geo mode, where a push has many steps", remedy="use another MODE")
    if len(rates) > _MOST_RATES:
        raise UseError(f"rates of {len(rates)} tables", remedy=f"pass those of at most {_MOST_RATES} tables")
    for handle, rate in rates.items():
        if not isinstance(handle, (Dense, Embedding)) or tables.get(handle.spec.key) is not handle:
            raise UseError(f"a rate of {handle!r}, which is not a table of this session")
        if not is_rate(rate):
            raise UseError(f"the rate of table {handle.name!r} is {rate!r}", remedy="pass a finite number >= 0")
    return {handle: float(rate) for handle, rate in rates.items()}


@dataclass
class Gradient:
    """A trainer's whole gradient, checked: dense tables flattened, rows by distinct ascending ids."""

    dense: dict[Dense, Floats] = field(default_factory=dict)
    sparse: dict[Embedding, tuple[Ids, Floats]] = field(default_factory=dict)

    @staticmethod
    def checked(gradients: Mapping[Handle, Any], tables: Mapping[int, Handle]) -> Gradient:
        """Return what a program pushes as a gradient of the session's `tables`, by key. Raises UseError."""
        checked = Gradient()
        for handle, gradient in gradients.items():
            if not isinstance(handle, (Dense, Embedding)) or tables.get(handle.spec.key) is not handle:
                raise UseError(f"push of {handle!r}, which is not a table of this session")
            if isinstance(handle, Dense):
                checked.dense[handle] = handle.checked(gradient)
            else:
                checked.sparse[handle] = handle.checked(gradient)
        return checked

    @staticmethod
    def checked_again(tables: Mapping[Handle, Any]) -> Gradient:
        """Return the merged gradients of several batches, each of which was checked: an id may occur in each."""
        dense = {handle: g for handle, g in tables.items() if isinstance(handle, Dense)}
        sparse = {handle: handle.checked(g) for handle, g in tables.items() if isinstance(handle, Embedding)}
        return Gradient(dense, sparse)

    def arrays(self) -> list[Floats]:
        dense = [*self.dense.values()]
        return dense + [rows for _, rows in self.sparse.values()] if self.sparse else dense

    def by_table(self) -> dict[Handle, Any]:
        both: list[tuple[Handle, Any]] = [*self.dense.items(), *self.sparse.items()]
        return dict(both)

    def replaced(self, arrays: list[Floats]) -> Gradient:
        """Return the gradient with other arrays, in the order of `arrays()`."""
        numbers = iter(arrays)
        dense = {handle: next(numbers) for handle in self.dense}
        return Gradient(dense, {handle: (ids, next(numbers)) for handle, (ids, _) in self.sparse.items()})

    def copied(self) -> Gradient:
        """Return a copy, for a push that is still being sent when the program reuses its arrays."""
        return self.replaced([array.copy() for array in self.arrays()])

    def not_finite(self, half: bool = False) -> str | None:
        """Return the name of the first table whose gradient has NaN or infinite numbers, with `half` in float16."""
        for handle, values in self.dense.items():
            if not (fits_half(values) if half and handle.spec.wire is None else is_finite(values)):
                return handle.name
        for embedding, (_, rows) in self.sparse.items():
            if not (fits_half(rows) if half else is_finite(rows)):
                return embedding.name
        return None


@dataclass
class LanePush:
    """The parts of one push for one lane. `full` has the lists of ids for which `opening` has digests; `rates` are the
    learning rates that replace those of rules, by table.
    """

    opening: list[wire.Part] = field(default_factory=list)
    pieces: list[wire.Part] = field(default_factory=list)
    full: list[wire.Part] | None = None
    rates: dict[int, float] = field(default_factory=dict)


class GradientPacker:
    """Splits gradients by lane. `half` sends float16; with `key_cache` a list of ids is sent in full only once."""

    def __init__(self, half: bool, key_cache: bool) -> None:
        self._half = half
        self._key_cache = key_cache
        self._known: dict[int, set[bytes]] = {}
        self._known_bytes: dict[int, int] = {}

    def pack(self, gradient: Gradient, lanes: Iterable[int], rates: Mapping[Handle, float]) -> dict[int, LanePush]:
        """Return the parts for each of `lanes`; every lane gets an opening, if only an empty one."""
        out = {lane: LanePush() for lane in lanes}
        for handle in sorted(gradient.dense, key=_by_key):
            flat, is_plain = gradient.dense[handle], not self._half and handle.spec.wire is None
            for lane, start, stop in handle.runs:
                if is_plain and stop - start <= _WHOLE_ELEMENTS:
                    out[lane].opening.append(wire.as_part((wire.DENSE, flat[start:stop], handle.key, start, None)))
                else:
                    self._dense(out[lane], handle, flat, start, stop)
        for embedding, (ids, rows) in gradient.sparse.items():
            for lane, positions in embedding.shared_out(ids):
                whole = len(positions) == len(ids)
                own = (ids, rows) if whole else (ids.take(positions), rows.take(positions, axis=0))
                self._sparse(out[lane], lane, embedding, *own)
        for table, rate in rates.items():
            for lane in table.lanes:
                out[lane].rates[table.spec.key] = rate
        return out

    def ids(self, lane: int, embedding: Embedding, ids: Ids) -> Iterator[tuple[wire.Part, wire.Part]]:
        """Yield parts for a list of ids, cut to fit a frame: each as it may be sent, and in full."""
        length = max(1, 4 * PART_ELEMENTS // max(2, embedding.dim))
        for a in range(0, len(ids), length):
            full = wire.Part(wire.IDS, ids[a : a + length], embedding.spec.key)
            yield self._brief(lane, full), full

    def _brief(self, lane: int, full: wire.Part) -> wire.Part:
        if not self._key_cache or full.array.nbytes <= 64:
            return full
        digest = digest_of(full.array)
        known = self._known.setdefault(lane, set())
        if digest in known:
            return wire.Part(wire.SAME, np.frombuffer(digest, np.uint8), full.table)
        if self._known_bytes.get(lane, 0) > BYTES_PER_TRAINER:  # the lane evicts lists too: start over
            known.clear()
            self._known_bytes[lane] = 0
        known.add(digest)
        self._known_bytes[lane] = self._known_bytes.get(lane, 0) + full.array.nbytes
        return full

    def _dense(self, out: LanePush, handle: Dense, flat: Floats, start: int, stop: int) -> None:
        if stop - start <= _WHOLE_ELEMENTS:
            out.opening.append(self._part(handle, flat, start, stop))
            return
        parts = [self._part(handle, flat, a, min(a + PART_ELEMENTS, stop)) for a in range(start, stop, PART_ELEMENTS)]
        out.opening.append(wire.later_part(handle.key, len(parts)))  # before there is a `full`: rows come last
        out.pieces += parts

    def _part(self, handle: Dense, flat: Floats, start: int, stop: int) -> wire.Part:
        values, key = flat[start:stop], handle.key
        if handle.spec.wire is not None:
            return wire.Part(wire.CHANGE, handle.packed(values, start), key, start)
        if self._half:
            return wire.Part(wire.DENSE16, _halved(values), key, start)
        return wire.Part(wire.DENSE, values, key, start)

    def _sparse(self, out: LanePush, lane: int, embedding: Embedding, ids: Ids, rows: Floats) -> None:
        at = 0
        for brief, full in self.ids(lane, embedding, ids):
            values = rows[at : at + len(full.array)]
            at += len(full.array)
            kind, array = (wire.ROWS16, _halved(values)) if self._half else (wire.ROWS, values)
            part = wire.Part(kind, array, embedding.spec.key)
            if brief is not full and out.full is None:
                out.full = list(out.opening)
            out.opening += [brief, part]
            if out.full is not None:
                out.full += [full, part]


def _halved(values: Floats) -> npt.NDArray[np.float16]:
    with np.errstate(over="ignore"):
        return values.astype(np.float16)


def initial_pieces(handle: Handle, values: Floats, lanes: Collection[int]) -> Iterator[dict[int, InitialPiece]]:
    """Yield the first piece of the initial values for each of `lanes`, then the second, and so on.

    `values` has the shape of the whole table. A lane that owns nothing of it gets one empty piece.
    """
    make = _dense_pieces(handle, values) if isinstance(handle, Dense) else _row_pieces(handle, values)
    own = {lane: make(lane) for lane in lanes}
    for number in range(max((len(pieces) for pieces in own.values()), default=0)):
        yield {lane: (number, len(p), p[number]()) for lane, p in own.items() if number < len(p)}


def _dense_pieces(handle: Dense, values: Floats) -> Callable[[int], list[MakeParts]]:
    flat, runs = values.reshape(-1), {lane: (start, stop) for lane, start, stop in handle.runs}

    def parts(start: int, stop: int) -> list[wire.Part]:
        return [wire.Part(wire.DENSE, flat[start:stop], handle.spec.key, start)]

    def pieces(lane: int) -> list[MakeParts]:
        start, stop = runs.get(lane, (0, 0))
        return [partial(parts, a, min(a + PART_ELEMENTS, stop)) for a in range(start, max(stop, 1), PART_ELEMENTS)]

    return pieces


def _row_pieces(handle: Embedding, values: Floats) -> Callable[[int], list[MakeParts]]:
    shares, count = dict(handle.shared_out(np.arange(len(values)))), max(1, PART_ELEMENTS // handle.dim)

    def parts(ids: Ids) -> list[wire.Part]:
        rows = values.take(ids, axis=0)
        return [wire.Part(wire.IDS, ids, handle.spec.key), wire.Part(wire.ROWS, rows, handle.spec.key)]

    def pieces(lane: int) -> list[MakeParts]:
        ids = shares.get(lane, np.empty(0, np.int64))
        return [partial(parts, ids[a : a + count]) for a in range(0, max(1, len(ids)), count)]

    return pieces
