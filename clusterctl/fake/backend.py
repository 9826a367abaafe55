"""The interface of the fake cluster's backends, and the list of them."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from clusterctl.errors import UsageError
from clusterctl.fake.layout import ADDRESS, FakeNode, FakePaths, FakeState

ANSWER_S = 5.0
FAULTS = ("kill", "pause", "cut")
BECOMES = {"kill": "killed", "pause": "paused", "cut": "cut"}  # the resulting node state; the others are up and down
_MODULES = {"embedded": "embedded", "ssh": "openssh", "docker": "docker"}
NAMES = tuple(_MODULES)


@dataclass(frozen=True)
class NodeStatus:
    """One fake node: its state, whether its port answers, and the number of its processes."""

    node: FakeNode
    state: str
    answers: bool
    processes: int


def silent(_: str) -> None:
    pass


@dataclass(frozen=True)
class UpOptions:
    """The options of `fake.up`."""

    lifeline: bool = False
    remove: bool = False
    tell: Callable[[str], None] = silent


class Backend(Protocol):
    """A way to run fake nodes. Calls find the cluster by its layout and state: another process may have made it."""

    name: str
    faults: frozenset[str]  # the supported subset of FAULTS

    def check(self, n: int) -> None:
        """Raise UsageError if this machine cannot run `n` nodes; the hint names what to install."""

    def start(self, layout: FakePaths, n: int, terms: UpOptions) -> FakeState:
        """Start `n` nodes, write conf.py, known_hosts and ssh_config, and return the state. The nodes answer soon."""

    def stop(self, layout: FakePaths, state: FakeState | None) -> int:
        """End the whole cluster, even one that never came up. Return the number of node processes ended."""

    def is_up(self, layout: FakePaths, state: FakeState) -> bool:
        """Return True if any part of the cluster is running, so that `up` must not replace it."""

    def look(self, layout: FakePaths, state: FakeState) -> Sequence[NodeStatus]:
        """Return the current status of every node."""

    def commands(self, layout: FakePaths, state: FakeState) -> Sequence[str]:
        """Return the command lines of all processes on the nodes, their words joined by blanks."""

    def harm(self, layout: FakePaths, state: FakeState, node: FakeNode, fault: str) -> FakeState:
        """Inject one of `faults` into a node. Returns once it has taken effect."""

    def heal(self, layout: FakePaths, state: FakeState, node: FakeNode, node_state: str) -> FakeState:
        """Undo the fault of a node, whose state is `node_state`. Returns once the node answers."""


def backend_called(name: str) -> Backend:
    """Return the backend of this name. Raises UsageError if there is no such backend."""
    if name not in _MODULES:
        raise UsageError(f"{name!r} is not a backend of the fake cluster", hint=f"use one of {', '.join(NAMES)}")
    module = importlib.import_module(f"clusterctl.fake.{_MODULES[name]}")
    backend: Backend = module.BACKEND
    return backend


def answers(port: int) -> bool:
    """Return True if an SSH server answers on this port."""
    try:
        with socket.create_connection((ADDRESS, port), timeout=ANSWER_S) as sock:
            return sock.recv(4) == b"SSH-"
    except OSError:
        return False
