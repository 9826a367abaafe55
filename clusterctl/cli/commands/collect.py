"""`clusterctl collect`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.cli import style
from clusterctl.cli.causes import warning_lines
from clusterctl.cli.commands.report import NAME, attempt_report
from clusterctl.cli.console import human_bytes, plural
from clusterctl.cli.invocation import Invocation
from clusterctl.common.errors import first_of
from clusterctl.escape import clean

if TYPE_CHECKING:
    from clusterctl.cluster import Cluster
    from clusterctl.collect import Collection
    from clusterctl.errors import NodeError
    from clusterctl.observe.record.references import Reference

SHOWN = 3
LEFT = {
    "link": "since links could lead anywhere",
    "special": "since they are not plain files",
    "name": "since their names have control characters",
}


def collect(
    invocation: Invocation,
    job: str | None,
    output: Path | None,
    *,
    run: int | None = None,
    tag: str | None = None,
    of_pass: int | None = None,
    every: bool = False,
) -> None:
    from clusterctl.common.manifest import is_tag, pass_tag
    from clusterctl.errors import UsageError

    if tag is not None and of_pass is not None:
        raise UsageError("--tag and --pass both name a model", hint="give one of them")
    if tag is not None and not is_tag(tag):
        raise UsageError(f"{tag!r} cannot be the tag of a model")
    with invocation.cluster_of(job) as cluster:
        tag = tag if of_pass is None else pass_tag(of_pass)
        collect_run(invocation, cluster, invocation.run_of(cluster, job, run), output, tag=tag, every=every)


def collect_run(
    invocation: Invocation,
    cluster: Cluster,
    named: Reference,
    output: Path | None,
    *,
    tag: str | None = None,
    every: bool = False,
    document: bool = True,
) -> Collection:
    """Collect and print a summary; raise if a node failed."""
    from clusterctl.cli.commands.status import left_out_lines
    from clusterctl.cluster import combined, failures
    from clusterctl.collect import Selection
    from clusterctl.collect import collect as run
    from clusterctl.observe.record.status import find

    job, members = find(cluster, named.job, run=named.run)
    target = output or _default_target(job, None if named.chosen else named.job)
    selection = Selection(members.run, tag, every)
    with invocation.progress.operation("collecting") as operation:
        collection = run(cluster, members.nodes, job, target, operation.node_bytes, selection)
    count = f"{sum(o.ok for o in collection.outcomes)}/{len(collection.outcomes)} nodes"
    size = human_bytes(sum(file.bytes for file in collection.files))
    invocation.console.say(
        style.good(f"collected {plural(len(collection.files), 'file')}, {size},")
        + f" from {count} into {target}/; checksums match"
        if collection.files
        else f"collected no files from {count}"
    )
    for line in left_out_lines(members):
        invocation.console.say(line)
    for line in (*_left_lines(collection), *warning_lines(collection.warnings)):
        invocation.console.warn(line)
    if collection.model is not None:
        invocation.console.say(f"model of {collection.tag}: {collection.model}")
        if collection.more_models:
            more = plural(collection.more_models, "earlier model")
            invocation.console.say(f"not collected: {more}     to bring them too: clusterctl collect {job} --all")
    elif collection.files:
        invocation.console.say("no complete model to merge (none saved yet, or saved by another engine)")
    run_report = attempt_report(invocation, cluster, job, members.run, target / NAME) if members.run else None
    errors = [outcome.error for outcome in failures(collection.outcomes) if outcome.error]
    errors += _unnameable(collection)
    error = combined(errors, len(collection.outcomes), "collect") if errors else None
    if document:
        of_report = {"report": str(run_report) if run_report else None}
        about = {"job": job, "run": members.run, **members.to_json()}
        invocation.console.finish({**about, **_document(collection), **of_report}, error)
    elif error is not None:
        raise error
    return collection


def _default_target(job: str, ref: str | None) -> Path:
    """Return the directory that is named like the job. Nodes name the job, and could choose any name but an id."""
    from clusterctl.common.paths import is_job_id
    from clusterctl.errors import UsageError

    if not is_job_id(job) and job != ref:
        raise UsageError(
            f"the job is {job}, which was deployed by hand", hint=f"to collect it into {job}/: clusterctl collect {job}"
        )
    return Path(job)


def _document(collection: Collection) -> dict[str, Any]:
    return {
        "files": [vars(file) for file in collection.files],
        "left": [{"node": one.node, "path": one.path, "kind": one.kind} for one in collection.left],
        "model": str(collection.model) if collection.model else None,
        "tag": collection.tag,
        "more_models": collection.more_models,
        "warnings": collection.warnings,
    }


def _left_lines(collection: Collection) -> Iterator[str]:
    """Say what was left on the nodes: a few paths of each kind."""
    for kind, reason in LEFT.items():
        paths = [f"node{one.node}:{one.path}" for one in collection.left if one.kind == kind]
        if paths:
            yield clean(f"not collected, {reason}: {first_of(paths, SHOWN)}")
    for node, more_there in {one.node: one.more for one in collection.left if one.more}.items():
        yield f"not collected: {more_there:,} more on node{node}"


def _unnameable(collection: Collection) -> Iterator[NodeError]:
    """Yield an error for each node with files that were not brought because of their names."""
    from clusterctl.errors import NodeError

    for node in sorted({one.node for one in collection.left if one.kind == "name"}):
        hint = "rename them there, and collect again"
        yield NodeError("some files were not collected because of their names", node=f"node{node}", hint=hint)
