"""Selects the jobs and content that can be removed, from the answers of all nodes, and removes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypedDict

from clusterctl.cluster import Cluster, NodeOutcome
from clusterctl.common.paths import job_key
from clusterctl.common.requests import PruneChoice, PruneRequest
from clusterctl.common.schema import Record
from clusterctl.errors import ClusterctlError, RefusedError
from clusterctl.inventory import Node

LOOK_S = 600.0  # many files on a slow disk
LIVE, NEWEST, YOUNG = "runs", "newest", "young"
KINDS = ("agent", "environment", "wheel", "uv", "leftover")  # environments are decided before the wheels that they need


class JobOnNode(TypedDict):
    """One job on one node. `runs` is their number; `live`: the job is running or in use."""

    job: str
    state: str
    runs: int
    live: bool
    bytes: int
    output_bytes: int
    age_s: float


class ContentOnNode(TypedDict):
    """An agent, an environment, a wheel, uv or its cache, or a leftover on one node.

    `needed_by`: names of jobs or environments.
    """

    kind: str
    name: str
    live: bool
    needed_by: list[str]
    bytes: int
    age_s: float


class PruneAnswer(TypedDict):
    jobs: list[JobOnNode]
    content: list[ContentOnNode]


class RetainedItem(TypedDict):
    """Something that a node did not remove, and the reason."""

    kind: str
    name: str
    why: str


@dataclass(frozen=True)
class OldJob(Record):
    """A job on all nodes that have it."""

    job: str
    state: str
    runs: int
    bytes: int  # on the disks of all its nodes
    output_bytes: int
    age_s: float  # since its last use
    nodes: tuple[int, ...]
    keep: str | None  # why it is kept: runs, newest or young; null: it can go


@dataclass(frozen=True)
class UnusedContent(Record):
    """A piece of content and the nodes on which nothing needs it."""

    kind: str
    name: str
    bytes: int
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class PrunePlan:
    jobs: list[OldJob]
    content: list[UnusedContent]

    @property
    def is_empty(self) -> bool:
        """True if nothing can go."""
        return not (self.going or self.content)

    @property
    def going(self) -> list[OldJob]:
        return [job for job in self.jobs if job.keep is None]

    @property
    def bytes(self) -> int:
        return sum(job.bytes for job in self.going) + sum(item.bytes for item in self.content)

    def on(self, node: int) -> PruneChoice:
        """Return the part of the plan for one node: the `remove` entry of its request."""
        jobs = [job.job for job in self.going if node in job.nodes]
        return {"jobs": jobs, "content": [(c.kind, c.name) for c in self.content if node in c.nodes]}


def look(cluster: Cluster) -> list[NodeOutcome[PruneAnswer]]:
    """Ask every node for its jobs and content."""
    return cluster.ask({"op": "prune"}, answer_s=LOOK_S)


def choose(found: Mapping[int, PruneAnswer], keep: int, older_than_s: float) -> PrunePlan:
    """Select the jobs and content to remove. `found`: the nodes' answers by node id.

    A job can go if it is not running, not among the newest `keep`, and unused for `older_than_s`. Content can go if it
    is equally old and no process and no remaining job needs it.
    """
    by_job: dict[str, dict[int, JobOnNode]] = {}
    for node, answer in found.items():
        for job in answer["jobs"]:
            by_job.setdefault(job["job"], {})[node] = job
    names = sorted(by_job, key=job_key, reverse=True)
    jobs = [_old_job(name, by_job[name], number < keep, older_than_s) for number, name in enumerate(names)]
    going = {job.job for job in jobs if job.keep is None}
    unneeded = [item for node, answer in found.items() for item in _unneeded(node, answer, going, older_than_s)]
    return PrunePlan(jobs, _merged(unneeded))


def _old_job(name: str, by_node: Mapping[int, JobOnNode], newest: bool, older_than_s: float) -> OldJob:
    views = [view for _, view in sorted(by_node.items())]
    age_s = min(view["age_s"] for view in views)
    keep = None
    if any(view["live"] for view in views):
        keep = LIVE
    elif newest:
        keep = NEWEST
    elif age_s < older_than_s:
        keep = YOUNG
    newest_view = max(views, key=lambda view: view["runs"])  # from the first node that took part in the newest run
    return OldJob(
        name,
        next((view["state"] for view in views if view["live"]), newest_view["state"]),
        max(view["runs"] for view in views),
        sum(view["bytes"] for view in views),
        sum(view["output_bytes"] for view in views),
        age_s,
        tuple(sorted(by_node)),
        keep,
    )


def _unneeded(node: int, answer: PruneAnswer, jobs_going: set[str], older_than_s: float) -> Iterable[UnusedContent]:
    gone = set(jobs_going)
    for item in sorted(answer["content"], key=lambda item: KINDS.index(item["kind"])):
        if not item["live"] and item["age_s"] >= older_than_s and gone.issuperset(item["needed_by"]):
            gone.add(item["name"])
            yield UnusedContent(item["kind"], item["name"], item["bytes"], (node,))


def _merged(items: Iterable[UnusedContent]) -> list[UnusedContent]:
    """Merge the same content of several nodes into one item."""
    merged: dict[tuple[str, str], UnusedContent] = {}
    for item in items:
        known = merged.get((item.kind, item.name))
        total = item.bytes + (known.bytes if known else 0)
        merged[item.kind, item.name] = UnusedContent(
            item.kind, item.name, total, (known.nodes if known else ()) + item.nodes
        )
    return [merged[key] for key in sorted(merged)]


def remove(cluster: Cluster, plan: PrunePlan) -> list[ClusterctlError]:
    """Carry out the plan; return the errors of nodes that failed or where something was still in use."""
    nodes = [node for node in cluster.nodes if any(plan.on(node.id).values())]

    def request(node: Node) -> PruneRequest:
        return {"op": "prune", "remove": plan.on(node.id)}

    errors: list[ClusterctlError] = []
    for outcome in cluster.ask(request, nodes, answer_s=LOOK_S):
        if outcome.error is not None:
            errors.append(outcome.error)
            continue
        kept: list[RetainedItem] = outcome.get()["kept"]
        if kept:
            errors.append(RefusedError(f"not removed: {describe_retained(kept)}", node=outcome.node.label))
    return errors


def describe_retained(kept: Iterable[RetainedItem]) -> str:
    """Format items by reason: `JOB1 (it is running), 2 environments, 1 wheel (a setup is running on this node)`."""
    by_reason: dict[str, Counter[str]] = {}
    for item in kept:
        label = item["name"] if item["kind"] == "job" else item["kind"]
        by_reason.setdefault(item["why"], Counter())[label] += 1
    return ", ".join(f"{_counted(labels)} ({why})" for why, labels in by_reason.items())


def _counted(labels: Counter[str]) -> str:
    return ", ".join(
        f"{count} {label}{'s' * (count > 1)}" if label in KINDS else label for label, count in labels.items()
    )
