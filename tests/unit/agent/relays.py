"""Relays for tests: real ones on loopback, one thread each, using the control machine's plan and keys."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

from clusterctl.agent.relay.links import DownstreamNode, Keys, RelayBroken
from clusterctl.agent.relay.relay import Relay
from clusterctl.certificates import issue_for_nodes
from clusterctl.dispatch.relay_plan import Hop, name_of, plan

LIMIT_S = 180.0
STREAM = hashlib.shake_128(b"stream").digest(3 << 20)


class LyingRelay(Relay):
    """Reads the right bytes and passes on wrong ones."""

    def pass_on(self, piece: memoryview) -> memoryview:
        return memoryview(bytes(len(piece)))


class Member:
    """One node: `got` is what it read, `broken` why its stream ended early, `lost` the nodes that it gave up on."""

    def __init__(self, node: int, relay: Relay) -> None:
        self.node = node
        self.relay = relay
        self.got = bytearray()
        self.broken = ""
        self.lost: list[str] = []

    def run(self, read: Callable[[Member], None]) -> None:
        try:
            read(self)
        except RelayBroken as exc:
            self.broken = str(exc)
        self.lost = self.relay.finish()


class Relays:
    """All nodes of one dispatch. The nodes in `dead` were planned, but nothing listens there."""

    def __init__(
        self, count: int, *, dead: tuple[int, ...] = (), kinds: Mapping[int, type[Relay]] | None = None
    ) -> None:
        ids = range(count)
        self.hops: dict[int, Hop] = plan(ids)
        self.keys = {node: Keys(*pair) for node, pair in issue_for_nodes(ids).items()}
        self.members = {node: Member(node, (kinds or {}).get(node, Relay)("127.0.0.1")) for node in ids}
        for node in dead:
            self.members[node].relay.close()

    def start(self, node: int, stream: bytes = STREAM, **changes: Any) -> Member:
        """Start this node's relay; `changes` override arguments of its start."""
        hop, member = self.hops[node], self.members[node]
        source = None if hop.upstream is not None else reader(stream)
        upstream = None if hop.upstream is None else name_of(hop.upstream)
        branches = [
            DownstreamNode("127.0.0.1", self.members[branch.node].relay.port, name_of(branch.node), branch.nodes)
            for branch in hop.downstream
        ]
        values = {"keys": self.keys[node], "upstream": upstream, "downstream": branches, **changes}
        member.relay.start(length=len(stream), source=source, **values)
        return member

    def run(
        self, *, without: tuple[int, ...] = (), reads: Mapping[int, Callable[[Member], None]] | None = None
    ) -> None:
        """Start all but `without`, let them read (by `reads`, or to the end), and return when they have finished."""
        members = [self.start(node) for node in self.members if node not in without]
        threads = [
            threading.Thread(target=member.run, args=((reads or {}).get(member.node, read_all),), daemon=True)
            for member in members
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive(), "a node did not finish"

    def close(self) -> None:
        for member in self.members.values():
            member.relay.close()


def reader(stream: bytes) -> Callable[[int], bytes]:
    """Return a reader like standard input: it yields pieces of uneven size."""
    rest = memoryview(stream)

    def read(count: int) -> bytes:
        nonlocal rest
        part, rest = rest[: min(count, 50_000)], rest[min(count, 50_000) :]
        return bytes(part)

    return read


def read_all(member: Member) -> None:
    parts = iter(lambda: member.relay.read(100_000), b"")
    for part in parts:
        member.got += part
