"""Starts a run on all nodes or on none; if the user allows it, on those that are able to.

Every node first checks its job directory, lock, python and address, and waits. Once all are ready, the lead's node is
ordered to start, and then the others, with the lead's port.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clusterctl.check import connectivity
from clusterctl.check.findings import (
    AT_LOOPBACK,
    AT_LOOPBACK_HINT,
    WARNS,
    Finding,
    Skew,
    is_loopback,
    on,
    quick,
)
from clusterctl.cluster import (
    AgentCall,
    Cluster,
    JobChoice,
    NodeOutcome,
    choose_job,
    combined,
    failures,
    raise_failures,
    who_asks,
)
from clusterctl.cluster.answers import FoundDevices, read
from clusterctl.cluster.node_facts import NodeFacts
from clusterctl.cluster.run_answers import LeftOutNode
from clusterctl.common.requests import StartRequest, StartTemplate
from clusterctl.common.requirements import FILE, LOCKS
from clusterctl.common.run_spec import Gpus, LeadAddress, LeftOut, RunSpec
from clusterctl.errors import ClusterctlError, NodeError, RefusedError
from clusterctl.inventory import Node, nodeset
from clusterctl.launch.gpus import NodeWithGpus, check_gpus, dealing
from clusterctl.launch.load import SavedModel
from clusterctl.launch.node_checks import (
    NamedNode,
    NodeWithJobs,
    NodeWithPorts,
    check_host_names,
    check_other_jobs,
    choose_pserver_port,
    wants_host_names,
)
from clusterctl.launch.plan import LaunchPlan
from clusterctl.launch.resume import Resume

LAUNCH_S = 60.0
REACH_S = 120.0
REASON_CHARS = 500

#: What a run starts from, and how it is chosen: by the job, the nodes that take part, and the plan.
Origin = Resume | SavedModel
FindOrigin = Callable[[str, Sequence[Node], LaunchPlan], Origin]


class ReadyNode(NodeFacts, JobChoice, NodeWithJobs, NodeWithPorts, NamedNode, NodeWithGpus, total=False):
    """The answer of a node that is ready to start. `environment`: the one that `setup` made for the job, if any.

    `requirements`: the file with the job's requirements, if any. `machine` is equal for nodes that share their cores.
    `other_jobs` are those that run there. `shards`: the trainers of other nodes whose shards it has copies of.
    """

    dir: str
    newest_run: str
    environment: str | None
    requirements: str | None
    shards: list[int]


@dataclass(frozen=True)
class Launch:
    """One start of a job on `nodes`, which have their ranks in this run; the first one leads.

    `dirs`: the absolute job directories, by node id. `findings`: the nodes' warnings. `left_out`: the reasons why
    other nodes of conf.py do not take part, by node id. `origin`: the checkpoint or model that the run starts from.
    `started_t`: when, by the clock of the lead's node. `pserver_port`: the port of all pservers, if one was chosen.
    `name`: the one that the user gave it.
    """

    job: str
    run: str
    nodes: tuple[Node, ...]
    dirs: dict[int, str]
    findings: tuple[Finding, ...] = ()
    left_out: Mapping[int, ClusterctlError] = field(default_factory=dict)
    origin: Origin | None = None
    started_t: float | None = None
    pserver_port: int | None = None
    name: str | None = None

    @property
    def members(self) -> list[int]:
        return [node.id for node in self.nodes]

    @property
    def lead(self) -> Node:
        return self.nodes[0]

    def left_out_specs(self) -> list[LeftOut]:
        """The form used in the nodes' specs."""
        return [LeftOut(node=node, message=error.message) for node, error in sorted(self.left_out.items())]

    def left_out_json(self) -> list[LeftOutNode]:
        """The form used in JSON documents."""
        return [{"node": one.node, "message": one.message} for one in self.left_out_specs()]


def start(
    cluster: Cluster,
    launch: LaunchPlan,
    ref: str | None,
    on_go: Callable[[Launch], None],
    *,
    allow_partial: bool = False,
    failed: Mapping[int, ClusterctlError] | None = None,
    find_origin: FindOrigin | None = None,
    patient: bool = False,
    on_wait: Callable[[Node, str], None] = lambda node, words: None,
) -> Launch:
    """Start job `ref` (None: the one that ran last). On failure raise every node's reason; nothing runs anywhere then.

    With `allow_partial`, nodes that cannot be reached or fail are left out, and so are nodes that `failed` earlier,
    which are not asked; nodes that refuse for safety are not left out. `find_origin(job, nodes, launch)` returns
    what the run starts from, if anything. With `patient`, nodes wait for an earlier run that is ending, and
    meanwhile `on_wait` is called with words about it. `on_go` is called before the first node is ordered to start: an
    interrupt from then on has to stop the run.
    """
    template = _template(cluster, launch, ref, patient=patient)
    calls: dict[int, AgentCall] = {}
    skews: dict[int, Skew] = {}

    def look(node: Node) -> ReadyNode:
        asked = time.time()
        locked = next(iter(skews), None)  # the first node, once it is ready
        call = calls[node.id] = cluster.call(node, _request(node, template, launch, locked))
        call.on_alive = lambda message: on_wait(node, str(message["waits"])) if "waits" in message else None
        ready: Any = dict(call.receive()["ready"])
        read(FoundDevices, ready["devices"], "start")
        facts: ReadyNode = ready
        skews[node.id] = Skew.measure(asked, facts["clock"], time.time())
        return facts

    def look_again(node: Node, job: str) -> ReadyNode:
        calls[node.id].close()
        template["ref"] = job
        return look(node)

    try:
        outcomes = _look_at_all(cluster, look, failed or {})
        if ref is None:
            outcomes = _agree(cluster, outcomes, look_again)
        copies = {outcome.node.id: outcome.get()["shards"] for outcome in outcomes if outcome.ok}
        lacking = launch.lacking_copies(copies)
        launch, left_out = _select_nodes(launch.with_shard_copies(copies), outcomes, failed or {}, allow_partial)
        looks = {outcome.node.id: outcome.get() for outcome in outcomes if outcome.ok}
        run = _make_run(launch, looks, skews, left_out)
        run = replace(run, findings=(*run.findings, *_lacking_copies(lacking)))
        _check_routes(cluster, calls, looks, run)
        if find_origin is not None:
            origin = find_origin(run.job, run.nodes, launch)
            launch = origin.applied_to(launch)
            run = replace(run, origin=origin, name=launch.name)
        on_go(run)
        return replace(run, started_t=_go(cluster, launch, calls, looks, run))
    finally:
        for call in calls.values():
            call.close()


def _template(cluster: Cluster, launch: LaunchPlan, ref: str | None, *, patient: bool) -> StartTemplate:
    template: StartTemplate = {
        "op": "start",
        "ref": ref,
        "nodes": len(cluster.inventory.nodes),
        "python": cluster.settings.python,
        "runtime": launch.needs_runtime,
        "nic": cluster.settings.nic,
        "port": cluster.settings.port,
        "pserver_port": launch.wants_one_pserver_port,
        "host_name": wants_host_names(launch),
    }
    if patient:
        template["patient"] = True
    return template


def _request(node: Node, template: StartTemplate, launch: LaunchPlan, locked: int | None) -> StartRequest:
    return {
        **template,
        "node": node.id,
        "address": node.address,
        "count": 1,
        "lead": node.id == launch.nodes[0].id,
        "gpus": node.host.gpus,
        "locked": locked,
    }


def _look_at_all(
    cluster: Cluster, look: Callable[[Node], ReadyNode], failed: Mapping[int, ClusterctlError]
) -> list[NodeOutcome[ReadyNode]]:
    """Look at the first node, and if no other run or start has locked the job there, at the others.

    So of two starts at once, one locks all nodes, and the other none.
    """
    nodes = [node for node in cluster.nodes if node.id not in failed]
    outcomes = cluster.map(look, nodes[:1])
    if any(outcome.error and outcome.error.details.get("locked") for outcome in outcomes):
        return outcomes
    return outcomes + cluster.map(look, nodes[1:])


def _agree(
    cluster: Cluster, outcomes: list[NodeOutcome[ReadyNode]], look_again: Callable[[Node, str], ReadyNode]
) -> list[NodeOutcome[ReadyNode]]:
    """Return the outcomes for the job that ran last on any node."""
    answers = [outcome.get() for outcome in outcomes if outcome.ok]
    if not answers:
        return outcomes
    job = choose_job(answers, to_resume=True)
    behind = [outcome.node for outcome in outcomes if outcome.ok and outcome.get()["job"] != job]
    again = {outcome.node.id: outcome for outcome in cluster.map(lambda node: look_again(node, job), behind)}
    return [again.get(outcome.node.id, outcome) for outcome in outcomes]


def _select_nodes(
    launch: LaunchPlan,
    outcomes: Sequence[NodeOutcome[ReadyNode]],
    failed: Mapping[int, ClusterctlError],
    allow_partial: bool,
) -> tuple[LaunchPlan, dict[int, ClusterctlError]]:
    """Return the plan for the nodes that are ready and the errors of the others; raise if those may not be left out."""
    errors = {**failed, **{outcome.node.id: outcome.error for outcome in outcomes if outcome.error}}
    if not errors:
        return launch, errors
    of = len(outcomes) + len(failed)
    others = [outcome.node.id for outcome in outcomes if outcome.ok]
    refused = any(not isinstance(error, NodeError) for error in errors.values())
    error = combined(list(errors.values()), of, "start")
    if refused or not others:
        raise error
    if not allow_partial:
        partial = f"start without {nodeset(errors)}: --allow-partial"
        hint = f"{error.hint}{'' if error.hint.endswith(('.', '?')) else '.'} Or {partial}" if error.hint else partial
        raise type(error)(error.message, node=error.node, hint=hint, details=error.details)
    try:
        return launch.among(others), errors
    except NodeError as exc:
        raise NodeError(f"nothing was started: {exc.message}\n{error}", hint=error.hint, details=error.details) from exc


def _make_run(
    launch: LaunchPlan,
    looks: Mapping[int, ReadyNode],
    skews: Mapping[int, Skew],
    left_out: Mapping[int, ClusterctlError],
) -> Launch:
    """Return the run that the nodes agree on; raise RefusedError if they disagree."""
    job = _same_job(looks)
    _check_addresses(looks)
    bare = _check_environments(looks)
    name = f"{1 + max(int(facts['newest_run']) for facts in looks.values()):04d}"
    busy = check_other_jobs(looks, exclusive=launch.settings.exclusive)
    dirs = {node: facts["dir"] for node, facts in looks.items()}
    members = max(launch.count("trainer"), len(looks))
    open_files, seals = launch.settings.open_files, launch.seals_streams
    warnings = quick(looks, skews, members=members, open_files=open_files, seals=seals)
    _raise_for([finding for finding in warnings if finding.blocks], "nothing was started")
    port, differ = choose_pserver_port(launch, looks)
    findings = (*warnings, *bare, *busy, *differ, *check_host_names(launch, looks), *check_gpus(launch, looks))
    return Launch(job, name, launch.nodes, dirs, findings, left_out, pserver_port=port, name=launch.name)


def _lacking_copies(nodes: Sequence[int]) -> list[Finding]:
    message = "SHARD_COPIES: copies of shards are missing, so trainers cannot move here"
    return [Finding("shard_copies", WARNS, tuple(nodes), message, "dispatch the workspace again")] if nodes else []


def _check_routes(cluster: Cluster, calls: dict[int, AgentCall], looks: Mapping[int, ReadyNode], run: Launch) -> None:
    """Let the nodes try to reach each other on the job's ports. Raises NodeError with every pair that cannot."""

    def reach(node: Node) -> list[list[Any]]:
        calls[node.id].send({"reach": connectivity.targets(node.id, looks)})
        results: list[list[Any]] = calls[node.id].receive(REACH_S)["reach"]
        return results

    if len(run.nodes) == 1:
        return
    outcomes = cluster.map(reach, run.nodes)
    results = dict(zip(run.members, raise_failures(outcomes, "start"), strict=True))
    closed = list(connectivity.failed(connectivity.failures_in(results), cluster.settings.port))
    _raise_for(closed, "nothing was started: the nodes cannot reach each other")


def _raise_for(findings: Sequence[Finding], headline: str) -> None:
    if findings:
        lines = [f"  {on(one.nodes)} {one.message}\n      {one.hint}" for one in findings]
        raise NodeError(
            "\n".join([headline, *lines]),
            hint="clusterctl check shows all problems",
            details={"findings": [one.to_json() for one in findings]},
        )


def _same_job(looks: Mapping[int, ReadyNode]) -> str:
    jobs = {facts["job"] for facts in looks.values()}
    if len(jobs) > 1:
        by_node = ", ".join(f"node{node}: {facts['job']}" for node, facts in looks.items())
        raise RefusedError(
            f"the job differs between nodes ({by_node})",
            hint="name one that all nodes have with --job_workspace JOB..., or dispatch again",
        )
    return str(jobs.pop())


def _check_addresses(looks: Mapping[int, ReadyNode]) -> None:
    """Refuse a mix of loopback and other addresses: nodes cannot reach another machine's loopback address."""
    local = {f"node{node}": is_loopback(facts["address"]) for node, facts in looks.items()}
    if len(set(local.values())) > 1:
        isolated = next(label for label, loopback in local.items() if loopback)
        raise RefusedError(AT_LOOPBACK, node=isolated, hint=AT_LOOPBACK_HINT)


def _check_environments(looks: Mapping[int, ReadyNode]) -> list[Finding]:
    """Return a warning if the job has requirements and no node an environment for them.

    Refuse a mix of nodes with and without one: they would train with different packages.
    """
    without = [node for node, facts in looks.items() if facts["environment"] is None]
    named = [facts.get("requirements") for facts in looks.values()]
    file = next((name for name in LOCKS if name in named), FILE)
    if without and len(without) < len(looks):
        raise RefusedError(
            f"no environment for {file} on {nodeset(without)}, unlike the other nodes",
            hint="to create the missing ones: clusterctl setup WORKSPACE",
        )
    required = tuple(node for node in without if looks[node].get("requirements"))
    message = f"no environment for {file}: the job uses the packages that PYTHON has"
    return [Finding("environment", WARNS, required, message, "clusterctl setup WORKSPACE")] if required else []


def _go(
    cluster: Cluster,
    launch: LaunchPlan,
    calls: dict[int, AgentCall],
    looks: Mapping[int, ReadyNode],
    run: Launch,
) -> float:
    """Start all supervisors. Return the time at which the lead's node began, by its clock."""
    from clusterctl.launch.keys import make_keys  # noqa: PLC0415 - cryptography takes 40 ms

    keys = make_keys(launch)
    addresses = {node: facts["address"] for node, facts in looks.items()}
    machines = {node: facts.get("machine", str(node)) for node, facts in looks.items()}
    cores = {node: facts["cores"] for node, facts in looks.items()}

    def launch_one(node: Node, lead: LeadAddress | None) -> dict[str, Any]:
        more = run.origin.word(launch, node) if run.origin else {}
        spec = _spec_for(node, launch, addresses, run, lead, machines, dealing(node, launch, looks), cores)
        calls[node.id].send({"spec": spec.to_json(), "keys": keys[node.id], **more})
        answer: dict[str, Any] = calls[node.id].result(LAUNCH_S)
        return answer

    try:
        began = launch_one(run.lead, None)
    except ClusterctlError as exc:  # it may be running even though its answer was lost
        _stop_again(cluster, run, exc, [run.lead])
        raise
    lead = LeadAddress(host=addresses[run.lead.id], port=began["port"])
    outcomes = cluster.map(lambda node: launch_one(node, lead), run.nodes[1:])
    if failures(outcomes):
        _undo(cluster, run, outcomes)
    return float(began["t"])


def _sharing(node: Node, launch: LaunchPlan, machines: Mapping[int, str]) -> int | None:
    """Return the number of processes on a node's machine; None if no other node is on it."""
    there = [other for other in launch.nodes if machines[other.id] == machines[node.id]]
    return sum(len(launch.on(other)) for other in there) if len(there) > 1 else None


def _spec_for(
    node: Node,
    launch: LaunchPlan,
    addresses: dict[int, str],
    run: Launch,
    lead: LeadAddress | None,
    machines: Mapping[int, str],
    gpus: Gpus | None,
    cores: Mapping[int, int],
) -> RunSpec:
    return launch.spec(
        node,
        job=run.job,
        run=run.run,
        addresses=addresses,
        lead=lead,
        left_out=run.left_out_specs(),
        sharing=_sharing(node, launch, machines),
        by=who_asks(),
        pserver_port=run.pserver_port,
        machines={node: machine.partition(" ")[0] for node, machine in machines.items()},
        gpus=gpus,
        cores=cores,
        **(run.origin.in_spec(run.job, run.run, launch, node) if run.origin else {}),
    )


def _undo(cluster: Cluster, run: Launch, outcomes: list[NodeOutcome[dict[str, Any]]]) -> None:
    """Stop the nodes that started, then raise the errors of those that did not."""
    errors = [outcome.error for outcome in failures(outcomes) if outcome.error]
    error = combined(errors, len(run.nodes), "start")
    _stop_again(cluster, run, error, run.nodes)
    raise error


def _stop_again(cluster: Cluster, run: Launch, error: ClusterctlError, nodes: Sequence[Node]) -> None:
    reasons = "; ".join(line.strip() for line in str(error).splitlines())
    because = f"the start failed: {reasons}"[:REASON_CHARS]
    cluster.ask({"op": "stop", "ref": run.job, "because": because, "run": run.run}, nodes)
