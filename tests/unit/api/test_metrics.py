"""The columns of a run's figures."""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from clusterctl.api.metrics import COLUMNS, Metrics
from clusterctl.errors import UsageError
from clusterctl.observe.record.points import Point


def point(rank: int, step: int | None, value: float, weight: float = 1.0, **more: Any) -> Point:
    t = 100.0 + (step or 0) + rank / 10
    row = {"t": t, "node": rank, "role": "trainer", "rank": rank, "attempt": 1, "of": "step", "name": "loss"}
    return Point(**{**row, "step": step, "pass_": 0, "value": value, "weight": weight, **more})


POINTS = [
    point(0, 2, 4.0),
    point(0, 1, 8.0, 3.0),
    point(1, 1, 4.0, 1.0),
    point(1, 2, 6.0, 3.0),
    point(1, 2, 99.0, undone=True),
    point(0, None, 0.5, of="log", name="auc"),
    point(0, 2, 1.5, of="usage", name="cpu", role="pserver"),
]


def test_columns_have_one_row_for_each_point_in_order_of_time() -> None:
    metrics = Metrics.of(POINTS)
    assert tuple(metrics) == COLUMNS
    assert len(metrics) == len(POINTS)
    assert {metrics[name].shape for name in COLUMNS} == {(len(POINTS),)}
    assert list(metrics["t"]) == sorted(metrics["t"])
    assert metrics.names == ("auc", "cpu", "loss")
    assert metrics["step"].dtype == np.int64
    assert list(metrics.select("auc")["step"]) == [-1]
    assert repr(metrics) == "<Metrics: 7 points of auc, cpu, loss>"


def test_points_are_selected_by_what_they_are_of() -> None:
    metrics = Metrics.of(POINTS)
    assert list(metrics.select("loss", rank=1)["value"]) == [4.0, 6.0]
    assert list(metrics.select(undone=True)["value"]) == [99.0]
    assert len(metrics.select("loss", undone=None)) == 5
    assert len(metrics.select(of="usage", role="trainer")) == 0


def test_a_curve_is_the_mean_over_trainers_by_weight() -> None:
    steps, values = Metrics.of(POINTS).curve("loss")
    assert steps.tolist() == [1, 2]
    assert values.tolist() == [7.0, 5.5]
    assert Metrics.of(POINTS).last("loss") == 5.5
    assert Metrics.of(POINTS).last("auc") == 0.5


def test_figures_that_are_missing_or_not_finite_break_nothing() -> None:
    empty = Metrics.of([])
    assert len(empty) == 0
    assert [part.size for part in empty.curve("loss")] == [0, 0]
    assert math.isnan(empty.last("loss"))
    strange = Metrics.of([point(0, 1 << 70, math.nan, 0.0), point(0, 1, math.inf)])
    assert strange["step"].tolist() == [1, (1 << 63) - 1]
    assert math.isinf(strange.curve("loss")[1][0])
    assert math.isnan(strange.last("loss"))


def test_without_pandas_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    missing: Any = None
    monkeypatch.setitem(sys.modules, "pandas", missing)
    with pytest.raises(UsageError, match="to_pandas needs pandas") as raised:
        Metrics.of(POINTS).to_pandas()
    assert raised.value.hint == "pip install pandas"


def test_a_frame_has_the_columns_and_a_missing_step_where_none_is_known() -> None:
    pandas: ModuleType = pytest.importorskip("pandas", reason="make engines installs it")
    frame = Metrics.of(POINTS).to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == list(COLUMNS)
    assert frame[frame.name == "auc"].step.isna().all()
    assert frame[frame.name == "loss"].step.tolist() == [1, 1, 2, 2, 2]
