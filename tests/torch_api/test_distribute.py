"""What `ps.distribute` does with parameters, gradients, and an optimizer that others also use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim

import clusterctl.torch as ct
from clusterctl.runtime import load_model
from torch_api.programs import DATASET, PASSES, SIZE, X, cluster_of, fit, furthest, mlp, plain_batches, values

pytestmark = pytest.mark.engines


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Shared(nn.Module):
    """Two layers with one weight, a scalar, a frozen layer, and a parameter that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.unused = nn.Parameter(torch.ones(3))
        self.frozen = nn.Linear(8, 1)
        self.frozen.requires_grad_(False)
        generator = torch.Generator().manual_seed(6)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)

    def forward(self, x: Any) -> Any:
        return self.frozen(torch.tanh(self.second(torch.tanh(self.first(x))))) * self.scale


def trainable(model: Any) -> list[Any]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


@pytest.mark.parametrize("pservers", [1, 2])
def test_shared_unused_and_frozen_parameters(tmp_path: Path, pservers: int) -> None:
    def program(ps: Any) -> Any:
        model = Shared()
        optimizer = optim.Adam(trainable(model), lr=0.01, weight_decay=0.1)
        ps.distribute(model, optimizer)
        assert sorted(table.name for table in ps._handles.values()) == [
            *("first.bias", "first.weight", "scale", "second.bias", "unused")
        ]
        return fit(model, optimizer, ps.loader(DATASET, SIZE, PASSES))

    own = Shared()
    fit(own, optim.Adam(trainable(own), lr=0.01, weight_decay=0.1), plain_batches())
    with cluster_of(tmp_path, pservers, 1) as cluster:
        [model] = cluster.train(program)
    assert furthest(model, own) < 1e-5
    assert torch.equal(model.unused, Shared().unused)
    assert model.second.weight is model.first.weight


def test_without_a_cluster_the_program_is_the_same(tmp_path: Path) -> None:
    own, model = mlp(), mlp()
    fit(own, optim.AdamW(own.parameters(), lr=0.01), plain_batches())
    with ct.connect() as ps:
        ps.distribute(model, optimizer := optim.AdamW(model.parameters(), lr=0.01))
        fit(model, optimizer, ps.loader(DATASET, SIZE, PASSES))
        ps.save("final")
    assert furthest(model, own) < 1e-5
    saved = load_model("output/final")
    assert sorted(saved) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert all(np.array_equal(saved[name], value.numpy()) for name, value in values(model).items())
    other = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    with ct.connect(load="output/final") as ps:
        ps.distribute(other, optim.SGD(other.parameters(), lr=0.1))
    assert furthest(other, model) == 0


def loss_of(model: Any, x: Any, y: Any) -> Any:
    return ((model(x) - y) ** 2).mean()


@pytest.mark.parametrize("with_rest", [True, False])
def test_several_backwards_are_one_step(with_rest: bool) -> None:
    """Two batches a step; with a rest, the 5 batches of a pass leave one for the next pass's first step."""
    size = 64 if with_rest else 32

    def train(model: Any, optimizer: Any, batches: Any) -> None:
        for number, (x, y) in enumerate(batches, 1):
            (loss_of(model, x, y) / 2).backward()
            if number % 2 == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()

    own, model = mlp(), mlp()
    train(own, optim.SGD(own.parameters(), lr=0.1), plain_batches(size))
    pushed: list[int] = []
    with ct.connect() as ps:
        push = ps.push
        ps.push = lambda gradients, samples, *rest: (pushed.append(samples), push(gradients, samples, *rest))
        ps.distribute(model, optimizer := optim.SGD(model.parameters(), lr=0.1))
        train(model, optimizer, ps.loader(DATASET, size, PASSES))
    assert furthest(model, own) < 1e-5
    assert pushed == [2 * size] * (PASSES * len(X) // size // 2)


def test_gradients_that_are_not_finite_are_skipped_by_a_scaler_as_without_servers() -> None:
    def train(model: Any, optimizer: Any, batches: Any) -> float:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5)
        for number, (x, y) in enumerate(batches):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, x, y) * (float("inf") if number == 7 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
        return float(scaler.get_scale())

    own, model = mlp(), mlp()
    scale = train(own, optim.Adam(own.parameters(), lr=0.01, fused=True), plain_batches())
    with ct.connect() as ps:
        ps.distribute(model, optimizer := optim.Adam(model.parameters(), lr=0.01, fused=True))
        assert train(model, optimizer, ps.loader(DATASET, SIZE, PASSES)) == scale
        assert ps.step == PASSES * len(X) // SIZE - 1
    assert furthest(model, own) < 1e-5


def test_hooks_of_the_optimizer_are_called() -> None:
    model, called = mlp(), []
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    with ct.connect() as ps:
        ps.distribute(model, optimizer)
        optimizer.register_step_post_hook(lambda *_: called.append("after"))
        fit(model, optimizer, ps.loader(DATASET, len(X), 1))
    assert called == ["before", "after"]


def test_step_takes_samples_and_a_loss() -> None:
    model, pushed = mlp(), []
    with ct.connect() as ps:
        ps.distribute(model, optimizer := optim.SGD(model.parameters(), lr=0.1))
        ps.push = lambda gradients, samples, loss, rates: pushed.append((samples, loss))
        for x, y in ps.loader(DATASET, SIZE, 1):
            loss = loss_of(model, x, y)
            loss.backward()
            optimizer.step(samples=7, loss=loss)
            break
    [(samples, reported)] = pushed
    assert samples == 7
    assert not reported.requires_grad
    assert reported == loss


def test_a_loop_over_ps_steps_passes_its_samples() -> None:
    own, model = mlp(), mlp()
    fit(own, optim.SGD(own.parameters(), lr=0.1), plain_batches())
    with ct.connect() as ps:
        ps.distribute(model, optimizer := optim.SGD(model.parameters(), lr=0.1))
        for x, y in ps.steps(lambda pass_, rng: plain_batches(passes=1), passes=PASSES):
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step(samples=len(x))
    assert furthest(model, own) < 1e-5


def test_a_resumed_run_starts_from_the_servers_values(tmp_path: Path) -> None:
    saves = {"checkpoints": True, "save_every": {"unit": "step", "n": 4}}

    def program(ps: Any) -> dict[str, Any]:
        model = mlp()
        if ps.step:
            nn.init.zeros_(model[0].weight)  # what the program starts from does not count
        ps.distribute(model, optimizer := optim.Adam(model.parameters(), lr=0.01))
        for x, y in ps.loader(DATASET, SIZE, 1):
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
        return values(model)

    def killed(ps: Any) -> None:
        push = ps.push

        def fails(*given: Any) -> None:
            push(*given)
            if ps.step == 6:
                raise InterruptedError

        ps.push = fails
        program(ps)

    with cluster_of(tmp_path / "whole", 2, 1) as cluster:
        [whole] = cluster.train(program)
    with cluster_of(tmp_path / "killed", 2, 1, **saves) as cluster:
        with pytest.raises(InterruptedError):
            cluster.train(killed)
        written = {(receipt["tag"], receipt["step"]) for receipt in cluster.receipts if receipt.get("checkpoint")}
    [(tag, step)] = written
    assert step == 4
    with cluster_of(tmp_path / "killed", 2, 1, **saves, recover={"tag": tag, "step": step}) as cluster:
        [resumed] = cluster.train(program)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_parameter_that_the_servers_changed_is_seen_by_autograd() -> None:
    """`step` changes parameters in place, as an optimizer does: gradients of stale values are an error of torch."""
    model = mlp()
    with ct.connect() as ps:
        ps.distribute(model, optimizer := optim.SGD(model.parameters(), lr=0.1))
        for x, y in ps.loader(DATASET, SIZE, 1):
            loss = loss_of(model, x, y)
            loss.backward(retain_graph=True)
            optimizer.step()
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
            break
