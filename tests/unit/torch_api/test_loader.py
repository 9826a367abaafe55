"""`ps.loader`: who gets which batch, what is read for it, and randomness that depends on the position only."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

import clusterctl.torch as ct
from clusterctl.torch.loading import Loading
from clusterctl.torch.sources import length_of, source_of

pytestmark = pytest.mark.engines


class Numbers(Dataset):
    """Counts how often each number was read."""

    def __init__(self, count: int) -> None:
        self.read = [0] * count

    def __len__(self) -> int:
        return len(self.read)

    def __getitem__(self, index: int) -> int:
        self.read[index] += 1
        return index


class Noisy(Numbers):
    """Adds noise from all three global generators."""

    def __getitem__(self, index: int) -> Any:
        number = super().__getitem__(index)
        return torch.tensor([number, torch.rand(()), np.random.rand(), random.random()])


class Stream(IterableDataset):
    """The numbers from 0, in buffers shuffled by the global generators; workers divide them."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        own = range(self.count) if info is None else range(info.id, info.dataset.count, info.num_workers)
        for at in range(0, len(own), 8):
            yield from random.sample(own[at : at + 8], len(own[at : at + 8]))


def batches(
    data: Any,
    batch_size: int | None = None,
    *,
    shuffle: bool = False,
    num_workers: int = 0,
    rank: int = 0,
    trainers: int = 1,
    shard: bool = True,
    pass_: int = 0,
    begin: int = 0,
    seed: int = 7,
    **options: Any,
) -> list[Any]:
    """Return the batches of one trainer in one pass, from number `begin`."""
    source = source_of(
        Loading.checked(data, batch_size, shuffle, num_workers, options),
        seed,
        rank,
        (lambda pass_: (trainers, rank)) if shard else None,
    )
    found = [*source.batches(pass_, begin)]
    contexts = [context for _, context in found]
    assert [context.batch for context in contexts] == [*range(begin, begin + len(found))]
    assert [context.last for context in contexts] == [False] * (len(found) - 1) + [True] * bool(found)
    assert all(context.pass_ == pass_ for context in contexts)
    return [value for (_, value), _ in found]


def plain(found: list[Any]) -> list[list[int]]:
    return [batch.tolist() for batch in found]


# Who gets which batch.


def test_batches_are_dealt_in_turn() -> None:
    shares = [plain(batches(range(11), 2, rank=rank, trainers=3)) for rank in range(3)]
    assert shares == [[[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4, 5], [10]]]


def test_without_shard_all_batches_are_the_trainers_own() -> None:
    for rank in range(2):
        assert plain(batches(range(5), 2, rank=rank, trainers=2, shard=False)) == [[0, 1], [2, 3], [4]]


def test_drop_last_and_collate_fn_are_those_of_torch() -> None:
    assert batches(range(5), 2, drop_last=True, collate_fn=str) == ["[0, 1]", "[2, 3]"]
    shares = [batches(range(11), 2, rank=rank, trainers=2, drop_last=True, collate_fn=sum) for rank in range(2)]
    assert shares == [[1, 9, 17], [5, 13]]


def test_all_trainers_draw_one_order_for_each_seed_and_pass() -> None:
    def order(seed: int, pass_: int) -> list[int]:
        shares = [
            plain(batches(range(20), 3, shuffle=True, rank=r, trainers=2, seed=seed, pass_=pass_)) for r in (0, 1)
        ]
        dealt = itertools.chain.from_iterable(itertools.zip_longest(*shares, fillvalue=[]))
        return [number for batch in dealt for number in batch]

    orders = [order(7, 0), order(7, 1), order(8, 0)]
    assert all(sorted(one) == [*range(20)] for one in orders)
    assert len({str(one) for one in orders}) == 3
    assert order(7, 0) == orders[0]


def test_trainers_with_data_of_their_own_have_orders_of_their_own() -> None:
    first, second = (plain(batches(range(20), 20, shuffle=True, shard=False, rank=rank)) for rank in (0, 1))
    assert first != second


SAMPLERS = {
    "shuffle": lambda: DataLoader(range(20), 3, shuffle=True),
    "its own generator": lambda: DataLoader(range(20), 3, shuffle=True, generator=torch.Generator()),
    "a sampler": lambda: DataLoader(range(20), 3, sampler=RandomSampler(range(20), generator=torch.Generator())),
    "a batch sampler": lambda: DataLoader(range(20), batch_sampler=BatchSampler(RandomSampler(range(20)), 3, False)),
}


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS.keys())
def test_the_samplers_of_a_data_loader_give_all_trainers_one_order(make: Any) -> None:
    shared = [make(), make()]
    orders = []
    for pass_ in range(2):
        shares = []
        for rank in range(2):
            torch.rand(rank + 1)  # what a trainer drew before does not count
            shares.append(plain(batches(shared[rank], rank=rank, trainers=2, pass_=pass_)))
        assert [len(batch) for batch in shares[0]] == [3, 3, 3, 2]
        assert sorted(itertools.chain(*shares[0], *shares[1])) == [*range(20)]
        orders.append(shares)
    assert orders[0] != orders[1]
    assert plain(batches(make(), trainers=2)) == orders[0][0]


def test_a_weighted_sampler_and_the_data_loaders_collate_fn() -> None:
    sampler = WeightedRandomSampler([0.0, 1.0, 0.0, 1.0], 12)
    found = batches(DataLoader(range(4), 3, sampler=sampler, collate_fn=sorted))
    assert len(found) == 4
    assert set(itertools.chain(*found)) == {1, 3}


def test_a_data_loader_without_batches_of_its_own() -> None:
    rows = torch.arange(12).reshape(4, 3)
    found = batches(DataLoader(TensorDataset(rows), batch_size=None), rank=1, trainers=2)
    assert [batch[0].tolist() for batch in found] == [[3, 4, 5], [9, 10, 11]]
    assert sorted(batches(DataLoader(Stream(5), batch_size=None))) == [*range(5)]


def test_a_data_loader_that_drops_all_it_has() -> None:
    assert batches(DataLoader(range(2), 3, drop_last=True)) == []


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iterable_dataset_is_divided_by_batches(num_workers: int) -> None:
    shares = [
        plain(batches(Stream(23), 4, rank=rank, trainers=2, num_workers=num_workers, drop_last=num_workers > 0))
        for rank in range(2)
    ]
    both = sorted(itertools.chain(*shares[0], *shares[1]))
    assert len({*both}) == len(both)
    assert both == [*range(23)] if num_workers == 0 else len(both) == 20
    assert sorted(itertools.chain(*batches(Stream(9), 4, shard=False, trainers=2, collate_fn=list))) == [*range(9)]
    assert batches(Stream(0), 4) == []


def _shorten(worker: int) -> None:
    info: Any = get_worker_info()
    info.dataset.count = 8


def test_workers_start_as_in_torch() -> None:
    """`worker_init_fn` finds the program's own dataset in `get_worker_info()`."""
    found = batches(Stream(23), 4, num_workers=2, worker_init_fn=_shorten)
    assert sorted(number for batch in plain(found) for number in batch) == [*range(8)]


# Samples.


def test_the_samples_of_a_batch() -> None:
    assert length_of(torch.zeros(3, 2)) == 3
    assert length_of({"n": 4, "scale": torch.tensor(1.0), "x": (np.zeros(5), torch.zeros(7))}) == 5
    assert length_of("text") is None
    source = source_of(Loading.checked(range(5), 4, False, 0, {"collate_fn": str}), 7, 0, None)
    assert [samples for (samples, _), _ in source.batches(0, 0)] == [4, 1]


# What is read.


def test_batches_of_others_and_those_that_are_passed_over_are_not_read() -> None:
    numbers = Numbers(40)
    found = plain(batches(numbers, 4, rank=1, trainers=2, begin=2))
    assert found == [[20, 21, 22, 23], [28, 29, 30, 31], [36, 37, 38, 39]]
    assert [index for index, count in enumerate(numbers.read) if count] == [*itertools.chain(*found)]
    assert max(numbers.read) == 1


def test_a_batch_is_read_when_the_loop_asks_for_it() -> None:
    numbers = Numbers(12)
    source = source_of(Loading.checked(numbers, 4, False, 0, {}), 7, 0, None).batches(0, 0)
    next(source)
    assert sum(numbers.read) == 4


# Randomness.


def drawn() -> tuple[float, ...]:
    return torch.rand(()).item(), float(np.random.rand()), random.random()


def trace(data: Any, *args: Any, disturbed: bool = False, **options: Any) -> list[Any]:
    """Return each batch, with numbers that the loop draws during it."""
    num_workers, shuffle = options.pop("num_workers", 0), options.pop("shuffle", False)
    rank, pass_, begin = (options.pop(name, 0) for name in ("rank", "pass_", "begin"))
    if disturbed:
        drawn()
    loading = Loading.checked(data, *args, shuffle, num_workers, options)
    found = []
    for (_, value), context in source_of(loading, 7, rank, lambda pass_: (2, rank)).batches(pass_, begin):
        found.append((context.batch, value.tolist(), drawn()))
        for _ in range(3 if disturbed else 0):
            drawn()
    return found


@pytest.mark.parametrize("data", [Noisy(41), Stream(41)], ids=["a Dataset", "an IterableDataset"])
def test_neither_history_nor_restarts_change_a_bit(data: Any) -> None:
    undisturbed = trace(data, 4)
    assert len({numbers for _, _, numbers in undisturbed}) == len(undisturbed)
    assert trace(data, 4, disturbed=True) == undisturbed
    assert trace(data, 4, begin=3, disturbed=True) == undisturbed[3:]
    assert trace(data, 4, pass_=1) != undisturbed
    assert trace(data, 4, rank=1)[0][2] != undisturbed[0][2]


@pytest.mark.parametrize("shuffle", [False, True])
def test_workers_do_not_change_a_bit_of_a_dataset(shuffle: bool) -> None:
    alone = trace(Noisy(41), 4, shuffle=shuffle)
    assert trace(Noisy(41), 4, shuffle=shuffle, num_workers=2) == alone
    assert trace(Noisy(41), 4, shuffle=shuffle, num_workers=1, prefetch_factor=3, begin=2) == alone[2:]


def test_workers_of_an_iterable_dataset_give_the_same_bits_again() -> None:
    first = trace(Stream(41), 4, num_workers=2)
    assert trace(Stream(41), 4, num_workers=2, disturbed=True) == first
    assert trace(Stream(41), 4, num_workers=2, begin=2) == first[2:]


def test_on_pass_is_seeded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def numbers(disturbed: int) -> list[Any]:
        found: list[Any] = []
        with ct.connect() as ps:
            for _ in ps.loader(range(4), 2, 2, on_pass=lambda pass_: found.append(drawn())):
                torch.rand(disturbed)
        return found

    assert numbers(0) == numbers(5)
    assert len({*numbers(0)}) == 2
