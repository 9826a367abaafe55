"""Wheels to many nodes: they go from here once, and from node to node, as the bytes of a dispatch do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clusterctl.cluster.cluster import AgentCall
from clusterctl.common.tree import FILE, Entry
from clusterctl.common.wheels import Wheel, WheelStore
from clusterctl.config import Settings
from clusterctl.dispatch import relay_plan
from clusterctl.dispatch.blobs import Blobs
from clusterctl.inventory import Node

WORK_S = 3600.0


class WheelRelay:
    """Brings to nodes what `missing` has for each, and leaves there what did not arrive. One step after the other:
    `listen` on every node, `tell` every node, and only when all are told `carry` for every node."""

    def __init__(
        self,
        settings: Settings,
        calls: Mapping[int, AgentCall],
        missing: dict[int, list[Wheel]],
        store: WheelStore,
    ) -> None:
        self._settings = settings
        self._calls = calls
        self._missing = missing
        self._store = store
        self._where: dict[int, tuple[str, int]] = {}
        self._words: Mapping[int, relay_plan.Word] = {}
        self._blobs = Blobs(store.directory, ())

    def is_worth_it(self, nodes: Sequence[Node]) -> bool:
        total = sum(wheel.size for node in nodes for wheel in self._missing[node.id])
        return relay_plan.worth_it(len(nodes), total, self._settings.relay)

    def listen(self, node: Node) -> None:
        """Asks a node to be ready; one that cannot be gets its wheels directly."""
        call = self._calls[node.id]
        call.send({"do": "listen", "address": node.address, "nic": self._settings.nic})
        answer = call.receive()
        if answer:
            self._where[node.id] = (answer["address"], answer["port"])

    def plan(self, nodes: Sequence[Node]) -> list[Node]:
        """Who of these takes part; none when too few listen."""
        part = [node for node in nodes if node.id in self._where]
        if len(part) < relay_plan.FEWEST:
            return []
        wheels = sorted({wheel for node in part for wheel in self._missing[node.id]})
        self._blobs = Blobs(self._store.directory, [_row(wheel) for wheel in wheels])
        self._words = relay_plan.words({node.id: self._where[node.id] for node in part}, self._blobs.length)
        return part

    def tell(self, node: Node) -> None:
        """Who brings the stream to this node, and to whom it passes it on."""
        order = {"do": "relay", "relay": self._words[node.id], "lock": self._missing[node.id]}
        self._calls[node.id].send(order)

    def carry(self, node: Node) -> int:
        """The bytes that went from here to this node: all to the first, none to others."""
        call = self._calls[node.id]
        sent = 0
        if self._words[node.id]["upstream"] is None:
            sent = self._blobs.write(call.write, lambda done, total: None)
        answer = call.receive(WORK_S)
        self._missing[node.id] = [self._missing[node.id][number] for number in answer["missing"]]
        return sent


def _row(wheel: Wheel) -> Entry:
    return Entry(f"{wheel.digest}/{wheel.file}", FILE, 0, 0, wheel.size, wheel.digest)
