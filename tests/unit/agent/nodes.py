"""Nodes without SSH: the agent boots from a pipe, in any Python of this machine, as the transport starts it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from clusterctl.cluster import FIRST_LINE, AgentCall, Cluster, NodeOutcome
from clusterctl.cluster.agent_call import Bundle
from clusterctl.cluster.cluster import SILENCE_S
from clusterctl.cluster.heartbeats import AgentInput
from clusterctl.config import from_values
from clusterctl.errors import ClusterctlError, NodeError, UnreachableError
from clusterctl.inventory import Node, build
from clusterctl.transport import RemoteCommand, WorkOutcome, failures, quote
from support.processes import Proc, processes_with_environment

T = TypeVar("T")
ANSWER_S = 180.0
OLDEST = "3.9"  # of the Pythons that nodes may have
VARIABLES = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "SSH_CONNECTION": "127.0.0.1 1 127.0.0.1 22"}


def pythons() -> dict[str, str]:
    """Return every python3.x on this machine that runs, by version: from pyenv, else from PATH."""
    places = [*(Path.home() / ".pyenv/versions").glob("*/bin"), *map(Path, os.environ["PATH"].split(os.pathsep))]
    paths: dict[str, str] = {}
    for place in places:
        for path in place.glob("python3.*"):
            minor = path.name[len("python3.") :]
            if minor.isdigit() and f"3.{minor}" not in paths and _runs(path):
                paths[f"3.{minor}"] = str(path)
    return dict(sorted(paths.items(), key=lambda item: int(item[0][2:])))


def _runs(path: Path) -> bool:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return (
            subprocess.run([path, "-I", "-S", "-c", ""], capture_output=True, timeout=20, check=False).returncode == 0
        )
    return False


def needs(version: str) -> str:
    """Return the path of this Python. Without it, skip the test, or fail it if CI is set: .ci/run installs OLDEST."""
    import pytest  # noqa: PLC0415 - benchmarks run without it

    path = PYTHONS.get(version)
    if path is None:
        must_exist = version == OLDEST and os.environ.get("CI")
        (pytest.fail if must_exist else pytest.skip)(f"no python{version} on this machine")
    return path


PYTHONS = pythons()


class Pipes:
    """A started command with the interface of the transport's `RemoteProcess`."""

    def __init__(self, argv: Sequence[str], home: Path) -> None:
        self.popen = subprocess.Popen(
            argv,
            env={**VARIABLES, "HOME": str(home)},
            cwd=home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.stdin, self.stdout = self.popen.stdin, self.popen.stdout

    def write(self, data: bytes, stall_s: float | None = None) -> None:
        try:
            self.stdin.write(data)
            self.stdin.flush()
        except (BrokenPipeError, ValueError) as exc:
            raise NodeError("its input is closed", details={"reason": "input_closed"}) from exc

    def lost(self) -> UnreachableError:
        return failures.lost("node0", "host0", "a test")

    def close_input(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()

    def readline(self, limit: int, deadline_s: float | None = None) -> bytes:
        return self.stdout.readline(limit)

    def read(self, count: int, deadline_s: float | None = None) -> bytes:
        return self.stdout.read1(count)  # type: ignore[attr-defined, no-any-return]

    def wait(self, limit_s: float = ANSWER_S) -> int:
        return self.popen.wait(limit_s)

    def stderr_tail(self) -> bytes:
        assert self.popen.stderr is not None
        return self.popen.stderr.read()

    def close(self) -> None:
        """End the SSH command: its pipes are closed, and the agent exits on its own."""
        self.close_input()
        self.stdout.close()
        try:
            self.popen.wait(ANSWER_S)
        finally:
            self.popen.kill()
            self.popen.wait()
            assert self.popen.stderr is not None
            self.popen.stderr.close()


def agent(home: Path, python: str = sys.executable, root: str = "~/root") -> Pipes:
    home.mkdir(exist_ok=True)
    return Pipes([python, "-I", "-S", "-c", FIRST_LINE, BUNDLE.digest, root], home)


@contextlib.contextmanager
def asked(home: Path, request: dict[str, Any], **options: Any) -> Iterator[AgentCall]:
    """An agent that has received its request."""
    call = AgentCall(NODE, AgentInput(agent(home, **options)), BUNDLE)  # type: ignore[arg-type]
    try:
        call.begin(request)
        yield call
    finally:
        call.close()


def ask(home: Path, request: dict[str, Any], **options: Any) -> dict[str, Any]:
    with asked(home, request, **options) as call:
        return call.result(ANSWER_S)


class LocalTransport:
    """Runs commands on this machine as a login shell would run them on a node; one node after the other."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def home(self, node: Node) -> Path:
        home = self.directory / f"home{node.id}"
        home.mkdir(exist_ok=True)
        return home

    def open(self, node: Node, command: RemoteCommand) -> Pipes:
        return Pipes(["sh", "-c", quote(command)], self.home(node))

    def need_login_shell(self, node: Node) -> None:
        """Raise nothing: `sh` runs what it is given."""

    def map(self, nodes: Sequence[Node], work: Callable[[Node], T], **_: Any) -> list[NodeOutcome[T]]:
        outcomes: list[NodeOutcome[T]] = []
        for node in nodes:
            try:
                outcomes.append(WorkOutcome(node, work(node), None, 0.0))
            except ClusterctlError as exc:
                outcomes.append(WorkOutcome(node, None, exc, 0.0))
        return outcomes

    def close(self) -> None:
        pass


class PipeCluster(Cluster):
    """The nodes of a conf.py, all on this machine, each with its own home directory."""

    def __init__(
        self, directory: Path, python: str, nodes: int = 2, silence_s: float = SILENCE_S, **values: Any
    ) -> None:
        short = {"GRACE_S": 1, "HEARTBEAT_S": 0.2, "PS_SECURITY": "none"}
        hosts = [f"host{node}" for node in range(nodes)]
        settings = from_values({"HOSTS": hosts, "PYTHON": python, **short, **values})
        inventory = build(settings)
        super().__init__(settings, inventory, inventory.nodes, silence_s=silence_s)
        self.local = LocalTransport(directory)
        self.transport = self.local  # type: ignore[assignment]

    def home(self, node: int) -> Path:
        return self.local.home(self.nodes[node])

    def left(self) -> list[Proc]:
        return [p for node in self.nodes for p in processes_with_environment("HOME", str(self.home(node.id)))]


BUNDLE = Bundle()
NODE = build(from_values({"HOSTS": ["host"]})).nodes[0]
