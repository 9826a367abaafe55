"""Streams: passes of so many batches of a reader that goes on, and readers that continue from `ps.cursor`."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import SGD, load_model, zeros
from clusterctl.runtime.checkpoint.writer import newest_cursors
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.pserver.trainers import TrainerState, TrainerStates
from clusterctl.runtime.trainer.session import Session
from unit.runtime.cluster import DEADLINE_S, ThreadCluster, thread_cluster


class Program:
    """Reads the numbers up to `end` from where its cursor says, in a stream, and adds 1 to the row of each.

    `calls` are the cursors with which readers were called, by rank; `batches` the (pass, numbers) of each trainer.
    """

    def __init__(self, end: int, *, stop_after: int | None = None, cursor: bool = True, **options: Any) -> None:
        self.end = end
        self._stop_after = stop_after
        self._cursor = cursor
        self._options = {"passes": None, "pass_batches": 4, **options}
        self.calls: dict[int, list[Any]] = {}
        self.passes: dict[int, list[int]] = {}
        self.read: dict[int, list[int]] = {}

    def __call__(self, ps: Session) -> list[int]:
        e = ps.embedding("e", 1, SGD(1.0), zeros())
        sharded = self._options.get("shard", False)
        ended = self.passes.setdefault(ps.rank, [])
        done = self.read.setdefault(ps.rank, [])

        def read(pass_: int, rng: object) -> Iterator[int]:
            self.calls.setdefault(ps.rank, []).append(ps.cursor)
            begin = 0 if ps.cursor is None else ps.cursor["after"] + 1
            for number in range(begin, self.end):
                if self._cursor:
                    ps.cursor = {"after": number}
                yield number if sharded else number * ps.trainers + ps.rank

        for number in ps.steps(read, on_pass=ended.append, **self._options):
            share = ps.trainers if ps.mode == "sync" else 1  # of a step; the pservers take the mean
            ps.push({e: (np.array([number]), -share * np.ones((1, 1)))}, samples=1)
            done.append(number)
            if self._stop_after is not None and len(done) == self._stop_after:
                ps._parameters.settle()
                raise InterruptedError
        return done


def counts(cluster: ThreadCluster) -> dict[int, float]:
    """Return how often each number was pushed, by the newest model."""
    newest = max((r for r in cluster.receipts if not r.get("checkpoint")), key=lambda receipt: receipt["step"])
    ids, values = load_model(cluster.root / "output" / newest["tag"])["e"]
    return dict(zip(ids.tolist(), values.ravel().tolist(), strict=True))


@pytest.mark.parametrize(
    ("mode", "end", "options"),
    [
        ("sync", 12, {}),
        ("async", 10, {"shard": True}),
        ("geo(2)", 10, {"prefetch": 3}),
        ("sync", 10, {"accumulate": 3}),
    ],
)
def test_a_pass_ends_after_its_batches_while_the_reader_goes_on(
    tmp_path: Path, mode: str, end: int, options: dict[str, Any]
) -> None:
    program = Program(end, **options)
    with thread_cluster(tmp_path, 2, 2, mode=mode) as cluster:
        cluster.train(program)
    total, own = (end, end // 2) if options.get("shard") else (2 * end, end)
    assert program.calls == {0: [None], 1: [None]}
    assert program.passes == {rank: list(range(-(-own // 4))) for rank in range(2)}
    assert sorted(program.read[0] + program.read[1]) == list(range(total))
    if "accumulate" not in options:
        assert counts(cluster) == dict.fromkeys(range(total), 1.0)


def test_a_batch_of_a_stream_does_not_wait_for_the_next_one(tmp_path: Path) -> None:
    """The reader yields the next one only when this one is pushed."""
    pushed: list[int] = []

    def program(ps: Session) -> None:
        def read(pass_: int, rng: object) -> Iterator[int]:
            for number in range(9):
                assert len(pushed) == number
                yield number

        for number in ps.steps(read, passes=None, pass_batches=4):
            ps.push({}, samples=1)
            pushed.append(number)

    with thread_cluster(tmp_path, 1, 1) as cluster:
        cluster.train(program)
    assert len(pushed) == 9


# Cursors.

TAKEN_UP: list[tuple[str, dict[str, Any], int]] = [
    ("sync", {}, 3),
    ("async", {"shard": True}, 4),
    ("geo(2)", {"pass_batches": None}, 5),
    ("ssp(9)", {"passes": 2, "pass_batches": None}, 4),
    ("sync", {"cursor": False}, 5),
    ("half-async", {"cursor": False}, 4),
]


@pytest.mark.parametrize(("mode", "options", "stop_after"), TAKEN_UP)
def test_a_run_that_resumes_goes_on_from_the_cursors_of_its_checkpoint(
    tmp_path: Path, mode: str, options: dict[str, Any], stop_after: int
) -> None:
    """Both trainers die after some batches; they resume from the newest checkpoint, with a cursor or by skipping."""
    every = {"checkpoints": True, "save_every": {"unit": "step", "n": 1 if mode == "geo(2)" else 2}}
    end = 12 if options.get("shard") else 11
    program = Program(end, stop_after=stop_after, **options)
    with thread_cluster(tmp_path, 2, 2, mode=mode, **every) as cluster:
        kill_all(cluster, program)
    tag, step = newest_checkpoint(cluster)
    again = Program(end, **options)
    with thread_cluster(tmp_path, 2, 2, mode=mode, **every, recover={"tag": tag, "step": step}) as cluster:
        cluster.train(again)
    passes = 2 if options.get("passes") else 1
    assert counts(cluster) == dict.fromkeys(range(end if options.get("shard") else 2 * end), float(passes))
    if options.get("cursor", True):
        at = {rank: calls[0] for rank, calls in again.calls.items()}
        assert all(value is not None for value in at.values()), at


def newest_checkpoint(cluster: ThreadCluster) -> tuple[str, int]:
    steps = [(r["tag"], r["step"]) for r in cluster.receipts if r.get("checkpoint")]
    return max((one for one in steps if steps.count(one) == len(cluster.pservers)), key=lambda one: one[1])


def kill_all(cluster: ThreadCluster, program: Program) -> None:
    """Run the program as every trainer until it dies, and wait until the checkpoint that is due then is made."""
    deaths: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            with cluster.session(rank) as ps:
                program(ps)
        except InterruptedError as death:
            deaths.append(death)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(cluster.trainers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(deaths) == cluster.trainers
    cluster.lead.wait_for_cut()


def test_with_other_trainers_there_are_the_cursors_of_all_until_each_has_its_own(tmp_path: Path) -> None:
    mode = "async"
    every = {"checkpoints": True, "save_every": {"unit": "step", "n": 2}}
    with thread_cluster(tmp_path, 2, 2, mode=mode, **every) as cluster:
        kill_all(cluster, Program(11, stop_after=4))
    tag, step = newest_checkpoint(cluster)
    seen: dict[tuple[int, int], tuple[Any, list[Any]]] = {}

    def program(ps: Session) -> None:
        seen[ps.trainers, ps.rank] = ps.cursor, ps.cursors

    recover = {"tag": tag, "step": step}
    with thread_cluster(tmp_path, 2, 3, mode=mode, **every, recover=recover) as cluster:
        cluster.train(program)
    assert [seen[3, rank][0] for rank in range(3)] == [None] * 3
    [both] = {str(seen[3, rank][1]) for rank in range(3)}
    assert both.count("after") == 2
    with thread_cluster(tmp_path, 1, 2, mode=mode, **every, recover=recover) as cluster:
        cluster.train(program)
    assert all(seen[2, rank] == (cursor, []) for rank, cursor in enumerate(seen[3, 0][1]))


def test_with_other_trainers_nothing_is_skipped(tmp_path: Path) -> None:
    """They stopped in a later pass of the stream; the reader continues from the cursors of all."""
    mode = "sync"
    every = {"checkpoints": True, "save_every": {"unit": "step", "n": 2}}
    with thread_cluster(tmp_path, 2, 2, mode=mode, **every) as cluster:
        kill_all(cluster, Program(20, stop_after=10))
    tag, step = newest_checkpoint(cluster)
    calls: list[list[Any]] = []

    def program(ps: Session) -> list[int]:
        def read(pass_: int, rng: object) -> Iterator[int]:
            calls.append(ps.cursors)
            for number in range(3):
                ps.cursor = {"own": number}
                yield number

        batches = []
        for number in ps.steps(read, passes=None, pass_batches=4):
            ps.push({}, samples=1)
            batches.append(number)
        return batches

    with thread_cluster(tmp_path, 2, 3, mode=mode, **every, recover={"tag": tag, "step": step}) as cluster:
        assert cluster.train(program) == [[0, 1, 2]] * 3
    assert all(len(cursors) == 2 for cursors in calls)


def test_a_new_pass_begins_without_the_cursor_of_the_one_before(tmp_path: Path) -> None:
    program = Program(5, passes=3, pass_batches=None)
    with thread_cluster(tmp_path, 1, 1) as cluster:
        cluster.train(program)
    assert program.calls == {0: [None, None, None]}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "is not JSON"),
        ((1, 2), "is not the same after JSON; use numbers, strings, lists"),
        ({1: 2}, "is not the same after JSON"),
        (float("nan"), "is not the same after JSON"),
        (json.loads("[" * 45 + "]" * 45), "is not JSON (it is nested too deeply)"),
        ("x" * 4_096, "has 4,098 bytes as JSON, at most 4,096 are allowed"),
    ],
    ids=["object", "tuple", "key", "nan", "deep", "long"],
)
def test_a_cursor_that_cannot_be_kept_is_an_error_in_the_reader(tmp_path: Path, value: Any, words: str) -> None:
    def program(ps: Session) -> None:
        def read(pass_: int, rng: object) -> Iterator[int]:
            ps.cursor = value
            yield 1

        for _ in ps.steps(read, passes=None):
            raise AssertionError("it was taken")

    with thread_cluster(tmp_path, 1, 1) as cluster, pytest.raises(UseError, match=re.escape(words)):
        cluster.train(program)


def test_a_cursor_is_set_in_the_reader_only(tmp_path: Path) -> None:
    def program(ps: Session) -> None:
        with pytest.raises(UseError, match=r"ps\.cursor is set outside the reader"):
            ps.cursor = 1
        for _ in ps.steps(lambda pass_, rng: range(2), passes=1):
            with pytest.raises(UseError, match=r"ps\.cursor is set outside the reader"):
                ps.cursor = 1

    with thread_cluster(tmp_path, 1, 1) as cluster:
        cluster.train(program)


def test_a_reader_that_sets_its_cursor_now_and_then_has_none_in_a_pass_where_it_did_not(tmp_path: Path) -> None:
    """The first pass sets it; the second one is resumed by skipping."""
    every = {"checkpoints": True, "save_every": {"unit": "step", "n": 1}}
    seen: list[Any] = []

    def program(ps: Session, stop: bool) -> None:
        e = ps.embedding("e", 1, SGD(1.0), zeros())

        def read(pass_: int, rng: object) -> Iterator[int]:
            seen.append((pass_, ps.cursor))
            for number in range(6):
                if pass_ == 0:
                    ps.cursor = number
                yield 10 * pass_ + number

        for number in ps.steps(read, passes=2):
            ps.push({e: (np.array([number]), -np.ones((1, 1)))}, samples=1)
            if stop and number == 12:
                ps._parameters.settle()
                raise InterruptedError

    with thread_cluster(tmp_path, 1, 1, mode="async", **every) as cluster:
        with pytest.raises(InterruptedError):
            cluster.train(lambda ps: program(ps, True))
        cluster.lead.wait_for_cut()
    tag, step = newest_checkpoint(cluster)
    seen.clear()
    with thread_cluster(tmp_path, 1, 1, mode="async", **every, recover={"tag": tag, "step": step}) as cluster:
        cluster.train(lambda ps: program(ps, False))
    assert seen == [(1, None)]
    assert counts(cluster) == dict.fromkeys([*range(6), *range(10, 16)], 1.0)


def test_a_loop_after_a_stream_that_ended_early_has_its_own_passes(tmp_path: Path) -> None:
    passes: list[int] = []

    def program(ps: Session) -> None:
        for _ in ps.steps(lambda pass_, rng: range(5), passes=10, pass_batches=2):
            ps.push({}, samples=1)
        for _ in ps.steps(lambda pass_, rng: range(3), passes=2, on_pass=passes.append):
            ps.push({}, samples=1)

    with thread_cluster(tmp_path, 1, 2) as cluster:
        cluster.train(program)
    assert sorted(passes) == [10, 10, 11, 11]


def test_a_stream_that_resumes_with_shorter_passes_ends_its_open_pass(tmp_path: Path) -> None:
    every = {"checkpoints": True, "save_every": {"unit": "step", "n": 1}}
    with thread_cluster(tmp_path, 1, 2, mode="async", **every) as cluster:
        kill_all(cluster, Program(11, stop_after=4, pass_batches=9))
    tag, step = newest_checkpoint(cluster)
    with thread_cluster(tmp_path, 1, 2, mode="async", **every, recover={"tag": tag, "step": step}) as cluster:
        cluster.train(Program(11, pass_batches=2))
    assert counts(cluster) == dict.fromkeys(range(22), 1.0)


def test_a_stream_that_all_read_needs_cursors_to_go_on_with_other_trainers(tmp_path: Path) -> None:
    mode = "sync"
    every = {"checkpoints": True, "save_every": {"unit": "step", "n": 1}}
    with thread_cluster(tmp_path, 1, 2, mode=mode, **every) as cluster:
        kill_all(cluster, Program(40, stop_after=6, shard=True, cursor=False))
    tag, step = newest_checkpoint(cluster)
    with (
        thread_cluster(tmp_path, 1, 3, mode=mode, **every, recover={"tag": tag, "step": step}) as cluster,
        pytest.raises(UseError, match=r"by another number of trainers; set ps\.cursor in the reader"),
    ):
        cluster.train(Program(40, shard=True, cursor=False))


def test_cursors_that_nobody_has_taken_up_yet_are_kept_through_another_change_of_trainers() -> None:
    at = {"step": 3, "pass": 0, "batch": 3, "passes": 0, "left": False}
    saved = [{"rank": rank, **at, "position": 100 + rank} for rank in range(2)]
    three = TrainerStates({rank: TrainerState() for rank in range(3)})
    three.restore(saved, 6)
    assert three.positions == [100, 101]
    three[0].position = 120
    four = TrainerStates({rank: TrainerState() for rank in range(4)})
    four.restore(list(three.cursors()), 7)
    assert four.positions == [120, 100, 101]


def test_of_two_cursors_with_as_many_pushes_the_one_that_is_further_counts() -> None:
    """A pserver that was restarted knows only the pushes of a trainer that has left."""
    behind = {"rank": 0, "step": 100, "pass": 2, "batch": 3}
    ahead = {**behind, "pass": 5, "batch": 0}
    assert newest_cursors([[behind], [ahead]]) == newest_cursors([[ahead], [behind]]) == (ahead,)
