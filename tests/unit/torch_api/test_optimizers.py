"""A distributed optimizer gives the numbers of torch's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import optim
from torch.optim import lr_scheduler

from unit.torch_api.programs import DATASET, PASSES, SIZE, STEPS, cluster_of, fit, furthest, mlp, plain_batches, values

pytestmark = pytest.mark.engines

Make = Callable[[Any], Any]
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: optim.SGD(p, lr=0.05),
    "sgd, decay": lambda p: optim.SGD(p, lr=0.05, weight_decay=0.02),
    "momentum": lambda p: optim.SGD(p, lr=0.02, momentum=0.9),
    "momentum, decay": lambda p: optim.SGD(p, lr=0.02, momentum=0.8, weight_decay=0.02, foreach=True),
    "nesterov": lambda p: optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True),
    "nesterov, decay": lambda p: optim.SGD(p, lr=0.02, momentum=0.7, nesterov=True, weight_decay=0.1),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.05),
    "adagrad, start": lambda p: optim.Adagrad(p, lr=0.05, initial_accumulator_value=0.3, eps=1e-6, weight_decay=0.02),
    "adam": lambda p: optim.Adam(p, lr=0.01),
    "adam, decay": lambda p: optim.Adam(p, lr=0.01, betas=(0.8, 0.99), eps=1e-4, weight_decay=0.02, fused=True),
    "adam, decoupled": lambda p: optim.Adam(p, lr=0.01, weight_decay=0.2, decoupled_weight_decay=True),
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
    "adamw, decay": lambda p: optim.AdamW(p, lr=0.01, betas=(0.8, 0.99), eps=1e-4, weight_decay=0.3, foreach=True),
    "tensors": lambda p: optim.Adam(p, lr=torch.tensor(0.01), capturable=False, differentiable=False),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_fifty_steps_give_the_parameters_of_torch(tmp_path: Path, make: Make) -> None:
    def program(ps: Any) -> Any:
        given = mlp()
        optimizer = make(given.parameters())
        assert ps.distribute(given, optimizer) == (given, optimizer)
        fit(given, optimizer, ps.loader(DATASET, SIZE, PASSES))
        assert ps.step == STEPS
        return given

    own = mlp()
    fit(own, make(own.parameters()), plain_batches())
    with cluster_of(tmp_path, 2, 1) as cluster:
        [model] = cluster.train(program)
    assert furthest(model, own) < 1e-5
    assert furthest(own, mlp()) > 0.01


SCHEDULERS: dict[str, Make] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, step_size=7, gamma=0.6),
    "LambdaLR from zero": lambda o: lr_scheduler.LambdaLR(o, lambda n: min(1.0, n / 20)),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=STEPS, cycle_momentum=False),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=STEPS),
}


@pytest.mark.parametrize("is_older", [True, False], ids=["made before", "made after"])
@pytest.mark.parametrize("schedule", SCHEDULERS.values(), ids=SCHEDULERS.keys())
def test_a_scheduler_sets_the_rate_of_each_step(tmp_path: Path, schedule: Make, is_older: bool) -> None:
    def make(model: Any) -> Any:
        return optim.SGD(model.parameters(), lr=0.1, momentum=0.5)

    def program(ps: Any) -> Any:
        model = mlp()
        optimizer = make(model)
        scheduler = schedule(optimizer) if is_older else None
        ps.distribute(model, optimizer)
        return fit(model, optimizer, ps.loader(DATASET, SIZE, PASSES), scheduler or schedule(optimizer))

    own = mlp()
    optimizer = make(own)
    fit(own, optimizer, plain_batches(), schedule(optimizer))
    with cluster_of(tmp_path, 1, 1) as cluster, warnings.catch_warnings():
        warnings.simplefilter("error")
        [model] = cluster.train(program)
    assert furthest(model, own) < 1e-5


def test_two_trainers_with_a_batch_each_equal_one_with_twice_the_batch(tmp_path: Path) -> None:
    """In which the trainers have other values at first, and other rates: those of rank 0 count."""

    def program(ps: Any) -> Any:
        model = mlp()
        if ps.rank:
            torch.nn.init.zeros_(model[0].weight)
        optimizer = optim.SGD(model.parameters(), lr=0.01 if ps.rank else 0.05, momentum=0.9)
        ps.distribute(model, optimizer)
        return fit(model, optimizer, ps.loader(DATASET, SIZE // 2, PASSES))

    own = mlp()
    fit(own, optim.SGD(own.parameters(), lr=0.05, momentum=0.9), plain_batches())
    with cluster_of(tmp_path, 2, 2) as cluster:
        first, second = cluster.train(program)
    assert furthest(first, own) < 1e-5
    assert furthest(first, second) == 0


def test_trainers_without_a_last_batch_have_the_last_values_too(tmp_path: Path) -> None:
    """Nine batches: rank 0 has five and rank 1 has four. The one that ends earlier has the others' last update."""
    seen: dict[int, list[dict[str, Any]]] = {0: [], 1: []}

    def program(ps: Any) -> Any:
        model = mlp()
        optimizer = optim.SGD(model.parameters(), lr=0.05)
        ps.distribute(model, optimizer)
        first = torch.utils.data.Subset(DATASET, range(9 * 16))
        batches = ps.loader(first, 16, 2, on_pass=lambda pass_: seen[ps.rank].append(values(model)))
        return fit(model, optimizer, batches)

    with cluster_of(tmp_path, 2, 2) as cluster:
        first, second = cluster.train(program)
    assert furthest(first, second) == 0
    for mine, theirs in zip(*seen.values(), strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("mode", ["async", "ssp(2)"])
def test_other_modes_train_too(tmp_path: Path, mode: str) -> None:
    def program(ps: Any) -> float:
        model = mlp()
        optimizer = optim.Adam(model.parameters(), lr=0.02)
        ps.distribute(model, optimizer)
        losses: list[float] = []
        for x, y in ps.loader(DATASET, 16, 8, shuffle=True):
            loss = ((model(x) - y) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step(loss=loss)
            losses.append(loss.item())
        return sum(losses[-5:]) / sum(losses[:5])

    with cluster_of(tmp_path, 2, 2, mode=mode) as cluster:
        assert max(cluster.train(program)) < 0.6
