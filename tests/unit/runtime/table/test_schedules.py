"""Learning rates by step, compared with closed forms in other arithmetic, and with corner cases worked out by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.runtime import constant_rate, cosine, exponential, polynomial, step_decay
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.table.schedules import Schedule, schedule_from_json

Curve = Callable[[int], float]
CURVES: list[tuple[Schedule, Curve]] = [
    (constant_rate(0.3), lambda n: 0.3),
    (step_decay(0.3, every=7, factor=0.6), lambda n: 0.3 * 0.6 ** (n // 7)),
    (exponential(0.3, every=7, factor=0.6), lambda n: 0.3 * math.exp(math.log(0.6) * n / 7)),
    (polynomial(0.3, steps=90), lambda n: 0.3 * max(0, 90 - n) / 90),
    (polynomial(0.3, steps=90, to=0.01, power=2), lambda n: 0.01 + 0.29 * (max(0, 90 - n) / 90) ** 2),
    (polynomial(0.3, steps=90, to=0.4, power=0.5), lambda n: 0.4 - 0.1 * math.sqrt(max(0, 90 - n) / 90)),
    (cosine(0.3, steps=90), lambda n: 0.15 * (1 + math.cos(math.pi * min(n, 90) / 90))),
    (cosine(0.3, steps=90, to=0.1), lambda n: 0.1 + 0.1 * (1 + math.cos(math.pi * min(n, 90) / 90))),
]


@pytest.mark.parametrize(("schedule", "curve"), CURVES, ids=[repr(schedule) for schedule, _ in CURVES])
def test_a_rate_equals_its_closed_form_to_fourteen_digits(schedule: Schedule, curve: Curve) -> None:
    for t in range(1, 121):
        assert schedule.at(t) == pytest.approx(curve(t - 1), rel=1e-14, abs=1e-16), t


@pytest.mark.parametrize("schedule", [schedule for schedule, _ in CURVES], ids=repr)
def test_warm_up_rises_linearly_to_the_full_rate_and_the_curve_follows(schedule: Schedule) -> None:
    data = schedule.to_json()
    later = {**data, "warmup": 10, **({"steps": data["steps"] + 10} if "steps" in data else {})}
    warm = schedule_from_json(later)
    climb = [Fraction(3, 10) * t / 11 for t in range(1, 12)]
    np.testing.assert_allclose([warm.at(t) for t in range(1, 12)], [float(rate) for rate in climb], rtol=1e-15)
    assert [warm.at(t + 10) for t in range(1, 150)] == [schedule.at(t) for t in range(1, 150)]


def test_steps_include_the_warm_up_and_the_end_is_exact() -> None:
    for make in (cosine, polynomial):
        schedule = make(0.1, steps=10_000, to=0.001, warmup=500)
        assert schedule.at(501) == 0.1
        assert schedule.at(10_000) > 0.001
        assert schedule.at(10_001) == schedule.at(10**9) == 0.001
        assert schedule.at(5_251) == pytest.approx((0.1 + 0.001) / 2), "halfway"


def test_rates_at_huge_steps_neither_overflow_nor_fail() -> None:
    assert exponential(0.1, every=1, factor=0.5).at(10**18) == 0.0
    assert step_decay(0.1, every=1, factor=0.5).at(1_000) == 0.1 * 2.0**-999
    assert step_decay(0.1, every=1, factor=1.0).at(10**18) == 0.1


@pytest.mark.parametrize(
    ("schedule", "t", "bits"),
    [
        (cosine(0.1, steps=10_000, to=0.001, warmup=500), 7_001, "0x1.7fd00b058ca29p-6"),
        (exponential(0.1, every=1_000, factor=0.5), 778, "0x1.de1165ba83caap-5"),
        (step_decay(0.1, every=10, factor=0.9), 778, "0x1.f6cc29f4e2e7dp-16"),
        (polynomial(0.1, steps=999, power=1.7), 333, "0x1.9c3b97faa7ab8p-5"),
    ],
)
def test_the_bits_of_a_rate_are_the_same_everywhere(schedule: Schedule, t: int, bits: str) -> None:
    assert schedule.at(t).hex() == bits


@given(
    st.sampled_from([schedule for schedule, _ in CURVES]),
    st.floats(1e-6, 10),
    st.integers(0, 80),
    st.integers(1, 10**6),
)
@settings(max_examples=40)
def test_a_schedule_survives_json(schedule: Schedule, rate: float, warmup: int, every: int) -> None:
    changed = {"rate": rate, "warmup": warmup, "every": every, "factor": rate / 10, "to": rate / 3}
    data = {**schedule.to_json(), **{k: v for k, v in changed.items() if k in schedule.to_json()}}
    made = schedule_from_json(data)
    back = schedule_from_json(json.loads(json.dumps(made.to_json())))
    assert back == made
    assert hash(back) == hash(made)
    assert all(back.at(t) == made.at(t) for t in (1, 2, 50, 1_000))


def test_a_schedule_is_printed_as_it_is_written() -> None:
    schedule = cosine(0.1, steps=10, to=0.01, warmup=2)
    assert repr(schedule) == "cosine(0.1, steps=10, to=0.01, warmup=2)"
    assert schedule.to_json() == {"kind": "cosine", "rate": 0.1, "steps": 10, "to": 0.01, "warmup": 2}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cosine(0.0, steps=10), r"cosine\(rate=0.0\) must be positive"),
        (lambda: cosine(math.inf, steps=10), r"cosine\(rate=inf\) is not a finite number"),
        (lambda: cosine(True, steps=10), r"rate=True\) is not a finite number"),
        (lambda: cosine(0.1, steps=10, to=-1), r"to=-1.0\) must not be negative"),
        (lambda: cosine(0.1, steps=10, warmup=10), r"steps=10\) must be above warmup=10"),
        (lambda: cosine(0.1, steps=1.5), r"steps=1.5\) is not an integer >= 1"),  # type: ignore[arg-type]
        (lambda: cosine(0.1, steps=10, warmup=-1), r"warmup=-1\) is not an integer >= 0"),
        (lambda: step_decay(0.1, every=0, factor=0.5), r"step_decay\(every=0\)"),
        (lambda: exponential(0.1, every=2, factor=1.5), r"factor=1.5\) must be above 0 and at most 1"),
        (lambda: exponential(0.1, every=2, factor=0), r"factor=0.0\) must be above 0"),
        (lambda: polynomial(0.1, steps=10, power=0), r"power=0.0\) must be positive"),
        (lambda: Schedule("square", 0.1), "schedule 'square' is unknown; known schedules: constant_rate"),
    ],
)
def test_numbers_that_cannot_work_are_named(make: Any, message: str) -> None:
    with pytest.raises(UseError, match=message):
        make()


@pytest.mark.parametrize("data", [None, [], {}, {"kind": "cosine"}, {"kind": [], "rate": 1}, {"rate": 1}, {1: 2}])
def test_other_json_is_refused(data: Any) -> None:
    with pytest.raises(UseError):
        schedule_from_json(data)


def test_integers_of_numpy_are_accepted() -> None:
    assert cosine(0.1, steps=np.int64(10)) == cosine(0.1, steps=10)
    json.dumps(cosine(0.1, steps=np.int64(10)).to_json())
