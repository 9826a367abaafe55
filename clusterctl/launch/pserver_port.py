"""The port of pservers that are the user's own programs: the same one on all nodes, if possible.

Programs of the old launcher know the hosts of the pservers and one port, `PADDLE_INIT_PORT`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypedDict

from clusterctl.check.findings import WARNS, Finding
from clusterctl.common.port_claims import PORTS_COMPARED
from clusterctl.launch.plan import LaunchPlan

HINT = "CLUSTERCTL_PSERVERS has the port of each; programs that know only one port need one pserver per machine"


class NodeWithPorts(TypedDict, total=False):
    """The part of a node's answer about the first ports from PORT: those `taken`, and its network stack."""

    taken: list[int]
    network: str


def choose_pserver_port(
    launch: LaunchPlan, nodes: Mapping[int, NodeWithPorts]
) -> tuple[int | None, tuple[Finding, ...]]:
    """Return the first port that is free on all nodes with pservers; if there is none, None and a warning."""
    places = {node.id: len(node.pserver_ranks) for node in launch.nodes if node.pserver_ranks}
    if not launch.wants_one_pserver_port or not places:
        return None, ()
    together: Counter[str] = Counter()
    for node, pservers in places.items():
        together[nodes[node].get("network", str(node))] += pservers
    if max(together.values()) > 1:
        return None, (_differ(places, "several pservers share a machine, so each has its own port"),)
    answers = [nodes[node].get("taken", []) for node in places]
    taken = {port for ports in answers for port in ports if isinstance(port, int)}
    first = launch.settings.port
    last = min(first + PORTS_COMPARED, 65_536)
    port = next((port for port in range(first, last) if port not in taken), None)
    if port is None:
        return None, (_differ(places, f"no port in {first}..{last - 1} is free on all nodes with pservers"),)
    return port, ()


def _differ(places: Mapping[int, int], why: str) -> Finding:
    return Finding("pserver_port", WARNS, tuple(places), f"{why}: PADDLE_INIT_PORT of trainers is pserver 0's", HINT)
