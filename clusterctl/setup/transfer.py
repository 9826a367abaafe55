"""Send wheels to a node, and fetch wheels from a node, through the SSH command of its agent."""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl.cluster import AgentCall
from clusterctl.common.errors import AgentError
from clusterctl.common.tree import COPY_BYTES
from clusterctl.common.wheels import Wheel, WheelStore
from clusterctl.errors import NodeError


def send_files(call: AgentCall, wheels: Sequence[Wheel], store: WheelStore) -> int:
    """Send wheels from this machine's store, verified by hash on the node. Returns the number of bytes.

    Raises the error that the node reports.
    """
    if not wheels:
        return 0
    call.send({"do": "take", "lock": wheels})
    for wheel in wheels:
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
