"""Bring a fake cluster up and down, and inspect it. Every function takes the cluster's directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType

from clusterctl.common.paths import job_key
from clusterctl.common.procfs import wait_until
from clusterctl.errors import ClusterctlError, RefusedError, UsageError
from clusterctl.fake.backend import NAMES, Backend, NodeStatus, UpOptions, answers, backend_called, silent
from clusterctl.fake.layout import FakeNode, FakePaths, FakeState, conf_is_ours, write_files, written_for

LOCK_DEADLINE_S = 60.0
ANSWER_DEADLINE_S = 30.0
SUPERVISOR_EXIT_S = 2.0
SUPERVISOR = re.compile(r"/agent/entry\.py supervisor .*/([\w.-]+) \d+ \d+ \d+\b")  # its job, run and descriptors
DEFAULT_BACKEND = "embedded"


@dataclass(frozen=True)
class FakeCluster:
    """A running fake cluster. As a context manager, it is taken down at the end.

    `pid` is the server process, or None if each node has its own daemon or container.
    """

    directory: Path
    pid: int | None
    nodes: tuple[FakeNode, ...]
    backend: str = DEFAULT_BACKEND

    @property
    def conf(self) -> Path:
        return FakePaths(self.directory).conf

    @property
    def identity(self) -> Path:
        return FakePaths(self.directory).identity

    @property
    def known_hosts(self) -> Path:
        return FakePaths(self.directory).known_hosts

    @property
    def ssh_config(self) -> Path:
        return FakePaths(self.directory).ssh_config

    @property
    def hosts(self) -> tuple[str, ...]:
        """The HOSTS entries."""
        return tuple(node.host for node in self.nodes)

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        down(self.directory)


@dataclass(frozen=True)
class FakeStatus:
    """The current status of a fake cluster. `pid` is as in FakeCluster, or None if the cluster is not running."""

    directory: Path
    backend: str
    alive: bool
    pid: int | None
    nodes: tuple[NodeStatus, ...]


@dataclass(frozen=True)
class DownCluster:
    """A fake cluster that is down. After `down`, `nodes` and `backend` are unknown; None is the default backend too.

    `conf_is_right`: its conf.py was not edited, so that `up` may replace it.
    """

    directory: Path
    nodes: int | None
    backend: str | None
    conf_is_right: bool


@dataclass(frozen=True)
class HealedNode:
    """A node that answers again. `moved`: its port or address changed. `conf_is_right`: conf.py has the current one."""

    node: FakeNode
    moved: bool
    conf_is_right: bool


def up(
    directory: Path,
    n: int,
    *,
    backend: str = DEFAULT_BACKEND,
    lifeline: bool = False,
    remove: bool = False,
    tell: Callable[[str], None] = silent,
) -> FakeCluster:
    """Start a fake cluster of `n` nodes in a directory. Returns once all nodes answer.

    First cleans up what a killed cluster left there. With `lifeline`, the cluster ends when this process ends, however
    it dies; with `remove` as well, the cluster's files are then removed. `tell` is called with a message before a slow
    step. Raises RefusedError if a cluster is already up there or a file would be overwritten, UsageError if `n` is less
    than 1 or this machine lacks a requirement of the backend.
    """
    if n < 1:
        raise UsageError(f"a fake cluster needs at least one node, not {n}")
    maker = check_backend(backend, n)
    layout = FakePaths.of(directory)
    _make_directory(layout)
    with _locked(layout):
        state = layout.read_state()
        if state is not None:
            _refuse_second(layout, state)
        layout.refuse_foreign_files()
        _clean(layout)
        layout.directory.mkdir(parents=True, exist_ok=True)
        layout.write_state(FakeState(backend))
        return _start(layout, maker, n, UpOptions(lifeline, remove, tell))


def check_backend(name: str, n: int) -> Backend:
    """Return the backend. Raises UsageError if this machine cannot run `n` nodes with it."""
    backend = backend_called(name)
    backend.check(n)
    return backend


def down(directory: Path) -> int:
    """Stop a fake cluster: its servers, every process of its nodes (TERM, then KILL), then remove the files of `up`.

    Returns the number of node processes ended. Does nothing if there is no cluster. Keeps an edited conf.py.
    Raises ClusterctlError if a process survives.
    """
    layout = FakePaths.of(directory)
    if not layout.directory.is_dir():
        return 0
    with _locked(layout):
        return _clean(layout)


def running_jobs(directory: Path) -> list[str]:
    """Return the ids of the jobs that run on a cluster: those with a supervisor. Empty if there is no cluster.

    A supervisor exits a moment after the end of its run, so those found are given that moment.
    """
    layout = FakePaths.of(directory)
    state = layout.read_state()
    if state is None:
        return []
    backend, found = backend_called(state.backend), set[str]()

    def none_runs() -> bool:
        found.clear()
        found.update(match[1] for command in backend.commands(layout, state) if (match := SUPERVISOR.search(command)))
        return not found

    wait_until(none_runs, SUPERVISOR_EXIT_S)
    return sorted(found, key=job_key)


def end(directory: Path, *, remove: bool) -> None:
    """Stop a fake cluster as `down` does, but keep all files unless `remove`."""
    if remove:
        down(directory)
        return
    layout = FakePaths.of(directory)
    with _locked(layout):
        _stop(layout)


def status(directory: Path) -> FakeStatus:
    """Return the status of the cluster in a directory. Raises RefusedError if no fake cluster was ever made there."""
    layout, state, backend = _find(directory)
    alive = _is_up(layout, state)
    nodes = tuple(backend.look(layout, state))
    return FakeStatus(layout.directory, backend.name, alive, _pid(state) if alive else None, nodes)


def find_down(conf: Path) -> DownCluster | None:
    """Return the cluster for which `up` wrote this conf.py if it is down; None if it is up, or is no fake cluster."""
    directory = written_for(conf)
    if directory is None:
        return None
    layout = FakePaths(directory)
    state = layout.read_state()
    try:
        if state is not None and _is_up(layout, state):
            return None
    except (ClusterctlError, OSError):  # docker does not answer
        return None
    backend = state.backend if state is not None and state.backend != DEFAULT_BACKEND else None
    replaceable = not layout.conf.exists() or conf_is_ours(layout.conf)
    return DownCluster(directory, len(state.nodes) if state is not None else None, backend, replaceable)


def harm(directory: Path, node: str, fault: str) -> FakeNode:
    """Inject the fault `kill`, `pause` or `cut` into a node, named `2` or `node2`. Returns once it has taken effect.

    `kill` is a power cut, `pause` freezes the node, `cut` disconnects it from the network. Raises UsageError if the
    backend does not support the fault or there is no such node, RefusedError if the node is not up.
    """
    layout, state, backend = _find(directory)
    if fault not in backend.faults:
        raise _cannot(backend, fault)
    with _locked(layout):
        layout, state, backend = _find(directory)
        target = _node_called(state, node)
        current = _state_of(layout, state, backend, target)
        if current != "up":
            raise RefusedError(
                f"{target.label} is {current}", hint=f"heal it first: clusterctl fake heal {target.label}"
            )
        layout.write_state(backend.harm(layout, state, target, fault))
    return target


def heal(directory: Path, node: str) -> HealedNode:
    """Undo the fault of a node. Returns once the node answers. Does nothing if the node is up.

    Raises UsageError if there is no such node, RefusedError if the whole cluster is down.
    """
    layout, _, _ = _find(directory)
    with _locked(layout):
        layout, state, backend = _find(directory)
        target = _node_called(state, node)
        current = _state_of(layout, state, backend, target)
        if current == "down":
            raise RefusedError(f"the fake cluster in {layout.directory} is down", hint="start it: clusterctl fake up")
        if current == "up":
            return HealedNode(target, moved=False, conf_is_right=True)
        healed = backend.heal(layout, state, target, current)
        layout.write_state(healed)
        _await_answers(healed, (target.index,))
        moved = healed.nodes != state.nodes
        return HealedNode(healed.nodes[target.index], moved, write_files(layout, healed.nodes) if moved else True)


def _start(layout: FakePaths, backend: Backend, n: int, terms: UpOptions) -> FakeCluster:
    try:
        state = backend.start(layout, n, terms)
        layout.write_state(state)
        _await_answers(state, range(n))
    except BaseException:
        _clean(layout)
        raise
    return FakeCluster(layout.directory, _pid(state), state.nodes, backend.name)


def _await_answers(state: FakeState, indices: Sequence[int]) -> None:
    for node in (state.nodes[index] for index in indices):
        if not wait_until(partial(answers, node.port), ANSWER_DEADLINE_S):
            raise ClusterctlError(f"no answer on port {node.port}", node=node.label)


def _find(directory: Path) -> tuple[FakePaths, FakeState, Backend]:
    layout = FakePaths.of(directory)
    state = layout.read_state()
    if state is None:
        raise RefusedError(f"no fake cluster in {layout.directory}", hint="start one: clusterctl fake up")
    return layout, state, backend_called(state.backend)


def _node_called(state: FakeState, name: str) -> FakeNode:
    match = re.fullmatch(r"(?:node)?(\d{1,9})", name)
    index = int(match[1]) if match else len(state.nodes)
    if index >= len(state.nodes):
        raise UsageError(f"no node {name!r}", hint=f"choose one of node0 to node{len(state.nodes) - 1}")
    return state.nodes[index]


def _cannot(backend: Backend, fault: str) -> UsageError:
    able = [name for name in NAMES if fault in backend_called(name).faults]
    action = {"kill": "kill a node", "pause": "pause a node", "cut": "cut a node off"}[fault]
    return UsageError(
        f"the {backend.name} backend cannot {action}", hint=f"clusterctl fake up --backend {' or '.join(able)}"
    )


def _state_of(layout: FakePaths, state: FakeState, backend: Backend, node: FakeNode) -> str:
    return backend.look(layout, state)[node.index].state


def _pid(state: FakeState) -> int | None:
    return state.server.pid if state.server is not None else None


def _is_up(layout: FakePaths, state: FakeState) -> bool:
    """Return True if the cluster is up. One without nodes is half-made: its `up` was killed, or is running now."""
    return bool(state.nodes) and backend_called(state.backend).is_up(layout, state)


def _refuse_second(layout: FakePaths, state: FakeState) -> None:
    if _is_up(layout, state):
        pid = f" (pid {_pid(state)})" if state.server is not None else ""
        raise RefusedError(
            f"a fake cluster of {len(state.nodes)} nodes is up in {layout.directory}{pid}",
            hint=f"take it down first: clusterctl fake down --dir {layout.directory}",
        )


def _clean(layout: FakePaths) -> int:
    """End the servers and every process of the cluster, and remove our files. Return the number of processes ended."""
    ended = _stop(layout)
    layout.remove()
    return ended


def _stop(layout: FakePaths) -> int:
    state = layout.read_state()
    backend = backend_called(state.backend if state is not None else DEFAULT_BACKEND)
    return backend.stop(layout, state)


def _make_directory(layout: FakePaths) -> None:
    try:
        layout.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise RefusedError(f"cannot create {layout.directory}: {exc.strerror}") from exc


@contextlib.contextmanager
def _locked(layout: FakePaths) -> Iterator[None]:
    """Allow one `up` or `down` at a time in a directory. The directory itself is locked, so no lock file is left."""
    fd = os.open(layout.directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + LOCK_DEADLINE_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RefusedError(f"another `fake` command is running in {layout.directory}") from None
                time.sleep(0.05)
        yield
    finally:
        os.close(fd)
