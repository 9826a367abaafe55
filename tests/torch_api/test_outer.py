"""The outer mode against a DiLoCo written by hand in float32, and how rounds end."""

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
from clusterctl.runtime.errors import NotFiniteError
from clusterctl.runtime.supervisor_socket import SupervisorSocket
from clusterctl.runtime.trainer import progress
from torch_api.programs import DATASET, SAMPLES, SIZE, cluster_of, fit, furthest, mlp, plain_batches, values

pytestmark = pytest.mark.engines

Batch = tuple[Any, Any]
RULE = (0.7, 0.9)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def adam(model: Any) -> Any:
    return optim.Adam(model.parameters(), lr=0.01)


def inner_step(model: Any, optimizer: Any, batch: Batch) -> Any:
    x, y = batch
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    return loss


def rounds_of(batches: list[Batch], every: int) -> list[list[Batch]]:
    return [batches[at : at + every] for at in range(0, len(batches), every)]


class Reference:
    """DiLoCo in one process: models and inner optimizers by rank, and Nesterov's momentum in numpy outside."""

    def __init__(self, trainers: int, make: Callable[[Any], Any] = adam) -> None:
        self.models = [mlp() for _ in range(trainers)]
        self.optimizers = [make(model) for model in self.models]
        self.value = {name: value.numpy() for name, value in values(self.models[0]).items()}
        self.velocity = {name: np.zeros_like(value) for name, value in self.value.items()}

    def round(self, work: list[list[Batch]]) -> None:
        """Take a round with the batches of each rank."""
        for model, optimizer, batches in zip(self.models, self.optimizers, work, strict=True):
            for batch in batches:
                inner_step(model, optimizer, batch)
        samples = [sum(len(x) for x, _ in batches) for batches in work]
        lr, momentum = np.float32(RULE[0]), np.float32(RULE[1])
        for name, value in self.value.items():
            merged = np.zeros_like(value)
            for model, n in zip(self.models, samples, strict=True):
                if n:
                    merged += np.float32(n) * (value - values(model)[name].numpy())
            merged /= np.float32(sum(samples))
            self.velocity[name] = self.velocity[name] * momentum + merged
            self.value[name] = value - (merged + self.velocity[name] * momentum) * lr
        self.begin()

    def begin(self) -> None:
        for model in self.models:
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter.copy_(torch.from_numpy(self.value[name]))


def same(model: Any, expected: dict[str, Any]) -> bool:
    return all(np.array_equal(value.numpy(), expected[name]) for name, value in values(model).items())


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


@pytest.mark.parametrize("pservers", [1, 2, 4])
def test_two_trainers_train_as_by_hand(tmp_path: Path, pservers: int) -> None:
    """The 5 and 4 batches of a pass are 3 and 2 rounds; the last batch is a short one."""
    size, every = 36, 2
    reference = Reference(2)
    for _ in range(2):
        shares = [plain_batches(size, 1)[rank::2] for rank in range(2)]
        first, second = (rounds_of(share, every) for share in shares)
        for number, own in enumerate(first):
            reference.round([own, second[number] if number < len(second) else []])
    with cluster_of(tmp_path, pservers, 2) as cluster:
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


def test_samples_of_several_batches_weigh_a_round(tmp_path: Path) -> None:
    """Gradients of two batches add up to an inner step; a round of 3 batches ends with the step after its third."""
    pushed = []

    def program(ps: Any) -> int:
        push = ps._parameters.push
        ps._parameters.push = lambda g, context, n, *rest: (pushed.append((context.batch, n)), push(g, context, n))
        model = mlp()
        outer = ps.outer(model, optimizer := adam(model), every=3)
        for number, (x, y) in enumerate(ps.loader(DATASET, SIZE, 1), 1):
            ((model(x) - y) ** 2).mean().backward()
            if number % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
                outer.step()
        return ps.step  # type: ignore[no-any-return]

    with cluster_of(tmp_path, 1, 1) as cluster:
        assert cluster.train(program) == [3]
    assert pushed == [(3, 4 * SIZE), (7, 4 * SIZE), (9, 2 * SIZE)]


def test_the_last_batches_of_a_pass_end_a_round_without_an_inner_step() -> None:
    model = mlp()
    with ct.connect() as ps:
        outer = ps.outer(model, optimizer := adam(model), every=4)
        ended = []
        for number, batch in enumerate(ps.loader(DATASET, SIZE, 2, on_pass=lambda _: ended.append(ps.step))):
            if number % 10 != 9:
                inner_step(model, optimizer, batch)
                outer.step()
        assert ended == [3, 6]


def break_after(batches: int, every: int, then: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """Train that many batches, end the loop by `break`, call `then(ps, model)`; return its result and the model."""
    model = mlp()
    with ct.connect() as ps:
        outer = ps.outer(model, optimizer := adam(model), every=every)
        for number, batch in enumerate(ps.loader(DATASET, SIZE, 1)):
            if number == batches:
                break
            inner_step(model, optimizer, batch)
            outer.step()
        result = then(ps, model)
    return result, model


def test_break_ends_a_round_with_the_session() -> None:
    reference = Reference(1)
    for work in rounds_of(plain_batches(passes=1)[:5], 3):
        reference.round([work])
    step, model = break_after(5, 3, lambda ps, _: ps.step)
    assert step == 1
    assert same(model, reference.value)
    saved = load_model("output/pass-00000")
    assert all(np.array_equal(saved[name], value) for name, value in reference.value.items())


def test_break_ends_a_round_before_a_save() -> None:
    (step, before), model = break_after(5, 3, lambda ps, model: (ps.save("mine"), (ps.step, values(model)))[1])
    assert step == 2
    assert all(torch.equal(before[name], value) for name, value in values(model).items())
    saved = load_model("output/mine")
    assert all(np.array_equal(saved[name], value.numpy()) for name, value in before.items())


def test_a_save_in_the_loop_has_the_values_of_the_last_round() -> None:
    model = mlp()
    with ct.connect() as ps:
        outer = ps.outer(model, optimizer := adam(model), every=3)
        for number, batch in enumerate(ps.loader(DATASET, SIZE, 1)):
            if number == 1:
                ps.save("mine")
            inner_step(model, optimizer, batch)
            outer.step()
    assert all(np.array_equal(load_model("output/mine")[name], value.numpy()) for name, value in values(mlp()).items())


def test_break_ends_a_round_and_a_pass_before_the_next_loop() -> None:
    def again(ps: Any, model: Any) -> int:
        for _ in ps.loader(DATASET, SIZE, 1):
            assert same(model, reference.value)
            break
        return ps.step  # type: ignore[no-any-return]

    reference = Reference(1)
    for work in rounds_of(plain_batches(passes=1)[:5], 3):
        reference.round([work])
    step, model = break_after(5, 3, again)
    assert step == 2
    assert same(model, reference.value)


def test_a_trainer_that_breaks_does_not_hold_up_the_others(tmp_path: Path) -> None:
    reference, every = Reference(2), 2
    shares = [plain_batches(32, 1)[rank::2] for rank in range(2)]
    first, second = rounds_of(shares[0], every), rounds_of(shares[1][:3], every)
    reference.round([first[0], second[0]])
    reference.round([first[1], second[1]])
    reference.round([first[2], []])

    def program(ps: Any) -> Any:
        model = mlp()
        outer = ps.outer(model, optimizer := adam(model), every=every)
        for number, batch in enumerate(ps.loader(DATASET, 32, 1)):
            inner_step(model, optimizer, batch)
            outer.step()
            if ps.rank == 1 and number == 2:
                break
        return model

    with cluster_of(tmp_path, 2, 2) as cluster:
        model, _ = cluster.train(program)
    assert same(model, reference.value)


def test_an_error_in_the_loop_pushes_nothing(tmp_path: Path) -> None:
    def program(ps: Any) -> None:
        model = mlp()
        outer = ps.outer(model, optimizer := adam(model), every=3)
        for number, batch in enumerate(ps.loader(DATASET, SIZE, 1)):
            inner_step(model, optimizer, batch)
            outer.step()
            if number == 4:
                raise InterruptedError

    with cluster_of(tmp_path, 1, 1) as cluster:
        with pytest.raises(InterruptedError):
            cluster.train(program)
        assert [core.step for core in cluster.cores] == [1]


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
        outer = ps.outer(model, optimizer, every=3)
        for number, (x, y) in enumerate(ps.loader(DATASET, SIZE // 2, 1)):
            states.append([state["exp_avg"].clone() for state in optimizer.state.values()])
            bad = number == 4 and ps.rank == 0
            optimizer.zero_grad()
            loss = ((model[1](x) - y) ** 2).mean() * (math.inf if bad else 1)
            loss.backward()
            model[0].running_mean.add_(math.inf if bad else 1)
            optimizer.step()
            outer.step(loss=loss)
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


@pytest.mark.parametrize(("with_loss", "what"), [(True, "the loss"), (False, "the gradient of table '0.weight'")])
def test_a_run_that_must_be_finite_fails(tmp_path: Path, with_loss: bool, what: str) -> None:
    def program(ps: Any) -> None:
        model = mlp()
        optimizer = adam(model)
        outer = ps.outer(model, optimizer, every=3)
        for number, (x, y) in enumerate(ps.loader(DATASET, SIZE, 1)):
            loss = inner_step(model, optimizer, (x * (math.inf if number == 4 else 1), y))
            outer.step(loss=loss if with_loss else None)

    with (
        cluster_of(tmp_path, 1, 1, on_nan="fail") as cluster,
        pytest.raises(NotFiniteError, match=f"{what} of trainer 0 is not finite .pass 0, step 1"),
    ):
        cluster.train(program)
