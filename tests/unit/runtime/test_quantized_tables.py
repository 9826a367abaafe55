"""Tables with `wire`: the bits of a reference in plain numpy, over sockets, after deaths, and from a checkpoint."""

from __future__ import annotations

import functools
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import SGD, Momentum, connect, load_model, normal
from clusterctl.runtime.checkpoint.safetensors import TensorFile
from clusterctl.runtime.errors import NotFiniteError, RuntimeFailure, TableError, WireError
from clusterctl.runtime.pserver.core import ServerCore
from clusterctl.runtime.pserver.lane_state import LaneState, Reply
from clusterctl.runtime.store.quantized import QuantizedTable
from clusterctl.runtime.table.initializers import stream_key, zeros
from clusterctl.runtime.table.quantization import QUANTIZERS
from clusterctl.runtime.table.sharding import Layout, table_key
from clusterctl.runtime.table.spec import TableSpec
from clusterctl.runtime.trainer.handles import Dense
from clusterctl.runtime.trainer.session import Session
from clusterctl.runtime.wire import messages as wire
from unit.runtime.cluster import DEADLINE_S, thread_cluster
from unit.runtime.small import cut_small

FORMATS = ["int8", "int4"]
#: By table: no multiple of 256 but one, one element, several pieces of several runs.
SIZES = {"a": (1,), "b": (), "c": (3, 167), "d": (2, 512), "e": (7, 1111)}
STEPS = 6
LANES = {"ports_num": 2, "ports_num_for_sparse": 1}
States = dict[int, dict[str, dict[str, np.ndarray]]]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_small(monkeypatch, part=1_024)


def rule_of(name: str) -> Any:
    return SGD(0.7) if name in "ad" else Momentum(0.7, 0.9, nesterov=True)


def samples_of(rank: int, step: int) -> int:
    return 0 if (rank, step) in ((1, 2), (0, 4), (1, 4)) else 3 + 2 * rank + step


def gradient_of(base: np.ndarray, rank: int, step: int) -> np.ndarray:
    """Return a gradient that depends on every bit of the value, on the trainer and the step."""
    rng = np.random.default_rng((rank, step))
    return np.asarray(np.sin(base * 3 + rank) * rng.standard_normal(base.shape).astype(np.float32) ** 3, np.float32)


def make(ps: Session, form: str | None) -> dict[str, Dense]:
    return {n: ps.dense(n, shape, rule_of(n), normal(0.5), wire=form) for n, shape in SIZES.items()}


def program(ps: Session, form: str, states: States | None = None) -> dict[str, np.ndarray]:
    """Train; `states` gets the state at the beginning of each step, and has that of an earlier attempt."""
    earlier = {} if states is None else states
    if earlier and ps.step not in earlier:  # its push was applied, but it died before it had a state of the next step
        ps._client.step, ps._batch, ps._skip = ps._client.step - 1, ps._batch - 1, ps._skip - 1
    tables = make(ps, form)
    for name, state in earlier.get(ps.step, {}).items():
        tables[name].load_wire_state(state)
    for step in ps.steps(lambda pass_, rng: range(STEPS), passes=1):
        if states is not None:
            states[step] = {name: table.wire_state() for name, table in tables.items()}
        gradients = {t: gradient_of(t.value, ps.rank, step) for n, t in tables.items() if n != "c" or step % 2}
        ps.push(gradients, samples=samples_of(ps.rank, step))
    return {name: table.value.copy() for name, table in tables.items()}


@functools.cache
def reference(form: str, trainers: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return base and values by table, from the formulas alone."""
    quantizer, bases, all_values = QUANTIZERS[form], {}, {}
    for name, shape in SIZES.items():
        count, rule = int(np.prod(shape)), rule_of(name)
        values = normal(0.5).dense(stream_key(7, table_key(name)), 0, count)
        base, velocity = values.copy(), [np.zeros(count, np.float32) for _ in range(rule.states)]
        errors = [np.zeros(count, np.float32) for _ in range(trainers)]
        for step in range(STEPS):
            weights = [samples_of(rank, step) for rank in range(trainers)]
            if not any(weights) or (name == "c" and step % 2 == 0):
                continue
            merged = np.zeros(count, np.float32)
            for rank, weight in enumerate(weights):
                if weight:
                    owed = gradient_of(base.reshape(shape), rank, step).reshape(-1) + errors[rank]
                    sent = quantizer.pack(owed)[1]
                    errors[rank] = owed - sent
                    merged += sent * np.float32(weight)
            rule.update(values, velocity, merged / np.float32(sum(weights)), values, step + 1)
            base = base + quantizer.pack(values - base)[1]
        bases[name], all_values[name] = base.reshape(shape), values.reshape(shape)
    return bases, all_values


def assert_same(results: dict[str, Any], expected: dict[str, np.ndarray]) -> None:
    assert results.keys() == expected.keys()
    for name, value in expected.items():
        assert np.asarray(results[name]).tobytes() == value.tobytes(), name


@pytest.mark.parametrize(
    ("pservers", "more", "form"),
    [(1, {}, "int4"), (2, {"security": "curve", "shm": "off"}, "int8"), (4, LANES, "int4")],
)
def test_any_number_of_pservers_and_lanes_gives_the_bits_of_the_formulas(
    tmp_path: Path, pservers: int, more: dict[str, Any], form: str
) -> None:
    bases, values = reference(form, 2)
    with thread_cluster(tmp_path, pservers, 2, **more) as cluster:
        for result in cluster.train(lambda ps: program(ps, form)):
            assert_same(result, bases)
    assert_same(load_model(tmp_path / "output" / "pass-00000"), values)
    assert any(bases[name].tobytes() != values[name].tobytes() for name in SIZES)


def test_tables_of_full_pieces_give_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual blocks and pieces: a table of several of each, and memory that processes share."""
    monkeypatch.undo()

    def train(ps: Session) -> np.ndarray:
        w = ps.dense("w", (3, 200_003), Momentum(0.7), normal(0.5), wire="int4")
        for step in ps.steps(lambda pass_, rng: range(3), passes=1):
            ps.push({w: gradient_of(w.value, ps.rank, step)}, samples=1)
        return w.value.copy()

    results = []
    for pservers, more in ((1, {"shm": "off"}), (2, LANES)):
        with thread_cluster(tmp_path / f"{len(results)}", pservers, 2, **more) as cluster:
            results += cluster.train(train)
    assert {result.tobytes() for result in results} == {results[0].tobytes()}


def test_local_mode_gives_the_bits_of_the_formulas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    form = "int8"
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLUSTERCTL_ROLE", raising=False)
    monkeypatch.setenv("CLUSTERCTL_SEED", "7")
    bases, values = reference(form, 1)
    with connect() as ps:
        assert_same(program(ps, form), bases)
    assert_same(load_model(tmp_path / "output" / "pass-00000"), values)


@pytest.mark.parametrize(("form", "last"), [("int4", 2), ("int8", 3), ("int4", 4)])
def test_a_trainer_that_dies_before_its_push_was_answered_computes_it_again(
    tmp_path: Path, form: str, last: int
) -> None:
    """All of its last step was applied, none of it answered: the servers are one push ahead of the trainer's state.

    Step 3 changed all tables, step 2 all but one, step 4 none.
    """
    states: tuple[States, States] = ({}, {})

    def train(ps: Session) -> Any:
        return program(ps, form, states[ps.rank])

    def die_unanswered(ps: Session) -> Session:
        settle = ps._client.settle

        def settle_or_die(in_flight: int = 0) -> None:
            settle(in_flight)
            if ps.step == last + 1:
                raise InterruptedError("killed")

        ps._client.settle = settle_or_die  # type: ignore[method-assign]
        return ps

    results: list[Any] = [None, None]
    with thread_cluster(tmp_path, 2, 2, **LANES) as cluster:
        thread = threading.Thread(target=lambda: results.__setitem__(0, run(cluster.session(0), train)), daemon=True)
        thread.start()
        with pytest.raises(InterruptedError):
            run(die_unanswered(cluster.session(1)), train)
        assert max(states[1]) == last
        results[1] = run(cluster.session(1, attempt=2), train)
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    for result in results:
        assert_same(result, reference(form, 2)[0])


def run(session: Session, train: Callable[[Session], Any]) -> Any:
    with session as ps:
        return train(ps)


@pytest.mark.parametrize(("form", "pservers"), [("int8", 1), ("int4", 3)])
def test_pservers_that_go_back_to_a_cut_give_the_same_bits(tmp_path: Path, form: str, pservers: int) -> None:
    states: tuple[States, States] = ({}, {})
    every = {"checkpoints": True, "save_every": {"unit": "step", "n": 3}}
    with thread_cluster(tmp_path, 2, 2, **every, **LANES) as cluster:
        cluster.train(lambda ps: program(ps, form, states[ps.rank]))
        receipts = [receipt for receipt in cluster.receipts if receipt.get("checkpoint") and receipt["step"] == 3]
    tag = receipts[0]["tag"]
    names = [name for file in checkpoint_files(tmp_path, tag) for name in file.names]
    assert Counter(name.split("/")[0] for name in names if name.endswith("/base")) == Counter(
        name.split("/")[0] for name in names if name.count("/") == 2
    )
    shutil.rmtree(tmp_path / "output")  # of as many pservers
    recover = {"tag": tag, "step": 3}
    with thread_cluster(tmp_path, pservers, 2, recover=recover, **every) as cluster:
        later = [{3: state[3]} for state in states]
        results = cluster.train(lambda ps: program(ps, form, later[ps.rank]))
    for result in results:
        assert_same(result, reference(form, 2)[0])
    assert_same(load_model(tmp_path / "output" / "pass-00000"), reference(form, 2)[1])


def checkpoint_files(root: Path, tag: str) -> list[TensorFile]:
    directory = root / ".clusterctl" / "runs" / "0001" / "checkpoints" / tag
    return [TensorFile(path) for path in sorted(directory.glob("pserver-*.safetensors"))]


@pytest.mark.parametrize(("before", "after"), [("int8", None), (None, "int4"), ("int4", "int8")])
def test_a_run_may_be_resumed_with_another_format(tmp_path: Path, before: str | None, after: str | None) -> None:
    every = {"checkpoints": True, "save_every": {"unit": "step", "n": 2}}
    wanted: dict[str, np.ndarray] = {}

    def train(ps: Session, form: str | None, until: int) -> None:
        w = ps.dense("w", 700, SGD(0.5), normal(0.5), wire=form)
        if ps.step:
            wanted["base"] = w.value.copy()
        for step in ps.steps(lambda pass_, rng: range(until), passes=1):
            ps.push({w: gradient_of(w.value, 0, step)}, samples=1)

    with thread_cluster(tmp_path, 1, 1, **every) as cluster:
        cluster.train(lambda ps: train(ps, before, 3))
        [tag] = {receipt["tag"] for receipt in cluster.receipts if receipt.get("checkpoint") and receipt["step"] == 2}
    [file] = checkpoint_files(tmp_path, tag)
    saved = file.tensor("w/block/0"), file.tensor("w/block/1")
    with thread_cluster(tmp_path, 1, 1, **every, recover={"tag": tag, "step": 2}) as cluster:
        cluster.train(lambda ps: train(ps, after, 4))
    kept = before is not None and after is not None
    expected = (file.tensor("w/block/0/base"), file.tensor("w/block/1/base")) if kept else saved
    assert wanted["base"].tobytes() == np.concatenate(expected).tobytes()


def test_a_loaded_model_is_base_and_values(tmp_path: Path) -> None:
    def train(ps: Session) -> Any:
        tables = make(ps, "int4")
        first = {name: table.value.copy() for name, table in tables.items()}
        for step in ps.steps(lambda pass_, rng: range(3), passes=1):
            ps.push({table: gradient_of(table.value, 0, step) for table in tables.values()}, samples=1)
        return first

    with thread_cluster(tmp_path / "a", 2, 1) as cluster:
        cluster.train(train)
    model = tmp_path / "a" / "output" / "pass-00000"
    with thread_cluster(tmp_path / "b", 1, 1) as cluster:
        [first] = cluster.train(train, load=str(model))
    assert_same(first, load_model(model))  # type: ignore[arg-type]


def not_finite(ps: Session, form: str) -> Any:
    w = ps.dense("w", 600, SGD(1.0), zeros(), wire=form)
    for step in ps.steps(lambda pass_, rng: range(3), passes=1):
        gradient = np.full(600, -1, np.float32)
        gradient[300] = np.nan if step == 1 and ps.rank == 0 else -1
        ps.push({w: gradient}, samples=1)
    return w.value.copy(), w.wire_state()["error"]


def test_a_gradient_that_is_not_finite_is_skipped(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 2, 2, on_nan="skip") as cluster:
        for value, error in cluster.train(lambda ps: not_finite(ps, "int4")):
            np.testing.assert_allclose(value, 3, rtol=1e-5)
            assert np.isfinite(error).all()


def test_a_gradient_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 1, 1, on_nan="fail") as cluster, pytest.raises(NotFiniteError, match="table 'w'"):
        cluster.train(lambda ps: not_finite(ps, "int8"))


def test_without_a_check_its_block_becomes_nan_everywhere(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 2, 2, on_nan="warn") as cluster:
        (value, _), (other, _) = cluster.train(lambda ps: not_finite(ps, "int8"))
    assert value.tobytes() == other.tobytes()
    assert np.flatnonzero(np.isnan(value)).tolist() == list(range(256, 512))


def test_only_sync_mode_has_such_tables(tmp_path: Path) -> None:
    with (
        thread_cluster(tmp_path, 1, 1, mode="geo(3)") as cluster,
        pytest.raises(RuntimeFailure, match="wire='int8' in"),
    ):
        cluster.train(lambda ps: program(ps, "int8"))


def test_trainers_that_declare_other_formats_fail(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 1, 2) as cluster, pytest.raises(TableError, match="wire: "):
        cluster.train(lambda ps: program(ps, FORMATS[ps.rank]))


def test_a_state_of_another_table_is_refused(tmp_path: Path) -> None:
    def train(ps: Session) -> None:
        plain, small = ps.dense("p", 4, SGD(1.0)), ps.dense("s", 4, SGD(1.0), wire="int4")
        assert plain.wire_state() == {}
        plain.load_wire_state({})
        for table, state in ((plain, small.wire_state()), (small, {}), (small, {"error": np.zeros(5, np.float32)})):
            with pytest.raises(RuntimeFailure, match=f"state of table '{table.name}'"):
                table.load_wire_state(state)

    with thread_cluster(tmp_path, 1, 1) as cluster:
        cluster.train(train)


def test_a_step_that_only_a_lost_trainer_pushed_changes_nothing(tmp_path: Path) -> None:
    core, spec = (
        ServerCore(LaneState(0, Layout(1), 2)),
        TableSpec("w", "dense", (5,), SGD(1.0), normal(1.0), wire="int4"),
    )
    for rank in (0, 1):
        core.handle(rank, wire.Message(wire.HELLO, rank, 1, parts=[wire.json_part({"trainers": 2})]))
        core.handle(rank, wire.Message(wire.CREATE, rank, 2, parts=[wire.json_part(spec.to_json())]))
    gradient = wire.Part(wire.CHANGE, QUANTIZERS["int4"].pack(np.ones(5, np.float32))[0], spec.key)
    for rank in (0, 1):
        core.handle(rank, wire.Message(wire.PUSH, rank, 3, samples=1, parts=[gradient]))
    [table] = core.tables.values()
    assert isinstance(table, QuantizedTable)
    before = table.current.copy()
    core.handle(0, wire.Message(wire.PUSH, 0, 4, step=1, samples=1))
    core.handle(1, wire.Message(wire.PUSH, 1, 4, step=1, samples=1, pieces=2, parts=[wire.later_part(spec.key, 1)]))
    [reply] = core.drop([1])
    assert isinstance(reply, Reply)
    [part] = reply.message.parts
    assert (core.step, part.kind, part.array.tobytes()) == (2, wire.DENSE, before.tobytes())


GRADIENT = QUANTIZERS["int8"].pack(np.ones(5, np.float32))[0]


@pytest.mark.parametrize(
    ("table", "part"),
    [
        ("small", (wire.CHANGE, GRADIENT[:-1])),
        ("small", (wire.CHANGE, QUANTIZERS["int4"].pack(np.ones(5, np.float32))[0])),
        ("small", (wire.DENSE, np.ones(5, np.float32))),
        ("small", (wire.DENSE, np.ones(9, np.float32))),
        ("plain", (wire.CHANGE, GRADIENT)),
        ("plain", (wire.CHANGE, np.ones(5, np.uint8))),
    ],
)
def test_a_gradient_in_another_format_is_refused(table: str, part: tuple[int, Any]) -> None:
    core = ServerCore(LaneState(0, Layout(1), 1))
    specs = {"small": TableSpec("small", "dense", (5,), SGD(1.0), zeros(), wire="int8")}
    specs["plain"] = TableSpec("plain", "dense", (5,), SGD(1.0), zeros())
    core.handle(0, wire.Message(wire.HELLO, 0, 1, parts=[wire.json_part({"trainers": 1})]))
    for number, spec in enumerate(specs.values()):
        core.handle(0, wire.Message(wire.CREATE, 0, 2 + number, parts=[wire.json_part(spec.to_json())]))
    sent = wire.Message(wire.PUSH, 0, 9, samples=1, parts=[wire.Part(part[0], part[1], specs[table].key)])
    [reply] = core.handle(0, wire.decode([bytes(frame) for frame in wire.encode(sent)]))
    assert isinstance(reply, Reply)
    assert reply.message.json()["error"] == WireError.__name__
    assert core.step == 0
