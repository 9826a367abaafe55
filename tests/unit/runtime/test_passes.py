"""Passes end for all trainers together: uneven data, empty readers, early exits, on_pass, the cursor."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import SGD, connect, constant
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.trainer.batches import pass_rng
from clusterctl.runtime.trainer.progress import Logbook
from clusterctl.runtime.trainer.session import Session
from unit.runtime.cluster import ThreadCluster, thread_cluster


def counting(lengths: list[int], passes: int, *, shard: bool = False) -> Any:
    def program(ps: Session) -> tuple[float, int, list[Any]]:
        w = ps.dense("w", 1, SGD(1.0))
        seen = []
        reader = lambda pass_, rng: range(lengths[0] if shard else lengths[ps.rank])  # noqa: E731
        for batch in ps.steps(reader, passes=passes, shard=shard):
            seen.append(batch)
            ps.push({w: -np.ones(1)}, samples=1)
        return float(w.value[0]), ps.step, seen

    return program


@pytest.mark.parametrize("had", [1, 2, 3])
def test_an_epoch_with_more_or_fewer_passes_than_announced_is_an_error(
    had: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with connect() as ps:
        w = ps.dense("w", 1, SGD(1.0))

        def train() -> None:
            for _ in ps.epochs(2, passes=2):
                for _ in ps.steps(lambda pass_, rng: range(2), passes=had):
                    ps.push({w: -np.ones(1)}, samples=1)

        if had == 2:
            train()
            return
        with pytest.raises(UseError, match=f"epoch 0 had {had} passes, not 2"):
            train()


def saved_tags(cluster: ThreadCluster) -> list[str]:
    return sorted({receipt["tag"] for receipt in cluster.receipts})


@pytest.mark.parametrize(
    ("lengths", "steps"),
    [([1, 5, 3], 10), ([0, 0, 0], 2)],
)
def test_uneven_data_takes_as_many_steps_as_the_longest_and_no_more(
    tmp_path: Path, lengths: list[int], steps: int
) -> None:
    with thread_cluster(tmp_path, 2, 3) as cluster:
        results = cluster.train(counting(lengths, passes=2))
        assert saved_tags(cluster) == ["pass-00000", "pass-00001"]
    assert [(value, step) for value, step, _ in results] == [(2.0 * max(lengths), steps)] * 3


def test_every_trainer_has_its_own_numbers_unless_the_data_is_shared() -> None:
    own = [pass_rng(0, rank, 1, shard=False).integers(2**60) for rank in range(3)]
    shared = {int(pass_rng(0, rank, 1, shard=True).integers(2**60)) for rank in range(3)}
    other_pass = pass_rng(0, 0, 2, shard=False).integers(2**60)
    assert len({*own, other_pass, *shared}) == 5


def test_trainers_with_fewer_passes_leave_and_the_others_continue(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 2, 3) as cluster:
        results = cluster.train(lambda ps: counting([2, 2, 2], passes=1 + ps.rank)(ps))
        assert saved_tags(cluster) == ["pass-00000", "pass-00001", "pass-00002"]
    assert [step for _, step, _ in results] == [2, 4, 6]


def test_one_trainer_breaking_out_early_does_not_block_the_others(tmp_path: Path) -> None:
    def program(ps: Session) -> int:
        w = ps.dense("w", 1, SGD(1.0))
        for batch in ps.steps(lambda pass_, rng: range(6), passes=2):
            ps.push({w: np.ones(1)}, samples=1)
            if ps.rank == 1 and batch == 2:
                break
        return ps.step

    with thread_cluster(tmp_path, 3, 3) as cluster:
        assert cluster.train(program) == [12, 3, 12]
        assert saved_tags(cluster) == ["pass-00000", "pass-00001"]


@pytest.mark.parametrize("push_first", [True, False])
def test_when_all_trainers_break_out_the_unsaved_steps_are_saved(tmp_path: Path, push_first: bool) -> None:
    def program(ps: Session) -> None:
        w = ps.dense("w", 1, SGD(1.0))
        for batch in ps.steps(lambda pass_, rng: range(6), passes=9):
            if not push_first and batch == 4:
                break
            ps.push({w: np.ones(1)}, samples=1)
            if batch == 4:
                break

    with thread_cluster(tmp_path, 2, 2) as cluster:
        cluster.train(program)
        assert saved_tags(cluster) == ["pass-00000"]
        assert {r["step"] for r in cluster.receipts} == {5 if push_first else 4}


def test_a_second_loop_continues_the_passes_even_after_a_break(tmp_path: Path) -> None:
    def program(ps: Session) -> list[int]:
        w = ps.dense("w", 1, SGD(1.0))
        passes: list[int] = []
        for batch in ps.steps(lambda pass_, rng: range(3), passes=1, on_pass=passes.append):
            ps.push({w: np.ones(1)}, samples=1)
            if batch == 1 and ps.rank == 0:
                break
        for _ in ps.steps(lambda pass_, rng: range(2), passes=2, on_pass=passes.append):
            ps.push({w: np.ones(1)}, samples=1)
        return passes

    with thread_cluster(tmp_path, 2, 2) as cluster:
        assert cluster.train(program) == [[1, 2], [0, 1, 2]]
        assert saved_tags(cluster) == ["pass-00000", "pass-00001", "pass-00002"]


@pytest.mark.parametrize("step", [5, 6, 9])
def test_a_trainer_that_dies_in_a_second_loop_repeats_no_pass_of_it(tmp_path: Path, step: int) -> None:
    def program(ps: Session, dies_at: int = -1) -> Any:
        w, passes = ps.dense("w", 3, SGD(1.0)), []
        for loop in range(2):
            for pass_ in ps.steps(lambda pass_, rng: [pass_] * 3, passes=2):
                passes.append((loop, pass_))
                ps.push({w: -np.ones(3)}, samples=1)
                if ps.step == dies_at:
                    raise InterruptedError
        return w.value[0], passes

    with thread_cluster(tmp_path, 1, 1) as cluster:
        with pytest.raises(InterruptedError), cluster.session(0) as ps:
            program(ps, step)
        with cluster.session(0, attempt=2) as ps:
            assert program(ps) == (12, [(pass_ // 2, pass_) for pass_ in range(4) for _ in range(3)][step:])


def test_batches_without_a_push_do_not_make_a_step(tmp_path: Path) -> None:
    def program(ps: Session) -> int:
        w = ps.dense("w", 1, SGD(1.0))
        for batch in ps.steps(lambda pass_, rng: range(6), passes=1):
            if batch % 2 == 0:
                ps.push({w: np.ones(1)}, samples=1)
        return ps.step

    with thread_cluster(tmp_path, 2, 2) as cluster:
        assert cluster.train(program) == [4, 4]  # three pushes, and an empty one that ends the pass


def test_on_pass_runs_everywhere_after_the_last_update_and_before_the_save(tmp_path: Path) -> None:
    calls: list[tuple[int, float, bool]] = []
    barrier = threading.Barrier(2, timeout=180)

    def program(ps: Session) -> None:
        w = ps.dense("w", 1, SGD(1.0), constant(0.0))

        def on_pass(pass_: int) -> None:
            barrier.wait()
            calls.append((pass_, float(w.value[0]), (tmp_path / "output" / f"pass-{pass_:05d}").exists()))
            barrier.wait()

        for _ in ps.steps(lambda pass_, rng: range(2), passes=2, on_pass=on_pass):
            ps.push({w: -np.ones(1)}, samples=1)

    with thread_cluster(tmp_path, 1, 2) as cluster:
        cluster.train(program)
    assert sorted(calls) == [(0, 2.0, False)] * 2 + [(1, 4.0, False)] * 2


def test_a_trainer_that_fails_does_not_say_goodbye(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 1, 1) as cluster:

        def program(ps: Session) -> None:
            raise RuntimeError("broken")

        with pytest.raises(RuntimeError, match="broken"):
            cluster.train(program)
        assert cluster.cores[0].trainers.active() == {0}


def test_local_mode_saves_each_pass_with_a_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with connect() as ps:
        counting([3], passes=2)(ps)
        ps.save("mine")
    manifest = json.loads((tmp_path / "output" / "pass-00001" / "manifest.json").read_text())
    assert (manifest["step"], manifest["pservers"], manifest["tables"]["w"]["held"]) == (6, 1, 1)
    assert sorted(p.name for p in (tmp_path / "output").iterdir()) == ["mine", "pass-00000", "pass-00001"]


def test_each_pass_prints_one_line_of_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with connect() as ps:
        w = ps.dense("w", 1, SGD(1.0))
        for _ in ps.steps(lambda pass_, rng: range(3), passes=1):
            ps.push({w: np.ones(1)}, samples=1000, loss=2.5)
    out = capsys.readouterr().out
    assert out.startswith("pass 0: 3 steps, 3,000 samples, ")
    assert "loss 2.5; compute " in out
    assert out.count("\n") == 1


def test_logged_numbers_are_sent_as_weighted_means_at_most_once_a_second() -> None:
    sent: list[tuple[dict[str, float], float]] = []
    book = Logbook(lambda values, weight: sent.append((values, weight)))
    book.add({"a": 1.0}, 1, now_s=0.0)
    book.add({"a": 2.0}, 1, now_s=0.1)
    book.add({"a": 5.0}, 3, now_s=0.2)
    book.add({"b": 9.0}, 2, now_s=0.3)
    assert sent == [({"a": 1.0}, 1), ({"b": 9.0}, 2)]
    book.flush(now_s=0.4)
    book.flush(now_s=0.5)
    assert sent[2:] == [({"a": 4.25}, 4)]
