"""CSV files of a run: they round-trip, and hostile text stays in its cell."""

from __future__ import annotations

import csv
import datetime
import math
from pathlib import Path

from clusterctl.export.csv import POINTS, TIMELINE, write_csv
from clusterctl.observe.record.points import Point
from contract.security.liars import is_harmless
from unit.export.made_up import EVIL, T, record

VALUES = [0.1, 1 / 3, -0.0, 5e-324, 1.7e308, math.inf, -math.inf, 12345678901234567, 2**53 + 1]


def point(value: float, name: str = "loss", **more: object) -> Point:
    return Point(T, 0, "trainer", 0, 1, "step", name, 5, 2, value)._replace(**more)  # type: ignore[arg-type]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_values_and_times_round_trip(tmp_path: Path) -> None:
    points = [point(value, t=T + number / 7) for number, value in enumerate(VALUES)]
    assert write_csv(tmp_path, (), points) == len(points)
    found = rows(tmp_path / POINTS)
    assert [(float(row["t"]), type(one.value)(row["value"])) for row, one in zip(found, points, strict=True)] == [
        (one.t, one.value) for one in points
    ]
    times = [datetime.datetime.fromisoformat(row["time"].replace("Z", "+00:00")).timestamp() for row in found]
    assert all(0 <= one.t - t < 0.001 for t, one in zip(times, points, strict=True))


def test_a_row_has_every_field_and_an_absent_one_is_empty(tmp_path: Path) -> None:
    write_csv(tmp_path, (), [point(math.nan, weight=32.0, undone=True), point(1.5, step=None, pass_=None)])
    known = {"t": "1700000000.0", "time": "2023-11-14T22:13:20.000Z", "node": "0", "role": "trainer", "rank": "0"}
    known |= {"attempt": "1", "of": "step", "name": "loss"}
    assert rows(tmp_path / POINTS) == [
        {**known, "step": "5", "pass": "2", "value": "nan", "weight": "32.0", "undone": "1"},
        {**known, "step": "", "pass": "", "value": "1.5", "weight": "1.0", "undone": "0"},
    ]


def test_hostile_names_and_texts_stay_in_their_cells_and_are_no_formulas(tmp_path: Path) -> None:
    write_csv(tmp_path, record().marks, [point(-math.inf, EVIL)])
    for file, count in ((POINTS, 1), (TIMELINE, 3)):
        assert is_harmless((tmp_path / file).read_text(encoding="utf-8"))
        found = rows(tmp_path / file)
        assert len(found) == count
        assert not [cell for row in found for cell in row.values() if cell[:1] in tuple("=+@\t\r")]
    assert rows(tmp_path / POINTS)[0]["value"] == "-inf", "a number is no formula"


def test_the_timeline_names_the_process_or_the_node_of_a_mark(tmp_path: Path) -> None:
    write_csv(tmp_path, record().marks[:2], ())
    run, process = rows(tmp_path / TIMELINE)
    assert (run["kind"], run["text"], run["node"], run["role"]) == ("phase", "starting pservers", "", "")
    assert (process["node"], process["role"], process["rank"]) == ("0", "trainer", "0")
