"""Dispatches through the relay, with real agents: whatever one hop does, every other node gets an identical tree."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from clusterctl.agent.relay import upstream
from clusterctl.config import from_values
from clusterctl.dispatch import Dispatched, Progress, dispatch, scan
from clusterctl.inventory import Node, build
from support.addresses import IPV6
from support.processes import wait_until
from support.trees import described
from unit.agent.nodes import BUNDLE, NodeOutcome, PipeCluster

T = TypeVar("T")
NODES = 5
BAD = 2  # a node in the middle of the chain

# Faults of a bad node's relay: appended to its copy of agent/relay/relay.py.
LIES = "Relay.pass_on = lambda self, piece: memoryview(bytes(len(piece)))"
IS_DEAF = """
_start = Relay.start
def _deaf(self, *words):
    self._listener.close()
    return _start(self, *words)
Relay.start = _deaf
"""
DIES = """
import os
Relay.pass_on = lambda self, piece: os._exit(9)
"""
LIES_AND_DIES = """
import os
def _lie(self, piece):
    self.passed = getattr(self, "passed", 0) + len(piece)
    if self.passed > 6 << 20:
        self._drain(1.0)
        os._exit(9)
    return piece if self.passed < 4 << 20 else memoryview(bytes(len(piece)))
Relay.pass_on = _lie
"""
SHORT_TIMEOUTS = """
STALL_S, CUT_S = 2.0, 0.5
Lag.MOST, Lag.ALLOWED_S, Lag.ALLOWED_MORE_S = 1, 0.2, 0.1
"""
SHORT_LINKS = "BUFFERED, SLOWEST = 256 << 10, 4 << 20"
SHORT_JOIN = "JOIN_S = 3.0"


IS_FULL = """
def _full(self, *words):
    raise OSError(28, "No space left on device", "data")
Staging._write = _full
"""


class Threads:
    """The agents' transport, with all nodes in parallel."""

    def __init__(self, cluster: PipeCluster) -> None:
        self.open, self.close, self.home = cluster.local.open, cluster.local.close, cluster.local.home
        self.need_login_shell = cluster.local.need_login_shell
        self._map = cluster.local.map

    def map(self, nodes: Sequence[Node], work: Callable[[Node], T], **_: Any) -> list[NodeOutcome[T]]:
        with ThreadPoolExecutor(len(nodes)) as pool:
            return [
                outcome for outcomes in pool.map(lambda node: self._map([node], work), nodes) for outcome in outcomes
            ]


class Place:
    """A workspace of a few megabytes, and nodes with only an agent on them."""

    def __init__(self, directory: Path, nic: str) -> None:
        self.workspace = directory / "workspace"
        self.workspace.mkdir()
        chance = random.Random(1)
        for number in range(12):
            (self.workspace / f"data-{number}").write_bytes(chance.randbytes(200_000 + number))
        self.cluster = PipeCluster(directory, sys.executable, NODES, RELAY="always", NIC=nic, SHARDS=["train.txt-*"])
        self.cluster.transport = Threads(self.cluster)  # type: ignore[assignment]
        self.cluster.ask({"op": "jobs"})

    def change(self, node: int, source: str, module: str = "relay/relay") -> None:
        """Append `source` to a module of a node's agent."""
        lib = self.cluster.home(node) / "clusterctl/.clusterctl/lib" / BUNDLE.digest
        with (lib / f"clusterctl/agent/{module}.py").open("a") as f:
            f.write(f"\n{source}\n")

    def hurry(self) -> None:
        """Shorten the timeouts of all nodes."""
        for node in range(NODES):
            self.change(node, SHORT_TIMEOUTS, "relay/links")
            self.change(node, SHORT_LINKS, "relay/downstream")
            self.change(node, SHORT_JOIN, "relay/upstream")

    def dispatch(self) -> Dispatched:
        return dispatch(self.cluster, scan(self.workspace), Progress(), "JOB20261121-000001")

    def assert_same(self, done: Dispatched, but: tuple[int, ...] = ()) -> None:
        assert done.relayed
        for outcome in done.outcomes:
            if outcome.node.id not in but:
                assert described(Path(outcome.get().dir)) == described(self.workspace)
        for node in self.cluster.nodes:
            if node.id not in but:
                assert list((self.cluster.home(node.id) / "clusterctl/.clusterctl/incoming").iterdir()) == []


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    made = Place(tmp_path, getattr(request, "param", "127.0.0.0/8"))
    yield made
    assert wait_until(lambda: not made.cluster.left()), made.cluster.left()
    assert not [thread for thread in threading.enumerate() if thread.name == "waiting-nodes"]


def sent_directly(done: Dispatched) -> list[bool]:
    """Return, for each node, True if the control machine had to send it something itself."""
    return [outcome.ok and outcome.get().bytes_sent > 0 for outcome in done.outcomes]


@pytest.mark.parametrize("place", ["127.0.0.0/8", IPV6], indirect=True)
def test_the_control_machine_sends_each_byte_once(place: Place) -> None:
    done = place.dispatch()
    place.assert_same(done)
    assert sent_directly(done) == [True, False, False, False, False]


def test_the_bytes_that_arrive_through_the_relay_are_reported_for_every_node(place: Place) -> None:
    reports: dict[int, list[tuple[int, int]]] = {node: [] for node in range(NODES)}
    for node in range(NODES):
        place.change(node, "NEWS_S = 0.0", "peer")
    progress = Progress(lambda node, done, total: reports[node.id].append((done, total)))
    workspace = scan(place.workspace)
    place.assert_same(dispatch(place.cluster, workspace, progress, "JOB20261121-000001"))
    for counts in reports.values():
        assert counts[0] == (0, workspace.bytes)
        assert {total for _, total in counts} == {workspace.bytes}
        assert counts == sorted(counts)
        assert counts[-1][0] > 0


def test_bytes_that_are_sent_directly_after_a_broken_relay_are_the_last_ones() -> None:
    reports: list[tuple[int, int]] = []
    progress = Progress(lambda node, done, total: reports.append((done, total)))
    [node] = build(from_values({"HOSTS": ["a"]})).nodes
    progress.expect(node, 100)
    progress.relayed(node, {"bytes": 30})
    progress.sent(node, 0, 60)
    progress.sent(node, 60, 60)
    assert reports == [(0, 100), (30, 100), (40, 100), (100, 100)]


def test_a_shard_goes_to_its_own_node_only(place: Place) -> None:
    shared = scan(place.workspace).bytes
    for number in range(NODES):
        (place.workspace / f"train.txt-{number:05d}").write_bytes(random.Random(number).randbytes(1_000_000))
    reports: dict[int, list[tuple[int, int]]] = {node: [] for node in range(NODES)}
    progress = Progress(lambda node, done, total: reports[node.id].append((done, total)))
    done = dispatch(place.cluster, scan(place.workspace), progress, "JOB20261121-000001")
    assert done.relayed
    for node, outcome in enumerate(done.outcomes):
        names = {path.name for path in Path(outcome.get().dir).glob("train.txt-*")}
        assert names == {f"train.txt-{node:05d}"}
        from_here = outcome.get().bytes_sent - (shared if node == 0 else 0)
        assert 1_000_000 < from_here < 1_010_000
        assert {total for _, total in reports[node]} == {shared + 1_000_000}
        assert reports[node][-1][0] >= shared + 1_000_000


@pytest.mark.slow
def test_a_large_file_that_every_node_has_partly_is_resumed_through_the_relay(place: Place) -> None:
    (place.workspace / "large").write_bytes(random.Random(2).randbytes(9 << 20))
    (entry,) = (entry for entry in scan(place.workspace).entries if entry.path == "large")
    for node, share in enumerate((7, 6, 8, 7, 5)):
        broken = place.cluster.home(node) / "clusterctl/.clusterctl/incoming/broken"
        broken.mkdir(parents=True)
        (broken / f"torn-{entry.digest}").write_bytes((place.workspace / "large").read_bytes()[: share << 20])
    done = place.dispatch()
    place.assert_same(done)
    assert sent_directly(done) == [True, False, False, False, False]
    small = sum(path.stat().st_size for path in place.workspace.glob("data-*"))
    assert done.outcomes[0].get().bytes_received == small + (4 << 20)


def test_corrupt_bytes_are_detected_and_sent_directly(place: Place) -> None:
    place.change(BAD, LIES)
    done = place.dispatch()
    place.assert_same(done)
    assert sent_directly(done) == [True, False, False, True, True]


@pytest.mark.slow
def test_a_large_file_cut_off_after_corrupt_bytes_is_not_resumed_from_them(place: Place) -> None:
    (place.workspace / "large").write_bytes(random.Random(2).randbytes(9 << 20))
    place.change(BAD, LIES_AND_DIES)
    place.hurry()
    done = place.dispatch()
    assert [outcome.ok for outcome in done.outcomes] == [True, True, False, True, True]
    place.assert_same(done, but=(BAD,))


@pytest.mark.slow
def test_nodes_behind_an_unreachable_one_are_served_directly(place: Place) -> None:
    place.change(BAD, IS_DEAF)
    place.hurry()
    done = place.dispatch()
    place.assert_same(done)
    assert sent_directly(done) == [True, False, True, True, True]


def test_a_node_that_dies_fails_alone(place: Place) -> None:
    place.change(BAD, DIES)
    place.hurry()
    done = place.dispatch()
    assert [outcome.ok for outcome in done.outcomes] == [True, True, False, True, True]
    assert done.outcomes[BAD].node.label in str(done.outcomes[BAD].error)
    place.assert_same(done, but=(BAD,))
    assert sent_directly(done)[3:] == [True, True]


@pytest.mark.slow
def test_a_full_disk_is_reported_and_the_nodes_behind_it_still_get_everything_through_the_relay(place: Place) -> None:
    place.change(BAD, IS_FULL, "dispatch/staging")
    done = place.dispatch()
    assert [outcome.ok for outcome in done.outcomes] == [node != BAD for node in range(NODES)]
    error = done.outcomes[BAD].error
    assert error is not None
    assert "No space left on device" in error.message
    assert "free some space" in str(error.hint)
    assert list((place.cluster.home(BAD) / "clusterctl/.clusterctl/incoming").iterdir()) == []
    place.assert_same(done, but=(BAD,))
    assert sent_directly(done) == [True, False, False, False, False]


def shrink(path: Path) -> None:
    os.truncate(path, 7)


def change(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (shrink, "'data-5' shrank while it was being sent"),
        (change, "'data-5' does not have the announced contents"),
    ],
)
def test_a_file_that_breaks_while_it_is_sent_fails_all_nodes_at_once(
    place: Place, harm: Callable[[Path], None], expected: str
) -> None:
    workspace = scan(place.workspace)

    def report(node: Node, done: int, total: int) -> None:
        if not broken:
            broken.append("data-5")
            harm(place.workspace / "data-5")

    broken: list[str] = []
    began = time.monotonic()
    done = dispatch(place.cluster, workspace, Progress(report), "JOB20261121-000001")
    assert time.monotonic() - began < upstream.SILENCE_S
    errors = [outcome.error for outcome in done.outcomes]
    assert [error and error.message for error in errors] == [expected] * NODES
    assert [error and error.details.get("changed") for error in errors] == broken * NODES
    assert {error and error.hint for error in errors} == {"dispatch again when nothing writes to the workspace"}
