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
from tests.runtime.cluster import thread_cluster
from tests.runtime.small import PART, cut_small

#: (pservers, dense lanes, sparse lanes)
LAYOUTS = [(1, 1, 0), (1, 2, 1), (2, 1, 1), (3, 2, 2), (2, 3, 0)]
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
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Results]:
    """Return the results of one pserver with one lane, for one and two trainers; every push is in one piece."""
    out: dict[int, Results] = {}
    for trainers in (1, 2):
        with thread_cluster(tmp_path_factory.mktemp("expected"), 1, trainers) as cluster:
            out[trainers], *others = cluster.train(program)
        for other in others:
            assert_same(out[trainers], other)
    return out


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_bits_do_not_depend_on_lanes_and_pieces(
    tmp_path: Path, expected: dict[int, Results], monkeypatch: pytest.MonkeyPatch, layout: tuple[int, int, int]
) -> None:
    cut_small(monkeypatch)
    with thread_cluster(tmp_path, layout[0], 2, **ports(layout)) as cluster:
        results = cluster.train(program)
        runs = [t for core in cluster.cores for t in core.tables.values() if isinstance(t, DenseTable)]
        assert sum(run.parts for run in runs) > 7
    for result in results:
        assert_same(expected[2], result)
    saved: Any = load_model(tmp_path / "output" / "pass-00001")
    np.testing.assert_array_equal(saved["wide"], expected[2][0])


def test_local_mode_gives_the_same_bits_as_lanes_and_pieces(
    tmp_path: Path, expected: dict[int, Results], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_small(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSTERCTL_SEED", "7")
    with connect() as ps:
        assert_same(expected[1], program(ps, prefetch=2))


def test_the_bits_do_not_depend_on_pieces_of_their_real_size(tmp_path: Path) -> None:
    """Nor do they depend on shared memory, which smaller tables do not use."""
    results = []
    for layout, shm in [((1, 1, 0), "off"), ((2, 2, 1), "auto")]:
        with thread_cluster(tmp_path / shm, layout[0], 2, **ports(layout), shm=shm) as cluster:
            results += cluster.train(lambda ps: program(ps, (1_000_000,)))
    for result in results[1:]:
        assert_same(results[0], result)


@pytest.mark.parametrize("spec", [{"key_cache": True}, {}], ids=str)
@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_the_bits_of_sync_do_not_depend_on_prefetch_and_the_key_cache(
    tmp_path: Path, expected: dict[int, Results], spec: dict[str, Any], prefetch: int
) -> None:
    with thread_cluster(tmp_path, 2, 2, **spec) as cluster:
        for result in cluster.train(lambda ps: program(ps, prefetch=prefetch)):
            assert_same(expected[2], result)


def test_a_key_cache_that_forgets_costs_a_repeat_and_no_bits(
    tmp_path: Path, expected: dict[int, Results], monkeypatch: pytest.MonkeyPatch
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
            assert_same(expected[2], result)
    assert asked


@pytest.mark.parametrize("every", [2, 3, 9])
def test_accumulation_makes_one_push_of_the_merged_batches(tmp_path: Path, every: int) -> None:
    """Compare with float64 sums over the examples of all batches between two pushes; the last push has fewer."""
    rng = np.random.default_rng(5)
    batches = [(rng.normal(size=4), rng.integers(-5, 5, size=6), rng.normal(size=(6, 2)), n) for n in (3, 0, 5, 1, 7)]

    def accumulated(ps: Session) -> Results:
        w, e = ps.dense("w", 4, SGD(0.5)), ps.embedding("e", 2, SGD(0.5), uniform(0.0))
        for dense, ids, rows, samples in ps.steps(lambda pass_, rng: batches, passes=1, accumulate=every):
            ps.push({w: dense, e: (ids, rows)}, samples=samples)
        return [w.value.copy(), e.pull(np.arange(-5, 5)), ps.step]

    dense, table, steps = np.zeros(4), np.zeros((10, 2)), 0
    for start in range(0, len(batches), every):
        group, steps = batches[start : start + every], steps + 1
        total = sum(n for *_, n in group)
        for gradient, ids, rows, n in group:
            dense -= 0.5 * gradient * n / total
            np.subtract.at(table, ids + 5, 0.5 * rows * n / total)
    with thread_cluster(tmp_path, 2, 1) as cluster:
        [(value, rows, steps_taken)] = cluster.train(accumulated)
    np.testing.assert_allclose(value, dense, rtol=0, atol=1e-6)
    np.testing.assert_allclose(rows, table, rtol=0, atol=1e-6)
    assert steps_taken == steps


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


@pytest.mark.parametrize("layout", [(1, 1, 0), (2, 2, 0)])
def test_trainers_may_name_their_tables_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: tuple[int, int, int]
) -> None:
    """Each trainer sends a few pieces at a time, and gets answers once the others have sent theirs: no deadlock."""
    cut_small(monkeypatch)

    def pushed(ps: Session) -> Results:
        tables = [ps.dense(name, WIDE, SGD(1.0)) for name in ("a", "b", "c")]
        rotated = tables[ps.rank :] + tables[: ps.rank]
        for n in ps.steps(lambda pass_, rng: range(3), passes=1):
            named = [table for table in rotated if (table.name, n) != ("b", ps.rank)]
            ps.push({table: np.full(WIDE, -n - 1.0) for table in named}, samples=1)
        return [table.value.copy() for table in tables]

    with thread_cluster(tmp_path, layout[0], 3, **ports(layout)) as cluster:
        for a, b, c in cluster.train(pushed):
            np.testing.assert_array_equal(a, np.full(WIDE, 6, np.float32))
            np.testing.assert_array_equal(a, c)
            np.testing.assert_allclose(b, 4.0, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", ["sync", "async", "half-async", "ssp(1)", "geo(2)"])
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
