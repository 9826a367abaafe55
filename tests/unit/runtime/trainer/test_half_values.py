"""WIRE float16: values, rows and changes that become infinite on the way are reported, and what ON_NAN says applies."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import SGD, constant, from_rank0
from clusterctl.runtime.errors import NotFiniteError
from clusterctl.runtime.trainer.session import Session
from unit.runtime.cluster import thread_cluster

LARGEST = 65_504.0
STEPS = 5
TOO_LARGE = "a float16 value of table '{}' received by trainer 0 is not finite"


def grows(table: str, gradient: float = -20_000.0, begins: float = 0.0) -> Callable[[Session], list[float]]:
    """Add 20,000 to a value in each step; return it as each step began."""

    def run(ps: Session) -> list[float]:
        d = ps.dense("d", 4, SGD(1.0), init=constant(begins))
        e = ps.embedding("e", 2, SGD(1.0), init=constant(begins))
        seen = []
        for _ in ps.steps(lambda pass_, rng: range(STEPS), passes=1):
            seen.append(float(d.value[0] if table == "d" else e.pull([1])[0, 0]))
            row, flat = np.full((1, 2), gradient, np.float32), np.full(4, gradient, np.float32)
            ps.push({d: flat} if table == "d" else {e: ([1], row)}, samples=1, loss=1.0)
        return seen

    return run


@pytest.mark.parametrize(("table", "mode"), [("d", "sync"), ("e", "async"), ("d", "geo(1)")])
def test_fail_raises_an_error_that_names_the_table(tmp_path: Path, table: str, mode: str) -> None:
    with (
        thread_cluster(tmp_path, 2, 1, mode=mode, on_nan="fail", wire="float16") as cluster,
        pytest.raises(NotFiniteError, match=rf"{re.escape(TOO_LARGE.format(table))} .* use WIRE = \"float32\""),
    ):
        cluster.train(grows(table))


@pytest.mark.parametrize("table", ["d", "e"])
def test_warn_reports_it_and_training_continues(tmp_path: Path, table: str, capsys: pytest.CaptureFixture[str]) -> None:
    with thread_cluster(tmp_path, 1, 1, on_nan="warn", wire="float16") as cluster:
        cluster.train(grows(table))
    assert capsys.readouterr().out.count(f"warning: {TOO_LARGE.format(table)}") == 1


@pytest.mark.parametrize("table", ["d", "e"])
def test_skip_skips_the_batches_that_have_such_values(
    tmp_path: Path, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with thread_cluster(tmp_path, 1, 1, on_nan="skip", wire="float16") as cluster:
        ((*_, last),) = cluster.train(grows(table))
        saved = max(abs(float(v)) for core in cluster.cores for one in core.tables.values() for v in values(one))
    assert np.isinf(last)
    assert saved == 80_000.0
    assert "1 batches skipped" in capsys.readouterr().out


def values(table: Any) -> Any:
    return table.current if hasattr(table, "current") else table.pull(np.array([1]), None).ravel()


def test_values_that_just_fit_are_not_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with thread_cluster(tmp_path, 1, 1, on_nan="fail", wire="float16") as cluster:
        assert cluster.train(grows("d", gradient=0.0, begins=LARGEST)) == [[LARGEST] * STEPS]
    assert "warning" not in capsys.readouterr().out


@pytest.mark.parametrize("init", [constant(70_000.0), from_rank0(np.full(4, 70_000.0, np.float32))])
def test_initial_values_are_checked_too(tmp_path: Path, init: Any) -> None:
    with (
        thread_cluster(tmp_path, 1, 1, on_nan="fail", wire="float16") as cluster,
        pytest.raises(NotFiniteError, match=re.escape(TOO_LARGE.format("d"))),
    ):
        cluster.train(lambda ps: ps.dense("d", 4, SGD(1.0), init=init))


@pytest.mark.parametrize("table", ["d", "e"])
def test_a_change_in_geo_mode_that_is_too_large_is_never_applied(tmp_path: Path, table: str) -> None:
    """Each gradient fits, and the change of five steps does not: it would make the pservers' values infinite."""
    with thread_cluster(tmp_path, 1, 1, mode="geo(5)", on_nan="skip", wire="float16") as cluster:
        cluster.train(grows(table))
        saved = [float(v) for core in cluster.cores for one in core.tables.values() for v in values(one)]
    assert set(saved) == {0.0}
    with (
        thread_cluster(tmp_path / "2", 1, 1, mode="geo(5)", on_nan="fail", wire="float16") as cluster,
        pytest.raises(NotFiniteError, match=rf"the change of table '{table}' of trainer 0 is not finite"),
    ):
        cluster.train(grows(table))


def test_without_float16_large_values_are_no_matter(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 1, 1, on_nan="fail") as cluster:
        assert cluster.train(grows("d"))[0][-1] == 80_000.0
