"""The progress and the results of a dispatch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from clusterctl.cluster import NodeOutcome
from clusterctl.common.tree import Entry
from clusterctl.inventory import Node


@dataclass
class Progress:
    """Callbacks for progress. `report(node, done, total)` counts bytes of the workspace; several threads call it."""

    report: Callable[[Node, int, int], None] = field(default=lambda node, done, total: None)
    waiting: Callable[[str], None] = field(default=lambda message: None)
    _expected: dict[int, int] = field(default_factory=dict)

    def expect(self, node: Node, total: int) -> None:
        """Report a node that is to get so many bytes."""
        self._expected[node.id] = total
        self.report(node, 0, total)

    def sent(self, node: Node, done: int, of: int) -> None:
        """Report bytes of a direct stream of `of` bytes, the last ones that the node gets."""
        total = max(of, self._expected.get(node.id, 0))
        self.report(node, total - of + done, total)

    def sent_to_head(self, node: Node, done: int, of: int) -> None:
        """Report bytes of the relay's stream of `of` bytes, the first ones that the head gets."""
        self.relayed(node, {"bytes": done})

    def relayed(self, node: Node, message: Mapping[str, object]) -> None:
        """Report the bytes that have reached a node through the relay, by its own word."""
        count, total = message.get("bytes"), self._expected.get(node.id, 0)
        if isinstance(count, int):
            self.report(node, min(max(0, count), total), total)


@dataclass(frozen=True)
class NodeDispatch:
    """The result on one node. `kept`: the node already had the whole tree under this id.

    `files_received` and `bytes_received` were new to the node. `bytes_sent` went from here over the wire.
    `bytes_copied` came from other files on the node and took `copy_seconds`.
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
    """The changes a dispatch would make on one node: files to send and paths to delete."""

    job: str | None
    send: list[Entry]
    delete: list[str]


@dataclass(frozen=True)
class Dispatched:
    job: str
    outcomes: list[NodeOutcome[NodeDispatch]]
    relayed: bool = False
