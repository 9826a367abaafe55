"""Machines whose host name is a loopback address: engines whose trainers meet cannot reach them by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from clusterctl.check.findings import WARNS, Finding
from clusterctl.common.engines import ENGINES
from clusterctl.launch.plan import LaunchPlan

OFF = "PADDLE_WITH_GLOO"
MESSAGE = "the host name has a loopback address: trainers on other machines cannot reach it for barriers and reductions"
HINT = f'give the name its address in the cluster in /etc/hosts, or turn these off with ENV = {{"{OFF}": "0"}}'


class NamedNode(TypedDict, total=False):
    """The part of a node's answer about its name, if it was asked for, and its machine."""

    local_name: bool
    machine: str


def check_host_names(launch: LaunchPlan, nodes: Mapping[int, NamedNode]) -> list[Finding]:
    """Return a warning if trainers that meet are on several machines, some of which have such a name."""
    trainers = [node for node in launch.nodes if node.trainer_ranks and node.env.get(OFF) != "0"]
    machines = {nodes[node.id].get("machine", "").partition(" ")[0] for node in trainers}
    named = tuple(node.id for node in trainers if nodes[node.id].get("local_name"))
    if not wants_host_names(launch) or len(machines) < 2 or not named:
        return []
    return [Finding("host_name", WARNS, named, MESSAGE, HINT)]


def wants_host_names(launch: LaunchPlan) -> bool:
    """Return True if nodes are to say what their names resolve to."""
    return ENGINES[launch.settings.engine].meets
