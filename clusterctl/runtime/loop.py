"""Passes over the data: which batches are this trainer's, and when a pass ends."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np

from clusterctl.runtime.errors import UseError

Reader = Callable[[int, np.random.Generator], Iterable[Any]]

_END = object()
_SHARED = 2**32 - 1


@dataclass
class Turn:
    """The batch that the training program works on; one push ends it."""

    pass_: int
    batch: int
    last: bool
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


def with_last(batches: Iterator[Any], skip: int) -> Iterator[tuple[int, Any, bool]]:
    """`(number, batch, is the last)`, reading one batch ahead; the first `skip` batches are passed over."""
    number, batch = 0, next(batches, _END)
    while batch is not _END:
        following = next(batches, _END)
        if number >= skip:
            yield number, batch, following is _END
        number, batch = number + 1, following


def checked_passes(passes: Any) -> int:
    if isinstance(passes, bool) or not isinstance(passes, (int, np.integer)) or passes < 0:
        raise UseError(f"passes={passes!r} is not a whole number from 0 up")
    return int(passes)


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
