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
from clusterctl.runtime.checkpoint.origin import SOON, Origin
from clusterctl.runtime.errors import ModelError, UseError
from clusterctl.runtime.trainer.session import Session
from unit.runtime.cluster import thread_cluster


def trains(*names: str, passes: int = 1) -> Any:
    def run(ps: Session) -> float:
        tables = [ps.dense(name, 2, SGD(1.0), init=constant(0.0)) for name in names]
        for _ in ps.steps(lambda pass_, rng: range(3), passes=passes):
            ps.push({table: np.ones(2, np.float32) for table in tables}, samples=1)
        return float(tables[0].value[0]) if tables else 0.0

    return run


def resumed(root: Path, program: Any, *before: str) -> list[Any]:
    """Train with the tables `before` and save a checkpoint, and run `program` from there."""
    every = {"checkpoints": True, "save_every": {"unit": "step", "n": 3}}
    with thread_cluster(root, 2, 1, **every) as cluster:
        cluster.train(trains(*before, passes=2))
    step = max(receipt["step"] for receipt in cluster.receipts if receipt.get("checkpoint"))
    tag = checkpoint_tag(step)
    resume = {"run": "0001", "tag": tag, "step": step, "pass": 1, "dir": "."}
    with thread_cluster(root, 2, 1, **every, resume=resume) as cluster:
        return cluster.train(program)


@pytest.fixture
def saved_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model `saved` in the current directory, with the tables a and old."""
    monkeypatch.chdir(tmp_path)
    save_model("saved", {"a": np.ones(2), "old": np.ones(3)})


def warned(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().out.splitlines()
    return [re.sub(r" step-\d+", "", line) for line in lines if line.startswith("warning: the ")]


class Reports:
    """What a run that starts from `saved` reports as its program declares tables and pushes."""

    def __init__(self, *saved: str, ignored: Sequence[str] = ()) -> None:
        self.tables: set[str] = set()
        self.warnings: list[str] = []
        self.origin = Origin(
            "it", saved, lambda: set(self.tables), ignored, "load another", lambda kind, message: self.note(message)
        )

    def note(self, message: str) -> None:
        self.warnings.append(message)

    def push(self, *tables: str) -> list[str]:
        """Declare these tables too and push; return the warnings so far."""
        self.tables |= {*tables}
        self.origin.before_push()
        return self.warnings

    def end_pass(self) -> list[str]:
        self.origin.report()
        return self.warnings


def test_a_table_that_is_declared_later_is_reported_too() -> None:
    run = Reports("same")
    assert run.push("same") == []
    run.push("late")
    assert run.end_pass() == ["it lacks table late, declared by the program: it starts from initial values"]


def test_a_table_that_is_declared_in_the_first_pass_is_not_reported() -> None:
    run = Reports("same", "old")
    run.push("same")
    assert run.push("old") == run.end_pass() == []


def test_many_tables_are_one_warning() -> None:
    run = Reports("same", *(f"old{number}" for number in range(9)))
    run.push("same")
    (line,) = run.end_pass()
    assert "has tables old0, old1, old2, old3, old4 and 4 more, not declared so far" in line


def test_in_a_long_pass_undeclared_tables_are_reported_once_after_some_pushes() -> None:
    run = Reports("same", "old")
    for _ in range(SOON):
        assert run.push("same") == []
    once = [
        "it has table old, not declared so far: later saves lack it; connect(ignore=('old',)) if that is meant",
    ]
    assert run.push() == run.push() == run.end_pass() == once


def test_ignored_tables_are_not_reported() -> None:
    run = Reports("same", "old", "head.1", "head.2", ignored=("old", "new", "head.*"))
    assert run.push("same", "new") == run.end_pass() == []
    every = Reports("a", "b", ignored=("*",))
    assert every.push("c") == every.end_pass() == []


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
