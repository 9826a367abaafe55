"""`clusterctl collect`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clusterctl.api.collect import check_tag
from clusterctl.api.collect import collect as collect_from
from clusterctl.cli import style
from clusterctl.cli.causes import warning_lines
from clusterctl.cli.commands.report import NAME, attempt_report
from clusterctl.cli.commands.status import left_out_lines
from clusterctl.cli.console import human_bytes, plural
from clusterctl.cli.invocation import Invocation
from clusterctl.cluster import Cluster
from clusterctl.collect import Collection
from clusterctl.common.errors import first_of
from clusterctl.common.manifest import pass_tag
from clusterctl.errors import UsageError
from clusterctl.escape import clean
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
    if tag is not None and of_pass is not None:
        raise UsageError("--tag and --pass both name a model", hint="give one of them")
    check_tag(tag)
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
    with invocation.progress.operation("collecting") as operation:
        found = collect_from(cluster, named, output, operation.node_bytes, tag=tag, every=every)
    job, collection, target = found.job, found.collection, found.directory
    count = f"{sum(o.ok for o in collection.outcomes)}/{len(collection.outcomes)} nodes"
    size = human_bytes(sum(file.bytes for file in collection.files))
    invocation.console.say(
        style.good(f"collected {plural(len(collection.files), 'file')}, {size},")
        + f" from {count} into {target}/; checksums match"
        if collection.files
        else f"collected no files from {count}"
    )
    for line in left_out_lines(found.members):
        invocation.console.say(line)
    for line in (*_left_lines(collection), *warning_lines(collection.warnings)):
        invocation.console.warn(line)
    for skipped in collection.skipped:
        invocation.console.warn(clean(f"skipped the model of {skipped.tag}: {skipped.reason}"))
    if collection.model is not None:
        invocation.console.say(f"model of {collection.tag}: {collection.model}")
        if collection.more_models:
            more = plural(collection.more_models, "earlier model")
            invocation.console.say(f"not collected: {more}     to bring them too: clusterctl collect {job} --all")
    elif collection.files and not collection.skipped:
        invocation.console.say("no complete model to merge (none saved yet, or saved by another engine)")
    run = found.members.run
    run_report = attempt_report(invocation, cluster, job, run, target / NAME) if run else None
    if document:
        shown: Mapping[str, Any] = {**found.document, "report": str(run_report) if run_report else None}
        invocation.console.finish(shown, found.problem)
    return found.or_raise().collection


def _left_lines(collection: Collection) -> Iterator[str]:
    """Say what was left on the nodes: a few paths of each kind."""
    for kind, reason in LEFT.items():
        paths = [f"node{one.node}:{one.path}" for one in collection.left if one.kind == kind]
        if paths:
            yield clean(f"not collected, {reason}: {first_of(paths, SHOWN)}")
    for node, more_there in {one.node: one.more for one in collection.left if one.more}.items():
        yield f"not collected: {more_there:,} more on node{node}"
