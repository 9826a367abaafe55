"""Passes over the data: which batches are this trainer's, and when a pass ends."""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Callable

import numpy as np

from clusterctl.runtime.errors import UseError

Reader = Callable[[int, np.random.Generator], Iterable[Any]]

_SHARED = 2**32 - 1


@dataclass
class StepContext:
    """The batch that the training program works on; one push ends it. `ahead` are the batches after it, if read.

    `sharded` says that the trainer takes its part of what every trainer reads.
    """

    pass_: int
    batch: int
    last: bool
    ahead: list[Any] = field(default_factory=list)
    sharded: bool = False
    pushed: bool = False


def pass_rng(seed: int, rank: int, pass_: int, shard: bool) -> np.random.Generator:
    """The reader's generator: Philox, counter-based, keyed by (seed, rank, pass), or (seed, pass) with `shard`."""
    packed = struct.pack("<QII", seed & (2**64 - 1), _SHARED if shard else rank, pass_)
    key = int.from_bytes(hashlib.blake2b(packed, digest_size=16).digest(), "little")
    return np.random.Generator(np.random.Philox(key=key))


def own_batches(reader: Reader, pass_: int, rng: np.random.Generator, every: int, offset: int) -> Iterator[Any]:
    """What `reader` yields in this pass, or every `every`-th batch of it from `offset`."""
    batches = reader(pass_, rng)
    if not isinstance(batches, Iterable):
        raise UseError(
            f"reader({pass_}, rng) returned {type(batches).__name__}",
            remedy="yield batches, or return an iterable",
        )
    return (batch for number, batch in enumerate(batches) if number % every == offset)


def read_ahead(batches: Iterator[Any], skip: int, ahead: int) -> Iterator[tuple[int, Any, list[Any]]]:
    """`(number, batch, the next ones)`, reading `ahead` (at least 1) batches further; the first `skip` are passed over.

    The batch is the last one when there is no next one.
    """
    numbered = enumerate(batches)
    window: deque[tuple[int, Any]] = deque(itertools.islice(numbered, ahead))
    while window:
        window.extend(itertools.islice(numbered, 1))
        number, batch = window.popleft()
        if number >= skip:
            yield number, batch, [following for _, following in window]


def whole_number(name: str, number: Any, least: int) -> int:
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < least:
        raise UseError(f"{name}={number!r} is not a whole number from {least} up")
    return int(number)


def checked_samples(samples: Any, rank: int, step: int) -> int:
    if isinstance(samples, (bool, np.bool_)) or not isinstance(samples, (int, np.integer)) or samples < 0:
        raise UseError(
            f"trainer {rank}, step {step}: samples={samples!r} is not a whole number from 0 up",
            remedy="give the number of examples in the batch",
        )
    return int(samples)


def checked_loss(loss: Any) -> float | None:
    try:
        return None if loss is None else float(loss)
    except (TypeError, ValueError) as exc:
        raise UseError(f"loss={loss!r} is not a number") from exc
