"""Send wheels to nodes and fetch wheels from them, through the SSH commands of their agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from clusterctl.cluster import AgentCall
from clusterctl.common.errors import AgentError
from clusterctl.common.file_transfer import OpenedFile
from clusterctl.common.schema import SchemaError, reader
from clusterctl.common.transfer_messages import (
    GiveOrder,
    ListenOrder,
    MissingWheels,
    RelayEndpoint,
    RelayOrder,
    TakeOrder,
)
from clusterctl.common.tree import FILE, Entry
from clusterctl.common.wheels import Wheel, WheelStore
from clusterctl.config import Settings
from clusterctl.dispatch import relay_plan
from clusterctl.dispatch.blobs import Blobs
from clusterctl.errors import NodeError
from clusterctl.inventory import Node

WORK_S = 3600.0
NOTHING: Mapping[str, int] = MappingProxyType({})


def read(node: Node, kind: Any, message: object) -> Any:
    """Return a message of a node as it is declared: what it names becomes paths, and requirements of pip, here."""
    try:
        return reader(kind)(message)
    except SchemaError as exc:
        hint = "check that the node has not been compromised"
        raise NodeError(f"the node sent malformed package data: {exc}", node=node.label, hint=hint) from exc


def send_files(
    call: AgentCall,
    wheels: Sequence[Wheel],
    store: WheelStore,
    report: Callable[[str], None] = lambda words: None,
    have: Mapping[str, int] = NOTHING,
) -> int:
    """Send wheels from this machine's store, verified by hash on the node. Returns the number of bytes.

    `report` is called with words for each wheel. `have`: the first bytes that the node has of them, by sha256; a wheel
    of which these are wrong is sent once more, whole. Raises the error that the node reports.
    """
    sent = 0
    while wheels:
        starts = [have.get(wheel.digest, 0) for wheel in wheels]
        with call.bulk():
            order: TakeOrder = {"do": "take", "lock": wheels, "starts": starts}
            call.send(order)
            for wheel, start in zip(wheels, starts, strict=True):
                report(f"receiving {wheel.name}")
                with OpenedFile(store.path(wheel)) as file:
                    for data in file.read(start, wheel.size):
                        call.write(data)
                sent += wheel.size - start
        wheels, have = missing_of(call, wheels, call.receive(WORK_S))[0], {}
    return sent


def missing_of(call: AgentCall, wheels: Sequence[Wheel], message: object) -> tuple[list[Wheel], Mapping[str, int]]:
    """Return the wheels of an order that a node still lacks, and the bytes that it has of them by sha256."""
    answer: MissingWheels = read(call.node, MissingWheels, message)
    if any(number >= len(wheels) for number in answer["missing"]):
        raise NodeError("the node sent malformed package data: it lacks unknown wheels", node=call.node.label)
    missing, have = [wheels[number] for number in answer["missing"]], answer.get("have", {})
    sizes = {wheel.digest: wheel.size for wheel in missing}
    return missing, {digest: count for digest, count in have.items() if count <= sizes.get(digest, 0)}


def fetch_files(call: AgentCall, wheels: Sequence[Wheel], store: WheelStore) -> None:
    """Fetch wheels from a node into this machine's store. Raises NodeError if they are damaged."""
    if not wheels:
        return
    order: GiveOrder = {"do": "give", "lock": wheels}
    call.send(order)
    try:
        for wheel in wheels:
            store.take(wheel, call.read)
    except AgentError as exc:
        raise NodeError(str(exc), node=call.node.label) from exc


class WheelRelay:
    """Sends once what most nodes lack of the wheels in `missing`: they forward it.

    What arrives leaves `missing`, and `have` gets the bytes of what arrives in part.
    The steps are: `listen` for every node in `lacking`, `plan`, `order` for every member, and only then `transfer`.
    """

    def __init__(
        self,
        settings: Settings,
        calls: Mapping[int, AgentCall],
        missing: dict[int, list[Wheel]],
        have: dict[int, Mapping[str, int]],
        store: WheelStore,
    ) -> None:
        self._settings = settings
        self._calls = calls
        self._missing = missing
        self._have = have
        self._store = store
        common = relay_plan.common({node: wheels for node, wheels in missing.items() if wheels})
        self.lacking = {node: wheels for node, wheels in common.items() if wheels}
        self._where: dict[int, tuple[str, int]] = {}
        self._words: Mapping[int, relay_plan.RelayPart] = {}
        self._blobs = Blobs(store.directory, ())

    def is_worth_it(self) -> bool:
        total = sum(wheel.size for wheels in self.lacking.values() for wheel in wheels)
        return relay_plan.worth_it(len(self.lacking), total, self._settings.relay)

    def listen(self, node: Node) -> None:
        """Ask a node to listen; one that cannot gets its wheels directly."""
        call = self._calls[node.id]
        order: ListenOrder = {"do": "listen", "address": node.address, "nic": self._settings.nic}
        call.send(order)
        answer = call.receive()
        if answer:
            where: RelayEndpoint = read(node, RelayEndpoint, answer)
            self._where[node.id] = (where["address"], where["port"])

    def plan(self, nodes: Sequence[Node]) -> list[Node]:
        """Return the nodes that take part; empty if too few listen."""
        members = [node for node in nodes if node.id in self._where]
        if len(members) < relay_plan.FEWEST:
            return []
        wheels = sorted({wheel for node in members for wheel in self.lacking[node.id]})
        self._blobs = Blobs(self._store.directory, [_row(wheel) for wheel in wheels])
        self._words = relay_plan.words({node.id: self._where[node.id] for node in members}, self._blobs.length)
        return members

    def order(self, node: Node) -> None:
        """Send a node its part: the node that it receives the stream from, and those that it forwards it to."""
        order: RelayOrder = {"do": "relay", "relay": {**self._words[node.id]}, "lock": self.lacking[node.id]}
        self._calls[node.id].send(order)

    def transfer(self, node: Node) -> int:
        """Send the stream, if this node is the first, and wait for the node. Returns the bytes sent from here."""
        call = self._calls[node.id]
        sent = 0
        if self._words[node.id]["upstream"] is None:
            with call.bulk():
                call.send({"stream": True})
                sent = self._blobs.write(call.write, lambda done, total: None)
        relayed = self.lacking[node.id]
        still, have = missing_of(call, relayed, call.receive(WORK_S))
        arrived = {*relayed} - {*still}
        self._missing[node.id] = [wheel for wheel in self._missing[node.id] if wheel not in arrived]
        self._have[node.id] = {**self._have[node.id], **have}
        return sent


def _row(wheel: Wheel) -> Entry:
    return Entry(f"{wheel.digest}/{wheel.file}", FILE, 0, 0, wheel.size, wheel.digest)
