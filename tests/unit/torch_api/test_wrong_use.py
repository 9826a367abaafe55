"""Whatever would change the numbers, or is not supported, is an error before anything is changed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

import clusterctl.torch as ct
from clusterctl.runtime import Adam, from_rank0
from clusterctl.runtime.errors import TableError, UseError
from unit.torch_api.programs import DATASET, SIZE, X, cluster_of, fit, mlp, values

pytestmark = pytest.mark.engines


@pytest.fixture
def ps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    with ct.connect() as ps:
        yield ps


def stepped(parameters: Any) -> Any:
    parameters = [*parameters]
    optimizer = optim.Adagrad(parameters, lr=0.1)
    parameters[0].grad = torch.ones_like(parameters[0])
    optimizer.step()
    return optimizer


class Own(optim.SGD):
    pass


OPTIMIZERS: list[tuple[str, Callable[[Any], Any]]] = [
    ("the optimizer is RMSprop; use SGD, Adagrad, Adam or AdamW", optim.RMSprop),
    ("the optimizer is Own; use SGD", lambda p: Own(p, lr=0.1)),
    ("group 0: the servers have no dampening=0.5", lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5)),
    ("group 0: the servers have no maximize=True", lambda p: optim.Adam(p, maximize=True)),
    ("group 0: the servers have no amsgrad=True", lambda p: optim.AdamW(p, amsgrad=True)),
    ("group 0: the servers have no lr_decay=0.1", lambda p: optim.Adagrad(p, lr_decay=0.1)),
    (
        "group 1: the servers have no maximize=True",
        lambda p: optim.SGD([{"params": [next(p)]}, {"params": p, "maximize": True}], lr=0.1),
    ),
    ("the optimizer has stepped before, or was loaded; call ps.distribute with a new optimizer", stepped),
    (
        "parameter 0 of optimizer group 0 is not one of model.named_parameters()",
        lambda p: optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1),
    ),
    (
        "Adam(eps=0.0) must be positive",
        lambda p: optim.Adam([{"params": [next(p)], "eps": 1e-3}, {"params": p}], eps=0.0),
    ),
]


@pytest.mark.parametrize(("message", "make"), OPTIMIZERS, ids=[message for message, _ in OPTIMIZERS])
def test_an_optimizer_that_the_servers_cannot_replace(ps: Any, message: str, make: Callable[[Any], Any]) -> None:
    model = mlp()
    optimizer = make(model.parameters())
    before, state = values(model), copy.deepcopy(optimizer.state_dict())
    with pytest.raises(UseError) as caught:
        ps.distribute(model, optimizer)
    assert message in str(caught.value)
    assert all(torch.equal(before[name], value) for name, value in values(model).items())
    assert str(optimizer.state_dict()) == str(state)
    assert "step" not in vars(optimizer)
    ps.distribute(model, optim.SGD(model.parameters(), lr=0.1))  # nothing was declared


class OwnForward(nn.Embedding):
    def forward(self, ids: Any) -> Any:
        return super().forward(ids) * 2


def tied(one: Any, other: Any) -> Any:
    other.weight = one.weight
    return nn.Sequential(one, other)


MODELS: list[tuple[str, Callable[[], Any]]] = [
    ("parameter 'weight' is torch.float64, not float32; use model.float()", lambda: nn.Linear(2, 2).double()),
    ("parameter 'weight' is torch.bfloat16, not float32", lambda: nn.Linear(2, 2).bfloat16()),
    ("parameter 'weight' is a meta tensor", lambda: nn.Linear(2, 2, device="meta")),
    (
        "Embedding module '': the servers have no max_norm=1.0; leave max_norm out, or use sparse=False",
        lambda: nn.Embedding(5, 2, sparse=True, max_norm=1.0),
    ),
    (
        "EmbeddingBag module '0': the servers have no scale_grad_by_freq=True",
        lambda: nn.Sequential(nn.EmbeddingBag(5, 2, sparse=True, scale_grad_by_freq=True)),
    ),
    ("Embedding module '' has a forward of its own; use Embedding itself", lambda: OwnForward(5, 2, sparse=True)),
    (
        "the weight of module '0', which has sparse=True, is also '1.weight'; use sparse=False",
        lambda: tied(nn.Embedding(5, 2, sparse=True), nn.Linear(2, 5)),
    ),
    (
        "the weight of module '0', which has sparse=True, is also '1.weight'; use sparse=False",
        lambda: tied(nn.EmbeddingBag(5, 2, sparse=True), nn.EmbeddingBag(5, 2, sparse=True)),
    ),
]


@pytest.mark.parametrize(("message", "make"), MODELS, ids=[message for message, _ in MODELS])
def test_parameters_that_cannot_be_tables(ps: Any, message: str, make: Callable[[], Any]) -> None:
    model = make()
    with pytest.raises(UseError) as caught:
        ps.distribute(model, optim.SGD(model.parameters(), lr=0.1))
    assert message in str(caught.value)


def test_a_model_is_a_module_and_is_distributed_once(ps: Any) -> None:
    model = mlp()
    with pytest.raises(UseError, match=r"model=list is not a torch\.nn\.Module"):
        ps.distribute([], optim.SGD(model.parameters(), lr=0.1))
    ps.distribute(model, optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(UseError, match=r"a second ps\.distribute; train one model with one optimizer"):
        ps.distribute(model, optim.SGD(model.parameters(), lr=0.1))


def test_what_the_optimizer_may_not_do_afterwards(ps: Any) -> None:
    model = mlp()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ps.distribute(model, optimizer)
    with pytest.raises(UseError, match=r"a parameter group was added after ps\.distribute; add it before"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    with pytest.raises(UseError, match=r"optimizer\.step\(\) outside ps\.loader\(\.\.\.\)"):
        optimizer.step()
    for _ in ps.loader(DATASET, SIZE, 1):
        with pytest.raises(UseError, match=r"optimizer\.step\(closure\); compute the gradients before"):
            optimizer.step(lambda: 0.0)
        optimizer.step()
        with pytest.raises(UseError, match=r"a second optimizer\.step\(\) for batch 0 of pass 0; call it once per"):
            optimizer.step()
        break


def test_a_scheduler_that_changes_another_number(ps: Any) -> None:
    model = mlp()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ps.distribute(model, optimizer)
    scheduler = lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=20)
    with pytest.raises(UseError) as caught:
        fit(model, optimizer, ps.loader(DATASET, SIZE, 1), scheduler)
    assert str(caught.value) == (
        "optimizer group 0: momentum was 0.9 and is now 0.95, but only lr may change; "
        "with OneCycleLR or CyclicLR pass cycle_momentum=False"
    )


@pytest.mark.parametrize(("key", "value"), [("weight_decay", 0.5), ("eps", 1e-3), ("betas", (0.5, 0.9))])
def test_a_number_that_the_program_changes(ps: Any, key: str, value: Any) -> None:
    model = mlp()
    optimizer = optim.AdamW(model.parameters())
    ps.distribute(model, optimizer)
    optimizer.param_groups[0][key] = value
    with pytest.raises(UseError, match=f"optimizer group 0: {key} was .* but only lr may change"):
        fit(model, optimizer, ps.loader(DATASET, SIZE, 1))


def test_a_state_that_is_loaded_afterwards(ps: Any) -> None:
    model, other = mlp(), mlp()
    trained = optim.Adam(other.parameters())
    fit(other, trained, [(X[:4], X[:4, :1])])
    optimizer = optim.Adam(model.parameters())
    ps.distribute(model, optimizer)
    optimizer.load_state_dict(trained.state_dict())
    with pytest.raises(UseError, match=r"the state of an optimizer was loaded after ps\.distribute"):
        fit(model, optimizer, ps.loader(DATASET, SIZE, 1))


def test_a_sparse_gradient(ps: Any) -> None:
    model = nn.Embedding(5, 2)
    ps.distribute(model, optimizer := optim.SGD(model.parameters(), lr=0.1))
    for _ in ps.loader(DATASET, SIZE, 1):
        nn.functional.embedding(torch.tensor([1]), model.weight, sparse=True).sum().backward()
        with pytest.raises(UseError, match="the gradient of 'weight' is sparse; use sparse=False"):
            optimizer.step()
        break


def test_geo_mode(tmp_path: Path) -> None:
    def program(ps: Any) -> None:
        model = mlp()
        ps.distribute(model, optim.SGD(model.parameters(), lr=0.1))

    with (
        cluster_of(tmp_path, 1, 1, mode="geo(2)") as cluster,
        pytest.raises(UseError, match=r"ps\.distribute does not work in geo mode; set MODE to"),
    ):
        cluster.train(program)


def trained(model: Any) -> Any:
    return optim.Adam(model.parameters())


OUTER: list[tuple[str, Callable[[], Any], Callable[[Any], Any], dict[str, Any]]] = [
    ("model=list is not a torch.nn.Module", list, lambda _: None, {}),
    ("optimizer=NoneType is not a torch.optim.Optimizer", mlp, lambda _: None, {}),
    ("parameter 'weight' is torch.float64, not float32", lambda: nn.Linear(2, 2).double(), trained, {}),
    ("the model has no trainable parameters", lambda: nn.Linear(2, 2).requires_grad_(False), trained, {}),
    (
        "parameter 0 of optimizer group 0 is not a trainable one of model.named_parameters()",
        mlp,
        lambda _: trained(mlp()),
        {},
    ),
    ("module '0' is a clusterctl.torch.Embedding", lambda: nn.Sequential(ct.Embedding(2)), trained, {}),
    ("the outer rule is Adam; use SGD or Momentum", mlp, trained, {"rule": Adam(0.1)}),
    ("the outer rule is float; use SGD or Momentum", mlp, trained, {"rule": 0.7}),
    ("every=0 is not an integer >= 1", mlp, trained, {"every": 0}),
]


@pytest.mark.parametrize(("message", "make", "optimizer", "options"), OUTER, ids=[one[0] for one in OUTER])
def test_what_ps_outer_does_not_take(
    ps: Any, message: str, make: Callable[[], Any], optimizer: Callable[[Any], Any], options: dict[str, Any]
) -> None:
    model = make()
    with pytest.raises(UseError) as caught:
        ps.outer(model, optimizer(model), **options)
    assert message in str(caught.value)
    ps.distribute(other := mlp(), optim.SGD(other.parameters(), lr=0.1))  # nothing was declared


def test_the_outer_mode_needs_all_its_trainers(tmp_path: Path) -> None:
    def program(ps: Any) -> None:
        model = mlp()
        ps.outer(model, trained(model))

    with (
        cluster_of(tmp_path, 1, 1, on_trainer_loss="shrink") as cluster,
        pytest.raises(UseError, match=r"ps\.outer does not work with ON_TRAINER_LOSS = 'shrink'; set it to"),
    ):
        cluster.train(program)


def test_the_outer_mode_is_alone(ps: Any) -> None:
    model = mlp()
    ps.outer(model, trained(model))
    with pytest.raises(UseError, match=r"a second ps\.outer; train one model with one optimizer"):
        ps.outer(model, trained(model))
    with pytest.raises(UseError, match=r"ps\.distribute after ps\.outer; train one model with one optimizer"):
        ps.distribute(model, trained(model))
    for _ in ps.loader(DATASET, SIZE, 1):
        with pytest.raises(UseError, match=r"ps\.push after ps\.outer; call outer\.step\(\)"):
            ps.push({}, samples=1)
        break


def test_the_outer_mode_after_distribute(ps: Any) -> None:
    model = mlp()
    ps.distribute(model, trained(model))
    with pytest.raises(UseError, match=r"ps\.outer after ps\.distribute"):
        ps.outer(model, trained(model))


def test_the_outer_mode_begins_before_the_loop(ps: Any) -> None:
    model = mlp()
    for _ in ps.loader(DATASET, SIZE, 1):
        with pytest.raises(UseError, match=r"ps\.outer in a loop over ps\.loader; call it before the loop"):
            ps.outer(model, trained(model))
        break


def test_an_outer_step_is_for_a_batch_of_ps_loader(ps: Any) -> None:
    model = mlp()
    outer, message = ps.outer(model, trained(model)), r"outer\.step\(\) without a new batch of ps\.loader; call it once"
    with pytest.raises(UseError, match=message):
        outer.step()
    for _ in ps.loader(DATASET, SIZE, 1):
        with pytest.raises(UseError, match=r"samples=-1 is not an integer >= 0"):
            outer.step(samples=-1)
        with pytest.raises(UseError, match=r"loss='low' is not a number"):
            outer.step(loss="low")
        outer.step()
        with pytest.raises(UseError, match=message):
            outer.step()
        break
    for _ in ps.loader(Stream(), 2, 1, collate_fn=str):
        with pytest.raises(UseError, match=r"the number of samples is unknown; call outer\.step\(samples=n\)"):
            outer.step()
        break
    for _ in ps.steps(lambda pass_, rng: [1], passes=1):
        with pytest.raises(UseError, match=message):
            outer.step(samples=1)


def test_rounds_of_unequal_length(tmp_path: Path) -> None:
    def program(ps: Any) -> None:
        model = mlp()
        ps.outer(model, trained(model), every=2 + ps.rank)

    with (
        cluster_of(tmp_path, 1, 2) as cluster,
        pytest.raises(
            TableError, match=r"table '0.weight' differs from what trainer . declares \(every: . here, . there"
        ),
    ):
        cluster.train(program)


@pytest.mark.parametrize("mode", ["async", "geo(2)"])
def test_the_outer_mode_is_for_sync(tmp_path: Path, mode: str) -> None:
    def program(ps: Any) -> None:
        model = mlp()
        ps.outer(model, trained(model))

    message = rf'ps\.outer does not work in {mode.partition("(")[0]} mode; set MODE to "sync"'
    with cluster_of(tmp_path, 1, 1, mode=mode) as cluster, pytest.raises(UseError, match=message):
        cluster.train(program)


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        yield from range(10)


LOADERS: list[tuple[str, Any, dict[str, Any]]] = [
    ("the DataLoader has a DistributedSampler", DataLoader(DATASET, 4, sampler=DistributedSampler(DATASET, 2, 0)), {}),
    ("batch_size, shuffle and other options are the DataLoader's", DataLoader(DATASET, 4), {"batch_size": 4}),
    ("batch_size, shuffle and other options are the DataLoader's", DataLoader(DATASET, 4), {"drop_last": True}),
    ("batch_size=None is not an integer >= 1", DATASET, {}),
    ("batch_size=0 is not an integer >= 1", DATASET, {"batch_size": 0}),
    ("passes=-1 is not an integer >= 0", DATASET, {"batch_size": 1, "passes": -1}),
    ("num_workers=-1 is not an integer >= 0", DATASET, {"batch_size": 1, "num_workers": -1}),
    ("ps.loader has no option 'sampler'; options: collate_fn, ", DATASET, {"batch_size": 1, "sampler": [1]}),
    ("an IterableDataset cannot be shuffled", Stream(), {"batch_size": 1, "shuffle": True}),
    ("generator is not a Dataset, an IterableDataset or a DataLoader", (n for n in [1]), {"batch_size": 1}),
]


@pytest.mark.parametrize(("message", "data", "options"), LOADERS)
def test_what_ps_loader_does_not_take(ps: Any, message: str, data: Any, options: dict[str, Any]) -> None:
    with pytest.raises(UseError) as caught:
        ps.loader(data, **options)
    assert message in str(caught.value)


def test_batches_without_a_tensor_need_a_number_of_samples(ps: Any) -> None:
    model = mlp()
    ps.distribute(model, optimizer := optim.SGD(model.parameters(), lr=0.1))
    for _ in ps.loader(Stream(), 2, 1, collate_fn=str):
        with pytest.raises(UseError, match=r"the number of samples is unknown; call optimizer\.step\(samples=n\)"):
            optimizer.step()
        optimizer.step(samples=2)


def test_embeddings_of_ours_that_are_wrong(ps: Any) -> None:
    for wrong, message in (
        ({"dim": 0}, "dim=0 is not an integer >= 1"),
        ({"dim": 2, "rule": 0.1}, "rule=0.1"),
        ({"dim": 2, "init": 0.1}, "init=0.1"),
        ({"dim": 2, "retention": 3}, "retention=3"),
        ({"dim": 2, "init": from_rank0([])}, "from_rank0 gives all rows their values"),
    ):
        with pytest.raises(UseError, match=message):
            ct.Embedding(**wrong)
    model = nn.Sequential(ct.Embedding(2), nn.Linear(2, 1))
    with pytest.raises(UseError, match=r"clusterctl\.torch\.Embedding has no rows before ps\.distribute"):
        model(torch.tensor([1]))
    with pytest.raises(UseError) as caught:
        ps.distribute(model, optim.SGD(model[1].parameters(), lr=0.1))
    assert str(caught.value) == (
        "Embedding module '0' has no rule, and its weight is not in the optimizer; "
        "pass rule=, or an optimizer of model.parameters()"
    )


def test_ids_that_an_embedding_does_not_have(ps: Any) -> None:
    model = nn.Embedding(5, 2, sparse=True)
    ps.distribute(model, optim.SGD(model.parameters(), lr=0.1))
    for wrong, message in (
        (torch.tensor([1, 5]), "ids for table 'weight' go from 1 to 5, it has rows=5"),
        (torch.tensor([0.5]), "ids for table 'weight' have dtype float32"),
    ):
        with pytest.raises(UseError, match=message):
            model(wrong)
