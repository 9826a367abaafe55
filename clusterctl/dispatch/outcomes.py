"""What dispatch says of its progress and of its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from clusterctl.cluster.cluster import NodeOutcome
from clusterctl.common.tree import Entry
from clusterctl.inventory import Node


@dataclass
class Progress:
    """How far a node's stream is, in bytes of the workspace; `report` is called from several threads."""

    report: Callable[[Node, int, int], None] = field(default=lambda node, done, total: None)
    waiting: Callable[[str], None] = field(default=lambda message: None)


@dataclass(frozen=True)
class NodeDispatch:
    """What became of one node. `kept`: it had all of it already, under this id.

    `files_received` with `bytes_received` were new to it, `bytes_sent` went from here over the wire, `bytes_copied`
    came from other files of the node, in `copy_seconds`.
    """

    dir: str
    kept: bool
    files_received: int
    bytes_received: int
    bytes_sent: int
    bytes_copied: int
    copy_seconds: float
    seconds: float


@dataclass(frozen=True)
class Planned:
    """What a dispatch would do to one node: the paths that would be sent, and those that would disappear."""

    job: str | None
    send: list[Entry]
    delete: list[str]


@dataclass(frozen=True)
class Dispatched:
    job: str
    outcomes: list[NodeOutcome[NodeDispatch]]
    relayed: bool = False
