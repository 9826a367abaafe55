"""Bringing a fake cluster up and down, and looking at it. Every function takes the cluster's directory."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from clusterctl.agent.processes import end_all, environment_of, find_by_environment, is_alive, send_signal, wait_until
from clusterctl.errors import ClusterctlError, RefusedError, UsageError
from clusterctl.fake.layout import (
    ADDRESS,
    ENVIRONMENT_NAME,
    NODE_ENVIRONMENT_NAME,
    NODES_GRACE_S,
    FakeNode,
    Layout,
    State,
)

START_DEADLINE_S = 30.0
START_DEADLINE_PER_NODE_S = 0.1
LOCK_DEADLINE_S = 60.0
SERVER_END_S = 10.0
LOG_TAIL_BYTES = 2000

# What this process holds of the servers that it started: the child, to reap it, and the lifeline.
_STARTED: dict[Path, tuple[subprocess.Popen[bytes], int | None]] = {}


@dataclass(frozen=True)
class FakeCluster:
    """A fake cluster that is up. As a context manager it goes down at the end."""

    directory: Path
    pid: int
    nodes: tuple[FakeNode, ...]

    @property
    def conf(self) -> Path:
        return self.directory / "conf.py"

    @property
    def identity(self) -> Path:
        return Layout(self.directory).identity

    @property
    def known_hosts(self) -> Path:
        return Layout(self.directory).known_hosts

    @property
    def ssh_config(self) -> Path:
        return Layout(self.directory).ssh_config

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
class NodeStatus:
    """One fake node: whether its port answers, and how many processes of it run."""

    node: FakeNode
    answers: bool
    processes: int


@dataclass(frozen=True)
class FakeStatus:
    """A fake cluster as it is now. `pid` is None when its server does not run."""

    directory: Path
    pid: int | None
    nodes: tuple[NodeStatus, ...]

    @property
    def alive(self) -> bool:
        return self.pid is not None


def up(directory: Path, n: int, *, lifeline: bool = False, remove: bool = False) -> FakeCluster:
    """Start a fake cluster of `n` nodes in a directory; returns when all of them answer.

    Leftovers of one that was killed are cleaned up first. With `lifeline`, the cluster ends when this process
    does, however it dies; with `remove` as well, its files go too. Raises RefusedError when one is up there
    already or something would be overwritten, UsageError without asyncssh or for a silly `n`.
    """
    if n < 1:
        raise UsageError(f"a fake cluster needs at least one node, not {n}")
    if importlib.util.find_spec("asyncssh") is None:
        raise UsageError("the fake cluster needs asyncssh", hint="pip install 'clusterctl[fake]'")
    layout = Layout.of(directory)
    _make_directory(layout)
    with _locked(layout):
        state = layout.read_state()
        if state is not None and (pid := _server_pid(state)) is not None:
            raise RefusedError(
                f"a fake cluster of {len(state.nodes)} nodes is up in {layout.directory} (pid {pid})",
                hint=f"take it down first: clusterctl fake down --dir {layout.directory}",
            )
        layout.refuse_foreign_files()
        _clean(layout)
        layout.directory.mkdir(parents=True, exist_ok=True)
        layout.write_state(State(None))
        return _start(layout, n, lifeline=lifeline, remove=remove)


def down(directory: Path) -> int:
    """Stop a fake cluster: its server, every process of its nodes (TERM, then KILL), then what `up` made.

    Returns how many processes of nodes were ended. Harmless where there is none. An edited conf.py stays.
    Raises ClusterctlError when a process survives.
    """
    layout = Layout.of(directory)
    if not layout.directory.is_dir():
        return 0
    with _locked(layout):
        return _clean(layout)


def status(directory: Path) -> FakeStatus:
    """What is up in a directory. Raises RefusedError when no fake cluster was ever made there."""
    layout = Layout.of(directory)
    state = layout.read_state()
    if state is None:
        raise RefusedError(f"there is no fake cluster in {layout.directory}", hint="clusterctl fake up")
    pid = _server_pid(state)
    counts = Counter(
        entry
        for process in find_by_environment({ENVIRONMENT_NAME: str(layout.directory)})
        for entry in environment_of(process.pid)
    )
    nodes = (
        NodeStatus(
            node, pid is not None and _answers(node.port), counts[f"{NODE_ENVIRONMENT_NAME}={node.index}".encode()]
        )
        for node in state.nodes
    )
    return FakeStatus(layout.directory, pid, tuple(nodes))


def _start(layout: Layout, n: int, *, lifeline: bool, remove: bool) -> FakeCluster:
    lifeline_read, lifeline_write = os.pipe() if lifeline else (None, None)
    request = {"directory": str(layout.directory), "count": n, "lifeline_fd": lifeline_read, "remove": remove}
    try:
        server = _spawn(layout, request, () if lifeline_read is None else (lifeline_read,))
    finally:
        if lifeline_read is not None:
            os.close(lifeline_read)
    _STARTED[layout.directory] = (server, lifeline_write)
    try:
        _await_ready(server, layout, START_DEADLINE_S + n * START_DEADLINE_PER_NODE_S)
        state = layout.read_state()
        assert state is not None
        assert state.server is not None
        for node in state.nodes:
            if not _answers(node.port):
                raise ClusterctlError(f"fake node {node.index} does not answer on port {node.port}")
    except BaseException:
        server.kill()
        _clean(layout)
        raise
    return FakeCluster(layout.directory, state.server.pid, state.nodes)


def _spawn(layout: Layout, request: dict[str, object], pass_fds: tuple[int, ...]) -> subprocess.Popen[bytes]:
    """The server process: a session of its own, nothing of our terminal."""
    package_root = str(Path(__file__).resolve().parents[2])
    search = os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH"))))
    with layout.log.open("ab") as log:
        server = subprocess.Popen(
            [sys.executable, "-c", "from clusterctl.fake.server import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            env={**os.environ, "PYTHONPATH": search, ENVIRONMENT_NAME: str(layout.directory)},
            start_new_session=True,
            pass_fds=pass_fds,
        )
    assert server.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        server.stdin.write(json.dumps(request).encode() + b"\n")
        server.stdin.close()
    return server


def _await_ready(server: subprocess.Popen[bytes], layout: Layout, deadline_s: float) -> None:
    assert server.stdout is not None
    with server.stdout as answers:
        ready, _, _ = select.select([answers], [], [], deadline_s)
        line = answers.readline() if ready else b""
    answer = json.loads(line) if line else {}
    if answer.get("ready"):
        return
    tail = layout.log.read_text(errors="replace")[-LOG_TAIL_BYTES:].strip()
    reason = answer.get("error") or (tail.splitlines() or ["no answer in time"])[-1]
    raise ClusterctlError(f"the fake cluster did not start: {reason}", details={"log": tail})


def _clean(layout: Layout) -> int:
    """End the server and every process of the cluster, remove what we made; how many were ended."""
    state = layout.read_state()
    server = state.server if state is not None and _server_pid(state) is not None else None
    child, lifeline = _STARTED.pop(layout.directory, (None, None))
    if server is not None:
        # At once: it has nothing to save, and must not start another command while we count.
        send_signal(server, signal.SIGKILL)
        wait_until(lambda: not is_alive(server), SERVER_END_S)
    if child is not None:
        child.wait(SERVER_END_S)
    if lifeline is not None:
        os.close(lifeline)
    ended, _, survivors = end_all(lambda: find_by_environment({ENVIRONMENT_NAME: str(layout.directory)}), NODES_GRACE_S)
    if survivors:
        raise ClusterctlError(f"{survivors} processes of the fake cluster in {layout.directory} survive KILL")
    layout.remove()
    return ended


def _server_pid(state: State) -> int | None:
    return state.server.pid if state.server is not None and is_alive(state.server) else None


def _answers(port: int) -> bool:
    try:
        with socket.create_connection((ADDRESS, port), timeout=5) as sock:
            return sock.recv(4) == b"SSH-"
    except OSError:
        return False


def _make_directory(layout: Layout) -> None:
    try:
        layout.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise RefusedError(f"cannot make {layout.directory}: {exc.strerror}") from exc


@contextlib.contextmanager
def _locked(layout: Layout) -> Iterator[None]:
    """One `up` or `down` at a time in a directory. The lock is on the directory: no file is left behind."""
    fd = os.open(layout.directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + LOCK_DEADLINE_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RefusedError(f"another `fake` command is at work in {layout.directory}") from None
                time.sleep(0.05)
        yield
    finally:
        os.close(fd)
