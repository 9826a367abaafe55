"""Mistakes in training programs, and the errors that report them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import SGD, Adagrad, connect, constant, uniform
from clusterctl.runtime.environment import read_environment
from clusterctl.runtime.errors import ProcessError, TableError, UseError
from clusterctl.runtime.trainer.session import Session
from unit.runtime.cluster import thread_cluster


@pytest.fixture
def ps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.chdir(tmp_path)
    with connect() as session:
        yield session


def push_once(ps: Session, gradients: Callable[[Any, Any, Any], Any], **kwargs: Any) -> None:
    w = ps.dense("w", (2, 3), SGD(0.1))
    e = ps.embedding("e", 2, SGD(0.1), rows=10)
    free = ps.embedding("free", 2, SGD(0.1))
    for _ in ps.steps(lambda pass_, rng: range(1), passes=1):
        ps.push(gradients(w, e, free), **{"samples": 1, **kwargs})


@pytest.mark.parametrize(
    ("gradients", "message"),
    [
        (
            lambda w, e, f: {w: np.ones(6)},
            r"gradient of table 'w' from trainer 0 has shape \(6,\), expected \(2, 3\)",
        ),
        (lambda w, e, f: {w: np.ones((2, 3), int)}, "has dtype int64; pass float32"),
        (lambda w, e, f: {w: np.ones((2, 3), complex)}, "has dtype complex128"),
        (lambda w, e, f: {w: [["a"] * 3] * 2}, "has dtype <U1"),
        (lambda w, e, f: {e: np.ones((2, 2))}, r"is not a pair; push \{embedding: \(ids, gradients\)\}"),
        (lambda w, e, f: {e: ([1, 2], np.ones((3, 2)))}, r"has shape \(3, 2\), expected \(2, 2\)"),
        (
            lambda w, e, f: {e: ([1, 10], np.ones((2, 2)))},
            r"go from 1 to 10, it has rows=10; pass ids in 0..9",
        ),
        (lambda w, e, f: {e: ([-1], np.ones((1, 2)))}, "go from -1 to -1, it has rows=10"),
        (
            lambda w, e, f: {f: ([1.5], np.ones((1, 2)))},
            "ids for table 'free' have dtype float64; pass integers",
        ),
        (lambda w, e, f: {f: ([True], np.ones((1, 2)))}, "have dtype bool"),
        (
            lambda w, e, f: {f: (np.array([2**63], np.uint64), np.ones((1, 2)))},
            r"ids are int64, below 2\*\*63",
        ),
        (lambda w, e, f: {"w": np.ones(6)}, "is not a table of this session"),
    ],
)
def test_a_wrong_gradient_is_named(ps: Session, gradients: Any, message: str) -> None:
    with pytest.raises(UseError, match=message):
        push_once(ps, gradients)


@pytest.mark.parametrize("samples", [-1, 1.5, float("nan"), None, "3", True])
def test_samples_must_be_an_integer(ps: Session, samples: Any) -> None:
    with pytest.raises(UseError, match="is not an integer >= 0; pass the number of examples"):
        push_once(ps, lambda w, e, f: {}, samples=samples)


def test_numpy_numbers_and_other_floats_are_accepted(ps: Session) -> None:
    push_once(ps, lambda w, e, f: {w: np.ones((2, 3), np.float16)}, samples=np.int64(3), loss=np.float32(1))


def test_push_belongs_in_steps_and_once_per_batch(ps: Session) -> None:
    with pytest.raises(UseError, match=r"push outside ps.steps\(...\)"):
        ps.push({}, samples=1)
    for _ in ps.steps(lambda pass_, rng: range(1), passes=1):
        ps.push({}, samples=1)
        with pytest.raises(UseError, match="a second push for batch 0 of pass 0"):
            ps.push({}, samples=1)
    with pytest.raises(UseError, match="push outside"):
        ps.push({}, samples=1)


@pytest.mark.parametrize("in_on_pass", [False, True], ids=["at a batch", "in on_pass"])
def test_a_loop_inside_another_one_is_refused(ps: Session, in_on_pass: bool) -> None:
    def evaluate(pass_: int) -> None:
        assert [*ps.steps(lambda pass_, rng: range(2), passes=1)] == [0, 1]

    def train() -> None:
        for batch in ps.steps(lambda pass_, rng: range(3), passes=1, on_pass=evaluate if in_on_pass else None):
            ps.push({}, samples=1)
            assert ps.step <= 3
            if batch == 1 and not in_on_pass:
                evaluate(0)

    with pytest.raises(UseError, match=r"ps.loader began inside another one, or in on_pass; read other data"):
        train()


def test_a_refused_push_can_be_corrected(ps: Session) -> None:
    w = ps.dense("w", 2, SGD(1.0))
    for _ in ps.steps(lambda pass_, rng: range(1), passes=1):
        with pytest.raises(UseError):
            ps.push({w: np.ones(3)}, samples=1)
        ps.push({w: np.ones(2)}, samples=1)
    np.testing.assert_array_equal(w.value, [-1, -1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accumulate": 0}, "accumulate=0 is not an integer >= 1"),
        ({"accumulate": 1.5}, "accumulate=1.5 is not an integer"),
        ({"accumulate": True}, "accumulate=True is not an integer"),
        ({"prefetch": -1}, "prefetch=-1 is not an integer >= 0"),
        ({"prefetch": "2"}, "prefetch='2' is not an integer"),
        ({"ids": {1: abs}}, r"ids=\{1: .*\}; map an embedding to a function of a batch"),
        ({"clip": 5.0}, r"clip=5\.0 is not a way of clipping; pass for example clip_by_norm"),
    ],
)
def test_options_of_steps_are_checked(ps: Session, options: Any, message: str) -> None:
    with pytest.raises(UseError, match=message):
        ps.steps(lambda pass_, rng: [], passes=1, **options)


def test_ids_are_a_function_for_an_embedding_of_this_session(ps: Session, tmp_path: Path) -> None:
    e, w = ps.embedding("e", 2, SGD(0.1)), ps.dense("w", 2, SGD(0.1))
    with connect() as other:
        theirs = other.embedding("e", 2, SGD(0.1))
    for ids in ({e: [1, 2]}, {w: abs}, {theirs: abs}):
        with pytest.raises(UseError, match="map an embedding to a function of a batch"):
            ps.steps(lambda pass_, rng: [], passes=1, prefetch=1, ids=ids)  # type: ignore[arg-type]


def test_prefetched_ids_are_checked_too(ps: Session) -> None:
    e = ps.embedding("e", 2, SGD(0.1), rows=10)
    batches = ps.steps(lambda pass_, rng: [3, 10], passes=1, prefetch=1, ids={e: lambda batch: [batch]})
    next(batches)
    with pytest.raises(UseError, match=r"it has rows=10; pass ids in 0\.\.9"):
        ps.push({}, samples=1)


def test_readers_and_passes_are_checked(ps: Session) -> None:
    with pytest.raises(UseError, match="is not callable"):
        ps.steps([1, 2], passes=1)  # type: ignore[arg-type]
    with pytest.raises(UseError, match="passes=-1"):
        ps.steps(lambda pass_, rng: [], passes=-1)
    with pytest.raises(UseError, match="returned NoneType; yield batches"):
        list(ps.steps(lambda pass_, rng: None, passes=1))  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Adagrad("0.1"),  # type: ignore[arg-type]
        lambda: uniform(float("inf")),
        lambda: constant("x"),  # type: ignore[arg-type]
    ],
)
def test_rules_and_initial_values_accept_only_sane_numbers(make: Any) -> None:
    with pytest.raises(UseError):
        make()


@pytest.mark.parametrize("name", ["", "__metadata__", "a\nb", "x" * 300, "a/", "/a"])
def test_table_names_that_files_cannot_carry_are_refused(ps: Session, name: str) -> None:
    with pytest.raises(UseError, match="is invalid"):
        ps.dense(name, 3, SGD(0.1))


@pytest.mark.parametrize("shape", [(0,), (3, -1), (2**30, 2**30)])
def test_impossible_shapes_are_refused(ps: Session, shape: Any) -> None:
    with pytest.raises(UseError, match="shape"):
        ps.dense("w", shape, SGD(0.1))


def test_rule_and_init_must_be_of_our_own_classes(ps: Session) -> None:
    with pytest.raises(UseError, match="pass for example Adagrad"):
        ps.dense("w", 3, rule=0.1)  # type: ignore[arg-type]


def test_trainers_that_disagree_about_a_table_get_an_error_with_the_difference(tmp_path: Path) -> None:
    def program(ps: Session) -> None:
        ps.dense("same", 3, SGD(0.1))
        ps.dense("w", 3 + ps.rank, Adagrad(0.1 * (1 + ps.rank)))

    with (
        thread_cluster(tmp_path, 1, 2) as cluster,
        pytest.raises(
            TableError,
            match=r"table 'w' differs from what trainer . declares \(shape: .* rule: .*declare it the same way",
        ),
    ):
        cluster.train(program)


def test_so_is_making_it_twice_on_pservers(tmp_path: Path) -> None:
    def program(ps: Session) -> None:
        tables = [ps.dense("w", 3, SGD(1.0), constant(2.0)) for _ in range(2)]
        for _ in ps.steps(lambda pass_, rng: range(1), passes=1):
            ps.push({tables[0]: np.ones(3)}, samples=1)
        assert [table.value.tolist() for table in tables] == [[1, 1, 1]] * 2

    with thread_cluster(tmp_path, 2, 1) as cluster:
        cluster.train(program)


def test_ids_of_more_dimensions_give_rows_of_more_dimensions(ps: Session) -> None:
    e = ps.embedding("e", 2, SGD(1.0), init=constant(0.0))
    ids = np.array([[1, 2, 1], [3, -4, 1]])
    for _ in ps.steps(lambda pass_, rng: range(1), passes=1):
        ps.push({e: (ids, np.ones((2, 3, 2)))}, samples=1)
    np.testing.assert_array_equal(e.pull(ids)[..., 0], [[-3, -1, -3], [-1, -1, -3]])
    assert e.pull([]).shape == (0, 2)


def test_logged_values_are_numbers(ps: Session) -> None:
    ps.log(accuracy=np.float32(0.5), weight=10)
    with pytest.raises(UseError, match=r"ps.log takes numbers"):
        ps.log(accuracy="good")  # type: ignore[arg-type]


def test_a_broken_environment_is_named(tmp_path: Path) -> None:
    env = {"CLUSTERCTL_ROLE": "trainer", "CLUSTERCTL_JOB_DIR": str(tmp_path), "CLUSTERCTL_RUN": "0001"}
    with pytest.raises(ProcessError, match=r"spec\.json cannot be read"):
        read_environment(env)
    with pytest.raises(ProcessError, match="neither pserver nor trainer"):
        read_environment({"CLUSTERCTL_ROLE": "boss"})
    with pytest.raises(ProcessError, match="CLUSTERCTL_JOB_DIR is not set"):
        read_environment({"CLUSTERCTL_ROLE": "trainer"})
    with pytest.raises(ProcessError, match="CLUSTERCTL_SEED='x' is not an integer"):
        read_environment({"CLUSTERCTL_SEED": "x"})
