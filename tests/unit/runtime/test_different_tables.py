"""Trainers that declare different tables, or tables whose names collide in a saved model: the run fails by name."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.common.modes import Mode
from clusterctl.runtime import SGD, constant, from_rank0, load_model, merge_model
from clusterctl.runtime.errors import TableError, UseError
from clusterctl.runtime.pserver.core import ServerCore
from clusterctl.runtime.pserver.lane_state import LaneState, Reply
from clusterctl.runtime.table.sharding import Layout
from clusterctl.runtime.table.spec import TableSpec
from clusterctl.runtime.trainer.handles import Dense
from clusterctl.runtime.trainer.session import Session
from clusterctl.runtime.wire import messages as wire
from unit.runtime.cluster import thread_cluster

REQUESTS = itertools.count(1)
ONE = np.ones(2, np.float32)
OWN_LANES = {"ports_num": 2, "ports_num_for_sparse": 2}
CHECKPOINTS = {"checkpoints": True, "save_every": {"unit": "step", "n": 4}}

Make = Callable[[Session], dict[Any, Any]]


def train(ps: Session, make: Make, batches: int = 6, passes: int = 2) -> None:
    gradients = make(ps)
    for _ in ps.steps(lambda pass_, rng: range(batches), passes):
        ps.push(gradients, samples=1)


def same(ps: Session) -> dict[Any, Any]:
    e = ps.embedding("e", 2, SGD(1.0), init=constant(0.0))
    return {ps.dense("w", 2, SGD(1.0)): ONE, e: ([1], [ONE])}


def dense_by_rank(ps: Session) -> dict[Any, Any]:
    return {ps.dense(f"w_{ps.rank}", 2, SGD(1.0)): ONE}


def rows_by_rank(ps: Session) -> dict[Any, Any]:
    return {**same(ps), ps.embedding(f"e_{ps.rank}", 2, SGD(1.0)): ([1], [ONE])}


def one_more(ps: Session) -> dict[Any, Any]:
    return {**same(ps), ps.dense("more", 2, SGD(1.0)): ONE} if ps.rank == 1 else same(ps)


def none_at_all(ps: Session) -> dict[Any, Any]:
    return same(ps) if ps.rank == 0 else {}


WRONG = [
    (dense_by_rank, "table 'w_[01]' was declared by trainer [01] and not by trainer [01]"),
    (rows_by_rank, "table 'e_[01]' was declared by trainer [01] and not by trainer [01]"),
    (one_more, "table 'more' was declared by trainer 1 and not by trainer 0"),
    (none_at_all, "table '[ew]' was declared by trainer 0 and not by trainer 1"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_in_sync_the_first_step_of_trainers_with_different_tables_fails(
    tmp_path: Path, make: Make, message: str
) -> None:
    with (
        thread_cluster(tmp_path, 2, 2, **OWN_LANES) as cluster,
        pytest.raises(TableError, match=f"{message} before the end of step 1.*; declare the same tables"),
    ):
        cluster.train(lambda ps: train(ps, make))
    assert cluster.cores[0].step == 0


@pytest.mark.parametrize(
    ("make", "message", "mode", "saves"),
    [(*WRONG[1], "async", CHECKPOINTS), (*WRONG[2], "geo(3)", {})],
    ids=["at a cut", "without cuts"],
)
def test_outside_sync_they_fail_at_the_first_cut_or_at_the_end_of_a_pass(
    tmp_path: Path, make: Make, message: str, mode: str, saves: dict[str, Any]
) -> None:
    with (
        thread_cluster(tmp_path, 2, 2, mode=mode, **saves) as cluster,
        pytest.raises(TableError, match=f"{message}, though both have trained since"),
    ):
        cluster.train(lambda ps: train(ps, make, batches=30))
    assert not list((tmp_path / "output").glob("pass-*/manifest.json"))


@pytest.mark.parametrize(("mode", "layout"), [("sync", OWN_LANES), ("async", {})])
def test_pushes_that_lack_tables_or_rows_or_samples_and_trainers_without_data_are_no_difference(
    tmp_path: Path, mode: str, layout: dict[str, Any]
) -> None:
    def program(ps: Session) -> list[float]:
        w, more = ps.dense("w", 2, SGD(1.0)), ps.dense("more", 2, SGD(1.0))
        e = ps.embedding("e", 2, SGD(1.0), init=constant(0.0))
        for batch in ps.steps(lambda pass_, rng: range((0, 5, 9)[ps.rank]), passes=2):
            if batch == 1:
                continue  # no push
            gradients = {more: ONE} if batch == 2 else {w: ONE, e: ([ps.rank], [ONE])} if ps.rank == 1 else {}
            ps.push(gradients, samples=0 if batch == 3 else 1)
        return [*w.pull().tolist(), *e.pull([1])[0].tolist()]

    with thread_cluster(tmp_path, 2, 3, mode=mode, **CHECKPOINTS, **layout) as cluster:
        cluster.train(program)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_tables_that_are_declared_in_another_order_and_during_training_are_no_difference(
    tmp_path: Path, mode: str
) -> None:
    def program(ps: Session) -> None:
        names = ["a", "b", "c"][:: -1 if ps.rank else 1]
        tables = [ps.dense(name, 2, SGD(1.0)) for name in names]
        for batch in ps.steps(lambda pass_, rng: range(8), passes=2):
            if batch == 4 and len(tables) == 3:
                tables.append(ps.dense("late", 2, SGD(1.0)))
            ps.push(dict.fromkeys(tables, ONE), samples=1)

    with thread_cluster(tmp_path, 2, 2, mode=mode) as cluster:
        cluster.train(program)


def message_of(kind: int, rank: int, attempt: int, *facts: dict[str, Any], **fields: Any) -> wire.Message:
    parts = [wire.json_part(one) for one in facts]
    return wire.Message(kind, rank, next(REQUESTS), attempt=attempt, samples=1, parts=parts, **fields)


def begin(core: ServerCore, rank: int, attempt: int) -> None:
    hello = {"trainers": 2, "declares": True}
    core.handle(rank, message_of(wire.HELLO, rank, attempt, hello))


def create(core: ServerCore, rank: int, attempt: int, *names: str) -> None:
    tables = [TableSpec(name, "dense", (2,), SGD(1.0), constant(0.0)).to_json() for name in names]
    core.handle(rank, message_of(wire.CREATE, rank, attempt, {"round": True}, *tables))


def push(core: ServerCore, rank: int, attempt: int, step: int) -> list[int]:
    outputs = core.handle(rank, message_of(wire.PUSH, rank, attempt, batch=step, step=step))
    return [output.message.kind for output in outputs if isinstance(output, Reply)]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_trainer_that_starts_again_lacks_no_table_before_its_next_push(mode: str) -> None:
    core = ServerCore(LaneState(0, Layout(1), 2, mode=Mode.parse(mode)))
    for rank in range(2):
        begin(core, rank, attempt=1)
        create(core, rank, 1, "a", "b")
        push(core, rank, 1, step=0)
    push(core, 0, 1, step=1)
    begin(core, 0, attempt=2)
    assert push(core, 1, 1, step=1)[-1] == wire.OK
    assert not core.policy.check_declarations()
    create(core, 0, 2, "a")
    push(core, 1, 1, step=2)
    assert not core.policy.check_declarations()
    kinds = push(core, 0, 2, step=2)
    if mode == "async":
        assert core.policy.check_declarations()
        kinds = push(core, 1, 1, step=3)
    assert kinds == [wire.ERROR]
    with pytest.raises(TableError, match="table 'b' was declared by trainer 1 and not by trainer 0"):
        core._require_same_tables()


@pytest.mark.parametrize("ends", ["with its own message", "as its supervisor reports"])
def test_nothing_is_saved_once_trainers_differ(ends: str) -> None:
    core = ServerCore(LaneState(0, Layout(1), 2, mode=Mode.parse("async")))
    for rank in range(2):
        begin(core, rank, attempt=1)
        create(core, rank, 1, "a", *(["b"] if rank else []))
        push(core, rank, 1, step=0)
    save = [message_of(wire.SAVE, rank, 1, {"tag": "pass-00000"}, flags=wire.END_OF_PASS) for rank in range(2)]
    outputs = [core.handle(rank, message) for rank, message in enumerate(save)]
    kinds = [one.message.kind for some in outputs for one in some if isinstance(one, Reply)]
    assert kinds == [wire.OK, wire.ERROR]
    for rank in range(2):
        if ends == "as its supervisor reports":
            assert core.leave([rank]) == []
        else:
            [reply] = core.handle(rank, message_of(wire.BYE, rank, 1))
            assert isinstance(reply, Reply)
            assert reply.message.json()["differ"] is True


def test_a_difference_that_is_found_when_the_last_trainer_has_ended_ends_the_pserver() -> None:
    core = ServerCore(LaneState(0, Layout(1), 2, mode=Mode.parse("async")))
    for rank in range(2):
        begin(core, rank, attempt=1)
        create(core, rank, 1, "a", *(["b"] if rank else []))
        push(core, rank, 1, step=0)
    core.leave([1])
    with pytest.raises(TableError, match="table 'b' was declared by trainer 1 and not by trainer 0, though"):
        core.leave([0])


def test_a_trainer_that_joins_late_and_one_of_an_older_version_lack_no_table() -> None:
    core = ServerCore(LaneState(0, Layout(1), 2, mode=Mode.parse("async")))
    begin(core, 0, attempt=1)
    create(core, 0, 1, "a")
    for step in range(3):
        push(core, 0, 1, step)
    assert not core.policy.check_declarations()
    core.handle(1, message_of(wire.HELLO, 1, 1, {"trainers": 2}))
    for step in range(3):
        push(core, 1, 1, step)
    assert not core.policy.check_declarations()
    begin(core, 1, attempt=2)
    assert not core.policy.check_declarations()
    push(core, 1, 2, step=3)
    assert core.policy.check_declarations()


COLLIDING = [
    (("user", "sparse"), ("user/rows", "dense"), "user/rows"),
    (("user/ids", "dense"), ("user", "sparse"), "user/ids"),
]


def declare(ps: Session, name: str, kind: str) -> None:
    if kind == "sparse":
        ps.embedding(name, 3, SGD(1.0)).pull([1])
    else:
        ps.dense(name, 3, SGD(1.0)).pull()


@pytest.mark.parametrize(
    ("first", "second", "tensor", "trainers", "layout"), [(*COLLIDING[0], 2, OWN_LANES), (*COLLIDING[1], 1, {})]
)
def test_tables_with_the_same_tensor_in_a_merged_model_are_refused_where_they_are_declared(
    tmp_path: Path, first: Any, second: Any, tensor: str, trainers: int, layout: dict[str, Any]
) -> None:
    def program(ps: Session) -> None:
        if ps.rank == 0:
            declare(ps, *first)
        if ps.rank == trainers - 1:
            declare(ps, *second)

    message = f"table .* and table .* would both be saved as '{tensor}'; rename one"
    with thread_cluster(tmp_path, 1, trainers, **layout) as cluster, pytest.raises(TableError, match=message):
        cluster.train(program)


def test_one_name_for_a_dense_table_and_for_an_embedding_is_refused(tmp_path: Path) -> None:
    with (
        thread_cluster(tmp_path, 1, 2, ports_num_for_sparse=1) as cluster,
        pytest.raises(TableError, match=r"table 'w' is declared as (dense and as sparse|sparse and as dense)"),
    ):
        cluster.train(lambda ps: declare(ps, "w", "sparse" if ps.rank else "dense"))


def test_names_that_only_look_as_if_they_collide_are_saved_and_read_back(tmp_path: Path) -> None:
    kinds = {
        "user": "sparse",
        "user/rows/rows": "dense",
        "user/slot/3/ids": "dense",
        "user/block/0": "dense",
        "w": "dense",
        "w/block/0": "dense",
        "w/rows": "sparse",
        "user/slot/3/candidates": "sparse",
    }

    def program(ps: Session) -> None:
        gradients: dict[Any, Any] = {}
        for name, kind in kinds.items():
            if kind == "sparse":
                gradients[ps.embedding(name, 2, SGD(1.0), init=constant(0.0))] = (np.arange(2000), np.ones((2000, 2)))
            else:
                gradients[ps.dense(name, 2, SGD(1.0))] = ONE
        for _ in ps.steps(lambda pass_, rng: range(1), passes=1):
            ps.push(gradients, samples=1)

    with thread_cluster(tmp_path, 2, 1) as cluster:
        cluster.train(program)
    merged = merge_model([tmp_path / "output" / "pass-00000"], tmp_path / "model.safetensors")
    model = load_model(merged)
    assert model.keys() == kinds.keys()
    for name, kind in kinds.items():
        values = model[name][1] if kind == "sparse" else model[name]
        np.testing.assert_array_equal(values, -np.ones_like(values), err_msg=name)


def test_many_tables_that_are_declared_in_a_row_are_made_in_a_few_requests(tmp_path: Path) -> None:
    def program(ps: Session) -> int:
        before = ps._client._requests
        tables = [ps.dense(f"w{number}", 2, SGD(1.0), init=constant(number)) for number in range(500)]
        tables += [ps.dense("g", 2, SGD(1.0), from_rank0(ONE * 7 if ps.rank == 0 else None))]
        rows = [ps.embedding(f"e{number}", 2, SGD(1.0), init=constant(number)) for number in range(500)]
        assert ps._client._requests == before
        values = [*(float(table.value[0]) for table in tables), *(float(one.pull([4])[0, 0]) for one in rows[::100])]
        assert values == [*range(500), 7, 0, 100, 200, 300, 400]
        return ps._client._requests - before - 5

    with thread_cluster(tmp_path, 1, 2, ports_num_for_sparse=1) as cluster:
        assert max(cluster.train(program)) < 30


def test_values_may_be_read_first_in_another_thread_and_not_in_a_forked_process(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 1, 1) as cluster, cluster.session(0) as ps:
        w = ps.dense("w", 2, SGD(1.0), init=constant(3.0))
        child = os.fork()
        if child == 0:
            try:
                w.value  # noqa: B018 - raises
            except UseError:
                os._exit(3)
            os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        with ThreadPoolExecutor(4) as pool:
            assert [value[0] for value in pool.map(lambda _: w.value, range(8))] == [3.0] * 8


def test_trainers_and_pservers_that_know_no_rounds_are_understood(tmp_path: Path) -> None:
    """A node that rejoins a run brings newer code to it."""
    with thread_cluster(tmp_path, 2, 2, ports_num_for_sparse=1) as cluster:

        def program(ps: Session) -> list[Any]:
            ps._client.takes_rounds = False
            tables = same(ps)
            tables[ps.dense("given", 2, SGD(1.0), from_rank0(ONE if ps.rank == 0 else None))] = ONE
            for _ in ps.steps(lambda pass_, rng: range(3), passes=1):
                ps.push(tables, samples=1)
            return [table.pull().tolist() if isinstance(table, Dense) else table.pull([1]).tolist() for table in tables]

        assert cluster.train(program) == [[[-3.0, -3.0], [[-3.0, -3.0]], [-2.0, -2.0]]] * 2
