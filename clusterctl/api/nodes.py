"""Operations on nodes rather than jobs: check them, trust their host keys, set them up, and remove what is old."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from clusterctl import check as preflight
from clusterctl import prune as pruning
from clusterctl.api.opening import CallResult
from clusterctl.check import Finding, Report
from clusterctl.cluster import Cluster, NodeOutcome, combined, failures
from clusterctl.cluster.node_facts import ShownFacts
from clusterctl.config import Settings
from clusterctl.documents.nodes import (
    CheckDocument,
    CheckedNode,
    EnvironmentDocument,
    FailedNode,
    HostKeyDocument,
    PreparedNode,
    PruneDocument,
    SetupDocument,
    TrustDocument,
    head,
)
from clusterctl.errors import ClusterctlError
from clusterctl.inventory import Node
from clusterctl.launch import plan
from clusterctl.prune import PrunePlan
from clusterctl.setup import NodeGroup, NodeSetup, Requirements, SetupOptions, SetupResult, prepare, read_requirements
from clusterctl.transport import HostKey, Verdict

# check


@dataclass(frozen=True)
class Checked(CallResult):
    """The result of a check: the `findings`, and the `report` with the facts of the nodes."""

    findings: tuple[Finding, ...]
    report: Report = field(repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """True if nothing blocks a start."""
        return not any(finding.blocks for finding in self.findings)


def check(cluster: Cluster) -> Checked:
    """Check every node, and all pairs of them. Nodes that do not answer are findings."""
    report = preflight.check(cluster, runtime=plan(cluster.settings, cluster.inventory).needs_runtime)
    nodes = tuple(_checked(node, report) for node in cluster.nodes)
    document = CheckDocument(nodes, report.pairs, tuple(finding.to_json() for finding in report.findings))
    return Checked(tuple(report.findings), report, document=document.to_json())


def _checked(node: Node, report: Report) -> CheckedNode:
    error, facts, skew = report.errors.get(node.id), report.facts.get(node.id), report.skews.get(node.id)
    view: CheckedNode = {
        "node": node.id,
        "host": node.where,
        "ok": error is None and not any(node.id in finding.nodes for finding in report.stops),
        "seconds": round(report.seconds[node.id], 3),
    }
    if error is not None:
        view["error"] = error.to_json()
    if facts is not None:
        shown: ShownFacts = {
            "address": facts["address"],
            "interface": facts["interface"],
            "versions": facts["versions"],
            "system": facts["system"],
            "cores": facts["cores"],
            "memory": facts["memory"],
            "disk": facts["disk"],
            "open_files": facts["open_files"],
            "busy": facts["busy"],
            "leftovers": facts["leftovers"],
            "gpus": facts["gpus"],
        }
        view = {**view, **shown, "half_dispatched": len(facts["half_dispatched"])}
    if skew is not None:
        view["clock_ahead_s"], view["clock_error_s"] = round(skew.ahead_s, 3), round(skew.error_s, 3)
    return view


# trust


class PresentedKey(NamedTuple):
    """The key that a node presented, and what the known keys say about it."""

    node: Node
    key: HostKey
    verdict: Verdict


@dataclass(frozen=True)
class HostKeys:
    """The keys of the nodes that answered. `errors` are those of the others, and of keys that are refused.

    `without` counts nodes that are reached by other means than SSH.
    """

    scanned: Sequence[PresentedKey]
    errors: Sequence[ClusterctlError]
    of: int
    without: int

    @property
    def unknown(self) -> list[PresentedKey]:
        return [one for one in self.scanned if one.verdict.state == "unknown"]

    @property
    def known(self) -> int:
        """The number of nodes whose keys were accepted before."""
        return sum(one.verdict.state not in ("unknown", "changed", "revoked") for one in self.scanned)

    def problem(self, *unaccepted: ClusterctlError) -> ClusterctlError | None:
        """Return the error to report, given one about keys that were not accepted, if any."""
        errors = [*self.errors, *unaccepted]
        return combined(errors, self.of, "trust") if errors else None

    def document(self, *, recorded: bool) -> TrustDocument:
        """Return the document of `trust --json`."""
        return {"nodes": [_host_key(*one, recorded) for one in self.scanned]}


def scan_host_keys(cluster: Cluster) -> HostKeys:
    """Ask every node for its host key; nothing is recorded."""

    def scan(node: Node) -> PresentedKey:
        key = cluster.transport.scan_host_key(node)
        return PresentedKey(node, key, cluster.transport.host_key_verdict(node, key))

    by_ssh = [node for node in cluster.nodes if node.via == "ssh"]
    outcomes = cluster.map(scan, by_ssh)
    scanned = [outcome.get() for outcome in outcomes if outcome.ok]
    errors = [outcome.error for outcome in failures(outcomes) if outcome.error]
    refused = [one for one in scanned if one.verdict.state in ("changed", "revoked")]
    errors += [cluster.transport.host_key_refusal(*one) for one in refused]
    return HostKeys(scanned, errors, len(outcomes), len(cluster.nodes) - len(by_ssh))


def record_host_keys(cluster: Cluster, keys: Sequence[PresentedKey]) -> None:
    """Record keys as those of their nodes. A person has to have compared them."""
    for node, key, _ in keys:
        cluster.transport.record_host_key(node, key)


def _host_key(node: Node, key: HostKey, verdict: Verdict, recorded: bool) -> HostKeyDocument:
    state = "recorded" if recorded and verdict.state == "unknown" else verdict.state
    return {"node": node.id, "host": node.where, "type": key.type, "fingerprint": key.fingerprint, "state": state}


# setup


@dataclass(frozen=True)
class Prepared(CallResult):
    """Nodes that are ready: the name of the environment of each, by id, and the ids of those where it was `built` now.

    `done` is the whole outcome, with the nodes that are not ready.
    """

    environments: Mapping[int, str]
    built: tuple[int, ...]
    done: SetupResult = field(repr=False, compare=False)


def requirements_of(workspace: Path, settings: Settings) -> Requirements:
    """Read the requirements of a workspace, and what the engine needs besides. Raises ConfigError."""
    return read_requirements(workspace, runtime=settings.engine == "clusterctl")


def setup(
    cluster: Cluster,
    requirements: Requirements,
    *,
    offline: bool = False,
    upgrade: bool = False,
    uv: bool | None = None,
    say: Callable[[str], None],
    cache: Path,
    on_step: Callable[[Node | None, str], None] = lambda node, words: None,
) -> Prepared:
    """Build the environment on every node that lacks it. See `clusterctl.setup.prepare` and `SetupOptions`."""
    done = prepare(cluster, requirements, SetupOptions(offline, upgrade, uv), say, cache, on_step)
    lock = requirements.lock
    document: SetupDocument = {
        "requirements": requirements.packages,
        "lock": lock.name if lock else None,
        "environments": [_environment(group) for group in done.groups],
        "nodes": [_prepared(outcome) for outcome in done.outcomes],
    }
    ready = {outcome.node.id: outcome.get() for outcome in done.outcomes if outcome.ok}
    return Prepared(
        {node: one.environment for node, one in ready.items()},
        tuple(node for node, one in ready.items() if one.built),
        done,
        document=document,
        problem=_unprepared(done),
    )


def _unprepared(done: SetupResult) -> ClusterctlError | None:
    errors = [outcome.error for outcome in failures(done.outcomes) if outcome.error]
    if not errors:
        return None
    of = len(done.outcomes)
    error = combined(errors, of, "setup")
    if len(errors) < of:
        error.message += f"\n{of - len(errors)}/{of} nodes ready; run setup again for the others"
    return error


def _environment(group: NodeGroup) -> EnvironmentDocument:
    return {
        "python": group.kind.python,
        "machine": group.kind.machine,
        "packages": group.packages,
        "chosen_by": group.chosen_by,
        "relayed": group.relayed,
        "nodes": [node.id for node in group.nodes],
    }


def _prepared(outcome: NodeOutcome[NodeSetup]) -> PreparedNode | FailedNode:
    seconds = round(outcome.seconds, 3)
    if outcome.error is not None:
        return {**head(outcome), "seconds": seconds, "error": outcome.error.to_json()}
    ready = outcome.get()
    return {
        **head(outcome),
        "seconds": seconds,
        "environment": ready.environment,
        "built": ready.built,
        "built_by": ready.builder,
        "uv_problem": ready.problem,
        "bytes_sent": ready.bytes_sent,
    }


# prune


@dataclass(frozen=True)
class Pruned(CallResult):
    """The ids of `jobs` that can go, the number of pieces of `content` that nothing needs, and the `bytes` of both.

    They are gone if they were `removed`. `plan` has the details.
    """

    jobs: tuple[str, ...]
    content: int
    bytes: int
    removed: bool
    plan: PrunePlan = field(repr=False, compare=False)


def prune(cluster: Cluster, confirm: Callable[[PrunePlan], bool], *, keep: int, older_than_s: float) -> Pruned:
    """Ask every node, and remove what can go if `confirm` says so.

    All jobs can go but the newest `keep`, those that run, and what was used in the last `older_than_s` seconds. The
    problem names nodes that did not answer, or where something was still in use.
    """
    outcomes = pruning.look(cluster)
    errors = [outcome.error for outcome in failures(outcomes) if outcome.error]
    answers = {outcome.node.id: outcome.get() for outcome in outcomes if outcome.ok}
    found = pruning.choose(answers, keep, older_than_s)
    removed = confirm(found) and not found.is_empty
    if removed:
        errors += pruning.remove(cluster, found)
    document = PruneDocument(tuple(found.jobs), tuple(found.content), found.bytes, removed)
    return Pruned(
        tuple(job.job for job in found.going),
        len(found.content),
        found.bytes,
        removed,
        found,
        document=document.to_json(),
        problem=combined(errors, len(outcomes), "prune") if errors else None,
    )
