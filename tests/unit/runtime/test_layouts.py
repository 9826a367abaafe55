"""Lanes, pieces, prefetch, accumulation and the key cache do not change the bits; float16 on the wire only rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import SGD, Adagrad, Adam, connect, load_model, normal, uniform
from clusterctl.runtime.errors import ForgottenError
from clusterctl.runtime.store.dense import DenseTable
from clusterctl.runtime.trainer.session import Session
from clusterctl.runtime.wire.key_cache import KeyCache
from unit.runtime.cluster import thread_cluster
from unit.runtime.small import PART, cut_small

#: (pservers, dense lanes, sparse lanes)
LAYOUTS = [(3, 2, 2), (2, 3, 0)]
WIDE = (7, PART)
EVERYONE = np.arange(-30, 30)

Results = list[Any]


def ports(layout: tuple[int, int, int]) -> dict[str, int]:
    return {"ports_num": layout[1], "ports_num_for_sparse": layout[2]}


def reader(pass_: int, rng: np.random.Generator) -> Any:
    for _ in range(4 + pass_):
        yield rng.integers(-30, 30, size=int(rng.integers(1, 12)))


def program(ps: Session, shape: tuple[int, ...] = WIDE, **options: Any) -> Results:
    """Gradients depend on values, so any difference grows. Trainers have uneven data, and sometimes push no table."""

    def mine(pass_: int, rng: np.random.Generator) -> Any:
        yield from list(reader(pass_, rng))[ps.rank :]

    wide = ps.dense("wide", shape, Adagrad(0.05), uniform(0.1))
    small = ps.dense("small", (5,), Adam(0.01), normal(0.3))
    rows = ps.embedding("rows", 3, Adagrad(0.1))
    bounded = ps.embedding("bounded", 2, SGD(0.1), init=normal(0.2), rows=31)
    wanted = {rows: lambda ids: ids, bounded: abs}
    for ids in ps.steps(mine, passes=2, ids=wanted, **options):
        got, more = rows.pull(ids), bounded.pull(abs(ids))
        scale = np.float32(1 + got.sum() + ps.rank)
        gradients: dict[Any, Any] = {small: np.sin(small.value) + more.sum(), rows: (ids, got * scale)}
        if len(ids) % 4:
            gradients.update({wide: wide.value * scale, bounded: (abs(ids), more + 1)})
        ps.push(gradients, samples=len(ids) if len(ids) % 5 else 0)
    return [wide.value.copy(), small.value.copy(), rows.pull(EVERYONE), bounded.pull(np.arange(31))]


def assert_same(results: Results, expected: Results) -> None:
    for a, b in zip(results, expected, strict=True):
        np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return the results of one pserver with one lane, and two trainers; every push is in one piece."""
    with thread_cluster(tmp_path_factory.mktemp("expected"), 1, 2) as cluster:
        one, other = cluster.train(program)
    assert_same(one, other)
    return list(one)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_bits_do_not_depend_on_lanes_and_pieces(
    tmp_path: Path, expected: Results, monkeypatch: pytest.MonkeyPatch, layout: tuple[int, int, int]
) -> None:
    cut_small(monkeypatch)
    with thread_cluster(tmp_path, layout[0], 2, **ports(layout)) as cluster:
        results = cluster.train(program)
        runs = [t for core in cluster.cores for t in core.tables.values() if isinstance(t, DenseTable)]
        assert sum(run.parts for run in runs) > 7
    for result in results:
        assert_same(expected, result)
    saved: Any = load_model(tmp_path / "output" / "pass-00001")
    np.testing.assert_array_equal(saved["wide"], expected[0])


def test_local_mode_gives_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_small(monkeypatch)
    with thread_cluster(tmp_path, 2, 1, security="curve", ports_num=2, ports_num_for_sparse=1) as cluster:
        [results] = cluster.train(program)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSTERCTL_SEED", "7")
    with connect() as ps:
        assert_same(results, program(ps, prefetch=2))


@pytest.mark.parametrize(("spec", "prefetch"), [({"key_cache": True}, 3), ({}, 1)], ids=str)
def test_the_bits_of_sync_do_not_depend_on_prefetch_and_the_key_cache(
    tmp_path: Path, expected: Results, spec: dict[str, Any], prefetch: int
) -> None:
    with thread_cluster(tmp_path, 2, 2, **spec) as cluster:
        for result in cluster.train(lambda ps: program(ps, prefetch=prefetch)):
            assert_same(expected, result)


def test_a_key_cache_that_forgets_costs_a_repeat_and_no_bits(
    tmp_path: Path, expected: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer believes that the lane still has lists that it dropped: they are sent in full, after the pieces."""
    cut_small(monkeypatch)
    monkeypatch.setattr("clusterctl.runtime.wire.key_cache.BYTES_PER_TRAINER", 0)
    asked: list[bytes] = []

    def forget(self: KeyCache, rank: int, table: int, digest: bytes) -> Any:
        asked.append(digest)
        raise ForgottenError("a list of ids is not in the cache")

    monkeypatch.setattr(KeyCache, "recall", forget)
    with thread_cluster(tmp_path, 1, 2, key_cache=True) as cluster:
        cluster.probe_every_s = 0.02
        for result in cluster.train(program):
            assert_same(expected, result)
    assert asked


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_float16_on_the_wire_only_rounds(tmp_path: Path, mode: str) -> None:
    """Gradients and values are rounded once each way, by at most a part in 2048; pservers keep float32."""

    def rounded(ps: Session) -> Results:
        w, e = ps.dense("w", WIDE, SGD(1.0), uniform(0.1)), ps.embedding("e", 2, SGD(1.0), uniform(0.1))
        first = [w.value.copy(), e.pull([3, 4])]
        for _ in ps.steps(lambda pass_, rng: range(10), passes=1):
            ps.push({w: np.full(WIDE, 0.1), e: ([3, 4], np.full((2, 2), 0.1))}, samples=1)
        return [a - b for a, b in zip(first, [w.pull(), e.pull([3, 4])], strict=True)]

    with thread_cluster(tmp_path, 2, 1, mode=mode, wire="float16") as cluster:
        for moved in cluster.train(rounded)[0]:
            np.testing.assert_allclose(moved, 1.0, rtol=0, atol=1.1 * 2**-10)
            assert (moved != 1.0).any()


def test_trainers_may_name_their_tables_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trainer sends a few pieces at a time, and gets answers once the others have sent theirs: no deadlock."""
    cut_small(monkeypatch)

    def pushed(ps: Session) -> Results:
        tables = [ps.dense(name, WIDE, SGD(1.0)) for name in ("a", "b", "c")]
        rotated = tables[ps.rank :] + tables[: ps.rank]
        for n in ps.steps(lambda pass_, rng: range(3), passes=1):
            named = [table for table in rotated if (table.name, n) != ("b", ps.rank)]
            ps.push({table: np.full(WIDE, -n - 1.0) for table in named}, samples=1)
        return [table.value.copy() for table in tables]

    with thread_cluster(tmp_path, 2, 3, ports_num=2) as cluster:
        for a, b, c in cluster.train(pushed):
            np.testing.assert_array_equal(a, np.full(WIDE, 6, np.float32))
            np.testing.assert_array_equal(a, c)
            np.testing.assert_allclose(b, 4.0, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", ["sync", "async", "geo(2)"])
def test_a_gradient_may_be_the_value_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """Answers to the first pieces refresh the value while the last ones are still to be sent."""
    cut_small(monkeypatch)

    def pushed(ps: Session, copied: int) -> Results:
        wide, one = ps.dense("wide", WIDE, Adagrad(0.1), uniform(0.5)), ps.dense("one", 3, SGD(0.1), uniform(0.5))
        for n in ps.steps(lambda pass_, rng: range(6), passes=1):
            wide.pull()
            one.pull()
            ps.push({table: table.value.copy() if n % 2 == copied else table.value for table in (wide, one)}, samples=1)
        return [wide.value.copy(), one.value.copy()]

    results = []
    for copied in range(2):
        with thread_cluster(tmp_path / str(copied), 2, 1, mode=mode) as cluster:
            results += cluster.train(lambda ps, copied=copied: pushed(ps, copied))
    assert_same(results[0], results[1])
