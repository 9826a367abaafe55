"""What a fake cluster can be made of: the interface of all backends, and which there are."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from clusterctl.errors import UsageError
from clusterctl.fake.layout import ADDRESS, FakeNode, Layout, State

ANSWER_S = 5.0
FAULTS = ("kill", "pause", "cut")
BECOMES = {"kill": "killed", "pause": "paused", "cut": "cut"}  # states of a node; the other ones are up and down
_MODULES = {"embedded": "embedded", "ssh": "openssh", "docker": "docker"}
NAMES = tuple(_MODULES)


@dataclass(frozen=True)
class NodeStatus:
    """One fake node: what was done to it, whether its port answers, and how many processes of it run."""

    node: FakeNode
    state: str
    answers: bool
    processes: int


def silent(_: str) -> None:
    pass


@dataclass(frozen=True)
class Terms:
    """On which a cluster comes up: those of `fake.up`."""

    lifeline: bool = False
    remove: bool = False
    tell: Callable[[str], None] = silent


class Backend(Protocol):
    """Each call finds the cluster by its layout and its state alone: another process may have made it."""

    name: str
    faults: frozenset[str]  # those that it can do

    def check(self, n: int) -> None:
        """Raise UsageError, with what to install, when `n` nodes cannot be had on this machine."""

    def start(self, layout: Layout, n: int, terms: Terms) -> State:
        """Bring `n` nodes up, write conf.py, known_hosts and ssh_config, and say who they are. They answer soon."""

    def stop(self, layout: Layout, state: State | None) -> int:
        """End everything of the cluster, also of one that never came up; how many processes of nodes there were."""

    def is_up(self, layout: Layout, state: State) -> bool:
        """Whether something of it runs that `up` must not replace."""

    def look(self, layout: Layout, state: State) -> Sequence[NodeStatus]:
        """Every node as it is now."""

    def harm(self, layout: Layout, state: State, node: FakeNode, fault: str) -> State:
        """Do one of `faults` to a node; returns when it is done."""

    def heal(self, layout: Layout, state: State, node: FakeNode, node_state: str) -> State:
        """Undo what was done to a node, which is in this state; returns when it answers."""


def backend_called(name: str) -> Backend:
    """The backend of this name. Raises UsageError when there is none."""
    if name not in _MODULES:
        raise UsageError(f"{name!r} is not a backend of the fake cluster", hint=f"one of {', '.join(NAMES)}")
    module = importlib.import_module(f"clusterctl.fake.{_MODULES[name]}")
    backend: Backend = module.BACKEND
    return backend


def answers(port: int) -> bool:
    """Whether an SSH server greets there."""
    try:
        with socket.create_connection((ADDRESS, port), timeout=ANSWER_S) as sock:
            return sock.recv(4) == b"SSH-"
    except OSError:
        return False
