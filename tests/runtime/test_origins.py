"""What a run starts from has other tables than the program declares: refused if none matches, else warnings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.common.manifest import checkpoint_tag
from clusterctl.runtime import SGD, connect, constant, save_model
from clusterctl.runtime.checkpoint.origin import SOON
from clusterctl.runtime.errors import ModelError, UseError
from clusterctl.runtime.trainer.session import Session
from runtime.cluster import thread_cluster


def trains(*names: str, passes: int = 1, late: str | None = None) -> Any:
    def run(ps: Session) -> float:
        tables = [ps.dense(name, 2, SGD(1.0), init=constant(0.0)) for name in names]
        for batch in ps.steps(lambda pass_, rng: range(3), passes=passes):
            if batch == 2 and late is not None and len(tables) == len(names):
                tables.append(ps.dense(late, 2, SGD(1.0)))
            ps.push({table: np.ones(2, np.float32) for table in tables}, samples=1)
        return float(tables[0].value[0]) if tables else 0.0

    return run


def resumed(root: Path, program: Any, *before: str, trainers: int = 1, ignore: Sequence[str] = ()) -> list[Any]:
    """Train with the tables `before` and save a checkpoint, and run `program` from there."""
    every = {"checkpoints": True, "save_every": {"unit": "step", "n": 3}}
    with thread_cluster(root, 2, trainers, **every) as cluster:
        cluster.train(trains(*before, passes=2))
    step = max(receipt["step"] for receipt in cluster.receipts if receipt.get("checkpoint"))
    tag = checkpoint_tag(step)
    resume = {"run": "0001", "tag": tag, "step": step, "pass": 1, "dir": "."}
    with thread_cluster(root, 2, trainers, **every, resume=resume) as cluster:
        cluster.ignore = ignore
        return cluster.train(program)


@pytest.fixture
def saved_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model `saved` in the current directory, with the tables a and old."""
    monkeypatch.chdir(tmp_path)
    save_model("saved", {"a": np.ones(2), "old": np.ones(3)})


def warned(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().out.splitlines()
    return [re.sub(r" step-\d+", "", line) for line in lines if line.startswith("warning: the ")]


def test_a_table_under_another_name_is_reported_on_both_sides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert resumed(tmp_path, trains("same", "new", passes=3), "same", "old", trainers=2) == [-9.0, -9.0]
    of = "warning: the checkpoint of run 1"
    assert warned(capsys) == [
        f"{of} lacks table new, declared by the program: it starts from initial values",
        f"{of} has table old, not declared so far: later saves lack it; connect(ignore=('old',)) if that is meant",
    ]


def test_a_table_that_is_declared_later_is_reported_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resumed(tmp_path, trains("same", passes=3, late="late"), "same")
    lacks = "lacks table late, declared by the program: it starts from initial values"
    assert warned(capsys) == [f"warning: the checkpoint of run 1 {lacks}"]


def test_many_tables_are_one_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resumed(tmp_path, trains("same", passes=3), "same", *(f"old{n}" for n in range(9)))
    (line,) = warned(capsys)
    assert "has tables old0, old1, old2, old3, old4 and 4 more, not declared so far" in line


def test_ignored_tables_are_not_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resumed(
        tmp_path, trains("same", "new", passes=3), "same", "old", "head.1", "head.2", ignore=("old", "new", "head.*")
    )
    assert warned(capsys) == []


def test_a_table_that_is_declared_in_the_first_pass_is_not_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resumed(tmp_path, trains("same", passes=3, late="old"), "same", "old")
    assert warned(capsys) == []


def test_in_a_long_pass_undeclared_tables_are_reported_after_some_pushes(
    saved_here: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with connect(load="saved") as ps:
        a = ps.dense("a", 2, SGD(1.0))
        for batch in ps.steps(lambda pass_, rng: range(SOON + 1), passes=1):
            assert len(warned(capsys)) == 0
            ps.push({a: np.ones(2, np.float32)}, samples=1)
            if batch == SOON:
                assert len(warned(capsys)) == 1
    assert warned(capsys) == []


def test_a_checkpoint_of_another_program_is_refused_before_the_first_push(tmp_path: Path) -> None:
    words = (
        r"the checkpoint step-\d+ of run 1 has none of the declared tables: it has tables a, b; "
        r"the program declares tables c, d; declare tables by the names with which they were saved, "
        r"start without --resume to train from the beginning, or call connect\(ignore="
    )
    with pytest.raises(ModelError, match=words):
        resumed(tmp_path, trains("c", "d", passes=3), "a", "b")
    assert not list(tmp_path.rglob("pass-00002"))
    assert not list(tmp_path.rglob(checkpoint_tag(9)))


def test_a_program_that_only_reads_is_refused_when_it_leaves(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="none of the declared tables"):
        resumed(tmp_path, lambda ps: ps.dense("c", 2, SGD(1.0)).pull(), "a")


def test_all_tables_may_be_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert resumed(tmp_path, trains("c", passes=3), "a", "b", ignore=("*",)) == [-3.0]
    assert warned(capsys) == []


def test_a_model_is_compared_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(tmp_path / "vectors", {"word": (np.arange(2), np.ones((2, 2))), "old": np.ones(3)})
    with thread_cluster(tmp_path, 2, 2) as cluster:
        cluster.train(lambda ps: ps.embedding("word", 2, SGD(1.0)), load="vectors")
    assert len(warned(capsys)) == 1
    with thread_cluster(tmp_path, 2, 2) as cluster, pytest.raises(ModelError, match="the model vectors has none of"):
        cluster.train(trains("c"), load="vectors")


def test_local_mode_compares_too(saved_here: None, capsys: pytest.CaptureFixture[str]) -> None:
    with connect(load="saved") as ps:
        assert trains("a")(ps) == -2.0
    assert len(warned(capsys)) == 1
    with connect(load="saved", ignore=("old",)) as ps:
        trains("a")(ps)
    assert warned(capsys) == []
    words = "it has tables a, old; the program declares table b"
    with pytest.raises(ModelError, match=words), connect(load="saved") as ps:
        trains("b")(ps)


@pytest.mark.parametrize("ignore", ["old", (1,), ("",)])
def test_an_ignore_that_is_no_tuple_of_names_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ignore: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UseError, match="pass a tuple of names of tables"):
        connect(ignore=ignore)
