"""Bring the logs, the outputs and the model of a run home."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from clusterctl.cluster import Cluster, combined, failures
from clusterctl.collect import Collection, ModelSelection
from clusterctl.collect import collect as run
from clusterctl.common.manifest import is_tag
from clusterctl.common.paths import is_job_id
from clusterctl.documents.jobs import CollectDocument
from clusterctl.errors import ClusterctlError, NodeError, UsageError
from clusterctl.inventory import Node
from clusterctl.observe.record.members import Members
from clusterctl.observe.record.references import Reference
from clusterctl.observe.record.status import find


@dataclass(frozen=True)
class CollectResult:
    """The files of a run that `target` has now. `problem` is the error to report if files of some nodes are missing, or
    the newest model cannot be completed.
    """

    job: str
    members: Members
    target: Path
    collection: Collection
    problem: ClusterctlError | None

    def document(self, report: Path | None) -> CollectDocument:
        """Return the document of `collect --json`, given the path of the report of the run."""
        found, members = self.collection, self.members
        return CollectDocument(
            job=self.job,
            run=members.run,
            members=tuple(members.by_id),
            left_out=members.left_out,
            files=tuple(found.files),
            left=tuple({"node": one.node, "path": one.path, "kind": one.kind} for one in found.left),
            model=str(found.model) if found.model else None,
            tag=found.tag,
            more_models=found.more_models,
            warnings=tuple(found.warnings),
            skipped=tuple(found.skipped),
            report=str(report) if report else None,
        )


def check_tag(tag: str | None) -> None:
    if tag is not None and not is_tag(tag):
        raise UsageError(f"{tag!r} cannot be the tag of a model")


def collect(
    cluster: Cluster,
    named: Reference,
    output: Path | None,
    report: Callable[[Node, int, int], None],
    *,
    tag: str | None = None,
    every: bool = False,
) -> CollectResult:
    """Collect a run into `output` (None: the directory named like the job). `report(node, done, total)` counts bytes.

    With `every`, all complete models are brought, else `tag` or the newest one.
    """
    job, members = find(cluster, named.job, run=named.run)
    target = output or _default_target(job, None if named.chosen else named.job)
    collection = run(cluster, members.nodes, job, target, report, ModelSelection(members.run, tag, every))
    errors = [outcome.error for outcome in failures(collection.outcomes) if outcome.error]
    errors += _unnameable(collection)
    if collection.skipped and not errors:
        instead = f"{collection.tag} was collected instead" if collection.model else "neither can any before it"
        errors.append(NodeError(f"the newest model, {collection.skipped[0].tag}, cannot be completed; {instead}"))
    problem = combined(errors, len(collection.outcomes), "collect") if errors else None
    return CollectResult(job, members, target, collection, problem)


def _default_target(job: str, ref: str | None) -> Path:
    """Return the directory that is named like the job. Nodes name the job, and could choose any name but an id."""
    if not is_job_id(job) and job != ref:
        raise UsageError(
            f"the job is {job}, which was deployed by hand", hint=f"to collect it into {job}/: clusterctl collect {job}"
        )
    return Path(job)


def _unnameable(collection: Collection) -> Iterator[NodeError]:
    """Yield an error for each node with files that were not brought because of their names."""
    for node in sorted({one.node for one in collection.left if one.kind == "name"}):
        hint = "rename them there, and collect again"
        yield NodeError("some files were not collected because of their names", node=f"node{node}", hint=hint)
