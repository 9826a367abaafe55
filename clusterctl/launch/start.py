"""Starts a run on all nodes, or on none; if the user allows it, on those that can.

Every node looks first (job directory, lock, python, address) and waits; only when all can, the lead's node gets the
word, and then, with the lead's port, the others.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clusterctl.check import connectivity
from clusterctl.check.findings import STOPS, Finding, Skew, on, quick
from clusterctl.cluster import AgentCall, Cluster, Message, NodeOutcome, combined, failures, raise_failures
from clusterctl.cluster.keepalive import Waiting
from clusterctl.common.run_spec import LeadAddress, LeftOut, RunSpec
from clusterctl.errors import ClusterctlError, NodeError, RefusedError
from clusterctl.inventory import Node, nodeset
from clusterctl.launch.keys import make_keys
from clusterctl.launch.plan import LaunchPlan
from clusterctl.launch.resume import Resume, bring, choose

LAUNCH_S = 60.0
REACH_S = 120.0


@dataclass(frozen=True)
class Run:
    """One start of a job on `nodes`, which have their ranks of this run; the first one leads.

    `dirs` are the absolute job directories, by node id; `findings` what the nodes warn of; `left_out` why other nodes
    of conf.py do not take part, by their id; `resume` from which checkpoint it goes on.
    """

    job: str
    run: str
    nodes: tuple[Node, ...]
    dirs: dict[int, str]
    findings: tuple[Finding, ...] = ()
    left_out: Mapping[int, ClusterctlError] = field(default_factory=dict)
    resume: Resume | None = None

    @property
    def members(self) -> list[int]:
        return [node.id for node in self.nodes]

    @property
    def lead(self) -> Node:
        return self.nodes[0]

    def left_out_specs(self) -> list[LeftOut]:
        """As the nodes' specs have it."""
        return [LeftOut(node=node, message=error.message) for node, error in sorted(self.left_out.items())]

    def left_out_json(self) -> list[Message]:
        """As documents have it."""
        return [node.to_json() for node in self.left_out_specs()]


def start(
    cluster: Cluster,
    launch: LaunchPlan,
    ref: str | None,
    on_go: Callable[[Run], None],
    *,
    allow_partial: bool = False,
    failed: Mapping[int, ClusterctlError] | None = None,
    on_resume: Callable[[Resume], None] | None = None,
) -> Run:
    """Starts job `ref` (None: the newest). Raises with every node's reason; nothing runs anywhere then.

    With `allow_partial` nodes that cannot be reached or fail are left out, and so are those that `failed` before,
    which are not asked; not those that refuse for safety. With `on_resume` the run goes on from the newest checkpoint
    that is complete and undamaged, which it is called with before pieces are brought to where they are needed.
    `on_go` is called before the first node gets the word: who interrupts from then on has something to stop.
    """
    request = {
        "op": "start",
        "ref": ref,
        "nodes": len(cluster.inventory.nodes),
        "python": cluster.settings.python,
        "runtime": launch.needs_runtime,
        "nic": cluster.settings.nic,
        "port": cluster.settings.port,
    }
    calls: dict[int, AgentCall] = {}
    skews: dict[int, Skew] = {}

    def look(node: Node) -> Message:
        asked = time.time()
        about = {"node": node.id, "address": node.address, "count": 1, "lead": node.id == launch.nodes[0].id}
        call = calls[node.id] = cluster.call(node, {**request, **about})
        found = dict(call.receive()["ready"])
        skews[node.id] = Skew.measure(asked, found["clock"], time.time())
        waiting.add(node.id, call)
        return found

    try:
        with Waiting() as waiting:
            outcomes = cluster.map(look, [node for node in cluster.nodes if node.id not in (failed or {})])
            launch, left_out = _who_takes_part(launch, outcomes, failed or {}, allow_partial)
            looks = {outcome.node.id: outcome.get() for outcome in outcomes if outcome.ok}
            run = _make_run(launch, looks, skews, left_out)
            _check_ways(cluster, calls, looks, run, waiting)
            if on_resume is not None:
                resume = choose(cluster, run.job, run.nodes, launch)
                on_resume(resume)
                bring(cluster, run.job, resume, launch)
                run = replace(run, resume=resume)
            on_go(run)
            _go(cluster, launch, calls, looks, run, waiting)
        return run
    finally:
        for call in calls.values():
            call.close()


def _who_takes_part(
    launch: LaunchPlan,
    outcomes: Sequence[NodeOutcome[Message]],
    failed: Mapping[int, ClusterctlError],
    allow_partial: bool,
) -> tuple[LaunchPlan, dict[int, ClusterctlError]]:
    """The plan for the nodes that can, and why the others cannot; raises when they may not be left out."""
    errors = {**failed, **{outcome.node.id: outcome.error for outcome in outcomes if outcome.error}}
    if not errors:
        return launch, errors
    of = len(outcomes) + len(failed)
    others = [outcome.node.id for outcome in outcomes if outcome.ok]
    refused = any(not isinstance(error, NodeError) for error in errors.values())
    why = combined(list(errors.values()), of, "start")
    if refused or not others:
        raise why
    if not allow_partial:
        go_on = f"go on without {nodeset(errors)}: --allow-partial"
        hint = f"{why.hint} Or {go_on}" if why.hint else go_on
        raise type(why)(why.message, node=why.node, hint=hint, details=why.details)
    try:
        return launch.among(others), errors
    except NodeError as exc:
        raise NodeError(f"nothing was started: {exc.message}\n{why}", hint=why.hint, details=why.details) from exc


def _make_run(
    launch: LaunchPlan, looks: Mapping[int, Message], skews: Mapping[int, Skew], left_out: Mapping[int, ClusterctlError]
) -> Run:
    """What the nodes agree on; raises RefusedError where they do not."""
    job = _same_job(looks)
    _check_addresses(looks)
    _check_environments(looks)
    name = f"{1 + max(int(found['newest_run']) for found in looks.values()):04d}"
    dirs = {node: found["dir"] for node, found in looks.items()}
    members = max(launch.count("trainer"), len(looks))
    warnings = quick(looks, skews, members=members, open_files=launch.settings.open_files)
    _raise_for([found for found in warnings if found.severity == STOPS], "nothing was started")
    return Run(job, name, launch.nodes, dirs, tuple(warnings), left_out)


def _check_ways(
    cluster: Cluster, calls: dict[int, AgentCall], looks: Mapping[int, Message], run: Run, waiting: Waiting
) -> None:
    """Lets the nodes try to reach each other on the job's ports. Raises NodeError with every way that is closed."""

    def reach(node: Node) -> list[list[Any]]:
        waiting.leave(node.id)
        calls[node.id].send({"reach": connectivity.targets(node.id, looks)})
        found: list[list[Any]] = calls[node.id].receive(REACH_S)["reach"]
        waiting.add(node.id, calls[node.id])
        return found

    if len(run.nodes) == 1:
        return
    outcomes = cluster.map(reach, run.nodes)
    results = dict(zip(run.members, raise_failures(outcomes, "start"), strict=True))
    closed = list(connectivity.failed(connectivity.failures_in(results), cluster.settings.port))
    _raise_for(closed, "nothing was started: the nodes do not reach each other")


def _raise_for(findings: Sequence[Finding], what: str) -> None:
    if findings:
        lines = [f"  {on(found.nodes)} {found.message}\n      {found.hint}" for found in findings]
        raise NodeError(
            "\n".join([what, *lines]),
            hint="clusterctl check shows all that is wrong",
            details={"findings": [found.to_json() for found in findings]},
        )


def _same_job(looks: Mapping[int, Message]) -> str:
    jobs = {found["job"] for found in looks.values()}
    if len(jobs) > 1:
        has = ", ".join(f"node{node}: {found['job']}" for node, found in looks.items())
        raise RefusedError(
            f"the newest job is not the same on all nodes ({has})",
            hint="name one that all have: --job_workspace JOB..., or dispatch again",
        )
    return str(jobs.pop())


def _check_addresses(looks: Mapping[int, Message]) -> None:
    """A loopback address among others cannot be reached by them."""
    local = {f"node{node}": _is_loopback(found["address"]) for node, found in looks.items()}
    if len(set(local.values())) > 1:
        lonely = next(label for label, loopback in local.items() if loopback)
        raise RefusedError(
            "was reached at a loopback address, which the other nodes cannot use",
            node=lonely,
            hint="Host(..., address=...) or NIC in conf.py tells its address in the cluster",
        )


def _check_environments(looks: Mapping[int, Message]) -> None:
    """Nodes that `setup` has reached, and nodes that it has not, would train with different packages."""
    without = [node for node, found in looks.items() if found["environment"] is None]
    if without and len(without) < len(looks):
        raise RefusedError(
            f"{nodeset(without)} has no environment for its requirements.txt, others do",
            hint="clusterctl setup WORKSPACE makes it where it is missing",
        )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _go(
    cluster: Cluster,
    launch: LaunchPlan,
    calls: dict[int, AgentCall],
    looks: Mapping[int, Message],
    run: Run,
    waiting: Waiting,
) -> None:
    keys = make_keys(launch)
    addresses = {node: found["address"] for node, found in looks.items()}

    def launch_one(node: Node, lead: LeadAddress | None) -> Message:
        waiting.leave(node.id)
        word = {"resume": run.resume.word(launch, node)} if run.resume else {}
        spec = _spec_for(node, launch, addresses, run, lead)
        calls[node.id].send({"spec": spec.to_json(), "keys": keys[node.id], **word})
        return calls[node.id].result(LAUNCH_S)

    try:
        port = launch_one(run.lead, None)["port"]
    except ClusterctlError:  # it may be up all the same, and only its word be lost
        cluster.ask({"op": "stop", "ref": run.job}, [run.lead])
        raise
    lead = LeadAddress(host=addresses[run.lead.id], port=port)
    outcomes = cluster.map(lambda node: launch_one(node, lead), run.nodes[1:])
    if failures(outcomes):
        _take_back(cluster, run, outcomes)


def _spec_for(node: Node, launch: LaunchPlan, addresses: dict[int, str], run: Run, lead: LeadAddress | None) -> RunSpec:
    return launch.spec(
        node,
        job=run.job,
        run=run.run,
        addresses=addresses,
        lead=lead,
        left_out=run.left_out_specs(),
        resume=run.resume.spec(run.run) if run.resume else None,
    )


def _take_back(cluster: Cluster, run: Run, outcomes: list[NodeOutcome[Message]]) -> None:
    """Some nodes did not start: stop those that did, then say why."""
    cluster.ask({"op": "stop", "ref": run.job}, run.nodes)
    errors = [outcome.error for outcome in failures(outcomes) if outcome.error]
    raise combined(errors, len(run.nodes), "start")
