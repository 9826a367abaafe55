"""Loops in epochs: a killed trainer, or a run that goes back, ends with the same bits, or is refused in words."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import optim
from torch.optim import lr_scheduler as lrs

import clusterctl.torch as ct
from clusterctl.runtime.errors import UseError
from unit.torch_api.programs import DATASET, SIZE, X, Y, cluster_of, mlp

pytestmark = pytest.mark.engines

EPOCHS = 6
BATCHES = 3
DATA = torch.utils.data.Subset(DATASET, range(BATCHES * SIZE))


class Killed(BaseException):
    """The end of a trainer, without any farewell."""


class Kill(NamedTuple):
    """Where a trainer dies: at a batch of an epoch before its push, at the "end" of its loop, or "after" it."""

    epoch: int
    at: Any


def one_cycle(optimizer: Any) -> Any:
    return lrs.OneCycleLR(optimizer, 0.1, total_steps=EPOCHS + 1, cycle_momentum=False)


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: lrs.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    "MultiplicativeLR": lambda o: lrs.MultiplicativeLR(o, lambda epoch: 0.9),
    "StepLR": lambda o: lrs.StepLR(o, 2),
    "MultiStepLR": lambda o: lrs.MultiStepLR(o, [1, 3, 4]),
    "ConstantLR": lambda o: lrs.ConstantLR(o, 0.5, 3),
    "LinearLR": lambda o: lrs.LinearLR(o, 0.5, total_iters=4),
    "ExponentialLR": lambda o: lrs.ExponentialLR(o, 0.8),
    "PolynomialLR": lambda o: lrs.PolynomialLR(o, 5, 2),
    "CosineAnnealingLR": lambda o: lrs.CosineAnnealingLR(o, 4),
    "CosineAnnealingWarmRestarts": lambda o: lrs.CosineAnnealingWarmRestarts(o, 2),
    "CyclicLR": lambda o: lrs.CyclicLR(o, 0.01, 0.1, step_size_up=2, cycle_momentum=False),
    "OneCycleLR": one_cycle,
    "ReduceLROnPlateau": lambda o: lrs.ReduceLROnPlateau(o, patience=0, threshold=0.5),
    "ChainedScheduler": lambda o: lrs.ChainedScheduler([lrs.ExponentialLR(o, 0.9), lrs.ConstantLR(o, 0.5, 2)]),
    "SequentialLR": lambda o: lrs.SequentialLR(o, [lrs.ConstantLR(o, 0.5, 2), lrs.ExponentialLR(o, 0.8)], [3]),
    "SWALR": lambda o: optim.swa_utils.SWALR(o, 0.01, anneal_epochs=3),
}
KILLS = [Kill(1, 1), Kill(3, 1), Kill(EPOCHS - 1, 2), Kill(3, 0), Kill(3, "end"), Kill(3, "after"), Kill(5, "after")]


class Seen:
    """What programs count in their epochs."""

    def __init__(self) -> None:
        self.numbers: list[float] = []
        self.total = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"numbers": list(self.numbers), "total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.numbers, self.total = list(state["numbers"]), state["total"]


def train(
    ps: Any, make: Callable[[Any], Any], kill: Kill | None = None, loops: int = 1, counts: str = "range"
) -> dict[str, Any]:
    """Train in epochs: of so many loops one after another, or with so many loops in each (`counts="inside"`)."""
    model = mlp()
    ps.distribute(model, optimizer := optim.Adam(model.parameters(), lr=0.05))
    scheduler, seen, noise = make(optimizer), Seen(), torch.Generator()
    average = optim.swa_utils.AveragedModel(model)
    for name, thing in (("scheduler", scheduler), ("seen", seen), ("noise", noise), ("average", average)):
        ps.keep(name, thing)

    def epoch_of(epoch: int, loader: Any) -> None:
        seen.total = 0.0
        for number, (x, y) in enumerate(loader):
            if kill == (epoch, number):
                raise Killed
            loss = ((model(x) - y) ** 2).mean() * (1 + torch.rand((), generator=noise) + torch.rand(()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step(loss=loss)
            seen.total += loss.item()
        if kill == (epoch, "end"):
            raise Killed
        seen.numbers.append(seen.total + float(torch.rand(())))
        average.update_parameters(model)
        with torch.no_grad():
            seen.numbers.append(float(((model(X) - Y) ** 2).mean()))
        scheduler.step(*([seen.total] if isinstance(scheduler, lrs.ReduceLROnPlateau) else []))
        if kill == (epoch, "after"):
            raise Killed

    def epochs(number: int, passes: int = 1) -> Any:
        return range(number) if counts == "range" else ps.epochs(number, passes)

    if counts == "inside":
        for epoch in epochs(EPOCHS, loops):
            for _ in range(loops - 1):
                for x, _y in ps.loader(DATA, SIZE):
                    optimizer.zero_grad()
                    model(x).sum().backward()
                    optimizer.step()
            epoch_of(epoch, ps.loader(DATA, SIZE))
    elif loops == 1:
        for epoch in epochs(EPOCHS):
            epoch_of(epoch, ps.loader(DATA, SIZE))
    else:
        loader = ps.loader(DATA, SIZE)
        for epoch in epochs(2):
            epoch_of(epoch, loader)
        for epoch in epochs(2):
            epoch_of(2 + epoch, loader)
        for epoch in epochs(2):
            epoch_of(4 + epoch, ps.loader(DATA, SIZE))
    state = copy.deepcopy({**model.state_dict(), **average.state_dict()})
    return {**state, "lr": optimizer.param_groups[0]["lr"], "noise": noise.get_state(), "seen": seen.numbers}


def assert_same(own: dict[str, Any], other: dict[str, Any]) -> None:
    assert own.keys() == other.keys()
    for name, value in own.items():
        same = torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
        assert same, (name, value, other[name])


def undisturbed(root: Path, *given: Any, **options: Any) -> dict[str, Any]:
    with cluster_of(root / "whole", 1, 1) as cluster:
        found: dict[str, Any] = cluster.train(lambda ps: train(ps, *given, **options))[0]
    return found


def killed(cluster: Any, *given: Any, **options: Any) -> None:
    with pytest.raises(Killed), cluster.session(0) as ps:
        train(ps, *given, **options)


def all_but(kept: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """Return parameters of a test, of which only some run in each `make test`."""
    return [one if one in kept else pytest.param(one, marks=pytest.mark.slow) for one in values]


VARIANTS = [(1, "range"), (1, "epochs"), (3, "range"), (3, "epochs"), (3, "inside")]


@pytest.mark.parametrize("name", all_but(["LambdaLR"], SCHEDULERS))
def test_a_scheduler_of_epochs_is_right_after_a_kill(tmp_path: Path, name: str) -> None:
    make = SCHEDULERS[name]
    expected = undisturbed(tmp_path, make)
    with cluster_of(tmp_path / "killed", 1, 1) as cluster:
        for attempt, kill in enumerate((Kill(1, 1), Kill(3, 0), Kill(EPOCHS - 1, 2)), 1):
            with pytest.raises(Killed), cluster.session(0, attempt=attempt) as ps:
                train(ps, make, kill)
        with cluster.session(0, attempt=4) as ps:
            assert_same(train(ps, make), expected)


@pytest.mark.parametrize(("loops", "counts"), VARIANTS)
@pytest.mark.parametrize("kill", all_but([Kill(3, "after")], KILLS), ids=str)
def test_all_that_is_kept_is_right_after_a_kill(tmp_path: Path, kill: Kill, loops: int, counts: str) -> None:
    make = SCHEDULERS["ReduceLROnPlateau"]
    expected = undisturbed(tmp_path, make, loops=loops, counts=counts)
    with cluster_of(tmp_path / "killed", 1, 1) as cluster:
        killed(cluster, make, kill, loops=loops, counts=counts)
        with cluster.session(0, attempt=2) as ps:
            assert_same(train(ps, make, loops=loops, counts=counts), expected)


@pytest.mark.parametrize(("loops", "counts"), VARIANTS)
@pytest.mark.parametrize("step", all_but([9], [4, 9, 10, 17]))
def test_the_same_after_a_run_goes_back(tmp_path: Path, step: int, loops: int, counts: str) -> None:
    make = SCHEDULERS["LambdaLR"]
    expected = undisturbed(tmp_path, make, loops=loops, counts=counts)
    saves = {"checkpoints": True, "save_every": {"unit": "step", "n": step}}
    kill = Kill(step // BATCHES + 1 if loops == 1 or counts != "inside" else step // (3 * BATCHES) + 1, 1)
    with cluster_of(tmp_path / "back", 1, 1, **saves) as cluster:
        if kill.epoch < EPOCHS:
            killed(cluster, make, kill, loops=loops, counts=counts)
        else:
            cluster.train(lambda ps: train(ps, make, loops=loops, counts=counts))
    recover = {"tag": f"step-{step:09d}", "step": step}
    with cluster_of(tmp_path / "back", 1, 1, epoch=1, recover=recover, **saves) as cluster:
        results = cluster.train(lambda ps: train(ps, make, loops=loops, counts=counts))
    assert_same(results[0], expected)


def early(ps: Any, limit: int, counts: str, kill: Kill | None = None, then: int = 0) -> tuple[list[int], Any]:
    """Stop when the loss of an epoch is below a limit; then train for `then` more epochs. Return the epochs."""
    model, began = mlp(), []
    ps.distribute(model, optimizer := optim.SGD(model.parameters(), lr=0.05))
    ps.keep("seen", seen := Seen())
    for epoch in range(EPOCHS) if counts == "range" else ps.epochs(EPOCHS):
        began.append(epoch)
        seen.total = 0.0
        for number, (x, y) in enumerate(ps.loader(DATA, SIZE)):
            if kill == (epoch, number):
                raise Killed
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            optimizer.step(loss=loss)
            seen.total += 1
        if kill == (epoch, "end"):
            raise Killed
        seen.numbers.append(seen.total)
        if sum(seen.numbers) < limit or len(seen.numbers) >= EPOCHS - 2:
            break
    for epoch in range(then):
        for number, (x, y) in enumerate(ps.loader(DATA, SIZE)):
            if kill == (EPOCHS + epoch, number):
                raise Killed
            optimizer.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            optimizer.step()
    return began, copy.deepcopy(model.state_dict())


@pytest.mark.parametrize("then", [0, 2])
def test_a_break_out_of_an_empty_epoch_is_an_error_that_names_ps_epochs(tmp_path: Path, then: int) -> None:
    with cluster_of(tmp_path, 1, 1) as cluster:
        with pytest.raises(Killed), cluster.session(0) as ps:
            early(ps, 1, "range", Kill(2, 1))
        with pytest.raises(UseError, match=r"ps\.epochs\(n\)"), cluster.session(0, attempt=2) as ps:
            early(ps, 1, "range", then=then) if then else early_on_nothing(ps)


def early_on_nothing(ps: Any) -> None:
    """Break out of the first epoch that has no batch."""
    model = mlp()
    ps.distribute(model, optim.SGD(model.parameters(), lr=0.05))
    ps.keep("seen", Seen())
    for _ in range(EPOCHS):
        if not list(ps.loader(DATA, SIZE)):
            break


KILLS_OF_EPOCHS = [Kill(0, 1), Kill(2, 1), Kill(3, "end"), Kill(EPOCHS, 0), Kill(EPOCHS, 1), Kill(EPOCHS + 1, 1)]


@pytest.mark.parametrize("kill", all_but([Kill(EPOCHS, 1)], KILLS_OF_EPOCHS), ids=str)
def test_epochs_that_end_early_are_skipped_after_a_kill(tmp_path: Path, kill: Kill) -> None:
    with cluster_of(tmp_path / "whole", 1, 1) as cluster:
        [(whole, expected)] = cluster.train(lambda ps: early(ps, 1, "epochs", then=2))
    assert whole == [0, 1, 2, 3]
    with cluster_of(tmp_path / "killed", 1, 1) as cluster:
        with pytest.raises(Killed), cluster.session(0) as ps:
            early(ps, 1, "epochs", kill, then=2)
        with cluster.session(0, attempt=2) as ps:
            began, state = early(ps, 1, "epochs", then=2)
    assert began == [epoch for epoch in whole if epoch >= kill.epoch]
    assert_same(state, expected)


def test_a_loader_can_be_iterated_again(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with ct.connect() as ps:
        loader = ps.loader(DATA, SIZE)
        steps = ps.steps(lambda pass_, rng: range(pass_), 1)
        assert [len([*loader]) for _ in range(3)] == [BATCHES] * 3
        assert [len([*steps]), len([*loader]), len([*steps])] == [3, BATCHES, 5]
        rest = iter(loader)
        next(rest)
        assert len([*rest]) == BATCHES - 1
        outer = iter(loader)
        next(outer)
        assert len([*loader]) == BATCHES
        with pytest.raises(UseError, match="began inside another one"):
            next(outer)
