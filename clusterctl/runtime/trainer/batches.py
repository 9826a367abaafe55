"""Passes over the data: the batches of this trainer, read ahead, and the end of a pass."""

from __future__ import annotations

import hashlib
import itertools
import json
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, Protocol

import numpy as np

from clusterctl.common.safe_json import DEEPEST, parse
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.wire.messages import MAX_POSITION_BYTES

Reader = Callable[[int, np.random.Generator], Iterable[Any]]
OnPass = Callable[[int], Any]

_SHARED = 2**32 - 1
AROUND = 10  # levels that messages and files put around a position
_AS_JSON = "use numbers, strings, lists, and dicts with strings as keys"


@dataclass
class StepContext:
    """The batch that the training program works on; one push ends it. `ahead` are the batches read after it.

    `sharded` means that every trainer reads all batches and takes its share. `position` is the value that `ps.cursor`
    had when the reader yielded the batch; `rates` are the learning rates by table that its push has.
    """

    pass_: int
    batch: int
    last: bool
    ahead: list[Any] = field(default_factory=list)
    sharded: bool = False
    position: Any = None
    rates: Mapping[Any, float] = field(default_factory=dict)
    pushed: bool = False


class Source(Protocol):
    """What a loop over passes takes its batches from."""

    def begin(self, pass_: int, batch: int) -> bool:
        """Begin a pass at number `batch`. Return False if there is none."""
        ...

    def batches(self, pass_: int, batch: int) -> Iterator[tuple[Any, StepContext]]:
        """Yield the batches of the pass from number `batch`, each with its context."""
        ...


def unpushed(context: StepContext | None) -> StepContext:
    """Return the batch that a push is to end. Raises UseError if there is none, or if it was pushed."""
    if context is None:
        raise UseError("push outside ps.steps(...)", remedy="push once for each batch that ps.steps yields")
    if context.pushed:
        raise UseError(f"a second push for batch {context.batch} of pass {context.pass_}", remedy="push once per batch")
    return context


def check_alone(is_alone: bool) -> None:
    """Raise UseError for a loop over passes, unless it is the only one that has gone on since its last batch."""
    if not is_alone:
        raise UseError(
            "a loop over ps.steps or ps.loader began inside another one, or in on_pass",
            remedy="read other data, such as for an evaluation, without ps",
        )


class ReaderCursor:
    """`ps.cursor`: where the reader is, in its own terms. The reader sets it; it belongs to the batch yielded next.

    `has_others` means that it may continue from the cursors of all trainers of an earlier run instead, `resized` that
    an earlier run had another number of them. It may be set while the reader `is_reading`.
    """

    def __init__(self, value: Any, *, has_others: bool, resized: bool) -> None:
        self.value = value
        self.has_others = has_others
        self.resized = resized
        self.is_reading = False

    def while_reading(self, read: Callable[[], Any]) -> Any:
        """Return `read()`, which may set the value."""
        self.is_reading = True
        try:
            return read()
        finally:
            self.is_reading = False

    def set(self, value: Any) -> None:
        """Set the value. Raises UseError outside the reader, and for a value that cannot be kept."""
        if not self.is_reading:
            raise UseError("ps.cursor is set outside the reader", remedy="set it in the reader, before it yields")
        try:
            text = json.dumps(value)
            kept = parse(text, deepest=DEEPEST - AROUND)
        except (TypeError, ValueError, RecursionError) as exc:
            raise UseError(f"ps.cursor = {value!r:.80} is not JSON ({exc})", remedy=_AS_JSON) from None
        if kept != value:
            raise UseError(f"ps.cursor = {value!r:.80} is not the same after JSON", remedy=_AS_JSON)
        if len(text) > MAX_POSITION_BYTES:
            raise UseError(
                f"ps.cursor has {len(text):,} bytes as JSON, at most {MAX_POSITION_BYTES:,} are allowed",
                remedy="keep an offset or a file name there, not the data",
            )
        self.value = kept


class _Feed:
    """What one call of the reader yields, each batch with the value of the cursor."""

    def __init__(self, batches: Iterable[Any], cursor: ReaderCursor) -> None:
        self._batches = iter(batches)
        self._cursor = cursor
        self._next: list[tuple[Any, Any]] = []

    def is_over(self) -> bool:
        """Return True if there is no other batch. Reads one ahead."""
        self._next = self._next or [*itertools.islice(self, 1)]
        return not self._next

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> tuple[Any, Any]:
        if self._next:
            return self._next.pop()
        cursor = self._cursor
        cursor.is_reading = True
        try:
            batch = next(self._batches)
        finally:
            cursor.is_reading = False
        return batch, cursor.value


class BatchSource:
    """The batches of this trainer in a loop over passes, of which `base` is the first.

    Without `pass_batches` the reader is called for each pass. With it the reader is called once, and goes on from pass
    to pass. If every trainer reads all batches, `share_of(pass_)` returns (every, offset) of its own. `ahead` batches
    are read ahead.
    """

    def __init__(
        self,
        reader: Reader,
        cursor: ReaderCursor,
        rng: Callable[[int], np.random.Generator],
        share_of: Callable[[int], tuple[int, int]] | None,
        base: int,
        pass_batches: int | None,
        ahead: int,
    ) -> None:
        self._reader = reader
        self._cursor = cursor
        self._rng = rng
        self._share_of = share_of or (lambda pass_: (1, 0))
        self._sharded = share_of is not None
        self._base = base
        self._most = pass_batches
        self._ahead = ahead
        self._feed: _Feed | None = None
        self._own: Iterator[tuple[Any, Any]] = iter(())
        self._first = 0

    def begin(self, pass_: int, batch: int) -> bool:
        """Begin a pass at number `batch`. Return False if the reader, which goes on from pass to pass, has ended.

        Nothing is skipped if the reader continues from its cursor.
        """
        self._first = 0
        if self._most is None or self._feed is None:
            self._feed, self._own = self._open(pass_, batch)
        else:
            deque(self._own, maxlen=0)  # the batches of others after our last one
            self._own = self._shared_out(self._feed, pass_)
        return self._most is None or not self._feed.is_over()

    def batches(self, pass_: int, batch: int) -> Iterator[tuple[Any, StepContext]]:
        """Yield the batches of the pass from number `batch`, each with its context."""
        left = None if self._most is None else max(0, self._most - self._first)
        items = enumerate(itertools.islice(self._own, left), self._first)
        window: deque[tuple[int, tuple[Any, Any]]] = deque()
        last = False
        while not last:
            window.extend(itertools.islice(items, self._ahead + 1 - len(window)))
            if not window:
                return
            number, (value, position) = window.popleft()
            last = number + 1 == self._most or (self._ahead > 0 and not window)
            if number >= batch:
                following = [item for _, (item, _) in window]
                yield value, StepContext(pass_, number, last, following, self._sharded, position)

    def _open(self, pass_: int, batch: int) -> tuple[_Feed, Iterator[tuple[Any, Any]]]:
        """Call the reader, to continue from its cursor, or from its start."""
        goes_on = self._most is not None
        if batch == 0 and (not goes_on or pass_ == self._base):
            self._cursor.value = None  # that of the pass or loop before
        if self._cursor.value is None:
            feed = self._call(self._base if goes_on else pass_)
            skips = goes_on and not self._cursor.has_others
            if skips and self._sharded and self._cursor.resized and pass_ > self._base:
                raise UseError(
                    f"the stream was read to pass {pass_} by another number of trainers",
                    remedy="set ps.cursor in the reader, or resume with as many trainers as before",
                )
            before = [(self._most or 0) * self._share_of(one)[0] for one in range(self._base, pass_) if skips]
            deque(itertools.islice(feed, sum(before)), maxlen=0)
            return feed, self._shared_out(feed, pass_)
        feed, self._first = self._call(pass_), batch
        if batch:
            every, offset = self._share_of(pass_)
            return feed, self._shared_out(feed, pass_, (batch - 1) * every + offset + 1)
        every, offset = self._share_of(pass_ - 1)
        deque(itertools.islice(feed, every - 1 - offset), maxlen=0)
        return feed, self._shared_out(feed, pass_)

    def _call(self, pass_: int) -> _Feed:
        batches = self._cursor.while_reading(lambda: self._reader(pass_, self._rng(pass_)))
        if not isinstance(batches, Iterable):
            raise UseError(
                f"reader({pass_}, rng) returned {type(batches).__name__}",
                remedy="yield batches, or return an iterable",
            )
        return _Feed(batches, self._cursor)

    def _shared_out(self, feed: _Feed, pass_: int, begin: int = 0) -> Iterator[tuple[Any, Any]]:
        """Return this trainer's batches of a pass, of which `feed` goes on with number `begin`."""
        every, offset = self._share_of(pass_)
        end = None if self._most is None else max(0, self._most * every - begin)
        if every == 1:
            return itertools.islice(feed, end)
        return (item for number, item in enumerate(itertools.islice(feed, end), begin) if number % every == offset)


def pass_rng(seed: int, rank: int, pass_: int, shard: bool) -> np.random.Generator:
    """Return the reader's generator: Philox, counter-based, keyed by (seed, rank, pass), or (seed, pass) if `shard`."""
    packed = struct.pack("<QII", seed & (2**64 - 1), _SHARED if shard else rank, pass_)
    key = int.from_bytes(hashlib.blake2b(packed, digest_size=16).digest(), "little")
    return np.random.Generator(np.random.Philox(key=key))


def checked_reader(reader: Any) -> Reader:
    if not callable(reader):
        raise UseError(f"reader={reader!r} is not callable", remedy="pass reader(pass_, rng) that yields batches")
    own: Reader = reader
    return own


def whole_number(name: str, number: Any, least: int) -> int:
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < least:
        raise UseError(f"{name}={number!r} is not an integer >= {least}")
    return int(number)


def checked_samples(samples: Any, rank: int, step: int) -> int:
    if type(samples) is int and samples >= 0:
        return samples
    if isinstance(samples, (bool, np.bool_)) or not isinstance(samples, (int, np.integer)) or samples < 0:
        raise UseError(
            f"trainer {rank}, step {step}: samples={samples!r} is not an integer >= 0",
            remedy="pass the number of examples in the batch",
        )
    return int(samples)


def checked_loss(loss: Any) -> float | None:
    try:
        return None if loss is None else float(loss)
    except (TypeError, ValueError) as exc:
        raise UseError(f"loss={loss!r} is not a number") from exc
