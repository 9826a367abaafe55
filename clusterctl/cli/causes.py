"""Why a run ended, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterctl.inventory import Inventory


def cause_lines(inventory: Inventory, cause: dict[str, Any] | None) -> list[str]:
    """The first cause of a run's end: who, where, what, and its last words."""
    if not cause:
        return []
    node = next((node for node in inventory.nodes if node.id == cause.get("node")), None)
    who = f"{cause['role']}{cause['rank']}@{node.label} ({node.where}) " if node and cause.get("role") else ""
    where = f"{node.label} ({node.where}): " if node and not who and cause.get("kind") != "node_lost" else ""
    lines = [f"first cause: {who}{where}{cause.get('message', '')}"]
    return lines + [f"  | {line}" for line in cause.get("tail") or ()]
