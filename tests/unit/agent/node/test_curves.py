"""Curves of one process: every point is in one bucket, whose figures equal those of a plain computation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.agent.node.curves import ProcessCurves
from clusterctl.common.curves import Bucket

T = 1.7e9


def event(kind: str, t: float, attempt: int = 1, **facts: Any) -> dict[str, Any]:
    return {"v": 1, "t": T + t, "node": 0, "event": kind, "role": "trainer", "rank": 0, "attempt": attempt, **facts}


def reduced(events: Sequence[dict[str, Any]], most: int = 100) -> dict[Any, list[Any]]:
    """Return buckets by (of, name), those of points that were undone by (of, name, "undone")."""
    process = ProcessCurves()
    for one in events:
        process.add(one)
    curves = list(process.curves(most))
    keys = [(curve["of"], curve["name"], *["undone"] * curve["undone"]) for curve in curves]
    assert len(set(keys)) == len(keys)
    return {key: curve["buckets"] for key, curve in zip(keys, curves, strict=True)}


def single(t: float, step: int | None, value: float, weight: float = 1.0) -> Bucket:
    """Return the bucket of one point."""
    return Bucket(T + t, T + t, step, step, 1, weight, value, value, value, value, 0)


def test_the_figures_of_a_trainer_are_curves_and_a_loss_is_weighted_by_samples() -> None:
    shares = {"compute": 0.5, "wait": 0.25, "wire": 0.25}
    events = [
        event("spawned", 0, pid=7),
        event("step", 1, step=3, samples=32, samples_per_s=31.5, loss=0.75, **shares),
        event("step", 2, step=5, samples=16, samples_per_s=16.5, **shares),
        event("usage", 3, cpu=0.5, memory=4096),
        event("log", 4, step=5, values={"auc": 0.5, "error": 1}, weight=2.0),
        event("log", 4, level="warning", message="no values"),
        event("pass", 5, step=5, **shares),
    ]
    curves = reduced(events)
    assert list(curves) == [
        *(("step", name) for name in ("loss", "samples_per_s", "compute", "wait", "wire")),
        *(("usage", name) for name in ("cpu", "memory")),
        *(("log", name) for name in ("auc", "error")),
    ]
    assert curves["step", "loss"] == [single(1, 3, 0.75, 32.0)]
    assert curves["step", "samples_per_s"] == [single(1, 3, 31.5), single(2, 5, 16.5)]
    assert curves["usage", "cpu"] == [single(3, None, 0.5)]
    assert curves["usage", "memory"] == [single(3, None, 4096)]
    assert curves["log", "auc"] == [single(4, 5, 0.5, 2.0)]
    assert curves["log", "error"] == [single(4, 5, 1, 2.0)]


def test_the_figures_of_a_pserver_are_curves_with_the_staleness_since_the_event_before() -> None:
    def step(t: float, attempt: int, staleness: list[list[int]], rows: int) -> dict[str, Any]:
        tables = [{"name": "word", "rows": rows, "bytes": 9}, {"name": "user", "rows": 2 * rows, "bytes": 9}]
        return event("step", t, attempt, apply_s=0.5, send_s=0.25, staleness=staleness, tables=tables, lost=0)

    curves = reduced(
        [
            step(1, 1, [], 10),
            step(2, 1, [[0, 3], [2, 1]], 20),
            step(3, 1, [[0, 3], [2, 1]], 30),
            step(4, 1, [[0, 4], [2, 1], [5, 1]], 40),
            event("spawned", 5, 2),
            step(6, 2, [[1, 4]], 5),
        ]
    )
    assert curves["step", "staleness"] == [
        single(2, None, 0.5, 4.0),
        single(4, None, 2.5, 2.0),
        single(6, None, 1.0, 4.0),
    ]
    assert [bucket[9] for bucket in curves["table", "word"]] == [10, 20, 30, 40, 5]
    assert [bucket[9] for bucket in curves["table", "user"]] == [20, 40, 60, 80, 10]
    assert [bucket[9] for bucket in curves["step", "apply_s"]] == [0.5] * 5
    assert len(curves["step", "send_s"]) == 5


def test_points_are_in_order_of_time_even_if_the_clock_was_set_back() -> None:
    events = [event("step", t, step=step, loss=float(t)) for step, t in enumerate((5, 6, 1, 2, 3, 5))]
    assert [bucket[9] for bucket in reduced(events)["step", "loss"]] == [1, 2, 3, 5, 5, 6]
    assert [bucket[2] for bucket in reduced(events)["step", "loss"]] == [2, 3, 4, 0, 5, 1]
    (bucket,) = reduced(events, 1)["step", "loss"]
    assert bucket == (T + 1, T + 6, 0, 5, 6, 6.0, 1.0, 6.0, pytest.approx(22 / 6), 6.0, 0)


class Point(NamedTuple):
    t: float
    step: int | None
    value: float
    weight: float


POINTS = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.sampled_from(["step", "log"]),
        st.integers(0, 1000).map(lambda n: n / 8),
        st.none() | st.integers(0, 30),
        st.floats() | st.integers(-(2**63), 2**63 - 1),
        st.just(0.0) | st.floats(1e-3, 1000),
    ),
    min_size=1,
    max_size=60,
)


def is_undone(of: str, attempt: int, step: int | None, made: list[tuple[int, str, int | None]]) -> bool:
    """Return True if a later attempt made the step again; a `log` event shows that only for what is logged."""
    kinds = ("step",) if of == "step" else ("step", "log")
    return step is not None and any(a > attempt and k in kinds and s is not None and s <= step for a, k, s in made)


@given(POINTS, st.integers(1, 20))
@settings(max_examples=50)
def test_buckets_hold_every_point_once_with_the_figures_of_a_plain_computation(rows: Any, most: int) -> None:
    rows = sorted(rows, key=lambda row: row[0])
    made = [(attempt, kind, step) for attempt, kind, _, step, _, _ in rows]
    events = [
        event(kind, t, attempt, step=step, loss=value, values={"loss": value}, samples=weight, weight=weight)
        for attempt, kind, t, step, value, weight in rows
    ]
    curves = reduced(events, most)
    expected: dict[Any, list[Point]] = {}
    for attempt, kind, t, step, value, weight in rows:
        key = (kind, "loss", *["undone"] * is_undone(kind, attempt, step, made))
        expected.setdefault(key, []).append(Point(T + t, step, float(value), weight))
    assert set(curves) == set(expected)
    for key, points in expected.items():
        assert_covers(curves[key], sorted(points, key=lambda point: point.t), most)


def assert_covers(buckets: list[Any], points: list[Point], most: int) -> None:
    assert sum(bucket[4] + bucket[10] for bucket in buckets) == len(points)
    assert len(buckets) == len(points) if len(points) <= most else len(buckets) <= most
    width, at = (points[-1].t - points[0].t) / most, 0
    for bucket in buckets:
        held = points[at : at + bucket[4] + bucket[10]]
        at += len(held)
        assert_figures(bucket, held)
        if len(points) > most:
            first, last = ((t - points[0].t) / width if width else 0 for t in bucket[:2])
            assert int(first + 1e-6) == int(min(last, most - 0.5) - 1e-6) or first == last, "one of the equal intervals"


def assert_figures(bucket: list[Any], held: list[Point]) -> None:
    finite = [point for point in held if math.isfinite(point.value)]
    values, weights = [point.value for point in finite], [point.weight for point in finite]
    steps = [point.step for point in held if point.step is not None]
    assert bucket[:5] == (held[0].t, held[-1].t, min(steps, default=None), max(steps, default=None), len(finite))
    assert bucket[5] == pytest.approx(sum(weights))
    if not finite:
        assert bucket[6:10] == (None,) * 4
        return
    assert [bucket[6], bucket[7], bucket[9]] == [min(values), max(values), values[-1]]
    shares = [weight / sum(weights) if sum(weights) else 1 / len(values) for weight in weights]
    mean = math.fsum(value / 4 * share for value, share in zip(values, shares, strict=True))
    assert bucket[8] / 4 == pytest.approx(mean, rel=1e-9, abs=max(map(abs, values)) * 1e-9 + 1e-300)
    assert bucket[6] <= bucket[8] <= bucket[7]
