"""A program gives the same bits on any number of pservers, with or without CURVE, alone or over sockets."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import SGD, Adagrad, Adam, Momentum, connect, normal, uniform
from clusterctl.runtime.table.sharding import BLOCK_ELEMENTS, owned_elements, table_key
from clusterctl.runtime.trainer.session import Session
from tests.runtime.cluster import thread_cluster

IDS = np.concatenate((np.arange(-40, 40), [2**62, -(2**62)]))


def program(ps: Session) -> list[Any]:
    """Gradients depend on values, so any difference grows; trainers have uneven data and different batch sizes."""

    def reader(pass_: int, rng: np.random.Generator) -> Any:
        for _ in range(3 + 2 * ps.rank + pass_):
            yield rng.integers(-40, 40, size=int(rng.integers(0, 12)))

    wide = ps.dense("wide", (2, BLOCK_ELEMENTS + 11), Adagrad(0.05), uniform(0.1))
    small = ps.dense("small", (5,), Adam(0.01, l2=0.1), normal(0.3))
    single = ps.dense("one", (), Momentum(0.1), normal(1.0))
    free = ps.embedding("free", 3, Adagrad(0.1, l2=0.01))
    bounded = ps.embedding("bounded", 2, SGD(0.1), init=normal(0.2), rows=41)
    for ids in ps.steps(reader, passes=2):
        rows, more = free.pull(ids), bounded.pull(abs(ids))
        scale = np.float32(1 + rows.sum() + ps.rank)
        gradients: dict[Any, Any] = {
            wide: wide.value * scale,
            small: np.sin(small.value) + more.sum(),
            single: single.value * scale,
        }
        ps.push({**gradients, free: (ids, rows * scale), bounded: (abs(ids), more + 1)}, samples=len(ids))
    return [
        wide.value.copy(),
        small.value.copy(),
        single.value.copy(),
        free.pull(IDS),
        bounded.pull(np.arange(41)),
    ]


@functools.cache
def reference(tmp: Path, trainers: int) -> list[Any]:
    with thread_cluster(tmp / f"reference-{trainers}", 1, trainers) as cluster:
        results = cluster.train(program)
    assert_all_equal(results)
    out: list[Any] = results[0]
    return out


def assert_all_equal(results: list[list[Any]]) -> None:
    for other in results[1:]:
        for value, reference_value in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(value.view(np.uint32), reference_value.view(np.uint32))


@pytest.fixture(scope="module")
def module_tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bits")


@pytest.mark.parametrize("trainers", [1, 2, 3])
@pytest.mark.parametrize("pservers", [2, 3, 7])
def test_any_number_of_pservers_gives_the_same_bits(
    tmp_path: Path, module_tmp: Path, pservers: int, trainers: int
) -> None:
    with thread_cluster(tmp_path, pservers, trainers) as cluster:
        results = cluster.train(program)
    assert_all_equal([reference(module_tmp, trainers), *results])


def test_curve_gives_the_same_bits(tmp_path: Path, module_tmp: Path) -> None:
    with thread_cluster(tmp_path, 3, 2, security="curve") as cluster:
        results = cluster.train(program)
    assert_all_equal([reference(module_tmp, 2), *results])


def test_local_mode_gives_the_same_bits(tmp_path: Path, module_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLUSTERCTL_ROLE", raising=False)
    monkeypatch.setenv("CLUSTERCTL_SEED", "7")
    with connect() as ps:
        alone = program(ps)
    assert_all_equal([reference(module_tmp, 1), alone])


@pytest.mark.parametrize("elements", [1, 5, BLOCK_ELEMENTS, 10 * BLOCK_ELEMENTS + 3])
@pytest.mark.parametrize("pservers", [1, 2, 3, 7, 100])
def test_every_element_lives_on_exactly_one_pserver(elements: int, pservers: int) -> None:
    runs = [owned_elements(elements, table_key("any"), p, pservers) for p in range(pservers)]
    covered = sorted(run for run in runs if run[0] < run[1])
    assert covered[0][0] == 0
    assert covered[-1][1] == elements
    assert all(a[1] == b[0] for a, b in itertools.pairwise(covered))


def test_initial_values_do_not_depend_on_which_trainer_asks_first() -> None:
    key = 12345
    for init in (uniform(0.3), uniform(1.0, 2.0), normal(0.5, mean=1.0)):
        whole = init.dense(key, 0, 1000)
        np.testing.assert_array_equal(init.dense(key, 300, 50), whole[300:350])
        ids = np.array([5, -3, 10**12])
        np.testing.assert_array_equal(init.rows(key, ids, 4)[1:2], init.rows(key, ids[1:2], 4))


def test_initial_values_have_the_named_distribution() -> None:
    even = uniform(0.1).dense(1, 0, 200_000).astype(np.float64)
    assert even.min() >= -0.1
    assert even.max() < 0.1
    assert abs(even.mean()) < 1e-3
    assert abs(even.std() - 0.2 / 12**0.5) < 1e-3
    bell = normal(2.0, mean=1.0).rows(1, np.arange(50_000), 4).astype(np.float64)
    assert abs(bell.mean() - 1) < 0.02
    assert abs(bell.std() - 2) < 0.02
    assert 0.675 < (abs(bell - 1) < 2).mean() < 0.685


def test_the_generator_always_gives_the_same_numbers() -> None:
    """Saved models, resumed runs and other machines rely on exactly these bits."""
    values = uniform(1.0).dense(42, 0, 3).view(np.uint32).tolist()
    rows = normal(1.0).rows(42, np.array([-1, 7]), 1).view(np.uint32).ravel().tolist()
    assert (values, rows) == ([1056398536, 3207471162, 3202528868], [3215525120, 1021755392])
