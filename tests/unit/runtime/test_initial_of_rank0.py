"""Initial values from trainer 0: all trainers get them, once, whatever is late, lost, killed or repeated."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import SGD, Adagrad, Retention, connect, constant, from_rank0, load_model, older_than
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.trainer.session import Session
from clusterctl.runtime.wire import messages as wire
from support.processes import wait_until
from unit.runtime.cluster import DEADLINE_S, ThreadCluster, thread_cluster
from unit.runtime.small import PART, cut_small

CASES: list[tuple[str, int, dict[str, int]]] = [
    ("sync", 2, {"ports_num": 2, "ports_num_for_sparse": 2}),
    ("async", 1, {"ports_num": 2}),
    ("geo(2)", 2, {"ports_num_for_sparse": 1}),
]
SHAPES: dict[str, tuple[int, ...]] = {
    "tiny": (1,),
    "small": (7, 11),
    "large": (90, 50),
    "rows": (1_500, 3),
    "few": (2, 3),
}


def array(name: str, salt: int) -> Any:
    return np.random.default_rng([len(name), salt]).normal(size=SHAPES[name]).astype(np.float32)


def declared(ps: Session, salt: int | None) -> dict[str, Any]:
    """Make all tables, with the arrays of `salt` or without any; return their values."""
    values: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        init = from_rank0(None if salt is None else array(name, salt))
        if name in ("rows", "few"):
            table: Any = ps.embedding(name, 3, SGD(1.0), init, rows=shape[0])
            values[name] = table.pull(np.arange(shape[0]))
        else:
            values[name] = ps.dense(name, shape, SGD(1.0), init).value.copy()
    return values


def assert_of(values: dict[str, Any], salt: int) -> None:
    for name in SHAPES:
        np.testing.assert_array_equal(values[name], array(name, salt), name)


@pytest.mark.parametrize(("mode", "pservers", "lanes"), CASES)
def test_every_trainer_gets_the_values_of_trainer_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, pservers: int, lanes: dict[str, int]
) -> None:
    cut_small(monkeypatch)
    with thread_cluster(tmp_path, pservers, 3, mode=mode, **lanes) as cluster:
        for values in cluster.train(lambda ps: declared(ps, [5, 6, None][ps.rank])):
            assert_of(values, 5)
        assert not any(core.state.unset for core in cluster.cores)


class Beside:
    """A trainer in a thread."""

    def __init__(self, cluster: ThreadCluster, rank: int, program: Any) -> None:
        self._results: list[Any] = []
        self._thread = threading.Thread(target=self._run, args=(cluster, rank, program), daemon=True)
        self._thread.start()

    def _run(self, cluster: ThreadCluster, rank: int, program: Any) -> None:
        try:
            with cluster.session(rank) as ps:
                self._results.append(program(ps))
        except Exception as failure:  # noqa: BLE001 - `result` raises it
            self._results.append(failure)

    @property
    def is_over(self) -> bool:
        return bool(self._results)

    def result(self) -> Any:
        self._thread.join(DEADLINE_S)
        assert self._results, "a trainer hangs"
        if isinstance(self._results[0], Exception):
            raise self._results[0]
        return self._results[0]


@pytest.mark.parametrize(("mode", "sent"), [("sync", 1), ("async", 5), ("sync", 8)])
def test_a_trainer_0_killed_between_its_messages_sends_its_values_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, sent: int
) -> None:
    """Its next attempt has other values. Those that a lane had are not replaced, and no lane has some of each."""
    cut_small(monkeypatch)
    size = 8 * PART

    def program(ps: Session, value: float) -> Any:
        own = None if ps.rank else np.full(size, value, np.float32)
        w = ps.dense("w", size, SGD(1.0), from_rank0(own))
        e = ps.embedding("e", 10, SGD(1.0), from_rank0(None if own is None else own.reshape(-1, 10)), rows=size // 10)
        return w.value.copy(), e.pull(np.arange(size // 10))

    with thread_cluster(tmp_path, 2, 2, mode=mode, ports_num_for_sparse=1) as cluster:
        other = Beside(cluster, 1, lambda ps: program(ps, 0))
        with pytest.raises(InterruptedError), cluster.session(0) as ps:
            program(dying_after(ps, sent), 1)
        with cluster.session(0, attempt=2) as ps:
            mine = program(ps, 2)
        for one, two in zip(mine, other.result(), strict=True):
            np.testing.assert_array_equal(one, two)
        assert set(np.unique(np.concatenate([part.ravel() for part in mine]))) <= {1.0, 2.0}
        for core in cluster.cores:
            for table in core.tables.values():
                values = table.current if hasattr(table, "current") else table.rows_at(table.live())
                assert len(np.unique(values)) == 1


def dying_after(ps: Session, sent: int) -> Session:
    link: Any = ps._client._link
    post, count = link.post, [0]

    def counting(lane: int, message: wire.Message, *rest: Any) -> None:
        if message.kind == wire.SET:
            if count[0] == sent:
                raise InterruptedError("killed")
            count[0] += 1
        post(lane, message, *rest)

    link.post = counting
    return ps


def train(ps: Session, value: float) -> tuple[float, float]:
    w = ps.dense("w", 4, Adagrad(1.0), from_rank0(np.full(4, value, np.float32)))
    e = ps.embedding("e", 1, SGD(1.0), from_rank0(np.full((9, 1), value, np.float32)), rows=9)
    for _ in ps.steps(lambda pass_, rng: range(2), passes=1):
        ps.push({w: np.zeros(4), e: ([3], [[0.0]])}, samples=1)
    return float(w.value.sum()), float(e.pull(np.arange(9)).sum())


def test_values_of_a_checkpoint_stay(tmp_path: Path) -> None:
    pservers = 2
    facts: dict[str, Any] = {"checkpoints": True, "save_every": {"unit": "step", "n": 2}, "ports_num": 2}
    with thread_cluster(tmp_path, pservers, 1, **facts) as cluster:
        assert cluster.train(lambda ps: train(ps, 2.0)) == [(8.0, 18.0)]
        assert wait_until(lambda: sum(bool(r.get("checkpoint")) for r in cluster.receipts) == pservers)
        tag = next(receipt["tag"] for receipt in cluster.receipts if receipt.get("checkpoint"))
    with thread_cluster(tmp_path, pservers, 1, **facts, recover={"tag": tag, "step": 2}) as again:
        assert again.train(lambda ps: train(ps, 5.0)) == [(8.0, 18.0)]


def test_values_of_a_loaded_model_stay_and_what_it_lacks_comes_from_trainer_0(tmp_path: Path) -> None:
    def more(ps: Session) -> tuple[float, float, float]:
        new = ps.dense("new", 3, SGD(1.0), from_rank0(np.ones(3) if ps.rank == 0 else None))
        return (*train(ps, 5.0), float(new.value.sum()))

    (tmp_path / "a").mkdir()
    with connect_in(tmp_path / "a") as ps:
        train(ps, 2.0)
        ps.save("model")
        model = ps.output_dir / "model"
    with thread_cluster(tmp_path / "b", 2, 2, ports_num=2) as cluster:
        assert cluster.train(more, load=str(model)) == [(8.0, 18.0, 3.0)] * 2


def connect_in(directory: Path) -> Session:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        return connect()


def test_the_array_may_change_or_be_freed_afterwards(tmp_path: Path) -> None:
    own = np.ones((4, 2), np.float32)
    with connect_in(tmp_path) as ps:
        e = ps.embedding("e", 2, SGD(1.0), from_rank0(own), rows=4)
        own[:] = 7
        assert not hasattr(e.spec.init, "values")
        assert e.pull([0, 3]).sum() == 4.0
        ps.save("model")
        ids, saved = load_model(ps.output_dir / "model")["e"]
    assert ids.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(saved, 1.0)


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda ps: ps.dense("w", 4, SGD(1.0), from_rank0(None)), r"'w' from trainer 0 is None; .* shape \(4,\)"),
        (lambda ps: ps.dense("w", 4, SGD(1.0), from_rank0(np.ones(5))), r"has shape \(5,\), expected \(4,\)"),
        (lambda ps: ps.dense("w", 4, SGD(1.0), from_rank0(np.ones(4, int))), "has dtype int64; pass float32"),
        (lambda ps: ps.embedding("e", 2, SGD(1.0), from_rank0(np.ones(2)), rows=3), r"expected \(3, 2\)"),
        (lambda ps: ps.embedding("e", 2, SGD(1.0), from_rank0(np.ones((3, 2)))), "pass rows=, and no retention"),
        (
            lambda ps: ps.embedding(
                "e", 2, SGD(1.0), from_rank0(np.ones((3, 2))), rows=3, retention=Retention(expire=older_than(3))
            ),
            "pass rows=, and no retention",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_errors(tmp_path: Path, declare: Any, message: str) -> None:
    with connect_in(tmp_path) as ps:
        with pytest.raises(UseError, match=message):
            declare(ps)
        ps.dense("w", 4, SGD(1.0), constant(1))  # nothing was declared
