"""The numbers of the outer mode, against a DiLoCo written by hand in float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim

import clusterctl.torch as ct
from clusterctl.runtime import SGD, Momentum, load_model
from clusterctl.runtime.supervisor_socket import SupervisorSocket
from clusterctl.runtime.trainer import progress
from unit.torch_api.programs import (
    DATASET,
    SAMPLES,
    SIZE,
    Reference,
    adam,
    cluster_of,
    fit,
    furthest,
    inner_step,
    mlp,
    plain_batches,
    rounds_of,
    same,
)

pytestmark = pytest.mark.engines


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def outer_program(size: int, every: int, passes: int = 2) -> Callable[[Any], Any]:
    def program(ps: Any) -> Any:
        model = mlp()
        if ps.rank:
            nn.init.zeros_(model[0].weight)  # the values of rank 0 count
        optimizer = adam(model)
        outer = ps.outer(model, optimizer, every=every)
        for batch in ps.loader(DATASET, size, passes):
            loss = inner_step(model, optimizer, batch)
            outer.step(loss=loss)
        return model, ps.step

    return program


@pytest.mark.parametrize(
    "make",
    [adam, lambda m: optim.SGD(m.parameters(), lr=0.1, momentum=0.9), lambda m: optim.RMSprop(m.parameters(), lr=1e-3)],
)
def test_one_trainer_with_rounds_of_one_batch_trains_as_torch_does(make: Callable[[Any], Any]) -> None:
    own, model = mlp(), mlp()
    fit(own, make(own), plain_batches(passes=3))
    with ct.connect() as ps:
        outer = ps.outer(model, optimizer := make(model), every=1, rule=SGD(1.0))
        for batch in ps.loader(DATASET, SIZE, 3):
            inner_step(model, optimizer, batch)
            outer.step()
        assert ps.step == 3 * SAMPLES // SIZE
    assert furthest(model, own) < 1e-5


def test_two_trainers_train_as_by_hand(tmp_path: Path) -> None:
    """The 5 and 4 batches of a pass are 3 and 2 rounds; the last batch is a short one."""
    size, every = 36, 2
    reference = Reference(2)
    for _ in range(2):
        shares = [plain_batches(size, 1)[rank::2] for rank in range(2)]
        first, second = (rounds_of(share, every) for share in shares)
        for number, own in enumerate(first):
            reference.round([own, second[number] if number < len(second) else []])
    with cluster_of(tmp_path, 4, 2) as cluster:
        results = cluster.train(outer_program(size, every))
    assert [step for _, step in results] == [6, 6]
    assert all(same(model, reference.value) for model, _ in results)
    saved = load_model(tmp_path / "output/pass-00001")
    assert all(np.array_equal(saved[name], value) for name, value in reference.value.items())


def test_a_parameter_without_gradient_and_a_frozen_one() -> None:
    """Momentum goes on where the delta is zero; what is frozen is no table."""
    model = mlp()
    model[2].bias.requires_grad_(False)
    optimizer = optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.1)
    with ct.connect() as ps:
        outer = ps.outer(model, optimizer, every=2, rule=Momentum(1.0, 0.5))
        assert sorted(table.name for table in ps._handles.values()) == ["0.bias", "0.weight", "2.weight"]
        seen = []
        for number, batch in enumerate(ps.loader(DATASET, SIZE, 1)):
            model[0].bias.requires_grad_(number < 2)
            inner_step(model, optimizer, batch)
            outer.step()
            seen.append(model[0].bias.detach().clone())
            if number == 3:
                break
    first, second = seen[1] - mlp()[0].bias, seen[3] - seen[2]
    assert torch.allclose(second, first / 2, atol=1e-6)
    assert first.abs().max() > 0


def test_a_round_without_samples_changes_nothing(tmp_path: Path) -> None:
    """Of trainer 1 in one round, then of both: momentum does not move either. Local steps without samples are lost."""
    work = rounds_of(plain_batches(passes=1), 1)
    reference = Reference(2)

    def program(ps: Any) -> Any:
        model = mlp()
        outer = ps.outer(model, optimizer := adam(model), every=1)
        for number, batch in enumerate(ps.loader(DATASET, SIZE, 1)):
            inner_step(model, optimizer, batch)
            outer.step(samples=0 if number == 2 or (number == 1 and ps.rank == 1) else None)
        return model

    for number in range(5):
        if number == 2:  # the inner optimizers have stepped
            for rank in range(2):
                inner_step(reference.models[rank], reference.optimizers[rank], work[4 + rank][0])
            reference.begin()
        elif number == 1:
            inner_step(reference.models[1], reference.optimizers[1], work[3][0])
            reference.round([work[2], []])
        else:
            reference.round([work[2 * number], work[2 * number + 1]])
    with cluster_of(tmp_path, 2, 2) as cluster:
        models = cluster.train(program)
    assert all(same(model, reference.value) for model in models)


def test_a_round_that_is_not_finite_is_undone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That is batches 3 to 5 of trainer 0; its Adam goes on from where it was, and trainer 1's delta counts."""
    parts = [plain_batches(SIZE // 2, 1)[rank::2] for rank in range(2)]
    first, second = (rounds_of(part, 3) for part in parts)
    reference = Reference(2)
    reference.round([first[0], second[0]])
    reference.round([[], second[1]])
    reference.round([first[2], second[2]])
    reference.round([first[3], second[3]])

    def program(ps: Any) -> Any:
        model = nn.Sequential(nn.BatchNorm1d(8, affine=False), mlp())
        model[0].eval()
        states = []
        optimizer = adam(model)
        scheduler = optim.lr_scheduler.StepLR(optimizer, 1, gamma=1.0 - 1e-12)
        outer = ps.outer(model, optimizer, every=3)
        for number, (x, y) in enumerate(ps.loader(DATASET, SIZE // 2, 1)):
            states.append([state["exp_avg"].clone() for state in optimizer.state.values()])
            bad = number == 4 and ps.rank == 0
            optimizer.zero_grad()
            loss = ((model[1](x) - y) ** 2).mean() * (math.inf if bad else 1)
            loss.backward()
            model[0].running_mean.add_(math.inf if bad else 1)
            optimizer.step()
            scheduler.step()
            outer.step(loss=loss)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * (1 - 1e-12) ** 10, rel=1e-13)  # no step undone
        if ps.rank == 0:
            assert all(torch.equal(one, other) for one, other in zip(states[3], states[6], strict=True))
            assert model[0].running_mean.tolist() == [7.0] * 8  # of 10 batches, without 3 that are undone
        return model[1]

    with cluster_of(tmp_path, 2, 2, on_nan="skip") as cluster:
        models = cluster.train(program)
    assert all(same(model, reference.value) for model in models)
    told = [line for line in capsys.readouterr().out.splitlines() if "not finite" in line]
    assert told == [
        "warning: the gradient of table '1.0.weight' of trainer 0 is not finite (pass 0, step 1); 3 batches are skipped"
    ]


def test_inner_steps_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a sign of life with its samples and loss, though the step of the run stays that of the last round."""
    monkeypatch.setattr(progress, "_EVENT_EVERY_S", 0.0)
    sent: list[tuple[int, int, float]] = []
    losses: list[float] = []

    class Recorder(SupervisorSocket):
        def send(self, event: str, **facts: Any) -> None:
            if event == "step":
                assert facts["samples_per_s"] > 0
                sent.append((facts["step"], facts["samples"], facts["loss"]))

    def program(ps: Any) -> None:
        ps._progress._supervisor = Recorder(None)
        model = mlp()
        outer = ps.outer(model, optimizer := adam(model), every=3)
        for batch in ps.loader(DATASET, SIZE, 1):
            loss = inner_step(model, optimizer, batch)
            outer.step(loss=loss)
            losses.append(loss.item())

    with cluster_of(tmp_path, 1, 1) as cluster:
        cluster.train(program)
    assert [step for step, _, _ in sent] == [0, 0, 1, 1, 1, 2, 2, 2, 3, 4]
    assert [samples for _, samples, _ in sent] == [SIZE] * 10
    assert [loss for _, _, loss in sent] == pytest.approx(losses, rel=1e-4)
