"""All points of a run, from the events of its nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterctl.observe.record.points import NodePoints, Point
from unit.export.made_up import EVIL, SECRET, T, event, node_points

JUNK: list[Any] = [None, True, -1, 10**30, EVIL, {}, [[1, 2, 3]], [{"name": 1}]]


def of(points: NodePoints, name: str) -> list[Point]:
    return [point for point in points if point.name == name]


def test_every_kind_of_event_becomes_points_on_our_clock(tmp_path: Path) -> None:
    points = node_points(
        tmp_path / "p",
        event("step", 1, step=5, **{"pass": 2}, loss=0.5, samples_per_s=9.0, samples=32),
        event("log", 2, step=5, **{"pass": 2}, values={"auc": 0.25}, weight=3),
        event("usage", 3, cpu=0.5, memory=1000),
        event("pass", 4, step=6, **{"pass": 2}, seconds=1.5, line="pass 2"),
        event("step", 5, role="pserver", tables=[{"name": "word", "rows": 7, "bytes": 70}], lost=1),
        offset_s=10.0,
    )
    about = (T + 11, 0, "trainer", 0, 1)
    assert next(iter(points)) == Point(*about, "step", "loss", 5, 2, 0.5, weight=32.0)
    assert [(one.process, one.of, one.name, one.step, one.pass_, one.value, one.weight) for one in points][1:] == [
        ("trainer0", "step", "samples_per_s", 5, 2, 9.0, 1.0),
        ("trainer0", "log", "auc", 5, 2, 0.25, 3.0),
        ("trainer0", "usage", "cpu", None, None, 0.5, 1.0),
        ("trainer0", "usage", "memory", None, None, 1000, 1.0),
        ("trainer0", "pass", "seconds", 6, 2, 1.5, 1.0),
        ("pserver0", "step", "lost", None, None, 1, 1.0),
        ("pserver0", "table", "word.rows", None, None, 7, 1.0),
        ("pserver0", "table", "word.bytes", None, None, 70, 1.0),
    ]
    assert list(points) == list(points), "they can be read again"


def test_what_a_later_attempt_repeated_is_undone(tmp_path: Path) -> None:
    steps = [(1, 10), (1, 20), (1, 30), (2, 21), (2, 30), (3, 25)]
    events = [event("step", t, attempt=attempt, step=step, loss=1.0) for t, (attempt, step) in enumerate(steps)]
    logs = [event("log", 9, attempt=1, step=step, values={"auc": 1.0}) for step in (19, 20, 21)]
    logs.append(event("log", 10, attempt=2, step=20, values={"auc": 1.0}))
    usage = event("usage", 9, attempt=1, cpu=1.0)
    points = node_points(tmp_path / "p", *events, *logs, usage)
    assert [(one.attempt, one.step) for one in of(points, "loss") if one.undone] == [(1, 30), (2, 30)]
    assert [(one.attempt, one.step) for one in of(points, "auc") if one.undone] == [(1, 20), (1, 21)]
    assert not any(one.undone for one in of(points, "cpu"))


def test_a_roll_back_undoes_steps_even_if_no_later_report_is_of_one_of_them(tmp_path: Path) -> None:
    """Processes report once a second: the first report after a roll back may be of a later step."""
    steps = [(1, 1, 20), (2, 1, 31), (3, 1, 38), (9, 2, 50)]
    events = [event("step", t, attempt=attempt, step=step, loss=1.0) for t, attempt, step in steps]
    points = node_points(tmp_path / "p", *events, event("usage", 1, cpu=1.0), offset_s=100.0, rollbacks=[(T + 104, 30)])
    assert [one.step for one in of(points, "loss") if one.undone] == [31, 38]
    assert not of(points, "cpu")[0].undone


def test_staleness_is_the_mean_of_the_pushes_since_the_event_before(tmp_path: Path) -> None:
    counts = [[[0, 2], [1, 2]], [[0, 2], [1, 2]], [[0, 2], [1, 4], [4, 1]]]
    points = node_points(
        tmp_path / "p", *(event("step", t, role="pserver", staleness=one) for t, one in enumerate(counts))
    )
    assert [(one.value, one.weight) for one in of(points, "staleness")] == [(0.5, 4.0), (2.0, 3.0)]


def test_a_value_of_env_in_the_name_of_a_metric_is_hidden(tmp_path: Path) -> None:
    (point,) = node_points(tmp_path / "p", event("log", 1, step=1, values={f"of {SECRET}": 1.0}))
    assert point.name == "of $API"


def test_a_node_has_no_say_about_processes_of_others(tmp_path: Path) -> None:
    assert list(node_points(tmp_path / "p", event("step", 1, rank=1, step=1, loss=1.0))) == []


@pytest.mark.parametrize("junk", JUNK, ids=range(len(JUNK)))
def test_malformed_fields_are_skipped(tmp_path: Path, junk: Any) -> None:
    good = [
        event("step", 1, step=5, loss=0.5, staleness=[[0, 1]], tables=[{"name": "w", "rows": 1}], samples=2),
        event("log", 2, step=5, values={"auc": 0.5}, weight=1.0),
        event("usage", 3, cpu=0.5, memory=1),
    ]
    for one in good:
        for field in set(one) - {"event", "t", "node"}:
            points = list(node_points(tmp_path / "p", {**one, field: junk}, event("usage", 9, cpu=0.25)))
            assert points[-1].value == 0.25, (field, junk)
            assert all(isinstance(point.value, int | float) for point in points)
