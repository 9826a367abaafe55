"""A trainer's own state over real sockets: what is written when, and what a trainer that is started again loads."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import SGD
from clusterctl.runtime.checkpoint.safetensors import TensorFile, write_tensors
from clusterctl.runtime.errors import ModelError, ProcessError, UseError
from clusterctl.runtime.pserver.core import ServerCore
from clusterctl.runtime.state import keeper
from clusterctl.runtime.state.files import SavedState, StateContent, StateFiles, entry_of
from clusterctl.runtime.supervisor_socket import SupervisorSocket
from clusterctl.runtime.trainer.session import Session
from unit.runtime.cluster import DEADLINE_S, RUN, ThreadCluster, thread_cluster

SHARES = (3, 2, 4)  # batches of a pass, by trainer
PASSES = 2
BY_STEP = {"checkpoints": True, "save_every": {"unit": "step", "n": 2}}


class Memory:
    """Numbers that depend on all that a trainer did, also on batches without a push; of `size` elements."""

    def __init__(self, size: int = 3) -> None:
        self.numbers = np.arange(size, dtype=np.float64)
        self.calls = 0

    def add(self, value: float) -> None:
        self.numbers = self.numbers * 0.9 + value
        self.calls += 1

    def take(self) -> StateContent | None:
        return StateContent({"memory": {"calls": self.calls}}, [entry_of("memory/numbers", "F64", self.numbers)])

    def load(self, saved: SavedState) -> None:
        self.calls = saved.tree["memory"]["calls"]
        self.numbers = saved.tensor("memory/numbers")[1].copy()


def program(ps: Session, *, skip: int = -1, size: int = 3, passes: int = PASSES) -> Any:
    """Train on values that depend on the memory. Batch `skip` of each pass has no push."""
    memory = Memory(size)
    w = ps.dense("w", 5, SGD(0.5))
    ps._states.add("memory", memory)

    def on_pass(pass_: int) -> None:
        memory.add(10.0 + pass_ + float(w.value.sum()))

    def read(pass_: int, rng: Any) -> Any:
        yield from ((number, float(rng.random())) for number in range(SHARES[ps.rank]))

    for number, value in ps.steps(read, passes, on_pass=on_pass):
        memory.add(value + float(w.value[0]))
        if number != skip:
            ps.push({w: w.value + memory.numbers[0] + np.arange(5)}, samples=1 + ps.rank)
            memory.add(-value)
    return w.value.copy(), memory.numbers, memory.calls


class Killed(BaseException):
    """The end of a trainer that was killed, without any farewell."""


class Dying(Session):
    """A session that dies before or after it takes a state, or asks for the end of a pass."""

    def die_at(self, point: str, number: int) -> Dying:
        states, client = self._states, self._client
        take, end_pass = states.take, client.end_pass

        def dying_take(*given: Any, **more: Any) -> None:
            if (point, client.step) == ("answered", number):
                raise Killed
            take(*given, **more)
            if (point, client.step) == ("taken", number):
                raise Killed

        def dying_end(tag: str, **more: Any) -> None:
            if (point, int(tag[-5:])) == ("end", number):
                raise Killed
            end_pass(tag, **more)
            if (point, int(tag[-5:])) == ("ended", number):
                raise Killed

        states.take, client.end_pass = dying_take, dying_end  # type: ignore[method-assign]
        return self


class Recorder(SupervisorSocket):
    """Keeps the events of trainers."""

    def __init__(self) -> None:
        super().__init__(None)
        self.events: list[tuple[str, dict[str, Any]]] = []

    def send(self, event: str, **fields: Any) -> None:
        self.events.append((event, fields))


def session(cluster: ThreadCluster, rank: int, attempt: int = 1, supervisor: SupervisorSocket | None = None) -> Dying:
    cluster.kind = Dying
    made: Any = cluster.session(rank, attempt=attempt)
    if supervisor is not None:
        made._states._supervisor = supervisor
    return made  # type: ignore[no-any-return]


def together(cluster: ThreadCluster, own: Callable[[], Any], rank: int, run: Any = program) -> list[Any]:
    """Return the results of `own()`, which is trainer `rank`, and of the other trainer, which runs beside it."""
    results: list[Any] = [None, None]

    def other() -> None:
        with session(cluster, 1 - rank) as ps:
            results[1 - rank] = run(ps)

    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    results[rank] = own()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    return results


def assert_equal(results: list[Any], expected: list[Any]) -> None:
    for own, other in zip(results, expected, strict=True):
        for value, reference in zip(own, other, strict=True):
            np.testing.assert_array_equal(value, reference)


def steps_on_node(root: Path, rank: int = 0) -> list[int]:
    """Return the pushes of the states that are on a trainer's node."""
    paths = (root / ".clusterctl/runs" / RUN / "state").glob(f"trainer-{rank:05d}-*")
    return sorted(SavedState(TensorFile(path)).place.step for path in paths)


def cuts(root: Path, rank: int = 0) -> dict[str, int]:
    """Return the checkpoints that have a trainer's state, with its pushes."""
    paths = (root / ".clusterctl/runs" / RUN / "checkpoints").glob(f"*/trainer-{rank:05d}.safetensors")
    return {path.parent.name: SavedState(TensorFile(path)).place.step for path in paths}


def test_the_two_newest_states_are_on_the_node(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 1, 2) as cluster:
        cluster.train(program)
    assert steps_on_node(tmp_path) == [5, 6]
    [path] = (tmp_path / ".clusterctl/runs" / RUN / "state").glob("trainer-00001-*-*6.safetensors")
    metadata = TensorFile(path).metadata
    about = {"rank": "1", "trainers": "2", "epoch": "0", "step": "6", "pass": "2", "batch": "0", "mode": "sync"}
    assert about.items() <= metadata.items()
    assert json.loads(metadata["tree"]) == {"memory": {"calls": 10}}
    assert cuts(tmp_path) == {}


def test_a_session_without_state_writes_nothing_and_says_nothing(tmp_path: Path) -> None:
    def plain(ps: Session) -> None:
        w = ps.dense("w", 5, SGD(0.5))
        for _ in ps.steps(lambda pass_, rng: range(2), passes=1):
            ps.push({w: np.ones(5)}, samples=1)

    with thread_cluster(tmp_path, 1, 2, **BY_STEP) as cluster:
        cluster.train(plain)
        assert not any(trainer.state for core in cluster.cores for trainer in core.trainers.by_rank.values())
    assert not (tmp_path / ".clusterctl/runs" / RUN / "state").exists()
    assert cuts(tmp_path) == {}


@pytest.mark.parametrize(
    ("saves", "steps"),
    [
        (BY_STEP, [2, 4, 6]),
        ({"checkpoints": True, "save_every": {"unit": "pass", "n": 1}}, [3, 6]),
        ({**BY_STEP, "save_model_every": {"unit": "step", "n": 3}}, [2, 4, 6]),
        ({**BY_STEP, "checkpoints": False}, []),
    ],
)
def test_each_checkpoint_of_sync_has_the_state_of_its_step(tmp_path: Path, saves: Any, steps: list[int]) -> None:
    recorder = Recorder()
    with thread_cluster(tmp_path, 2, 2, **saves) as cluster:

        def own() -> Any:
            with session(cluster, 1, supervisor=recorder) as ps:
                return program(ps)

        together(cluster, own, 1)
    pieces = {receipt["tag"] for receipt in cluster.receipts if receipt.get("checkpoint")}
    for rank in range(2):
        assert cuts(tmp_path, rank) == {f"step-{step:09d}": step for step in steps}
    assert pieces == set(cuts(tmp_path))
    receipts = [fields for event, fields in recorder.events if event == "saved"]
    assert [(one["tag"], one["file"], one["checkpoint"]) for one in receipts] == [
        (f"step-{step:09d}", "trainer-00001.safetensors", True) for step in steps
    ]


@pytest.mark.parametrize(
    ("saves", "pservers"), [(BY_STEP, 2), ({"checkpoints": True, "save_every": {"unit": "pass", "n": 1}}, 1)]
)
def test_a_run_goes_on_from_the_states_of_a_checkpoint(tmp_path: Path, saves: Any, pservers: int) -> None:
    with thread_cluster(tmp_path / "whole", 1, 2) as cluster:
        expected = cluster.train(program)
    root = tmp_path / "resumed"
    with thread_cluster(root, 1, 2, **saves) as cluster:
        cluster.train(lambda ps: program(ps, passes=1))
    tag, step = max(cuts(root).items(), key=lambda item: item[1])
    with thread_cluster(root, pservers, 2, **saves, epoch=1, recover={"tag": tag, "step": step}) as cluster:
        assert_equal(cluster.train(program), expected)


def test_a_cut_due_while_a_trainer_is_away_does_not_replace_the_one_it_was_killed_at(tmp_path: Path) -> None:
    saves = {"checkpoints": True, "save_every": {"unit": "s", "n": 3600}}
    with thread_cluster(tmp_path, 1, 1, **saves) as cluster:

        def ask_for_a_cut() -> None:
            asked = threading.Event()

            def ask(core: ServerCore) -> Any:
                outputs = core.request_cut()
                asked.set()
                return outputs

            cluster.lanes[0].submit(ask)
            assert asked.wait(DEADLINE_S)

        ask_for_a_cut()  # at step 2
        killed_at(cluster, 0, 2, program)
        ask_for_a_cut()
        with session(cluster, 0, attempt=2) as ps:
            program(ps)
    checkpoints = tmp_path / ".clusterctl/runs" / RUN / "checkpoints"
    assert cuts(tmp_path) == {path.parent.name: 2 for path in checkpoints.glob("*/pserver-00000.safetensors")}


def test_a_trainer_that_leaves_its_loop_at_a_cut_writes_its_state(tmp_path: Path) -> None:
    def leaving(ps: Session) -> None:
        memory, w = Memory(), ps.dense("w", 5, SGD(0.5))
        ps._states.add("memory", memory)
        for number in ps.steps(lambda pass_, rng: range(4), passes=1):
            ps.push({w: np.ones(5)}, samples=1)
            if number == 1:
                break

    with thread_cluster(tmp_path, 1, 2, **BY_STEP) as cluster:
        cluster.train(leaving)
    assert cuts(tmp_path) == cuts(tmp_path, 1) == {"step-000000002": 2}


def killed_at(cluster: ThreadCluster, rank: int, number: int, run: Any) -> None:
    with pytest.raises(Killed), session(cluster, rank).die_at("answered", number) as ps:
        run(ps)


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


def of_another_boot(path: Path) -> None:
    data = path.read_bytes()
    at = data.index(b'"boot":"') + 8
    path.write_bytes(data[:at] + b"0" * 8 + data[at + 8 :])


@pytest.mark.parametrize("harm", [damage, of_another_boot, Path.unlink])
def test_in_sync_a_trainer_whose_state_is_gone_asks_to_go_back(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    recorder = Recorder()
    with thread_cluster(tmp_path, 1, 1) as cluster:
        killed_at(cluster, 0, 3, program)
        for path in (tmp_path / ".clusterctl/runs" / RUN / "state").iterdir():
            harm(path)
        with (
            pytest.raises(ProcessError, match="its state of step 3 is not on this node"),
            session(cluster, 0, attempt=2, supervisor=recorder) as ps,
        ):
            program(ps)
    [(event, fields)] = recorder.events
    assert event == "state_lost"
    assert fields["message"].startswith("trainer 0: its state of step 3 is not on this node")


def test_a_large_state_is_written_at_cuts_only(tmp_path: Path) -> None:
    size = keeper.LARGEST // 8 + 1
    with thread_cluster(tmp_path, 1, 1, **BY_STEP) as cluster:
        killed_at(cluster, 0, 4, lambda ps: program(ps, size=size))
        assert steps_on_node(tmp_path) == []
        assert cuts(tmp_path) == {"step-000000002": 2}
        with pytest.raises(ProcessError), session(cluster, 0, attempt=2) as ps:
            program(ps, size=size)
    recover = {"tag": "step-000000002", "step": 2}
    with thread_cluster(tmp_path, 1, 1, **BY_STEP, epoch=1, recover=recover) as cluster:
        resumed = cluster.train(lambda ps: program(ps, size=size))
    with thread_cluster(tmp_path / "whole", 1, 1) as cluster:
        assert_equal(resumed, cluster.train(lambda ps: program(ps, size=size)))


class Gradients:
    """A large state that is saved only at the end of a pass, along with the others."""

    there = False

    def take(self) -> StateContent | None:
        return (
            StateContent({"gradients": 0}, [entry_of("gradients", "F64", np.zeros(keeper.LARGEST))])
            if self.there
            else None
        )

    def load(self, saved: SavedState) -> None:
        raise AssertionError


def test_what_goes_along_does_not_make_a_state_large(tmp_path: Path) -> None:
    def run(ps: Session) -> None:
        memory, gradients, w = Memory(), Gradients(), ps.dense("w", 5, SGD(0.5))
        ps._states.add("memory", memory)
        ps._states.add("gradients", gradients, late=True)
        for number in ps.steps(
            lambda pass_, rng: range(3), passes=2, on_pass=lambda pass_: setattr(gradients, "there", True)
        ):
            if number == 0:
                gradients.there = False
            ps.push({w: np.ones(5)}, samples=1)

    with thread_cluster(tmp_path, 1, 1) as cluster:
        killed_at(cluster, 0, 5, run)
    assert steps_on_node(tmp_path) == [3, 4]


def test_a_large_state_that_is_always_wanted_is_written_after_each_push(tmp_path: Path) -> None:
    def run(ps: Session) -> Any:
        ps._states.always = True
        return program(ps, size=keeper.LARGEST // 8 + 1)

    with thread_cluster(tmp_path, 1, 1) as cluster:
        cluster.train(run)
    assert steps_on_node(tmp_path) == [5, 6]


def test_after_a_roll_back_the_state_is_that_of_the_cut_and_later_ones_are_removed(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 1, 1, **BY_STEP) as cluster:
        killed_at(cluster, 0, 4, program)
    assert steps_on_node(tmp_path) == [2, 3]
    recover = {"tag": "step-000000002", "step": 2}
    with thread_cluster(tmp_path, 1, 1, **BY_STEP, epoch=1, recover=recover) as cluster:
        with session(cluster, 0, attempt=2) as ps:
            assert ps._states._found is not None
            assert ps._states._found.path.parent.name == "step-000000002"
        assert steps_on_node(tmp_path) == []


def growing(ps: Session) -> Any:
    """Train with a memory that is large from the third batch on."""
    memory, w = Memory(), ps.dense("w", 5, SGD(0.5))
    ps._states.add("memory", memory)
    for number in ps.steps(lambda pass_, rng: range(6), passes=1):
        if number == 3:
            memory.numbers = np.arange(keeper.LARGEST // 8 + 1, dtype=np.float64)
        memory.calls = number
        ps.push({w: np.ones(5)}, samples=1)
    return memory.calls


def test_a_small_state_of_long_ago_does_not_hide_a_large_one_in_a_cut(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 1, 1, **BY_STEP) as cluster:
        killed_at(cluster, 0, 5, growing)
        assert steps_on_node(tmp_path) == [2, 3]
        with session(cluster, 0, attempt=2) as ps:
            assert ps._states._found is not None
            assert ps._states._found.place.step == 4
            assert growing(ps) == 5


def test_a_full_disk_does_not_end_a_trainer_unless_a_checkpoint_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(StateFiles, "write", full)
    with thread_cluster(tmp_path / "none", 1, 1) as cluster:
        cluster.train(program)
    warning = "warning: the state of trainer 0 cannot be written ([Errno 28] No space left on device); free some space"
    assert capfd.readouterr().out.count(warning) == 1
    monkeypatch.setattr(StateFiles, "write_cut", full)
    with (
        thread_cluster(tmp_path / "cuts", 1, 1, **BY_STEP) as cluster,
        pytest.raises(ProcessError, match=r"cannot be written into checkpoint step-000000002 .* free some space"),
        session(cluster, 0) as ps,
    ):
        program(ps)


@pytest.mark.parametrize("tree", ["[1]", "[" * 100_000, "5"])
def test_a_damaged_tree_is_a_model_error(tmp_path: Path, tree: str) -> None:
    about = {"format": "clusterctl-state/1", "cursor": "null", "tree": tree}
    numbers = dict.fromkeys(("step", "pass", "batch", "rank", "trainers", "epoch"), "0")
    write_tensors(tmp_path / "state.safetensors", [], {**about, **numbers})
    with pytest.raises(ModelError, match="the metadata is damaged"):
        SavedState(TensorFile(tmp_path / "state.safetensors"))


def test_a_roll_back_to_the_beginning_begins_without_state(tmp_path: Path) -> None:
    with thread_cluster(tmp_path / "whole", 1, 1) as cluster:
        expected = cluster.train(program)
    with thread_cluster(tmp_path / "back", 1, 1) as cluster:
        killed_at(cluster, 0, 4, program)
    with thread_cluster(tmp_path / "back", 1, 1, epoch=1, recover={"tag": None, "step": 0}) as cluster:
        assert_equal(cluster.train(program), expected)


@pytest.mark.parametrize("mode", ["async", "geo(2)"])
def test_outside_sync_the_newest_state_is_loaded(tmp_path: Path, mode: str) -> None:
    with thread_cluster(tmp_path, 2, 1, mode=mode) as cluster:
        killed_at(cluster, 0, 4, program)
        with session(cluster, 0, attempt=2) as ps:
            _, _, calls = program(ps)
    assert calls > 2 * 3


def test_outside_sync_each_checkpoint_has_states(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 2, 2, mode="async", **BY_STEP) as cluster:
        cluster.train(lambda ps: program(ps, passes=12))
        cluster.lead.wait_for_cut()
        pieces = {receipt["tag"]: set(receipt.get("states", ())) for receipt in cluster.receipts}
    tags = {tag: ranks for tag, ranks in pieces.items() if tag.startswith("step-")}
    assert tags
    newest = max(tags)
    for rank in tags[newest]:
        assert newest in cuts(tmp_path, rank)


def test_a_second_thing_of_one_name_is_an_error(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 1, 1) as cluster, cluster.session(0) as ps:
        ps._states.add("memory", Memory())
        with pytest.raises(UseError, match=r"a second ps\.keep\('memory'"):
            ps._states.add("memory", Memory())
