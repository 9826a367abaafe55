"""The gradients of distributed embeddings between two pushes, as the program, torch and the servers see them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

import clusterctl.torch as ct
from unit.torch_api.programs import PASSES, SIZE
from unit.torch_api.test_embeddings import DATASET, DIM, Users, furthest, loss_of, plain_batches, rows_of, words

pytestmark = pytest.mark.engines


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def sgd(model: Any) -> Any:
    return optim.SGD(model.parameters(), lr=0.5)


def assert_same(train: Callable[[Any, Any, Any], Any], size: int = SIZE) -> None:
    """Assert that `train(model, optimizer, batches)` gives the model of torch itself with dense gradients."""
    own, model = words(sparse=False), words()
    mine = train(own, sgd(own), plain_batches(size))
    with ct.connect() as ps:
        ps.distribute(model, optimizer := sgd(model))
        theirs = train(model, optimizer, ps.loader(DATASET, size, PASSES))
        assert furthest(model, own) < 1e-5
    assert theirs == pytest.approx(mine, abs=1e-5)


@pytest.mark.parametrize("size", [32, 64], ids=["", "with a rest"])
def test_several_backwards_are_one_step(size: int) -> None:
    def train(model: Any, optimizer: Any, batches: Any) -> None:
        for number, (ids, y) in enumerate(batches, 1):
            (loss_of(model, ids, y) / 2).backward()
            if number % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()

    assert_same(train, size)


def test_clip_grad_norm_counts_the_rows() -> None:
    def train(model: Any, optimizer: Any, batches: Any) -> list[float]:
        norms = []
        for ids, y in batches:
            optimizer.zero_grad()
            loss_of(model, ids, y).backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
            optimizer.step()
        return norms

    assert_same(train)


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("clearing", ["model", "optimizer"])
def test_zero_grad_clears_gradients_that_were_not_pushed(clearing: str, to_none: bool) -> None:
    def train(model: Any, optimizer: Any, batches: Any) -> None:
        for ids, y in batches:
            loss_of(model, ids.flip(0), y).backward()
            (model if clearing == "model" else optimizer).zero_grad(set_to_none=to_none)
            loss_of(model, ids, y).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)

    assert_same(train)


def test_gradients_are_pushed_once() -> None:
    """Also without zero_grad: the push ends them. Those of dense parameters stay, as in torch."""
    model = words()
    with ct.connect() as ps:
        ps.distribute(model, optimizer := optim.SGD([model.emb.weight], lr=0.5))
        for number, (ids, y) in enumerate(ps.loader(DATASET, SIZE, 1)):
            if number == 0:
                loss_of(model, ids, y).backward()
            before = rows_of(model.emb)
            optimizer.step()
            assert torch.equal(rows_of(model.emb), before) == (number > 0)


def test_a_scaler_sees_the_rows_and_skips_what_is_not_finite() -> None:
    def train(model: Any, optimizer: Any, batches: Any) -> float:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5)
        for number, (ids, y) in enumerate(batches):
            optimizer.zero_grad()
            rows = model.emb(ids)
            if number == 7:
                rows.register_hook(lambda gradient: gradient * float("inf"))
            loss = ((model.out(torch.tanh(rows.mean(1))) - y) ** 2).mean()
            if number == 9:
                model.out.requires_grad_(False)  # only rows have gradients
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return float(scaler.get_scale())

    assert_same(train)


def test_calls_without_gradients_push_nothing() -> None:
    def train(model: Any, optimizer: Any, batches: Any) -> float:
        total = 0.0
        for ids, y in batches:
            with torch.no_grad():
                total += float(loss_of(model, ids.flip(1), y))
            with torch.inference_mode():
                total += float(loss_of(model.eval(), ids.flip(1), y))
            assert not model.emb.requires_grad_(False)(ids).requires_grad
            model.emb.requires_grad_(True)
            optimizer.zero_grad()
            loss_of(model.train(), ids, y).backward()
            optimizer.step()
        return total

    assert_same(train)


def test_parameters_and_state_dict_between_backward_and_step() -> None:
    model = words()
    with ct.connect() as ps:
        ps.distribute(model, optimizer := sgd(model))
        for ids, y in ps.loader(DATASET, SIZE, 1):
            loss_of(model, ids[:, :3], y).backward()
            loss_of(model, ids, y).backward()
            assert [*model.state_dict()] == ["emb.weight", "out.weight", "out.bias"]
            assert [name for name, _ in model.named_parameters()] == [
                *("emb.weight", "emb.pulled_0", "emb.pulled_1", "out.weight", "out.bias")
            ]
            assert model.emb.pulled_1.shape == (len(ids.unique()), DIM)
            assert len(optimizer.param_groups[0]["params"]) == 5
            optimizer.step()
            assert [name for name, _ in model.named_parameters()] == ["emb.weight", "out.weight", "out.bias"]
            assert len(optimizer.param_groups[0]["params"]) == 3
            break


def test_a_copy_of_the_model_has_the_same_rows() -> None:
    model = words()
    with ct.connect() as ps:
        ps.distribute(model, sgd(model))
        other = copy.deepcopy(model)
        assert furthest(other, model) == 0
        assert other.out.weight is not model.out.weight


def test_hooks_and_modules_that_are_used_twice() -> None:
    def train(model: Any, optimizer: Any, batches: Any) -> int:
        calls: list[Any] = []
        model.again = model.emb
        model.emb.register_forward_hook(lambda *_: calls.append(_))
        for ids, y in batches:
            optimizer.zero_grad()
            ((model(ids) + model.again(ids).mean((1, 2))[:, None] - y) ** 2).mean().backward()
            optimizer.step()
        return len(calls)

    assert_same(train)


def test_a_rate_that_the_optimizer_loads() -> None:
    """load_state_dict replaces the groups of an optimizer."""

    def train(model: Any, optimizer: Any, batches: Any) -> None:
        optimizer.load_state_dict(optim.SGD([*model.parameters()], lr=0.1).state_dict())
        for ids, y in batches:
            optimizer.zero_grad()
            loss_of(model, ids, y).backward()
            optimizer.step()

    assert_same(train)


def test_a_compiled_model() -> None:
    def train(model: Any, optimizer: Any, batches: Any) -> None:
        compiled = torch.compile(model, backend="eager")
        for ids, y in batches:
            optimizer.zero_grad()
            loss_of(compiled, ids, y).backward()
            optimizer.step()

    assert_same(train)


def test_an_empty_list_of_ids() -> None:
    model = nn.ModuleList([nn.EmbeddingBag(4, 2, sparse=True), Users()])
    with ct.connect() as ps:
        ps.distribute(model, sgd(model))
        none = torch.empty(0, dtype=torch.int64)
        assert model[0](none, torch.tensor([0, 0])).tolist() == [[0, 0], [0, 0]]
        assert model[1].user(none.reshape(0, 3)).shape == (0, 3, 1)
