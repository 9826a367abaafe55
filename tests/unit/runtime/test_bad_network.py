"""Messages that are lost, repeated, delayed and overtaken, in every mode: each piece of each push counts once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import SGD, Adagrad, uniform, zeros
from clusterctl.runtime.trainer.session import Session
from unit.runtime.between import Between
from unit.runtime.cluster import thread_cluster
from unit.runtime.small import PART, cut_small

LANES = {"ports_num": 2, "ports_num_for_sparse": 1}
ELEMENTS = 6 * PART
IDS = np.array([3, 3, 8, -1])
STEPS = 7


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_small(monkeypatch)


def share_from(least_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use shared memory even for small arrays: late copies of messages then refer to places that are in use again."""
    for home in ("shm.server", "trainer.shared_memory"):
        monkeypatch.setattr(f"clusterctl.runtime.{home}.LEAST_BYTES", least_bytes)


def value_dependent(ps: Session) -> Any:
    w = ps.dense("w", ELEMENTS, Adagrad(0.1), uniform(0.5))
    e = ps.embedding("e", 3, Adagrad(0.1))
    wanted = {e: lambda ids: ids}
    for ids in ps.steps(lambda pass_, rng: (rng.integers(-9, 9, 20) for _ in range(4)), 1, prefetch=1, ids=wanted):
        rows = e.pull(ids)
        ps.push({w: np.sin(w.value * rows.sum()), e: (ids, rows + w.value[:3])}, samples=1 + ps.rank)
    return w.value.copy(), e.pull(np.arange(-9, 9))


def counted(ps: Session) -> tuple[Any, Any]:
    """Every push adds 1 to each element, and to a row how often it is named."""
    w, e = ps.dense("w", ELEMENTS, SGD(1.0)), ps.embedding("e", 2, SGD(1.0), zeros())
    for _ in ps.steps(lambda pass_, rng: range(STEPS), passes=1):
        e.pull(IDS)
        ps.push({w: -np.ones(ELEMENTS), e: (IDS, -np.ones((4, 2)))}, samples=1)
    return w, e


@pytest.mark.parametrize(("least_bytes", "key_cache", "seed"), [(8, True, 4), (2**40, False, 3)])
def test_in_sync_the_bits_do_not_depend_on_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least_bytes: int, key_cache: bool, seed: int
) -> None:
    share_from(least_bytes, monkeypatch)
    with thread_cluster(tmp_path / "good", 1, 2) as cluster:
        expected, _ = cluster.train(value_dependent)
    with (
        thread_cluster(tmp_path / "bad", 2, 2, **LANES, key_cache=key_cache) as cluster,
        Between(cluster, seed=seed, lose=0.08, repeat=0.12, delay=0.3) as between,
    ):
        cluster.probe_every_s = 0.02
        results = cluster.train(value_dependent)
    assert min(between.fates[fate] for fate in ("lose", "repeat", "delay")) > 10
    for result in results:
        for actual, reference in zip(result, expected, strict=True):
            np.testing.assert_array_equal(actual, reference)


@pytest.mark.parametrize(
    ("mode", "dense"), [("async", 2 * STEPS), ("half-async", 2 * STEPS), ("ssp(2)", 2 * STEPS), ("geo(3)", STEPS)]
)
def test_in_the_other_modes_each_push_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, dense: int
) -> None:
    """All sums are of small integers or halves, which float32 represents exactly. Geo averages dense tables."""
    share_from(8, monkeypatch)
    with (
        thread_cluster(tmp_path, 2, 2, mode=mode, **LANES) as cluster,
        Between(cluster, seed=4, lose=0.08, repeat=0.12, delay=0.3) as between,
    ):
        cluster.probe_every_s = 0.02
        cluster.train(counted)
        tables = [t for core in cluster.cores for _, t in sorted(core.tables.items())]
        values = np.concatenate([t.current for t in tables if t.spec.name == "w"])
        rows = {int(i): t.pull(np.array([i]), None)[0, 0] for t in tables if t.spec.name == "e" for i in t.ids}
    assert between.fates["lose"] > 10
    np.testing.assert_array_equal(values, np.full(ELEMENTS, dense))
    assert rows == {3: 4 * STEPS, 8: 2 * STEPS, -1: 2 * STEPS}
