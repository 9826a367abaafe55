"""Which jobs and which content may go, from what all nodes say; and their removal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from clusterctl.cluster import Cluster, Message, NodeOutcome
from clusterctl.common.paths import job_key
from clusterctl.errors import ClusterctlError, RefusedError
from clusterctl.inventory import Node

LOOK_S = 600.0  # many files on a slow disk
LIVE, NEWEST, YOUNG = "runs", "newest", "young"
KINDS = ("agent", "environment", "wheel", "leftover")  # an environment is judged before the wheels that it needs


@dataclass(frozen=True)
class OldJob:
    """A job on all nodes that have it: bytes are sums, `age_s` is since its last use, `keep` says why it stays."""

    job: str
    state: str
    runs: int
    bytes: int
    output_bytes: int
    age_s: float
    nodes: tuple[int, ...]
    keep: str | None


@dataclass(frozen=True)
class Content:
    """A piece of content that nothing needs, on the nodes where that is so."""

    kind: str
    name: str
    bytes: int
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class PrunePlan:
    jobs: list[OldJob]
    content: list[Content]

    @property
    def going(self) -> list[OldJob]:
        return [job for job in self.jobs if job.keep is None]

    @property
    def bytes(self) -> int:
        return sum(job.bytes for job in self.going) + sum(item.bytes for item in self.content)

    def on(self, node: int) -> Message:
        """What is to be removed from one node."""
        jobs = [job.job for job in self.going if node in job.nodes]
        return {"jobs": jobs, "content": [[c.kind, c.name] for c in self.content if node in c.nodes]}


def look(cluster: Cluster) -> list[NodeOutcome[Message]]:
    """What every node has."""
    return cluster.ask({"op": "prune"}, answer_s=LOOK_S)


def choose(found: Mapping[int, Message], keep: int, older_than_s: float) -> PrunePlan:
    """What may go: jobs that do not run, are not among the newest `keep` and were not used for `older_than_s`; and
    content as old that neither a process nor a remaining job needs. `found` are the nodes' answers by node id."""
    by_job: dict[str, dict[int, Message]] = {}
    for node, answer in found.items():
        for job in answer["jobs"]:
            by_job.setdefault(job["job"], {})[node] = job
    names = sorted(by_job, key=job_key, reverse=True)
    jobs = [_old_job(name, by_job[name], number < keep, older_than_s) for number, name in enumerate(names)]
    going = {job.job for job in jobs if job.keep is None}
    unneeded = [item for node, answer in found.items() for item in _unneeded(node, answer, going, older_than_s)]
    return PrunePlan(jobs, _merged(unneeded))


def _old_job(name: str, by_node: Mapping[int, Message], newest: bool, older_than_s: float) -> OldJob:
    views = [view for _, view in sorted(by_node.items())]
    age_s = min(view["age_s"] for view in views)
    keep = None
    if any(view["live"] for view in views):
        keep = LIVE
    elif newest:
        keep = NEWEST
    elif age_s < older_than_s:
        keep = YOUNG
    told = max(views, key=lambda view: view["runs"])  # by a node that took part, the first of them
    return OldJob(
        name,
        next((view["state"] for view in views if view["live"]), told["state"]),
        max(view["runs"] for view in views),
        sum(view["bytes"] for view in views),
        sum(view["output_bytes"] for view in views),
        age_s,
        tuple(sorted(by_node)),
        keep,
    )


def _unneeded(node: int, answer: Message, jobs_going: set[str], older_than_s: float) -> Iterable[Content]:
    gone = set(jobs_going)
    for item in sorted(answer["content"], key=lambda item: KINDS.index(item["kind"])):
        if not item["live"] and item["age_s"] >= older_than_s and gone.issuperset(item["needed_by"]):
            gone.add(item["name"])
            yield Content(item["kind"], item["name"], item["bytes"], (node,))


def _merged(items: Iterable[Content]) -> list[Content]:
    """The same content of several nodes as one."""
    found: dict[tuple[str, str], Content] = {}
    for item in items:
        known = found.get((item.kind, item.name))
        total = item.bytes + (known.bytes if known else 0)
        found[item.kind, item.name] = Content(item.kind, item.name, total, (known.nodes if known else ()) + item.nodes)
    return [found[key] for key in sorted(found)]


def remove(cluster: Cluster, plan: PrunePlan) -> list[ClusterctlError]:
    """Removes what the plan says; the errors of nodes that failed, or where something was in use after all."""
    nodes = [node for node in cluster.nodes if any(plan.on(node.id).values())]

    def request(node: Node) -> Message:
        return {"op": "prune", "remove": plan.on(node.id)}

    errors: list[ClusterctlError] = []
    for outcome in cluster.ask(request, nodes, answer_s=LOOK_S):
        if outcome.error is not None:
            errors.append(outcome.error)
            continue
        kept = outcome.get()["kept"]
        if kept:
            errors.append(RefusedError(f"not removed: {describe_kept(kept)}", node=outcome.node.label))
    return errors


def describe_kept(kept: Iterable[Message]) -> str:
    """`JOB1 (it is running), 2 environments, 1 wheel (a setup is at work on this node)`."""
    by_reason: dict[str, Counter[str]] = {}
    for item in kept:
        what = item["name"] if item["kind"] == "job" else item["kind"]
        by_reason.setdefault(item["why"], Counter())[what] += 1
    return ", ".join(f"{_counted(whats)} ({why})" for why, whats in by_reason.items())


def _counted(whats: Counter[str]) -> str:
    return ", ".join(f"{count} {what}{'s' * (count > 1)}" if what in KINDS else what for what, count in whats.items())
