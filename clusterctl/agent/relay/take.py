"""A node's part in a relay, for dispatch and setup: listen, then receive the stream."""

from __future__ import annotations

from typing import Any, Callable

from clusterctl.agent.node.addresses import find_address
from clusterctl.agent.peer import Peer
from clusterctl.agent.relay.links import DownstreamNode, Keys, RelayBroken
from clusterctl.agent.relay.relay import Relay
from clusterctl.common.errors import AgentError, Gone
from clusterctl.common.tree import ByteReader


def be_ready(address: str | None, nic: str | None) -> tuple[Relay | None, dict[str, Any]]:
    """Return a listening relay, its address and its port; (None, {}) if that fails: the node gets all directly."""
    try:
        own = find_address(address, nic)
        relay = Relay(own)
    except (AgentError, OSError):
        return None, {}
    return relay, {"address": own, "port": relay.port}


def take_relayed(relay: Relay, how: dict[str, Any], peer: Peer, sink: Callable[[ByteReader], None]) -> None:
    """Give `sink` the stream, as far as it arrives, and forward all of it. Errors of `sink` are raised.

    All nodes but the first report to the control machine how many bytes have arrived. Raises Gone on the first node,
    whose stream comes from the control machine, if it ends too early.
    """
    arrived = 0
    source = None if how["upstream"] else _from_control_machine(peer)
    branches = [DownstreamNode(*branch) for branch in how["downstream"]]

    def read(count: int) -> memoryview:
        nonlocal arrived
        peer.heartbeat(**({"bytes": arrived} if how["upstream"] else {}))
        piece = relay.read(count)
        arrived += len(piece)
        return piece

    try:
        _start(relay, Keys(how["own"], how["authority"]), how["upstream"], branches, how["length"], source)
        sink(ByteReader(read, compressed=False))
    except (RelayBroken, Gone):
        if how["upstream"] is None:
            raise Gone from None
    finally:
        relay.finish()


def _from_control_machine(peer: Peer) -> Callable[[int], bytes]:
    """Read from the control machine, after a message. Its silence ends the stream, so downstream nodes see the end."""
    is_announced = False

    def read(count: int) -> bytes:
        nonlocal is_announced
        try:
            if not is_announced:
                peer.receive()
                is_announced = True
            return peer.read_some(count)
        except Gone:
            return b""

    return read


def _start(relay: Relay, *how: Any) -> None:
    try:
        relay.start(*how)
    except OSError as exc:
        raise RelayBroken(f"the keys cannot be used: {exc}") from exc
