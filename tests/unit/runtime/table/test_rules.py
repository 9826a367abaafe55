"""Each rule compared with its paper in float64, and the properties tables rely on (cuts, aliases, bits, JSON)."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.runtime import SGD, Adagrad, Adam, AdamW, Ftrl, Momentum, RMSProp, constant_rate, cosine, step_decay
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.table.rules import RULES, Rule, rule_from_json
from clusterctl.runtime.table.schedules import Schedule
from unit.runtime.oracle import Lazy

STEPS = 60
PENALTIES: list[dict[str, float]] = [{}, {"l2": 0.02}, {"l1": 0.01}, {"l1": 0.01, "l2": 0.02}]
KINDS: list[Any] = [
    lambda lr=0.1, **p: SGD(lr, **p),
    lambda lr=0.05, **p: Momentum(lr, **p),
    lambda lr=0.05, **p: Momentum(lr, 0.5, nesterov=True, **p),
    lambda lr=0.1, **p: Adagrad(lr, **p),
    lambda lr=0.05, **p: RMSProp(lr, 0.9, **p),
    lambda lr=0.05, **p: Adam(lr, **p),
    lambda lr=0.3, **p: Ftrl(lr, **p),
]
ALL = [kind(**penalty) for kind in KINDS for penalty in PENALTIES]
ALL += [Adagrad(0.1, start=0.5), AdamW(0.05), AdamW(0.05, weight_decay=0.3)]
SCHEDULED = [kind(cosine(0.2, steps=50, to=0.002, warmup=10)) for kind in [*KINDS, AdamW]]
PAPERS = [rule for rule in ALL + SCHEDULED if rule not in SCHEDULED or not isinstance(rule, Ftrl)]


def spread(count: int, salt: int) -> Any:
    """Return float32 numbers in -1..1, from integer arithmetic alone."""
    bits = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(2654435761) + np.uint64(salt * 40503 * 65537)
    return ((bits % np.uint64(2**32)).astype(np.float64) / 2**31 - 1).astype(np.float32)


def trained(rule: Rule, steps: int, count: int = 300, start: Any = None) -> tuple[Any, list[Any]]:
    """Return value and state after this many steps in place."""
    value = spread(count, 0) if start is None else start.copy()
    state = [np.full(count, at, np.float32) for at in rule.starts]
    for t in range(1, steps + 1):
        rule.update(value, state, spread(count, t), value, t)
    return value, state


def numbers_of(rule: Rule) -> dict[str, Any]:
    """Return the numbers that the oracle needs; a schedule becomes a function."""
    numbers = dict(vars(rule))
    return {name: value.at if isinstance(value, Schedule) else value for name, value in numbers.items()}


@pytest.mark.parametrize("rule", PAPERS, ids=repr)
def test_a_rule_follows_its_paper_for_sixty_steps_within_three_millionths(rule: Rule) -> None:
    start = spread(300, 0) if not isinstance(rule, Ftrl) else np.zeros(300, np.float32)
    oracle = Lazy(start, (type(rule).__name__, numbers_of(rule)))
    for t in range(1, STEPS + 1):
        oracle.apply(spread(300, t).astype(np.float64), t)
    value, _ = trained(rule, STEPS, start=start)
    assert np.abs(oracle.value - start).max() > 0.1, "the value changed"
    np.testing.assert_allclose(value, oracle.value, rtol=0, atol=3e-6)


@pytest.mark.parametrize(
    ("rule", "digest"),
    [
        (SGD(0.1), "538d6e020b5d3138"),
        (SGD(0.1, l2=0.01), "5566088c03e821ac"),
        (Momentum(0.05), "80c6e1f3763fd9a3"),
        (Momentum(0.05, momentum=0.5, l2=0.01), "5d2d5a26f1611fa3"),
        (Adagrad(0.05), "8268b5ca922b5764"),
        (Adagrad(0.05, l2=0.02), "8aaa71879ae61d03"),
        (Adam(0.01), "afb73a238157f81b"),
        (Adam(0.01, l2=0.02), "0c6cdce2b4e7f27a"),
    ],
    ids=repr,
)
def test_the_bits_equal_those_of_the_first_version(rule: Rule, digest: str) -> None:
    value, state = trained(rule, STEPS, 1000)
    assert hashlib.sha256(b"".join(a.tobytes() for a in (value, *state))).hexdigest()[:16] == digest


@pytest.mark.parametrize("start", [0.0, 1.0], ids=["from zero", "from elsewhere"])
@pytest.mark.parametrize(
    "rule",
    [
        Ftrl(0.1),
        Ftrl(0.1, beta=0.5, l1=0.3),
        Ftrl(0.1, l1=0.3, l2=0.2),
        Ftrl(cosine(0.3, steps=50, to=0.05, warmup=5), l1=0.3),
    ],
    ids=repr,
)
def test_ftrl_finds_the_documented_minimum(rule: Ftrl, start: float) -> None:
    """The gradient of the documented objective, summed over its history, is zero except for l1."""
    value, state = spread(300, 0) * np.float32(start), [np.zeros(300, np.float32) for _ in range(2)]
    grads, values = [], [value.astype(np.float64)]
    for t in range(1, STEPS + 1):
        grads.append(spread(300, t).astype(np.float64) / 5)
        rule.update(value, state, grads[-1].astype(np.float32), value, t)
        values.append(value.astype(np.float64))
    roots = np.sqrt(np.cumsum([np.zeros(300), *np.square(grads)], axis=0))
    rates = np.array(
        [[numbers_of(rule)["lr"](max(t, 1)) if isinstance(rule.lr, Schedule) else rule.lr] for t in range(STEPS + 1)]
    )
    added = np.diff((rule.beta + roots) / rates + rule.l2, axis=0, prepend=0.0)
    w, centers = values[-1], np.array([values[0], *values[:-1]])
    slope = np.sum(grads, axis=0) + np.sum(added * (w - centers), axis=0)
    moved = w != 0
    np.testing.assert_allclose(slope[moved] + rule.l1 * np.sign(w[moved]), 0, atol=1e-4)
    assert np.all(np.abs(slope[~moved]) <= rule.l1 + 1e-4)
    assert moved.any()
    assert (~moved).any() == (rule.l1 > 0), "a penalty makes zeros"


@pytest.mark.parametrize("rule", ALL + SCHEDULED, ids=repr)
def test_a_step_may_be_written_in_place_or_to_another_array(rule: Rule) -> None:
    value, state = trained(rule, 3)
    other, kept, out = value.copy(), [s.copy() for s in state], np.full_like(value, np.nan)
    rule.update(other, kept, spread(300, 4), out, 4)
    np.testing.assert_array_equal(other, value, "the value stays when out is another array")
    rule.update(value, state, spread(300, 4), value, 4)
    np.testing.assert_array_equal(value, out)
    np.testing.assert_array_equal(state, kept)


@given(st.sampled_from(ALL + SCHEDULED), st.lists(st.integers(0, 300), max_size=4), st.integers(1, 5))
@settings(max_examples=60)
def test_results_do_not_depend_on_how_arrays_are_cut(rule: Rule, cuts: list[int], steps: int) -> None:
    edges = [0, *sorted(cuts), 300]
    whole, whole_state = trained(rule, steps)
    value, state = spread(300, 0), [np.full(300, start, np.float32) for start in rule.starts]
    for t in range(1, steps + 1):
        grad = spread(300, t)
        for a, b in itertools.pairwise(edges):
            rule.update(value[a:b], [s[a:b] for s in state], grad[a:b], value[a:b], t)
    np.testing.assert_array_equal(value, whole)
    np.testing.assert_array_equal(state, whole_state)


@pytest.mark.parametrize("rule", ALL + SCHEDULED, ids=repr)
def test_rows_give_the_same_results_as_their_elements(rule: Rule) -> None:
    flat, _ = trained(rule, 2, 12)
    value, state = spread(12, 0).reshape(4, 3), [np.full((4, 3), start, np.float32) for start in rule.starts]
    for t in (1, 2):
        rule.update(value, state, spread(12, t).reshape(4, 3), value, t)
    np.testing.assert_array_equal(value.ravel(), flat)


def test_initial_zero_gradients_give_no_nan() -> None:
    for rule in ALL:
        value, state = spread(9, 0), [np.full(9, start, np.float32) for start in rule.starts]
        with np.errstate(all="raise"):
            rule.update(value, state, np.zeros(9, np.float32), value, 1)
        assert np.isfinite(value).all(), rule


def test_a_rate_of_zero_changes_nothing_and_gives_no_nan() -> None:
    for rule in [kind(cosine(0.1, steps=3), l1=0.01) for kind in KINDS] + [AdamW(cosine(0.1, steps=3))]:
        value, state = trained(rule, 3)
        kept = value.copy()
        for t in range(4, 7):
            rule.update(value, state, spread(300, t), value, t)
        np.testing.assert_array_equal(value, kept)
        assert np.isfinite(state).all()


@pytest.mark.parametrize("l1", [0.0, 0.3])
def test_ftrl_does_not_move_without_a_gradient(l1: float) -> None:
    rule = Ftrl(0.3, l1=l1)
    value, state = trained(rule, 30)
    kept = value.copy()
    for t in range(31, 1_031):
        rule.update(value, state, np.zeros(300, np.float32), value, t)
    np.testing.assert_allclose(value, kept, rtol=0, atol=2e-7 if l1 else 0)
    np.testing.assert_array_equal(value == 0, kept == 0)


rates = st.floats(1e-6, 10)
schedules = st.one_of(
    st.builds(cosine, rates, steps=st.integers(51, 10**6), to=st.floats(0, 1), warmup=st.integers(0, 50)),
    st.builds(step_decay, rates, every=st.integers(1, 10**6), factor=st.floats(1e-3, 1), warmup=st.integers(0, 50)),
    st.builds(constant_rate, rates, warmup=st.integers(0, 50)),
)
shares, weights = st.floats(0, 0.999), st.floats(0, 10)
penalties = {"l1": weights, "l2": weights}
rules = st.one_of(
    st.builds(SGD, rates | schedules, **penalties),
    st.builds(Momentum, rates | schedules, shares, nesterov=st.booleans(), **penalties),
    st.builds(Adagrad, rates | schedules, eps=rates, start=weights, **penalties),
    st.builds(RMSProp, rates | schedules, shares, eps=rates, **penalties),
    st.builds(Adam, rates | schedules, shares, shares, eps=rates, **penalties),
    st.builds(AdamW, rates | schedules, shares, shares, eps=rates, weight_decay=weights),
    st.builds(Ftrl, rates | schedules, beta=rates, **penalties),
)


@given(rules)
@settings(max_examples=100)
def test_a_rule_survives_json(rule: Rule) -> None:
    back = rule_from_json(json.loads(json.dumps(rule.to_json())))
    assert back == rule
    assert type(back) is type(rule)
    assert hash(back) == hash(rule)


def test_rules_are_equal_by_their_numbers_and_cannot_be_changed() -> None:
    rule = Momentum(0.1, 0.5, l2=0.25)
    assert rule == Momentum(0.1, 0.5, l2=0.25)
    assert len({rule, Momentum(0.1, 0.5, l2=0.25), Momentum(0.1, 0.5), SGD(0.1), Adagrad(0.1)}) == 4
    assert repr(rule) == "Momentum(lr=0.1, momentum=0.5, l1=0.0, l2=0.25, nesterov=False)"
    with pytest.raises(AttributeError, match="Momentum cannot be changed"):
        rule.lr = 0.2


def test_rules_of_older_files_still_load() -> None:
    assert rule_from_json({"rule": "SGD", "lr": 0.1, "l2": 0.0}) == SGD(0.1)
    assert rule_from_json({"rule": "Momentum", "lr": 0.1, "l2": 0.5, "momentum": 0.8}) == Momentum(0.1, 0.8, l2=0.5)
    assert rule_from_json({"rule": "Adagrad", "lr": 0.1, "l2": 0.0, "eps": 1e-9}) == Adagrad(0.1, eps=1e-9)
    adam = {"rule": "Adam", "lr": 0.1, "l2": 0.0, "beta1": 0.8, "beta2": 0.9, "eps": 1e-8}
    assert rule_from_json(adam) == Adam(0.1, 0.8, 0.9)


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"rule": "SGD"},
        {"rule": "Best", "lr": 0.1},
        {"rule": ["SGD"], "lr": 0.1},
        {"rule": "SGD", "lr": 0.1, "speed": 1},
        {"rule": "SGD", "lr": None},
        {"rule": "SGD", "lr": True},
        {"rule": "SGD", "lr": {"kind": "cosine"}},
        {"rule": "SGD", "lr": {"kind": [], "rate": 0.1}},
        {"rule": "SGD", "lr": 0.1, "l2": {"kind": "constant_rate", "rate": 0.1}},
        {"rule": "Momentum", "lr": 0.1, "nesterov": 1},
    ],
)
def test_other_json_is_refused(data: Any) -> None:
    with pytest.raises(UseError):
        rule_from_json(data)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGD(1e-60), r"SGD\(lr=1e-60\) must be positive"),
        (lambda: SGD(1e39), "not a finite number"),
        (lambda: SGD(True), "not a finite number"),
        (lambda: SGD(0.1, l1=-1), r"SGD\(l1=-1\) must be positive"),
        (lambda: Adagrad(0.1, eps=0), r"eps=0\) must be positive"),
        (lambda: Momentum(0.1, nesterov=1), "neither True nor False"),  # type: ignore[arg-type]
        (lambda: RMSProp(0.1, 1.0), r"RMSProp\(decay=1.0\) must be below 1"),
        (lambda: Adam(beta2=1), r"Adam\(beta2=1\) must be below 1"),
        (lambda: AdamW(weight_decay=-0.1), r"AdamW\(weight_decay=-0.1\) must be positive"),
        (lambda: Adagrad(0.1, start=-1), r"Adagrad\(start=-1\) must be positive"),
        (lambda: Ftrl(0.1, beta=0), r"Ftrl\(beta=0\) must be positive"),
    ],
)
def test_numbers_that_cannot_work_are_named(make: Any, message: str) -> None:
    with pytest.raises(UseError, match=message):
        make()


RATES = [0.3, 0.0, 0.01, 0.2]


@pytest.mark.parametrize("kind", [*KINDS, AdamW], ids=lambda kind: repr(kind()))
def test_a_given_rate_replaces_that_of_the_rule_for_one_step(kind: Any) -> None:
    rule, other = kind(), kind(step_decay(0.7, every=1, factor=0.5))
    one, two = (trained(each, 0) for each in (rule, rule))
    for t, rate in enumerate(RATES, 1):
        rule.update(one[0], one[1], spread(300, t), one[0], t, rate)
        other.update(two[0], two[1], spread(300, t), two[0], t, rate)
        np.testing.assert_array_equal(one[0], two[0])
        np.testing.assert_array_equal(one[1], two[1])
    before = one[0].copy()
    rule.update(one[0], one[1], spread(300, 9), one[0], 9)
    other.update(two[0], two[1], spread(300, 9), two[0], 9, rule.lr)
    np.testing.assert_array_equal(one[0], two[0], "without a rate the rule's own counts")
    assert (one[0] != before).any()


def test_every_rule_is_tested_here() -> None:
    assert {type(rule).__name__ for rule in ALL} == set(RULES)


def test_an_adagrad_that_starts_at_zero_is_written_without_its_start() -> None:
    assert "start" not in Adagrad(0.1).to_json()
    assert rule_from_json(Adagrad(0.1, start=0.5).to_json()) == Adagrad(0.1, start=0.5)
    assert rule_from_json(Adagrad(0.1).to_json()) == Adagrad(0.1)
