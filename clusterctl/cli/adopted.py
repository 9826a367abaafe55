"""`start --adopt`: the directory that was deployed by hand, and how its files differ between nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clusterctl.cli.console import human_bytes, plural
from clusterctl.cli.invocation import Invocation
from clusterctl.cluster import Cluster
from clusterctl.common.errors import first_of
from clusterctl.errors import UsageError
from clusterctl.escape import clean
from clusterctl.launch import Adopted, adopt

SHOWN = 3


def check_options(job_workspace: str | None, *, resume: bool, package: Path | None) -> None:
    """Raise UsageError if --adopt has no directory, or is given with options that it excludes."""
    others = [name for name, given in (("--resume", resume), ("--job_dispatch_package", package)) if given]
    if job_workspace is None or others:
        raise UsageError(
            f"--adopt cannot be combined with {', '.join(others)}" if others else "--adopt needs a directory",
            hint="to adopt one and start it: clusterctl start --job_workspace DIR --adopt",
        )


def adopt_directory(invocation: Invocation, cluster: Cluster, ref: str, allow_partial: bool) -> Adopted:
    """Record a directory as a job, and print what it has."""
    adopted = adopt(cluster, ref, allow_partial=allow_partial)
    say, of = invocation.console.say, len(cluster.nodes)
    size = human_bytes(adopted.bytes)
    say(f"adopted {adopted.job} on {of - len(adopted.failed)}/{of} nodes: {plural(adopted.files, 'file')}, {size}")
    if adopted.differ:
        say(f"note: {plural(len(adopted.differ), 'file')} with other contents on other nodes: {_some(adopted.differ)}")
    if adopted.missing:
        say(f"note: {plural(len(adopted.missing), 'file')} on some nodes only: {_some(adopted.missing)}")
    if adopted.unrecorded:
        say(f"note: not recorded: sockets, pipes and devices ({adopted.unrecorded:,})")
    return adopted


def _some(paths: Sequence[str]) -> str:
    return clean(first_of(paths, SHOWN))
