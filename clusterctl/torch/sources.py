"""The batches of `ps.loader`, pass by pass, as the session's loop takes them: ((samples, batch), context)."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import random
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Callable, NamedTuple

import numpy as np
import torch
from torch.utils import data as torch_data

from clusterctl.runtime.trainer.batches import StepContext, pass_rng
from clusterctl.torch.loading import Loading

#: In place of a rank: what all trainers draw alike, since each takes its share of it.
SHARED = 2**32 - 1
#: In place of a batch: the order of a pass, the end of one, and what follows the loop whose last pass it is.
ORDER = 2**64 - 1
END = 2**64 - 2
AFTER = 2**64 - 3


class Position(NamedTuple):
    """A batch of a trainer in a run; `worker` tells apart the processes that read one dataset."""

    seed: int
    rank: int
    pass_: int
    batch: int
    worker: int = 0

    def seed_all(self) -> int:
        """Seed the global generators of this process, and return the seed, below 2**63."""
        packed = struct.pack("<QIIQI", self.seed & (2**64 - 1), *self[1:])
        words = struct.unpack("<8I", hashlib.blake2b(packed, digest_size=32).digest())
        number: int = (words[0] << 32 | words[1]) >> 1
        torch.default_generator.manual_seed(number)  # torch.manual_seed looks for devices, for half a millisecond
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(number)
        np.random.seed(words[2:6])
        random.seed(number)
        return number


@contextlib.contextmanager
def kept_generators() -> Iterator[None]:
    """Leave the global generators as they were."""
    states = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
        if devices:
            torch.cuda.set_rng_state_all(devices)


Item = tuple[tuple["int | None", Any], StepContext]
#: A batch with its number: (number, True for the last one, (samples, batch)).
Numbered = tuple[int, bool, tuple["int | None", Any]]
ShareOf = Callable[[int], tuple[int, int]]


class LoaderSource:
    """The batches of one `ps.loader`. `share_of(pass_)` returns (every, offset), and is None without sharding."""

    def __init__(self, loading: Loading, seed: int, rank: int, share_of: ShareOf | None) -> None:
        self._loading = loading
        self._seed = seed
        self._rank = rank
        self._share_of = share_of or (lambda pass_: (1, 0))
        self._sharded = share_of is not None
        #: What all trainers read is drawn alike.
        self._reader = SHARED if self._sharded else rank
        #: The batch of the loop.
        self.batch: Any = None
        self._left: Iterator[Numbered] = iter(())
        self._ahead: list[Numbered | Exception | None] = []  # at most one: the next batch, if it is known already

    def begin(self, pass_: int, batch: int) -> bool:
        """Return True: there is always another pass."""
        return True

    def seed_end(self, pass_: int) -> None:
        """Seed what follows the last batch of a pass."""
        Position(self._seed, self._rank, pass_, END).seed_all()

    def seed_after(self, pass_: int) -> None:
        """Seed what follows the loop; also one that is empty after a restart."""
        Position(self._seed, self._rank, pass_, AFTER).seed_all()

    def batches(self, pass_: int, batch: int) -> Iterator[Item]:
        """Yield this trainer's batches of a pass from number `batch`, the generators seeded for each."""
        self._left, self._ahead = self._numbered(pass_, batch), []
        while (following := self._next()) is not None:
            number, last, value = following
            Position(self._seed, self._rank, pass_, number).seed_all()
            self.batch = value[1]
            yield value, StepContext(pass_, number, last, sharded=self._sharded)
        self.batch = None

    def _next(self) -> Numbered | None:
        following = self._ahead.pop() if self._ahead else next(self._left, None)
        if isinstance(following, Exception):
            raise following
        return following

    def read_ahead(self) -> Any:
        """Return the next batch of the pass; None without one, and of a stream, which may make one wait.

        The global generators stay as they are. What goes wrong is raised when the loop asks for the batch.
        """
        return None

    def _numbered(self, pass_: int, batch: int) -> Iterator[Numbered]:
        raise NotImplementedError


class DatasetSource(LoaderSource):
    """Batches of a Dataset: those of others, and those before `batch`, are not read."""

    def read_ahead(self) -> Any:
        if not self._ahead:
            with kept_generators():
                try:
                    self._ahead.append(next(self._left, None))
                except Exception as exc:  # noqa: BLE001 - whatever the dataset raises
                    self._ahead.append(exc)
        following = self._ahead[0]
        return following[2][1] if isinstance(following, tuple) else None

    def _numbered(self, pass_: int, batch: int) -> Iterator[Numbered]:
        seed = Position(self._seed, self._reader, pass_, ORDER).seed_all()
        rng = pass_rng(self._seed, self._rank, pass_, self._sharded)
        own = self._loading.batches(rng, seed, *self._share_of(pass_))
        wanted = [(Position(self._seed, self._rank, pass_, n), own[n]) for n in range(batch, len(own))]
        given = self._loading.given
        batches = _BatchDataset(given.dataset, given.collate_fn, self._loading.is_batched)
        here = given.num_workers == 0 and not given.pin_memory  # then a DataLoader would only take time
        loaded = map(batches.__getitem__, wanted) if here else self._loading.loader(batches, wanted)
        for (position, indices), value in zip(wanted, loaded):
            samples = len(indices) if self._loading.is_batched else length_of(value)
            yield position.batch, position.batch + 1 == len(own), (samples, value)


class StreamSource(LoaderSource):
    """Batches of an IterableDataset, which every trainer reads whole. One is read ahead, to know the last one."""

    def _numbered(self, pass_: int, batch: int) -> Iterator[Numbered]:
        position = Position(self._seed, self._reader, pass_, ORDER)
        position.seed_all()
        every, offset = self._share_of(pass_)
        loader = self._loading.loader(_BatchStream(self._loading, position))
        own = itertools.islice(loader, offset + batch * every, None, every)
        ahead = [*itertools.islice(own, 1)]
        for number in itertools.count(batch):
            if not ahead:
                return
            value, ahead = ahead[0], [*itertools.islice(own, 1)]
            yield number, not ahead, (length_of(value), value)


class _BatchDataset:
    """A Dataset of whole batches: its index is (position, indices)."""

    def __init__(self, original: Any, collate: Any, is_batched: bool) -> None:
        self.original = original
        self._collate = collate
        self._is_batched = is_batched

    def __getitem__(self, key: tuple[Position, Any]) -> Any:
        position, indices = key
        position.seed_all()
        if not self._is_batched:
            return self._collate(self.original[indices])
        numbers = indices.tolist() if isinstance(indices, np.ndarray) else indices
        if getattr(self.original, "__getitems__", None):
            return self._collate(self.original.__getitems__(numbers))
        return self._collate([self.original[number] for number in numbers])


class _BatchStream(torch_data.IterableDataset):  # type: ignore[misc]
    """An IterableDataset of whole batches; a worker makes those of its own copy."""

    def __init__(self, loading: Loading, position: Position) -> None:
        given = loading.given
        self.original = given.dataset
        self._collate = given.collate_fn
        self._size = given.batch_size if loading.is_batched else None
        self._least = self._size if self._size and given.drop_last else 1
        self._position = position

    def __iter__(self) -> Iterator[Any]:
        info = torch_data.get_worker_info()
        place = self._position._replace(worker=0 if info is None else info.id)
        place.seed_all()
        samples = iter(self.original)
        for number in itertools.count():
            place._replace(batch=number).seed_all()
            batch = [*itertools.islice(samples, self._size or 1)]
            if len(batch) < self._least:
                return
            yield self._collate(batch if self._size else batch[0])


def source_of(loading: Loading, seed: int, rank: int, share_of: ShareOf | None) -> LoaderSource:
    return (StreamSource if loading.is_stream else DatasetSource)(loading, seed, rank, share_of)


def length_of(batch: Any) -> int | None:
    """Return the length of the first tensor or array in a batch, None if there is none."""
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        return len(batch) if batch.ndim else None
    inside = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else ()
    return next((length for length in map(length_of, inside) if length is not None), None)
