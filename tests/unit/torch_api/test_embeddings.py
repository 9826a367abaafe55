"""Embeddings whose rows are on the servers give the numbers of torch's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim
from torch.utils.data import TensorDataset

import clusterctl.torch as ct
from clusterctl.runtime import SGD, load_model, zeros
from unit.torch_api.programs import PASSES, SAMPLES, SIZE, Y, cluster_of

pytestmark = pytest.mark.engines

ROWS, DIM, WORDS = 40, 5, 6
IDS = torch.randint(0, ROWS, (SAMPLES, WORDS), generator=torch.Generator().manual_seed(8))
DATASET = TensorDataset(IDS, Y)
Make = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Words(nn.Module):
    """A linear layer over what `embed(module, ids)` gives, (n, DIM)."""

    def __init__(self, emb: Any, embed: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.emb = emb
        self.embed = embed
        self.out = nn.Linear(DIM, 1)
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)

    def forward(self, ids: Any) -> Any:
        return self.out(torch.tanh(self.embed(self.emb, ids)))


def mean(emb: Any, ids: Any) -> Any:
    return emb(ids).mean(1)


def words(embed: Callable[[Any, Any], Any] = mean, sparse: bool = True, **options: Any) -> Any:
    return Words(nn.Embedding(ROWS, DIM, sparse=sparse, **options), embed)


def bags(embed: Callable[[Any, Any], Any], sparse: bool = True, **options: Any) -> Any:
    return Words(nn.EmbeddingBag(ROWS, DIM, sparse=sparse, **options), embed)


def starts(ids: Any) -> Any:
    return torch.arange(0, ids.numel(), WORDS, dtype=ids.dtype)


def weighted(emb: Any, ids: Any) -> Any:
    weights = torch.linspace(0.1, 2, ids.numel()).reshape(ids.shape)
    return emb(ids, per_sample_weights=weights)


MODELS: dict[str, Callable[..., Any]] = {
    "words": words,
    "padded words": lambda **o: words(padding_idx=3, **o),
    "one id per sample": lambda **o: words(lambda emb, ids: emb(ids[:, 0].int()), **o),
    "two calls": lambda **o: words(lambda emb, ids: emb(ids[:, :4]).mean(1) * emb(ids[:, 1:]).sum(1), **o),
    "bags": lambda **o: bags(lambda emb, ids: emb(ids), **o),
    "sums": lambda **o: bags(lambda emb, ids: emb(ids), mode="sum", padding_idx=0, **o),
    "largest": lambda **o: bags(lambda emb, ids: emb(ids), mode="max", padding_idx=-1, sparse=False, **o),
    "weighted": lambda **o: bags(weighted, mode="sum", **o),
    "offsets": lambda **o: bags(lambda emb, ids: emb(ids.flatten(), starts(ids)), **o),
    "short offsets": lambda **o: bags(lambda emb, ids: emb(ids.int().flatten(), starts(ids.int())), **o),
    "an end": lambda **o: bags(
        lambda emb, ids: emb(ids.flatten(), torch.cat([starts(ids), torch.tensor([ids.numel()])])),
        include_last_offset=True,
        **o,
    ),
}
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: optim.SGD(p, lr=0.5),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.2),
}


def loss_of(model: Any, ids: Any, y: Any) -> Any:
    return ((model(ids) - y) ** 2).mean()


def fit(model: Any, optimizer: Any, batches: Any) -> Any:
    for ids, y in batches:
        optimizer.zero_grad()
        loss_of(model, ids, y).backward()
        optimizer.step()
    return model


def plain_batches(size: int = SIZE, passes: int = PASSES) -> list[Any]:
    return [(IDS[at : at + size], Y[at : at + size]) for _ in range(passes) for at in range(0, SAMPLES, size)]


def rows_of(emb: Any) -> Any:
    """Return all rows of an embedding, wherever they are."""
    bag = isinstance(emb, nn.EmbeddingBag)
    kept, emb.padding_idx = emb.padding_idx, None
    with torch.no_grad():
        rows = emb(torch.arange(ROWS).reshape(-1, 1) if bag else torch.arange(ROWS))
    emb.padding_idx = kept
    return rows


def furthest(model: Any, other: Any) -> float:
    pairs = [
        (rows_of(model.emb), rows_of(other.emb)),
        *zip(model.out.parameters(), other.out.parameters(), strict=True),
    ]
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def trained(make: Callable[..., Any] = words, optimizer: Make = OPTIMIZERS["sgd"], batches: Any = None) -> Any:
    """Return a model that torch itself has trained."""
    model = make()
    return fit(model, optimizer(model.parameters()), plain_batches() if batches is None else batches)


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_the_rows_equal_those_of_torch(tmp_path: Path, make: Any, optimizer: Make) -> None:
    def program(ps: Any) -> float:
        model = make()
        if make is MODELS["largest"]:
            model.emb.sparse = True  # torch has no sparse gradients for it; the servers do not need them
        ps.distribute(model, given := optimizer(model.parameters()))
        fit(model, given, ps.loader(DATASET, SIZE, PASSES))
        assert model.emb.weight.shape == (0, DIM)
        return furthest(model, own)

    own = trained(make, optimizer)
    assert furthest(own, make()) > 0.05
    with cluster_of(tmp_path, 2, 1) as cluster:
        assert cluster.train(program)[0] < 1e-5


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: optim.Adam(p, lr=0.02),
        lambda p: optim.AdamW(p, lr=0.02, weight_decay=0.0),
        lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    ],
)
def test_optimizers_that_take_no_sparse_gradients_in_torch(optimizer: Make) -> None:
    """Each batch has all ids that occur, so that lazy rules do what torch does with dense gradients."""

    def make(sparse: bool = True) -> Any:
        return words(lambda emb, ids: emb(ids % 8).mean(1), sparse)

    own = trained(lambda: make(sparse=False), optimizer)
    with ct.connect() as ps:
        model = make()
        ps.distribute(model, given := optimizer(model.parameters()))
        fit(model, given, ps.loader(DATASET, SIZE, PASSES))
        assert furthest(model, own) < 1e-5


def test_each_group_has_its_own_rate_and_schedule() -> None:
    def train(model: Any, ps: Any = None) -> Any:
        groups = [{"params": model.out.parameters()}, {"params": model.emb.parameters(), "lr": 1.0}]
        optimizer = optim.SGD(groups, lr=0.1)
        scheduler = optim.lr_scheduler.StepLR(optimizer, 7, 0.5)
        if ps is not None:
            ps.distribute(model, optimizer)
        for ids, y in plain_batches() if ps is None else ps.loader(DATASET, SIZE, PASSES):
            optimizer.zero_grad()
            loss_of(model, ids, y).backward()
            optimizer.step()
            scheduler.step()
        return model

    own = train(words())
    with ct.connect() as ps:
        assert furthest(train(words(), ps), own) < 1e-5


def test_rows_alone_can_be_trained() -> None:
    class Sums(nn.EmbeddingBag):
        pass

    def sums() -> Any:
        torch.manual_seed(3)
        return Sums(ROWS, 1, mode="sum", sparse=True)

    own = sums()
    fit(own, optim.SGD(own.parameters(), lr=0.1), plain_batches())
    with ct.connect() as ps:
        model = sums()
        ps.distribute(model, optimizer := optim.SGD(model.parameters(), lr=0.1))
        fit(model, optimizer, ps.loader(DATASET, SIZE, PASSES))
        assert torch.allclose(rows_of(model), rows_of(own), atol=1e-5)
        ps.save("final")
    ids, rows = load_model("output/final")["weight"]
    assert np.array_equal(ids, np.arange(ROWS))
    assert np.allclose(rows, own.weight.detach(), atol=1e-5)


class Users(nn.Module):
    """ct.Embedding with one weight per id, which are sums over the ids of a sample."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.user = ct.Embedding(1, init=zeros(), **options)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, ids: Any) -> Any:
        return self.user(ids).sum(1) + self.bias


def spread(ids: Any) -> Any:
    """Return other names for ids: any int64, also negative."""
    return (ids - ROWS // 2) * (2**63 // ROWS)


def own_users(lr: float) -> Any:
    """Train the same with torch, and return the weights and the bias."""
    own, bias = nn.Embedding(ROWS, 1), nn.Parameter(torch.zeros(1))
    nn.init.zeros_(own.weight)
    optimizer = optim.SGD([{"params": [own.weight], "lr": lr}, {"params": [bias]}], lr=0.1)
    fit(lambda ids: own(ids).sum(1) + bias, optimizer, plain_batches())
    return own.weight.detach(), bias.detach()


@pytest.mark.parametrize("pservers", [0, 2])
@pytest.mark.parametrize(("rule", "lr"), [(None, 0.1), (SGD(0.03), 0.03)], ids=["the group's", "its own rule"])
def test_any_ids(tmp_path: Path, rule: Any, lr: float, pservers: int) -> None:
    def program(ps: Any) -> None:
        model = Users(rule=rule)
        ps.distribute(model, optimizer := optim.SGD(model.parameters(), lr=0.1))
        fit(model, optimizer, ((spread(ids), y) for ids, y in ps.loader(DATASET, SIZE, PASSES)))
        assert torch.allclose(model.user(spread(torch.arange(ROWS))), weight, atol=1e-5)
        assert torch.allclose(model.bias, bias, atol=1e-5)
        assert torch.equal(model.user(torch.tensor([[7]])), torch.zeros(1, 1, 1))
        assert {table.name for table in ps._handles.values()} == {"user", "bias"}

    weight, bias = own_users(lr)
    if pservers:
        with cluster_of(tmp_path, pservers, 1) as cluster:
            cluster.train(program)
    else:
        with ct.connect() as ps:
            program(ps)


def test_a_rule_of_its_own_needs_no_group() -> None:
    weight, bias = own_users(0.03)
    with ct.connect() as ps:
        model = Users(rule=SGD(0.03))
        ps.distribute(model, optimizer := optim.SGD([model.bias], lr=0.1))
        fit(model, optimizer, ps.loader(DATASET, SIZE, PASSES))
        assert torch.allclose(model.user(torch.arange(ROWS)), weight, atol=1e-5)
        assert torch.allclose(model.bias, bias, atol=1e-5)
