"""Bring the logs, the outputs and the model of a run home."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.api.opening import CallResult
from clusterctl.cluster import Cluster, combined, failures
from clusterctl.collect import Collection, ModelSelection
from clusterctl.collect import collect as run
from clusterctl.common.manifest import is_tag
from clusterctl.common.paths import is_job_id
from clusterctl.documents.jobs import CollectDocument
from clusterctl.errors import NodeError, UsageError
from clusterctl.inventory import Node
from clusterctl.observe.record.members import Members
from clusterctl.observe.record.references import Reference
from clusterctl.observe.record.status import find


@dataclass(frozen=True)
class Collected(CallResult):
    """The files of a run that `directory` has now. `model` is the file of the merged model of `tag`, if any.

    There is a problem if files of some nodes are missing, or the newest model cannot be completed.
    """

    directory: Path
    model: Path | None
    tag: str | None
    files: tuple[Path, ...]
    warnings: tuple[str, ...]
    job: str = field(repr=False, compare=False)
    members: Members = field(repr=False, compare=False)
    collection: Collection = field(repr=False, compare=False)


def check_tag(tag: str | None) -> None:
    """Raise UsageError if this cannot be the tag of a model."""
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
) -> Collected:
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
    return Collected(
        target,
        collection.model,
        collection.tag if collection.model else None,
        tuple(target / file.path for file in collection.files),
        tuple(warning["message"] for warning in collection.warnings),
        job,
        members,
        collection,
        document=_document(job, members, collection),
        problem=problem,
    )


def _document(job: str, members: Members, found: Collection) -> Mapping[str, Any]:
    return CollectDocument(
        job=job,
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
        report=None,
    ).to_json()


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
