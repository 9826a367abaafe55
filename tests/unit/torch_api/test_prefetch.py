"""Rows of the next batch are requested with a push, where the ids of an embedding are a part of each batch."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim

from clusterctl.runtime.trainer.parameters import Parameters
from clusterctl.torch.batch_parts import IdsInBatch, part_of, path_of
from unit.torch_api.programs import cluster_of

pytestmark = pytest.mark.engines

ROWS, DIM, SAMPLES, SIZE, PASSES = 40, 3, 40, 8, 3
BATCHES = SAMPLES // SIZE
Ask = Callable[[Any], Any]


class Samples:
    """A dataset of dicts with ids for two embeddings. `draws`: from all global generators; `fails_at` this index."""

    def __init__(self, *, draws: bool = False, fails_at: int = -1) -> None:
        self.draws = draws
        self.fails_at = fails_at

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.fails_at:
            raise OSError("the file is gone")
        y = sum(drawn()) if self.draws else float(index % 3)
        return {"ids": {"words": torch.arange(index, index + 3) % ROWS, "tags": torch.tensor(index % 7)}, "y": y}


def drawn(model: object = None) -> tuple[float, ...]:
    return torch.rand(()).item(), float(np.random.rand()), random.random()


class Model(nn.Module):
    """`ask` is what the program does with the ids before it looks them up."""

    def __init__(self, ask: Ask) -> None:
        super().__init__()
        self.ask = ask
        self.words = nn.EmbeddingBag(ROWS, DIM, sparse=True)
        self.tags = nn.Embedding(ROWS, DIM, sparse=True)
        self.out = nn.Linear(DIM, 1)
        generator = torch.Generator().manual_seed(3)  # trainers are threads here, with the same global one
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def forward(self, ids: Any) -> Any:
        return self.out(self.words(self.ask(ids["words"])) * self.tags(self.ask(ids["tags"]))).squeeze(1)


def as_it_is(ids: Any) -> Any:
    return ids


def as_a_copy(ids: Any) -> Any:
    return ids.clone()


def train(ps: Any, ask: Ask, after: Callable[[Any], object] = lambda model: None, data: Any = None) -> list[Any]:
    """Return what `after(model)` returns after each step, and the model's numbers at the end."""
    model = Model(ask)
    ps.distribute(model, optimizer := optim.Adagrad(model.parameters(), lr=0.1))
    found: list[Any] = []
    for batch in ps.loader(data or Samples(), SIZE, PASSES, shuffle=True):
        optimizer.zero_grad()
        ((model(batch["ids"]) - batch["y"]) ** 2).mean().backward()
        optimizer.step()
        found.append(after(model))
    with torch.no_grad():
        last = model({"words": torch.arange(ROWS).reshape(-1, 1), "tags": torch.arange(ROWS)})
    return [*found, last.tolist()]


class Requests:
    """Counts the requests for rows of all trainers: those of `prefetch`, and all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all = self.early = 0
        lock, request, prefetch = threading.Lock(), Parameters._request, Parameters.prefetch

        def counted(*args: Any) -> Any:
            with lock:
                self.all += 1
            return request(*args)

        def counted_early(*args: Any) -> Any:
            with lock:
                self.early += 1
            return prefetch(*args)

        monkeypatch.setattr(Parameters, "_request", counted)
        monkeypatch.setattr(Parameters, "prefetch", counted_early)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[Requests]:
    return Requests(monkeypatch)


@pytest.mark.parametrize(("pservers", "trainers"), [(1, 1), (2, 2)])
def test_the_bits_are_the_same_and_only_the_first_batch_of_a_pass_waits_for_rows(
    tmp_path: Path, requests: Requests, pservers: int, trainers: int
) -> None:
    found = {}
    for ask in (as_it_is, as_a_copy):
        requests.all = requests.early = 0
        with cluster_of(tmp_path / ask.__name__, pservers, trainers) as cluster:
            found[ask] = cluster.train(lambda ps, ask=ask: train(ps, ask))
        per_trainer = 2 * PASSES
        early = 2 * BATCHES * PASSES - per_trainer * trainers if ask is as_it_is else 0
        last = 2 * trainers
        assert (requests.early, requests.all) == (early, 2 * BATCHES * PASSES + last)
    assert found[as_it_is] == found[as_a_copy]


def test_the_generators_are_the_same_after_a_step(tmp_path: Path) -> None:
    found = []
    for ask in (as_it_is, as_a_copy):
        with cluster_of(tmp_path / ask.__name__, 1, 1) as cluster:
            found.append(cluster.train(lambda ps, ask=ask: train(ps, ask, drawn, Samples(draws=True)))[0])
    assert found[0] == found[1]


def test_what_goes_wrong_in_the_dataset_is_raised_by_the_loop_after_the_step(tmp_path: Path) -> None:
    steps: list[int] = []

    def loop(ps: Any) -> None:
        model = Model(as_it_is)
        ps.distribute(model, optimizer := optim.SGD(model.parameters(), lr=0.1))
        for batch in ps.loader(Samples(fails_at=3 * SIZE), SIZE):
            optimizer.zero_grad()
            model(batch["ids"]).sum().backward()
            optimizer.step()
            steps.append(ps.step)

    def program(ps: Any) -> int:
        with pytest.raises(OSError, match="the file is gone"):
            loop(ps)
        return int(ps.step)

    with cluster_of(tmp_path, 1, 1) as cluster:
        assert cluster.train(program) == [3]
    assert steps == [1, 2, 3]


def test_ids_that_the_table_does_not_have_are_an_error_of_the_program_that_passes_them(tmp_path: Path) -> None:
    class Beyond(Samples):
        def __getitem__(self, index: int) -> dict[str, Any]:
            found = super().__getitem__(index)
            found["ids"]["words"] += ROWS if index >= SIZE else 0
            return found

    def program(ps: Any) -> int:
        model = Model(as_it_is)
        ps.distribute(model, optimizer := optim.SGD(model.parameters(), lr=0.1))
        for batch in ps.loader(Beyond(), SIZE):
            optimizer.zero_grad()
            ids = dict(batch["ids"])
            if ps.step:
                ids["words"] = ids["words"] % ROWS
            model(ids).sum().backward()
            optimizer.step()
        return int(ps.step)

    with cluster_of(tmp_path, 1, 1) as cluster:
        assert cluster.train(program) == [BATCHES]


def test_outside_sync_nothing_is_requested_early(tmp_path: Path, requests: Requests) -> None:
    with cluster_of(tmp_path, 1, 1, mode="async") as cluster:
        cluster.train(lambda ps: train(ps, as_it_is))
    assert (requests.early, requests.all) == (0, 2 * BATCHES * PASSES + 2)


def test_a_part_of_a_batch_is_found_by_identity() -> None:
    one, other = torch.zeros(2), torch.zeros(2)
    batch = {"a": [other, (1, {"b": one})], "c": "text"}
    assert path_of(one, batch) == ("a", 1, 1, "b")
    assert part_of(batch, ("a", 1, 1, "b")) is one
    assert path_of(one, one) == ()
    assert path_of(one.clone(), batch) is None
    assert part_of({"a": []}, ("a", 1, 1, "b")) is None
    assert part_of(None, ("a",)) is None


def test_nothing_is_read_ahead_unless_the_part_is_known() -> None:
    reads: list[int] = []

    def read_ahead() -> Any:
        reads.append(1)
        return [one, other]

    one, other = torch.zeros(2), torch.zeros(2)
    ids = IdsInBatch()
    assert ids.following([one], read_ahead) is None  # no call
    ids.see(one)
    ids.see(other)
    assert ids.following([one, other], read_ahead) is None  # two calls, two parts
    ids.see(one.clone())
    assert ids.following([one, other], read_ahead) is None
    assert not reads
    for _ in range(2):
        ids.see(one)
        ids.see(one)
        assert ids.following([one, other], read_ahead) is one
    for _ in range(5):
        ids.see(one.clone())
        assert ids.following([one, other], read_ahead) is None
    ids.see(one)
    assert ids.following([one, other], read_ahead) is one
    assert len(reads) == 3
