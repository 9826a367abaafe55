"""Curves: neither the events of a hostile program nor a hostile node's answer lead to anything but finite numbers."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.agent.node.curves import NAME_CHARS, ProcessCurves
from clusterctl.cluster import answers
from clusterctl.common.curves import Buckets, Curve
from clusterctl.common.requests import MOST_BUCKETS, Name, Role
from clusterctl.common.safe_json import parse
from clusterctl.common.schema import fits
from contract.security.liars import EVIL
from contract.security.test_hostile_answers import JUNK, changed

SINGLE = [1.7e9, 1.7e9, None, None, 1, 1.0, 0.5, 0.5, 0.5, 0.5, 0]
BUCKETS = [[1.7e9, 1.7e9 + 5, 3, 9, 4, 2.5, -0.5, 1.5, 0.5, 0.25, 1], SINGLE, [*SINGLE[:4], 0, 0, *[None] * 4, 1]]
CURVE = {"role": "trainer", "rank": 1, "of": "step", "name": "loss", "undone": False, "buckets": BUCKETS}
USAGE = {**CURVE, "of": "usage", "name": "memory", "undone": True, "buckets": [SINGLE]}
MORE_JUNK = [True, math.nan, -math.inf, "x" * (NAME_CHARS + 1), [SINGLE] * (MOST_BUCKETS + 1), 10**400]

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
FACTS = ("attempt", "step", "t", "loss", "samples", "wait", "apply_s", "staleness", "tables", "values", "weight")
EVENTS = st.fixed_dictionaries(
    {"event": st.sampled_from(["spawned", "step", "log", "usage"])},
    optional={
        **dict.fromkeys((*FACTS, "cpu", "memory"), ANYTHING),
        "t": st.floats(1.7e9, 1.8e9) | ANYTHING,
        "step": st.integers(0, 50) | ANYTHING,
        "staleness": st.lists(st.lists(st.integers(-1, 9), max_size=3), max_size=3) | ANYTHING,
        "tables": st.lists(st.fixed_dictionaries({"name": st.text() | ANYTHING, "rows": ANYTHING}), max_size=3),
        "values": st.dictionaries(st.text(), ANYTHING, max_size=4) | ANYTHING,
    },
)


def assert_sound(curves: list[Curve]) -> None:
    assert json.dumps([curve.to_json() for curve in curves], allow_nan=False)
    for curve in curves:
        assert fits(Role, curve.role)
        assert curve.of in ("step", "log", "usage", "table")
        assert isinstance(curve.undone, bool)
        assert len(curve.name) <= NAME_CHARS
        assert len(curve.buckets) <= MOST_BUCKETS
        for t0, t1, step0, step1, count, weight, low, high, mean, last, gaps in curve.buckets:
            assert 0 <= t0 <= t1
            assert all(step is None or step >= 0 for step in (step0, step1))
            assert min(count, weight, gaps) >= 0
            assert all((figure is None) == (count == 0) for figure in (low, high, mean, last))


def test_a_malformed_curve_of_a_node_is_refused() -> None:
    message = {"curves": [CURVE, USAGE]}
    assert [curve.to_json() for curve in answers.curves(message)] == [CURVE, USAGE]
    assert answers.curves({"curves": []}) == []
    refused = 0
    for junk in (*JUNK, *MORE_JUNK):
        for wrong in changed(message, junk):
            try:
                curves = answers.curves(wrong)
            except ValueError:
                refused += 1
            else:
                assert_sound(curves)
    assert refused > 500
    for bucket in (
        [2.0, 1.0, *SINGLE[2:]],
        SINGLE[:10],
        [*SINGLE[:5], -1.0, *SINGLE[6:]],
        [*SINGLE[:4], 0, *SINGLE[5:]],
    ):
        with pytest.raises(ValueError, match=r"bucket|array"):
            answers.curves({"curves": [{**CURVE, "buckets": [bucket]}]})


@pytest.mark.slow
@given(st.lists(EVENTS, max_size=30), st.integers(1, 5))
@settings(max_examples=400)
def test_whatever_events_a_program_writes_its_curves_are_sound(events: list[dict[str, Any]], most: int) -> None:
    process = ProcessCurves()
    for event in (*events, {"event": "step", "t": 1.7e9, "attempt": 1, "step": 2**63 - 1, "loss": 1e308}):
        process.add(event)
    curves = [{"role": "trainer", "rank": 0, **curve} for curve in process.curves(most)]
    line = json.dumps({"curves": curves}, allow_nan=False).encode()
    received = answers.curves(parse(line))
    assert [curve.to_json() for curve in received] == json.loads(line)["curves"]
    assert_sound(received)
    assert all(len(curve.buckets) <= most for curve in received)


def test_names_of_metrics_reach_the_control_machine_as_they_are_but_no_longer_than_the_limit() -> None:
    """They are escaped where they are shown."""
    process = ProcessCurves()
    process.add({"event": "log", "t": 1.7e9, "values": {EVIL: 1, EVIL * 100: 2}})
    names = [curve["name"] for curve in process.curves(10)]
    assert names == [EVIL, (EVIL * 100)[:NAME_CHARS]]
    assert fits(Name, "x" * NAME_CHARS)
    assert fits(Buckets, [SINGLE] * MOST_BUCKETS)
