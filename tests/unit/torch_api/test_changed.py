"""Weights that the program changes itself: refused in words, or assigned, with the numbers of torch alone."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn.functional import normalize

import clusterctl.torch as ct
from clusterctl.runtime.checkpoint.model import load_model
from clusterctl.runtime.errors import UseError
from unit.torch_api.programs import DATASET, SIZE, cluster_of, furthest, mlp, values
from unit.torch_api.test_epochs import Killed

pytestmark = pytest.mark.engines


def clamp_in_place(model: Any, best: Any) -> None:
    with torch.no_grad():
        model[0].weight.clamp_(-0.1, 0.1)


def clamp_data(model: Any, best: Any) -> None:
    model[0].weight.data.clamp_(-0.1, 0.1)


def normalize_data(model: Any, best: Any) -> None:
    model[0].weight.data = normalize(model[0].weight.data)


def restore(model: Any, best: Any) -> None:
    model.load_state_dict(best)


CHANGES = [clamp_in_place, clamp_data, normalize_data, restore]


def train(ps: Any, change: Any, *, kill: int | None = None, uses: bool = True, when: str = "step") -> Any:
    """Change the weights after every third step, or at the end of each pass. Without `ps`, by torch alone."""
    model = mlp()
    best = copy.deepcopy(model.state_dict())
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if ps is not None:
        ps.distribute(model, optimizer)
        if uses:
            ps.assign(model[0].weight, model[0].weight)

    def do() -> None:
        if ps is None or not uses:
            change(model, best)
            return
        other = copy.deepcopy(model)
        change(other, best)
        for parameter, value in zip(model.parameters(), other.parameters(), strict=True):
            ps.assign(parameter, value)

    step = 0
    for _ in range(2):
        batches = ps.loader(DATASET, SIZE) if ps is not None else torch.utils.data.DataLoader(DATASET, SIZE)
        for x, y in batches:
            step = ps.step if ps is not None else step
            if kill == step:
                raise Killed
            optimizer.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            optimizer.step()
            step += 1
            if when == "step" and step % 3 == 0:
                do()
        if when == "pass":
            do()
    return copy.deepcopy(model)


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_weight_is_refused_in_words(tmp_path: Path, monkeypatch: Any, change: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(UseError, match=r"changed parameter '0\.weight'.*; in sync mode call ps\.assign"),
        ct.connect() as ps,
    ):
        train(ps, change, uses=False)


@pytest.mark.parametrize(
    ("change", "pservers", "trainers", "when"),
    [(clamp_data, 1, 1, "step"), (restore, 2, 1, "pass"), (restore, 2, 2, "step")],
)
def test_an_assigned_weight_counts_as_in_torch_alone(
    tmp_path: Path, change: Any, pservers: int, trainers: int, when: str
) -> None:
    expected = train(None, change, when=when)
    if trainers > 1:  # the same gradients, by the mean of equal ones
        monkey = ct.Session.loader
        found = []

        def program(ps: Any) -> Any:
            ps.loader = lambda data, size: monkey(ps, data, size, shard=False)
            return train(ps, change, when=when)
    else:

        def program(ps: Any) -> Any:
            return train(ps, change, when=when)

    with cluster_of(tmp_path, pservers, trainers) as cluster:
        found = cluster.train(program)
    assert all(furthest(model, expected) < 1e-5 for model in found)


def test_a_killed_trainer_assigns_once(tmp_path: Path) -> None:
    change = normalize_data
    with cluster_of(tmp_path / "whole", 2, 1) as cluster:
        [expected] = cluster.train(lambda ps: train(ps, change))
    with cluster_of(tmp_path / "killed", 2, 1) as cluster:
        for attempt, kill in enumerate((0, 3, 4, 10, 12), 1):
            with pytest.raises(Killed), cluster.session(0, attempt=attempt) as ps:
                train(ps, change, kill=kill)
        with cluster.session(0, attempt=6) as ps:
            model = train(ps, change)
    assert all(torch.equal(value, values(expected)[name]) for name, value in values(model).items())


@pytest.mark.parametrize(("trainers", "tag"), [(2, "mine"), (2, "pass-00001")])
def test_a_saved_model_has_what_was_assigned(tmp_path: Path, trainers: int, tag: str) -> None:
    """Trainer 1 asks for the model first; without a request, it is that of the end of the run."""
    has_saved = threading.Event()

    def program(ps: Any) -> None:
        model = mlp()
        ps.distribute(model, optimizer := optim.SGD(model.parameters(), lr=0.1))
        for x, _ in ps.loader(DATASET, SIZE):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
        ps.assign(model[0].bias, torch.full((16,), 3.0))
        if tag == "mine":
            assert ps.rank == trainers - 1 or has_saved.wait(60)
            ps.save(tag)
            has_saved.set()

    with cluster_of(tmp_path, 2, trainers) as cluster:
        cluster.train(program)
    assert (load_model(tmp_path / "output" / tag)["0.bias"] == 3).all()


def test_wrong_use_of_assign(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with ct.connect() as ps:
        model = nn.Sequential(nn.Embedding(9, 8, sparse=True), nn.Flatten(), nn.Linear(8, 1))
        ps.distribute(model, optimizer := optim.SGD(model.parameters(), lr=0.1))
        with pytest.raises(UseError, match=r"ps\.assign\(Parameter, \.\.\.\); pass a"):
            ps.assign(model[0].weight, torch.zeros(9, 8))
        with pytest.raises(UseError, match="has shape"):
            ps.assign(model[2].weight, torch.zeros(3))
        for (x,) in ps.loader(torch.utils.data.TensorDataset(torch.arange(8)), 4):
            with pytest.raises(UseError, match="in a loop of a program that keeps no state"):
                ps.assign(model[2].weight, torch.zeros(1, 8))
            model(x).sum().backward()
            optimizer.step()
            model[0].weight.data = normalize(model[0].weight.data)
            with pytest.raises(UseError, match=r"changed the weight of the embedding of table '0\.weight'"):
                ps.save("mine")
            break
