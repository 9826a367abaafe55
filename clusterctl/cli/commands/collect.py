"""`clusterctl collect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.cli.console import human_bytes, plural
from clusterctl.cli.invocation import Invocation, job_ref

if TYPE_CHECKING:
    from clusterctl.cluster import Cluster
    from clusterctl.collect import Collection


def collect(invocation: Invocation, job: str | None, output: Path | None) -> None:
    with invocation.cluster() as cluster:
        collect_job(invocation, cluster, job_ref(cluster.settings, job), output)


def collect_job(
    invocation: Invocation, cluster: Cluster, ref: str | None, output: Path | None, *, document: bool = True
) -> Collection:
    """Collect and print a summary; raise if a node failed."""
    from clusterctl.cli.commands.status import left_out_lines
    from clusterctl.cluster import combined, failures
    from clusterctl.collect import collect as run
    from clusterctl.observe.status import find

    job, members = find(cluster, ref)
    target = output or Path(job)
    collection = run(cluster, members.nodes, job, target, lambda file: None)
    count = f"{sum(o.ok for o in collection.outcomes)}/{len(collection.outcomes)} nodes"
    size = human_bytes(sum(file.bytes for file in collection.files))
    invocation.console.say(
        f"collected {plural(len(collection.files), 'file')}, {size}, from {count} into {target}/; checksums match"
        if collection.files
        else f"collected no files from {count}"
    )
    for line in left_out_lines(members):
        invocation.console.say(line)
    if collection.model is not None:
        invocation.console.say(f"model of {collection.tag}: {collection.model}")
    elif collection.files:
        invocation.console.say("no complete model to merge (none saved yet, or saved by another engine)")
    errors = [outcome.error for outcome in failures(collection.outcomes) if outcome.error]
    error = combined(errors, len(collection.outcomes), "collect") if errors else None
    if document:
        model = str(collection.model) if collection.model else None
        files = [vars(file) for file in collection.files]
        invocation.console.finish({"job": job, **members.to_json(), "files": files, "model": model}, error)
    elif error is not None:
        raise error
    return collection
