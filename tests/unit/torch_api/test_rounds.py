"""Where rounds of the outer mode end: at so many batches, and where a pass, a loop or the session does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import clusterctl.torch as ct
from clusterctl.runtime import load_model
from unit.torch_api.programs import (
    DATASET,
    SIZE,
    Reference,
    adam,
    cluster_of,
    inner_step,
    mlp,
    plain_batches,
    rounds_of,
    same,
    values,
)

pytestmark = pytest.mark.engines


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


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


def test_a_saved_model_has_buffers_as_they_are_after_the_round_that_break_ended(tmp_path: Path) -> None:
    def program(ps: Any) -> Any:
        model = nn.Sequential(nn.BatchNorm1d(8), mlp())
        outer = ps.outer(model, optimizer := adam(model), every=3)
        for number, batch in enumerate(ps.loader(DATASET, SIZE, 1)):
            inner_step(model, optimizer, batch)
            outer.step()
            if number == 3:
                break
        if ps.rank == 0:
            ps.save("mine")
        return model.state_dict()

    with cluster_of(tmp_path, 2, 2) as cluster:
        first, _ = cluster.train(program)
    saved = nn.Sequential(nn.BatchNorm1d(8), mlp())
    ct.load_model(str(tmp_path / "output/mine"), saved)
    assert [name for name, value in saved.state_dict().items() if not torch.equal(value, first[name])] == []
