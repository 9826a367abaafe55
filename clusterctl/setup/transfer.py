"""Send wheels to nodes and fetch wheels from them, through the SSH commands of their agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from clusterctl.cluster import AgentCall
from clusterctl.common.errors import AgentError
from clusterctl.common.tree import COPY_BYTES, FILE, Entry
from clusterctl.common.wheels import Wheel, WheelStore
from clusterctl.config import Settings
from clusterctl.dispatch import relay_plan
from clusterctl.dispatch.blobs import Blobs
from clusterctl.errors import NodeError
from clusterctl.inventory import Node

WORK_S = 3600.0


def send_files(
    call: AgentCall, wheels: Sequence[Wheel], store: WheelStore, report: Callable[[str], None] = lambda words: None
) -> int:
    """Send wheels from this machine's store, verified by hash on the node. Returns the number of bytes.

    `report` is called with words for each wheel. Raises the error that the node reports.
    """
    if not wheels:
        return 0
    with call.bulk():
        call.send({"do": "take", "lock": wheels})
        for wheel in wheels:
            report(f"receiving {wheel.name}")
            with store.path(wheel).open("rb") as f:
                while data := f.read(COPY_BYTES):
                    call.write(data)
    return sum(wheel.size for wheel in wheels)


def fetch_files(call: AgentCall, wheels: Sequence[Wheel], store: WheelStore) -> None:
    """Fetch wheels from a node into this machine's store. Raises NodeError if they are damaged."""
    if not wheels:
        return
    call.send({"do": "give", "lock": wheels})
    try:
        for wheel in wheels:
            store.take(wheel, call.read)
    except AgentError as exc:
        raise NodeError(str(exc), node=call.node.label) from exc


class WheelRelay:
    """Sends nodes once what most of them lack of the wheels in `missing`: they forward it. What arrives leaves `missing`.

    The steps are: `listen` for every node in `lacking`, `plan`, `order` for every member, and only then `transfer`.
    """

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
        call.send({"do": "listen", "address": node.address, "nic": self._settings.nic})
        answer = call.receive()
        if answer:
            self._where[node.id] = (answer["address"], answer["port"])

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
        order = {"do": "relay", "relay": self._words[node.id], "lock": self.lacking[node.id]}
        self._calls[node.id].send(order)

    def transfer(self, node: Node) -> int:
        """Send the stream, if this node is the first, and wait for the node. Returns the bytes sent from here."""
        call = self._calls[node.id]
        sent = 0
        if self._words[node.id]["upstream"] is None:
            with call.bulk():
                call.send({"stream": True})
                sent = self._blobs.write(call.write, lambda done, total: None)
        answer = call.receive(WORK_S)
        relayed = self.lacking[node.id]
        arrived = {*relayed} - {relayed[number] for number in answer["missing"]}
        self._missing[node.id] = [wheel for wheel in self._missing[node.id] if wheel not in arrived]
        return sent


def _row(wheel: Wheel) -> Entry:
    return Entry(f"{wheel.digest}/{wheel.file}", FILE, 0, 0, wheel.size, wheel.digest)
