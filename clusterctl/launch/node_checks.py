"""What a start asks of its nodes before it begins: host names, other jobs, and a port that all pservers can have.

Trainers of some engines meet by host name, which must not be a loopback address. Programs of the old launcher know the
hosts of the pservers and one port, `PADDLE_INIT_PORT`.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping
from typing import TypedDict

from clusterctl.check.findings import WARNS, Finding, folded, on
from clusterctl.common.engines import ENGINES
from clusterctl.common.port_claims import PORTS_COMPARED
from clusterctl.errors import RefusedError
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


SHARED_HINT = "they share cores and memory; EXCLUSIVE = True in conf.py refuses to start beside them"


class OtherJob(TypedDict, total=False):
    """A job of the same account on a node, or (`port`, `uid`) one of another account."""

    job: str
    by: str | None
    since: float | None
    port: int
    uid: int


class NodeWithJobs(TypedDict, total=False):
    """The part of a node's answer with the jobs that run there."""

    other_jobs: list[OtherJob]


def check_other_jobs(nodes: Mapping[int, NodeWithJobs], *, exclusive: bool) -> list[Finding]:
    """Return a warning for each job that runs on any node. Raises RefusedError if the new one is `exclusive`."""
    began: dict[str, float] = {}
    for job in (job for facts in nodes.values() for job in facts.get("other_jobs", ())):
        if "port" not in job and job["since"] is not None:
            began[job["job"]] = min(job["since"], began.get(job["job"], job["since"]))
    found = folded(
        Finding("other_job", WARNS, (node,), _describe_job(job, began), SHARED_HINT)
        for node, facts in nodes.items()
        for job in facts.get("other_jobs", ())
    )
    if found and exclusive:
        lines = [f"  {on(one.nodes)} {one.message}" for one in found]
        message = "\n".join(["nothing was started: EXCLUSIVE = True, and other jobs are running", *lines])
        raise RefusedError(message, hint="stop them, wait for their end, or set EXCLUSIVE = False")
    return found


def _describe_job(job: OtherJob, began: Mapping[str, float]) -> str:
    if "port" in job:
        return f"a job of another account (uid {job['uid']}) is running, on port {job['port']}"
    by = f", started by {job['by']}" if job["by"] else ", started"
    since = began.get(job["job"])
    at = datetime.datetime.fromtimestamp(since).strftime(" at %Y-%m-%d %H:%M") if since is not None else ""
    return f"{job['job']} is running{f'{by}{at}' if job['by'] or at else ''}"


PORT_HINT = "CLUSTERCTL_PSERVERS has the port of each; programs that know only one port need one pserver per machine"


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
    return Finding(
        "pserver_port", WARNS, tuple(places), f"{why}: PADDLE_INIT_PORT of trainers is pserver 0's", PORT_HINT
    )
