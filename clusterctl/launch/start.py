"""Starts a run on all nodes, or on none.

Every node looks first (job directory, lock, python, address) and waits; only when all can, the lead's node gets the
word, and then, with the lead's port, the others.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clusterctl.check.findings import Finding, Skew, quick
from clusterctl.cluster import AgentCall, Cluster, Message, NodeOutcome, combined, failures, raise_failures
from clusterctl.errors import RefusedError
from clusterctl.inventory import Node, nodeset
from clusterctl.launch.keys import KeyFiles, make_keys
from clusterctl.launch.plan import LaunchPlan

LAUNCH_S = 60.0


@dataclass(frozen=True)
class Run:
    """One start of a job. `dirs` are the absolute job directories, by node id; `findings` what the nodes warn of."""

    job: str
    run: str
    dirs: dict[int, str]
    findings: tuple[Finding, ...] = ()


def start(cluster: Cluster, launch: LaunchPlan, ref: str | None, on_go: Callable[[Run], None]) -> Run:
    """Starts job `ref` (None: the newest). Raises with every node's reason; nothing runs anywhere then.

    `on_go` is called before the first node gets the word: who interrupts from then on has something to stop.
    """
    request = {
        "op": "start",
        "ref": ref,
        "nodes": len(cluster.inventory.nodes),
        "python": cluster.settings.python,
        "runtime": launch.needs_runtime,
        "nic": cluster.settings.nic,
    }
    calls: dict[int, AgentCall] = {}
    skews: dict[int, Skew] = {}

    def look(node: Node) -> Message:
        asked = time.time()
        call = calls[node.id] = cluster.call(node, {**request, "node": node.id, "address": node.address})
        found = dict(call.receive()["ready"])
        skews[node.id] = Skew.measure(asked, found["clock"], time.time())
        return found

    try:
        looks = raise_failures(cluster.map(look), "start")
        job = _same_job(cluster, looks)
        _check_addresses(cluster, looks)
        _check_environments(cluster, looks)
        name = f"{1 + max(int(found['newest_run']) for found in looks):04d}"
        by_node = {node.id: found for node, found in zip(cluster.nodes, looks, strict=True)}
        dirs = {node: found["dir"] for node, found in by_node.items()}
        members = max(launch.count("trainer"), len(cluster.nodes))
        warnings = quick(by_node, skews, members=members, open_files=cluster.settings.open_files)
        run = Run(job, name, dirs, tuple(warnings))
        on_go(run)
        _go(cluster, launch, calls, looks, run)
        return run
    finally:
        for call in calls.values():
            call.close()


def _same_job(cluster: Cluster, looks: Sequence[Message]) -> str:
    jobs = {found["job"] for found in looks}
    if len(jobs) > 1:
        has = ", ".join(f"{node.label}: {found['job']}" for node, found in zip(cluster.nodes, looks, strict=True))
        raise RefusedError(
            f"the newest job is not the same on all nodes ({has})",
            hint="name one that all have: --job_workspace JOB..., or dispatch again",
        )
    return str(jobs.pop())


def _check_addresses(cluster: Cluster, looks: Sequence[Message]) -> None:
    """A loopback address among others cannot be reached by them."""
    local = {node.label: _is_loopback(found["address"]) for node, found in zip(cluster.nodes, looks, strict=True)}
    if len(set(local.values())) > 1:
        lonely = next(label for label, loopback in local.items() if loopback)
        raise RefusedError(
            "was reached at a loopback address, which the other nodes cannot use",
            node=lonely,
            hint="Host(..., address=...) or NIC in conf.py tells its address in the cluster",
        )


def _check_environments(cluster: Cluster, looks: Sequence[Message]) -> None:
    """Nodes that `setup` has reached, and nodes that it has not, would train with different packages."""
    without = [node for node, found in zip(cluster.nodes, looks, strict=True) if found["environment"] is None]
    if without and len(without) < len(looks):
        raise RefusedError(
            f"{nodeset(node.id for node in without)} has no environment for its requirements.txt, others do",
            hint="clusterctl setup WORKSPACE makes it where it is missing",
        )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _go(cluster: Cluster, launch: LaunchPlan, calls: dict[int, AgentCall], looks: Sequence[Message], run: Run) -> None:
    keys = make_keys(launch)
    addresses = {node.id: found["address"] for node, found in zip(cluster.nodes, looks, strict=True)}
    lead = _launch_one(cluster.nodes[0], launch, calls, keys, addresses, run, None)
    place = {"host": addresses[0], "port": lead["port"]}

    def launch_one(node: Node) -> Message:
        return _launch_one(node, launch, calls, keys, addresses, run, place)

    outcomes = cluster.map(launch_one, cluster.nodes[1:])
    if failures(outcomes):
        _take_back(cluster, run.job, outcomes)


def _launch_one(
    node: Node,
    launch: LaunchPlan,
    calls: dict[int, AgentCall],
    keys: KeyFiles,
    addresses: dict[int, str],
    run: Run,
    lead: Message | None,
) -> Message:
    spec = launch.spec(node, job=run.job, run=run.run, addresses=addresses, lead=lead)
    calls[node.id].send({"spec": spec, "keys": keys[node.id]})
    return calls[node.id].result(LAUNCH_S)


def _take_back(cluster: Cluster, job: str, outcomes: list[NodeOutcome[Message]]) -> None:
    """Some nodes did not start: stop those that did, then say why."""
    cluster.ask({"op": "stop", "ref": job})
    errors = [outcome.error for outcome in failures(outcomes) if outcome.error]
    raise combined(errors, len(cluster.nodes), "start")
