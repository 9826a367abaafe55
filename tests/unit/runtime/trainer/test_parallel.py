"""`ps.parallel`: parts of a batch in threads, merged into one gradient."""

from __future__ import annotations

import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import SGD, connect, uniform
from clusterctl.runtime.errors import ProcessError, UseError
from clusterctl.runtime.trainer.session import Session
from unit.runtime.cluster import thread_cluster

PATIENCE_S = 30
Setup = Callable[..., Session]


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setup]:
    """Return a function that connects in local mode, with a number of threads; the session is left at the end."""
    monkeypatch.chdir(tmp_path)
    sessions: list[Session] = []

    def make(threads: int = 1) -> Session:
        monkeypatch.setenv("CLUSTERCTL_TRAINER_THREADS", str(threads))
        sessions.append(connect())
        return sessions[-1]

    yield make
    for session in sessions:
        session.__exit__(None, None, None)


def sizes(ps: Session, batch: Any, **options: Any) -> list[int]:
    """Return the number of rows of each part, in order."""
    found: dict[int, int] = {}

    def f(part: Any) -> Any:
        rows = part[0] if isinstance(part, tuple) else part
        found[int(rows[0])] = len(rows)
        return {}, len(rows), None

    assert ps.parallel(f, batch, **options) == ({}, sum(found.values()), None)
    return [found[first] for first in sorted(found)]


# The division of a batch


def test_arrays_are_cut_by_rows_into_as_many_parts_as_there_are_threads(alone: Setup) -> None:
    assert sizes(alone(1), np.arange(10)) == [10]
    assert sizes(alone(3), np.arange(10)) == [3, 3, 4]
    assert sizes(alone(3), np.arange(10), parts=4) == [2, 3, 2, 3]


def test_fewer_rows_than_parts_give_fewer_parts_and_no_empty_one(alone: Setup) -> None:
    ps = alone(2)
    assert sizes(ps, np.arange(3), parts=8) == [1, 1, 1]
    assert sizes(ps, np.arange(0), parts=8) == []


def test_tuples_of_arrays_are_cut_together_and_keep_their_type(alone: Setup) -> None:
    pair = namedtuple("pair", "x y")
    seen: list[Any] = []

    def f(part: Any) -> Any:
        seen.append(part)
        return {}, len(part[0]), None

    ps = alone(1)
    ps.parallel(f, (np.arange(6), np.arange(12).reshape(6, 2)), parts=2)
    assert [(x.tolist(), y.tolist()) for x, y in seen] == [
        ([0, 1, 2], [[0, 1], [2, 3], [4, 5]]),
        ([3, 4, 5], [[6, 7], [8, 9], [10, 11]]),
    ]
    ps.parallel(f, pair(np.arange(6), np.arange(6)), parts=2)
    assert [part.y.tolist() for part in seen[2:]] == [[0, 1, 2], [3, 4, 5]]


def test_anything_else_is_cut_by_the_function_given(alone: Setup) -> None:
    batch = {"lines": ["a", "b", "c", "d", "e"]}
    seen: list[Any] = []

    def f(part: Any) -> Any:
        seen.append(part)
        return {}, len(part), 1.0

    def split(whole: Any, parts: int) -> Any:
        return (whole["lines"][number::parts] for number in range(parts))

    assert alone(1).parallel(f, batch, parts=2, split=split) == ({}, 5, 1.0)
    assert seen == [["a", "c", "e"], ["b", "d"]]


# The merge


def test_dense_gradients_and_losses_are_means_weighted_by_samples_and_a_missing_table_counts_as_zero(
    alone: Setup,
) -> None:
    ps = alone(1)
    w, v = ps.dense("w", (2, 2), SGD(1.0)), ps.dense("v", 1, SGD(1.0))
    rng = np.random.default_rng(3)
    grads, counts = rng.normal(size=(3, 2, 2)), [5, 1, 3]

    def f(number: Any) -> Any:
        gradients: dict[Any, Any] = {w: grads[number]}
        if number == 1:
            gradients[v] = np.array([9.0])
        return gradients, counts[number], float(number)

    merged, samples, loss = ps.parallel(f, None, split=lambda batch, parts: range(3))
    by_hand = np.zeros((2, 2), np.float32)
    for grad, n in zip(grads.astype(np.float32), counts, strict=True):
        by_hand += grad * np.float32(n)
    np.testing.assert_array_equal(merged[w], by_hand / np.float32(9))
    assert merged[w].dtype == np.float32
    np.testing.assert_array_equal(merged[v], np.float32([9.0]) / np.float32(9))
    assert (samples, loss) == (9, (1 * 1.0 + 3 * 2.0) / 9)


def test_ids_are_concatenated_in_the_order_of_the_parts(alone: Setup) -> None:
    ps = alone(2)
    e = ps.embedding("e", 2, SGD(1.0), init=uniform(0.1))
    ids = np.array([[7, 3], [3, 3], [1, 7]])

    def f(part: Any) -> Any:
        return {e: (part, np.full((*part.shape, 2), float(part.sum())))}, len(part), None

    merged, samples, loss = ps.parallel(f, ids, parts=2)
    got, rows = merged[e]
    assert (samples, loss, got.tolist()) == (3, None, [7, 3, 3, 3, 1, 7])
    expected = np.float32([10, 10]) * np.float32(1 / 3), np.float32([14, 14, 14, 14]) * np.float32(2 / 3)
    np.testing.assert_array_equal(rows, np.repeat(np.concatenate(expected)[:, None], 2, axis=1))
    assert rows.dtype == np.float32


def test_parts_may_push_ids_of_different_dimensions(alone: Setup) -> None:
    ps = alone(1)
    e = ps.embedding("e", 1, SGD(1.0))
    given: list[Any] = [[4], [[1, 2], [3, 4]], []]

    def f(number: Any) -> Any:
        ids = given[number]
        return {e: (ids, np.ones((*np.shape(ids), 1)))}, 1, None

    merged, _, _ = ps.parallel(f, None, split=lambda batch, parts: range(3))
    assert merged[e][0].tolist() == [4, 1, 2, 3, 4]


def test_a_part_without_samples_changes_nothing_and_without_any_samples_there_is_no_gradient(alone: Setup) -> None:
    ps = alone(1)
    w = ps.dense("w", 1, SGD(1.0))

    def run(*counts: int) -> Any:
        def f(number: Any) -> Any:
            n = counts[number]
            return {w: np.array([3.0 if n else np.nan])}, n, 2.0 if n else float("nan")

        return ps.parallel(f, None, split=lambda batch, parts: range(len(counts)))

    merged, samples, loss = run(0, 4, 0)
    assert (merged[w].tolist(), samples, loss) == ([3.0], 4, 2.0)
    assert run(0, 0) == ({}, 0, None)


def test_one_loss_of_none_makes_the_loss_none(alone: Setup) -> None:
    assert alone(1).parallel(lambda x: ({}, 1, None if x[0] else 2.0), np.arange(2), parts=2) == ({}, 2, None)


# Bits


def test_bits_depend_on_the_parts_but_not_on_threads_or_timing(alone: Setup) -> None:
    rng = np.random.default_rng(5)
    grads = rng.normal(size=(6, 500)).astype(np.float32)

    def bits(threads: int, parts: int, *, last_first: bool = False) -> bytes:
        ps = alone(threads)
        w, e = ps.dense("w", 500, SGD(1.0)), ps.embedding("e", 1, SGD(1.0))
        turns = [threading.Event() for _ in range(parts)]
        firsts = [int(part[0]) for part in np.array_split(np.arange(6), parts)]

        def f(part: Any) -> Any:
            number = firsts.index(int(part[0]))
            if last_first and number + 1 < parts:
                assert turns[number + 1].wait(PATIENCE_S)
            mean = grads[part].mean(axis=0)
            turns[number].set()
            return {w: mean, e: (part, mean[: len(part), None])}, len(part), float(mean[0])

        merged, _, loss = ps.parallel(f, np.arange(6), parts=parts)
        return b"".join([merged[w].tobytes(), merged[e][0].tobytes(), merged[e][1].tobytes(), repr(loss).encode()])

    same = {bits(1, 3), bits(2, 3), bits(3, 3), bits(3, 3, last_first=True), bits(5, 3)}
    assert len(same) == 1
    assert bits(2, 2) not in same


# Threads


def test_parts_run_at_the_same_time_in_threads_that_are_kept_and_end_with_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSTERCTL_TRAINER_THREADS", "2")
    meeting = threading.Barrier(2)
    workers: set[threading.Thread] = set()

    def f(part: Any) -> Any:
        meeting.wait(PATIENCE_S)  # ends only if both parts run at once
        workers.add(threading.current_thread())
        return {}, 1, None

    with connect() as ps:
        for _ in range(3):
            ps.parallel(f, np.arange(2))
        assert len(workers) == 2
        assert all(worker.is_alive() for worker in workers)
        assert threading.current_thread() not in workers
    assert not any(worker.is_alive() for worker in workers)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_call_of_the_session_in_a_part_is_an_error(alone: Setup, threads: int) -> None:
    ps = alone(threads)
    w, e = ps.dense("w", 1, SGD(1.0)), ps.embedding("e", 1, SGD(1.0))
    calls: dict[str, Callable[[], Any]] = {
        "ps.push": lambda: ps.push({}, samples=1),
        "ps.save": lambda: ps.save("mine"),
        "ps.parallel": lambda: ps.parallel(lambda part: ({}, 1, None), np.arange(1)),
        "pull of 'w'": w.pull,
        "pull of 'e'": lambda: e.pull([1]),
    }
    for name, call in calls.items():
        with pytest.raises(UseError, match=f"^{name} in a part of ps.parallel; call it before or after ps.parallel"):
            ps.parallel(lambda part, call=call: call(), np.arange(2))
    ps.parallel(lambda part: (ps.log(x=1.0), ({}, 1, None))[1], np.arange(2))


def test_the_first_failed_parts_exception_is_raised_when_all_are_done(alone: Setup) -> None:
    ps, done = alone(3), []
    last_failed = threading.Event()

    def f(part: Any) -> Any:
        number = int(part[0])
        if number == 0:
            assert last_failed.wait(PATIENCE_S)
        elif number == 1:
            assert last_failed.wait(PATIENCE_S)
            raise KeyError("one")
        else:
            last_failed.set()
            raise ValueError("two")
        done.append(number)
        return {}, 1, None

    with pytest.raises(KeyError, match="one"):
        ps.parallel(f, np.arange(3))
    assert done == [0]
    assert ps.parallel(lambda part: ({}, len(part), None), np.arange(3)) == ({}, 3, None)


def test_threads_of_a_job_are_the_setting_and_a_merged_push_trains(tmp_path: Path) -> None:
    truth = np.arange(4, dtype=np.float32)

    def program(ps: Session) -> Any:
        w = ps.dense("w", 4, SGD(0.5))
        names: set[int] = set()
        meeting = threading.Barrier(3)

        def f(part: Any) -> Any:
            meeting.wait(PATIENCE_S)
            names.add(threading.get_ident())
            error = part @ (w.value - truth)
            return {w: part.T @ error / len(part)}, len(part), float((error**2).mean())

        for x in ps.steps(lambda pass_, rng: (rng.normal(size=(30, 4)) for _ in range(20)), passes=1):
            ps.push(*ps.parallel(f, x))
        return len(names), w.value.tobytes(), float(np.abs(w.value - truth).max())

    with thread_cluster(tmp_path, 2, 2, trainer_threads=3) as cluster:
        results = cluster.train(program)
    assert [threads for threads, _, _ in results] == [3, 3]
    assert results[0][1] == results[1][1]
    assert results[0][2] < 0.1


# Wrong use


@pytest.mark.parametrize(
    ("batch", "options", "message"),
    [
        (
            np.arange(3),
            {"f": None},
            r"ps.parallel: f=None is not callable; pass f\(part\) that returns \(\{table: gradient\}, ",
        ),
        (np.arange(3), {"parts": 0}, r"parts=0 is not an integer >= 1"),
        (np.arange(3), {"parts": 1.5}, r"parts=1.5 is not an integer >= 1"),
        (np.arange(3), {"split": 2}, r"split=2 is not callable; pass split\(batch, parts\) that returns the parts"),
        ([1, 2], {}, r"a batch of type list cannot be cut by rows; pass an array, a tuple of arrays, or split="),
        ((np.arange(3), [1, 2, 3]), {}, r"a batch of type tuple cannot be cut by rows"),
        ((), {}, r"a batch of type tuple cannot be cut by rows"),
        (np.float32(3), {}, r"a batch of type float32 cannot be cut by rows"),
        (np.array(3), {}, r"an array without rows cannot be cut"),
        ((np.arange(3), np.arange(4)), {}, r"the arrays of a batch have 3, 4 rows; pass arrays of one length"),
        (None, {"split": lambda batch, parts: 7}, r"split returned int; return the parts as a list"),
    ],
)
def test_a_batch_that_cannot_be_cut_is_an_error(
    alone: Setup, batch: Any, options: dict[str, Any], message: str
) -> None:
    f = options.pop("f", lambda part: ({}, 1, None))
    with pytest.raises(UseError, match=message):
        alone(2).parallel(f, batch, **options)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, r"f returned NoneType for part 1; return \(\{table: gradient\}, samples, loss\)"),
        (({}, 1), r"f returned a tuple of 2 for part 1; return \(\{table: gradient\}, samples, loss\)"),
        (([], 1, None), r"f returned gradients of type list for part 1; return \(\{table: gradient\}, samples, loss\)"),
        (({"w": np.ones(1)}, 1, None), r"f returned a gradient of 'w' for part 1, which is not a table"),
        (({}, -1, None), r"samples=-1 is not an integer >= 0"),
        (({}, 1.0, None), r"samples=1.0 is not an integer >= 0"),
        (({}, 1, "high"), r"loss='high' is not a number"),
    ],
)
def test_a_wrong_result_of_a_part_is_an_error(alone: Setup, returned: Any, message: str) -> None:
    with pytest.raises(UseError, match=message):
        alone(2).parallel(lambda part: returned if part[0] else ({}, 1, None), np.arange(2))


@pytest.mark.parametrize("threads", ["0", "-1", "two"])
def test_a_wrong_number_of_threads_without_a_cluster_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSTERCTL_TRAINER_THREADS", threads)
    with pytest.raises(ProcessError, match=f"CLUSTERCTL_TRAINER_THREADS='{threads}' is not an integer"):
        connect()
