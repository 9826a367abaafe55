"""Wrong clocks are named, and compared before the network is blamed."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from clusterctl.observe.why.clocks import clock_offset, wrong_clock
from clusterctl.observe.why.node_report import NodeReport
from unit.observe.histories import History, traceback

YEAR_S = 365.25 * 86_400


def test_clocks_are_compared_by_the_fastest_answer_with_half_its_round_trip() -> None:
    assert clock_offset([(100.0, 3700.5, 101.0), (102.0, 3702.05, 102.1)]) == pytest.approx((-3600.0, 0.05))


@pytest.mark.parametrize(
    ("ahead_s", "node", "fact"),
    [
        ({}, 0, None),
        ({1: 1.5}, 1, None),
        ({1: -3 * YEAR_S}, 1, "the clock of node1 is 3.0 years behind"),
        ({1: -3 * YEAR_S}, 0, None),
        ({1: 90.0}, 1, "the clock of node1 is 90 s ahead"),
        ({0: 5400.0}, 0, "the clock of node0 is 90 minutes ahead"),
        (dict.fromkeys(range(4), -2 * YEAR_S), 2, "the clock of this machine is 2.0 years ahead"),
        ({**dict.fromkeys(range(3), -2 * YEAR_S), 3: 0.0}, 3, "the clock of node3 is 2.0 years ahead"),
    ],
)
def test_the_clock_that_differs_from_most_is_wrong(ahead_s: Mapping[int, float], node: int, fact: str | None) -> None:
    reports = [NodeReport(number, -ahead_s.get(number, 0.0), 0.001, {}) for number in range(4)]
    assert wrong_clock(reports[node], reports) == fact


def test_a_wrong_clock_is_noted_with_the_cause() -> None:
    history = History(skew_s={2: 7200.0})
    explanation = history.fail(3.0, history.exit(2.9, "trainer2", 1, traceback("ValueError: x"))).explain()
    assert "the clock of node2 is 2.0 hours ahead" in explanation.notes


def test_clocks_are_compared_before_the_network_is_blamed() -> None:
    for skew_s, words in ({}, "each other"), ({3: -3 * YEAR_S}, "their clocks differ by 3.0 years"):
        history = History(skew_s=skew_s)
        history.lost_lead(20.0, 3, silent_s=10.0)
        cause = history.lost(20.1, 3, silent_s=10.0)
        explanation = history.fail(20.2, cause, silent=[3]).explain()
        assert explanation.cause is not None
        diagnosis = explanation.cause.diagnosis
        assert diagnosis.kind == "partition"
        assert diagnosis.words.endswith(words)
        assert diagnosis.advice.startswith("set the clocks first") == bool(skew_s)
