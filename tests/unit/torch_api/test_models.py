"""Saved models: the buffers of trainer 0 in them, and `load_model`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn, optim

import clusterctl.torch as ct
from clusterctl.runtime import SGD, load_model, merge_model, save_model, torch_state_dict
from clusterctl.runtime.errors import ModelError, TableError, UseError
from unit.torch_api.programs import DATASET, PASSES, SIZE, cluster_of, fit

pytestmark = pytest.mark.engines


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Model(nn.Module):
    """BatchNorm, buffers of several types, one that is not saved, and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 1)
        self.frozen = nn.Linear(1, 1)
        self.frozen.requires_grad_(False)
        self.register_buffer("brief", torch.zeros(3, dtype=torch.bfloat16))
        self.register_buffer("mask", torch.zeros(2, dtype=torch.bool))
        self.register_buffer("scratch", torch.zeros(5), persistent=False)

    def forward(self, x: Any) -> Any:
        if self.training:
            self.brief += 0.5
            self.mask[0] = True
        return self.last(self.norm(torch.relu(self.first(x))))


BUFFERS = {"brief", "mask", "norm.num_batches_tracked", "norm.running_mean", "norm.running_var"}
TABLES = {"first.bias", "first.weight", "last.bias", "last.weight", "norm.bias", "norm.weight"}


def distributed(ps: Any) -> tuple[Any, Any]:
    torch.manual_seed(1)
    model = Model()
    optimizer = optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.01)
    return ps.distribute(model, optimizer)  # type: ignore[no-any-return]


def train(ps: Any) -> Any:
    model, optimizer = distributed(ps)
    return fit(model, optimizer, ps.loader(DATASET, SIZE, PASSES))


def assert_same(state: dict[str, Any], other: dict[str, Any], names: set[str]) -> None:
    for name in names:
        assert state[name].dtype == other[name].dtype, name
        assert torch.equal(state[name], other[name]), name


@pytest.mark.parametrize(("pservers", "lanes"), [(1, 1), (2, 3)])
def test_a_model_has_the_buffers_of_trainer_0(tmp_path: Path, pservers: int, lanes: int) -> None:
    with cluster_of(tmp_path, pservers, 2, ports_num=lanes) as cluster:
        models = cluster.train(train)
    assert not torch.equal(models[0].norm.running_mean, models[1].norm.running_mean)
    own = models[0].state_dict()
    pieces = tmp_path / "output" / f"pass-{PASSES - 1:05d}"
    merged = merge_model([pieces], tmp_path / "merged.safetensors")
    for place in (pieces, merged):
        assert load_model(place).keys() == TABLES | BUFFERS
        state = torch_state_dict(place)
        assert state["brief"].dtype == torch.float32, "numpy has no bfloat16"
        loaded = Model()
        scratch = loaded.scratch.clone()
        names = ct.load_model(place, loaded)
        assert set(names) == TABLES | BUFFERS
        assert_same(loaded.state_dict(), own, TABLES | BUFFERS)
        assert torch.equal(loaded.scratch, scratch)
    with safe_open(merged, "pt") as file:
        assert_same({name: file.get_tensor(name) for name in BUFFERS}, own, BUFFERS)


def test_a_model_has_the_buffers_of_the_step_that_it_is_of(tmp_path: Path) -> None:
    def program(ps: Any) -> dict[int, Any]:
        model, optimizer = distributed(ps)
        seen = {}
        for x, y in ps.loader(DATASET, SIZE, 1):
            optimizer.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            optimizer.step()
            seen[ps.step] = {name: value.clone() for name, value in model.state_dict().items()}
        return seen

    with cluster_of(tmp_path, 2, 2, save_model_every={"unit": "step", "n": 2}) as cluster:
        seen = cluster.train(program)[0]
    for step in (2, 4):
        loaded = Model()
        ct.load_model(tmp_path / "output" / f"at-step-{step:09d}", loaded)
        assert_same(loaded.state_dict(), seen[step], TABLES | BUFFERS)


@pytest.mark.parametrize("every", [{"unit": "end", "n": 0}, {"unit": "pass", "n": 1}])
def test_the_last_model_has_the_last_buffers_after_a_break(tmp_path: Path, every: dict[str, Any]) -> None:
    def program(ps: Any) -> Any:
        model, optimizer = distributed(ps)
        for number, (x, y) in enumerate(ps.loader(DATASET, SIZE, 1)):
            optimizer.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            optimizer.step()
            if number == 2:
                break
        return model

    with cluster_of(tmp_path, 2, 1, save_model_every=every) as cluster:
        [model] = cluster.train(program)
        for pserver in cluster.pservers:
            pserver.finish()
    (saved,) = (tmp_path / "output").glob("pass-*")
    loaded = Model()
    ct.load_model(saved, loaded)
    assert_same(loaded.state_dict(), model.state_dict(), TABLES | BUFFERS)


def test_a_frozen_layer_and_a_layer_that_was_not_saved_are_left(tmp_path: Path) -> None:
    save_model(tmp_path, {"first.weight": np.ones((8, 8), np.float32)})
    model = Model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert ct.load_model(tmp_path, model) == ["first.weight"]
    assert torch.equal(model.first.weight, torch.ones(8, 8))
    assert_same(model.state_dict(), before, (TABLES | BUFFERS | {"frozen.weight"}) - {"first.weight"})


def test_an_embedding_takes_the_rows_that_were_saved(tmp_path: Path) -> None:
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    save_model(tmp_path, {"weight": (np.array([4, 0, 2]), rows)})
    model = nn.Embedding(5, 2, sparse=True)
    before = model.weight.detach().clone()
    assert ct.load_model(tmp_path, model) == ["weight"]
    assert torch.equal(model.weight[[4, 0, 2]], torch.from_numpy(rows))
    assert torch.equal(model.weight[[1, 3]], before[[1, 3]])


class WithIds(nn.Module):
    """An embedding of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.any = ct.Embedding(2)
        self.some = nn.Embedding(5, 2, sparse=True)

    def forward(self, x: Any) -> Any:
        return (self.any(x * 10**12) + self.some(x)).sum(1)


def test_embeddings_on_servers_are_filled_with_their_rows() -> None:
    model = WithIds()
    x = torch.tensor([0, 3, 1, 3])
    with ct.connect() as ps:
        ps.distribute(model, optimizer := optim.SGD(model.parameters(), lr=0.1))
        for (batch,) in ps.loader(torch.utils.data.TensorDataset(x), 2):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        with torch.no_grad():
            expected = model(x)
        ps.save("mine")
    loaded = WithIds()
    assert ct.load_model("output/mine", loaded) == ["any", "some.weight"]
    assert torch.equal(loaded(x), expected)
    assert torch.equal(loaded.any(torch.tensor([[5], [-7]])), torch.zeros(2, 1, 2))
    with pytest.raises(UseError, match=r"'any' has rows of ct\.load_model"), ct.connect() as ps:
        ps.distribute(loaded, optim.SGD(loaded.parameters(), lr=0.1))


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        ({"weight": np.ones((5, 3), np.float32)}, r"'weight' is \(5, 2\) in this model, but .* it is \(5, 3\)"),
        ({"weight": (np.array([5]), np.ones((1, 2), np.float32))}, "rows of width 2, ids 5 to 5"),
        ({"weight": (np.array([0]), np.ones((1, 3), np.float32))}, "rows of width 3, ids 0 to 0"),
        ({"weight": np.array(1.0)}, r"it is \(\)"),
        ({"other": np.ones(2, np.float32)}, "has other, but nothing of this model"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(tmp_path: Path, tables: dict[str, Any], problem: str) -> None:
    save_model(tmp_path, tables)
    model = nn.Embedding(5, 2)
    before = model.weight.detach().clone()
    with pytest.raises(ModelError, match=problem):
        ct.load_model(tmp_path, model)
    assert torch.equal(model.weight, before)
    with pytest.raises(UseError, match="dict is not a"):
        ct.load_model(tmp_path, {})


def test_a_table_with_the_name_of_a_buffer_is_refused() -> None:
    with ct.connect() as ps:
        distributed(ps)
        for make in (lambda: ps.dense("mask", 3, SGD(0.1)), lambda: ps.embedding("mask", 3, SGD(0.1))):
            with pytest.raises(TableError, match="table 'mask' and buffer 'mask' of the model would both be saved as"):
                make()


def test_a_buffer_with_the_name_of_a_tensor_of_a_table_is_refused() -> None:
    class Buffered(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 1)
            self.register_buffer("user/rows", torch.zeros(2))

    model = Buffered()
    with ct.connect() as ps:
        ps.embedding("user", 2, SGD(0.1))
        with pytest.raises(TableError, match="table 'user' and buffer 'user/rows' of the model"):
            ps.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
