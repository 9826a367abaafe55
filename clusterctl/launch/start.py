"""Starts a run on all nodes, or on none.

Every node looks first (job directory, lock, python, address) and waits; only when all can, the lead's node gets the
word, and then, with the lead's port, the others.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clusterctl.cluster import AgentCall, Cluster, Message, NodeOutcome, combined, failures, raise_failures
from clusterctl.errors import RefusedError
from clusterctl.inventory import Node
from clusterctl.launch.keys import KeyFiles, make_keys
from clusterctl.launch.plan import LaunchPlan

LAUNCH_S = 60.0


@dataclass(frozen=True)
class Run:
    """One start of a job. `dirs` are the absolute job directories, by node id."""

    job: str
    run: str
    dirs: dict[int, str]


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

    def look(node: Node) -> Message:
        call = calls[node.id] = cluster.call(node, {**request, "node": node.id, "address": node.address})
        return dict(call.receive()["ready"])

    try:
        looks = raise_failures(cluster.map(look), "start")
        job = _same_job(cluster, looks)
        _check_addresses(cluster, looks)
        name = f"{1 + max(int(found['newest_run']) for found in looks):04d}"
        run = Run(job, name, {node.id: found["dir"] for node, found in zip(cluster.nodes, looks, strict=True)})
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
