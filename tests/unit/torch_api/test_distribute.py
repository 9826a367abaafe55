"""What `ps.distribute` does with parameters, gradients, and an optimizer that others also use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

import clusterctl.torch as ct
from unit.torch_api.programs import DATASET, PASSES, SIZE, X, cluster_of, fit, furthest, mlp, plain_batches

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


def test_shared_unused_and_frozen_parameters(tmp_path: Path) -> None:
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
    with cluster_of(tmp_path, 2, 1) as cluster:
        [model] = cluster.train(program)
    assert furthest(model, own) < 1e-5
    assert torch.equal(model.unused, Shared().unused)
    assert model.second.weight is model.first.weight


def loss_of(model: Any, x: Any, y: Any) -> Any:
    return ((model(x) - y) ** 2).mean()


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
