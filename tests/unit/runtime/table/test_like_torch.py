"""Rules, schedules and clipping compared with torch's in float64; run if torch can be imported."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import (
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Momentum,
    RMSProp,
    clip_by_norm,
    clip_by_value,
    constant_rate,
    cosine,
    exponential,
    polynomial,
    step_decay,
)
from clusterctl.runtime.table.rules import Rule
from clusterctl.runtime.table.schedules import Schedule

pytestmark = pytest.mark.engines
torch: Any = pytest.importorskip("torch", reason="torch is not installed here")

Make = Callable[[Any], Any]
RULES: list[tuple[Rule, Make]] = [
    (SGD(0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    (SGD(0.1, l2=0.02), lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.02)),
    (Momentum(0.05), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    (
        Momentum(0.05, 0.8, nesterov=True, l2=0.02),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.02),
    ),
    (Adagrad(0.1, l2=0.02), lambda p: torch.optim.Adagrad(p, lr=0.1, weight_decay=0.02)),
    (RMSProp(0.05, l2=0.02), lambda p: torch.optim.RMSprop(p, lr=0.05, weight_decay=0.02)),
    (RMSProp(0.05, 0.9, eps=0.1), lambda p: torch.optim.RMSprop(p, lr=0.05, alpha=0.9, eps=0.1)),
    (AdamW(0.01, 0.8, 0.99, weight_decay=0.1), lambda p: torch.optim.AdamW(p, 0.01, (0.8, 0.99), weight_decay=0.1)),
    (Adagrad(0.1, start=2, l2=0.1), lambda p: torch.optim.Adagrad(p, 0.1, 0, 0.1, 2.0)),
    (Adam(0.05, l2=0.02), lambda p: torch.optim.Adam(p, lr=0.05, weight_decay=0.02)),
    (Adam(0.05, 0.8, 0.99, eps=0.1), lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.8, 0.99), eps=0.1)),
]


@pytest.mark.parametrize(("rule", "make"), RULES, ids=[repr(rule) for rule, _ in RULES])
def test_a_rule_gives_the_values_of_torch(rule: Rule, make: Make) -> None:
    rng = np.random.default_rng(8)
    value = rng.normal(size=200).astype(np.float32)
    state = [np.full(200, start, np.float32) for start in rule.starts]
    parameter = torch.tensor(value.astype(np.float64), requires_grad=True)
    optimizer = make([parameter])
    for t in range(1, 81):
        grad = rng.normal(size=200).astype(np.float32)
        parameter.grad = torch.tensor(grad.astype(np.float64))
        optimizer.step()
        rule.update(value, state, grad, value, t)
    np.testing.assert_allclose(value, parameter.detach().numpy(), rtol=0, atol=5e-6)


SCHEDULES: list[tuple[Schedule, Make]] = [
    (
        step_decay(0.3, every=7, factor=0.6),
        lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=7, gamma=0.6),
    ),
    (exponential(0.3, every=1, factor=0.9), lambda o: torch.optim.lr_scheduler.ExponentialLR(o, gamma=0.9)),
    (
        polynomial(0.3, steps=50, power=1.5),
        lambda o: torch.optim.lr_scheduler.PolynomialLR(o, total_iters=50, power=1.5),
    ),
    (
        cosine(0.3, steps=80, to=0.01),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=80, eta_min=0.01),
    ),
    (
        constant_rate(0.3, warmup=20),
        lambda o: torch.optim.lr_scheduler.LinearLR(o, start_factor=1 / 21, total_iters=20),
    ),
    (
        step_decay(0.3, every=10, factor=0.5, warmup=20),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o,
            [
                torch.optim.lr_scheduler.LinearLR(o, start_factor=1 / 21, total_iters=20),
                torch.optim.lr_scheduler.StepLR(o, step_size=10, gamma=0.5),
            ],
            milestones=[20],
        ),
    ),
]


@pytest.mark.parametrize(("schedule", "make"), SCHEDULES, ids=[repr(schedule) for schedule, _ in SCHEDULES])
def test_a_rate_equals_that_of_torch_at_every_step(schedule: Schedule, make: Make) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=schedule.rate)
    scheduler = make(optimizer)
    for t in range(1, 81):
        assert schedule.at(t) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9), t
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize(("limit", "by_norm"), [*itertools.product([0.5, 5.0, 500.0], [True, False])])
def test_clipping_equals_that_of_torch(limit: float, by_norm: bool) -> None:
    rng = np.random.default_rng(9)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in ((30, 20), (7,))]
    parameters = [torch.zeros(array.shape, dtype=torch.float64, requires_grad=True) for array in arrays]
    for parameter, array in zip(parameters, arrays, strict=True):
        parameter.grad = torch.tensor(array.astype(np.float64))
    if by_norm:
        torch.nn.utils.clip_grad_norm_(parameters, limit)
    else:
        torch.nn.utils.clip_grad_value_(parameters, limit)
    clipped = (clip_by_norm if by_norm else clip_by_value)(limit).apply(arrays)
    for parameter, array in zip(parameters, clipped, strict=True):
        np.testing.assert_allclose(array, parameter.grad.numpy(), rtol=1e-6)
