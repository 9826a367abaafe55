"""The metrics of a process: the last, the lowest and the highest value of each, of a bounded number."""

from __future__ import annotations

import math

from clusterctl.agent.supervisor.child_messages import MOST_METRICS, MOST_NAME, Metrics, add_values


def test_the_last_the_lowest_and_the_highest_value_of_each_metric_are_kept() -> None:
    metrics: Metrics = {}
    for values in ({"acc": 0.5, "loss": 2}, {"acc": 0.75}, {"acc": 0.25, "loss": 1}, {"acc": 0.5}):
        add_values(metrics, values)
    assert metrics == {"acc": [0.5, 0.25, 0.75], "loss": [1.0, 1.0, 2.0]}


def test_values_that_are_not_finite_are_never_the_lowest_or_the_highest() -> None:
    metrics: Metrics = {}
    add_values(metrics, {"acc": math.nan})
    assert math.isnan(metrics["acc"][0] or 0)
    assert metrics["acc"][1:] == [None, None]
    add_values(metrics, {"acc": 0.5})
    add_values(metrics, {"acc": math.inf, "huge": 10**400})
    assert metrics == {"acc": [math.inf, 0.5, 0.5]}


def test_only_so_many_metrics_are_kept_and_none_with_an_endless_name() -> None:
    metrics: Metrics = {}
    add_values(metrics, {f"m{number}": 1.0 for number in range(MOST_METRICS + 5)})
    add_values(metrics, {"late": 1.0, "m0": 3.0})
    assert len(metrics) == MOST_METRICS
    assert metrics["m0"] == [3.0, 1.0, 3.0]
    long: Metrics = {}
    add_values(long, {"x" * (MOST_NAME + 1): 1.0})
    assert long == {}
