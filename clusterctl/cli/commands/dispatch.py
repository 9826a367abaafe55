"""`clusterctl dispatch`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterctl.api.dispatch import document as document_of
from clusterctl.api.dispatch import may_go_on, need_scripts, partial_failure, plan, scan
from clusterctl.api.dispatch import send as send_workspace
from clusterctl.cli import style
from clusterctl.cli.console import Console, human_bytes, plural
from clusterctl.cli.invocation import Invocation
from clusterctl.cluster import Cluster
from clusterctl.dispatch import Dispatched, Workspace
from clusterctl.documents.nodes import IgnoredPath
from clusterctl.escape import clean
from clusterctl.inventory import fold


def dispatch(
    invocation: Invocation, workspace: Path, *, rehash: bool = False, plan: bool = False, allow_partial: bool = False
) -> None:
    with invocation.cluster() as cluster:
        if plan:
            _plan(invocation, cluster, workspace, rehash)
            return
        done = send(invocation, cluster, workspace, rehash=rehash, allow_partial=allow_partial)
        document = document_of(cluster, done)
        error = partial_failure(done, len(cluster.nodes))
        partial = error is not None and allow_partial and may_go_on(done)
        if partial and error is not None:
            invocation.tolerate(error)
            invocation.console.warn(clean(f"{error}\n  {error.hint}", keep_newlines=True))
        invocation.console.finish(document, None if partial else error)
        reached = sum(outcome.ok for outcome in done.outcomes)
        outcome = (style.warning if partial else style.good)(f"{done.job} is on {reached}/{len(cluster.nodes)} nodes")
        more = " --allow-partial" if partial else ""
        invocation.console.say(
            outcome + f"     next: clusterctl start --job_workspace {document['job_workspace']}{more}"
        )


def _scan(
    invocation: Invocation, cluster: Cluster, directory: Path, rehash: bool, *, to_start: bool = False
) -> Workspace:
    """Read a workspace. If its job is `to_start` now, refuse one without the scripts that are to run."""
    with invocation.progress.operation("hashing") as operation:
        scanned = scan(cluster, directory, rehash=rehash, cache=invocation.cache_dir, report=operation.bytes)
    workspace = scanned.workspace
    if to_start:
        need_scripts(cluster, directory, scanned)
    for problem in scanned.missing:
        invocation.console.warn(f"warning: {problem}")
    for warning in scanned.warnings:
        invocation.console.warn(warning)
    ignored = f" ({len(workspace.ignored)} ignored)" if workspace.ignored else ""
    invocation.console.say(
        f"workspace  {plural(workspace.files, 'file')}, {human_bytes(workspace.bytes)}{ignored}"
        f"     {cluster.settings.source}: {plural(len(cluster.nodes), 'node')}"
    )
    return workspace


def send(
    invocation: Invocation,
    cluster: Cluster,
    directory: Path,
    *,
    rehash: bool = False,
    to_start: bool = False,
    allow_partial: bool = False,
) -> Dispatched:
    """Scan and send a workspace, showing progress; some outcomes may be errors."""
    workspace = _scan(invocation, cluster, directory, rehash, to_start=to_start)
    options: Any = {"rehash": rehash, "allow_partial": allow_partial, "to_start": to_start}
    started = time.monotonic()
    with invocation.progress.operation(f"sending to {plural(len(cluster.nodes), 'node')}") as operation:
        listeners = (operation.node_bytes, invocation.console.warn)
        done = send_workspace(cluster, workspace, *listeners, cache=invocation.cache_dir, **options)
    _summarise(invocation.console, done, time.monotonic() - started)
    return done


def _summarise(console: Console, done: Dispatched, seconds: float) -> None:
    groups: dict[str, list[int]] = {}
    for outcome in done.outcomes:
        if outcome.ok:
            received = outcome.get()
            count = 0 if received.kept else received.files_received
            what = plural(count, "file") if count else "nothing to send"
            groups.setdefault(what, []).append(outcome.node.id)
    reached = [outcome.get() for outcome in done.outcomes if outcome.ok]
    for what, ids in groups.items():
        console.say(f"{'nodes' if len(ids) > 1 else 'node'} {fold(ids)}  {what}  {seconds:.1f} s")
    sent = sum(received.bytes_sent for received in reached)
    if sent:
        console.say(f"{human_bytes(sent)} sent from here{', relayed' if done.relayed else ''}")
    copied = max((received.bytes_copied for received in reached), default=0)
    if copied:
        slowest = max(received.copy_seconds for received in reached)
        console.say(f"unchanged files copied on the nodes: {human_bytes(copied)} each, in {slowest:.1f} s")


def _plan(invocation: Invocation, cluster: Cluster, directory: Path, rehash: bool) -> None:
    """Print the paths that would be sent, deleted and ignored; change nothing."""
    workspace = _scan(invocation, cluster, directory, rehash)
    waiting = invocation.console.warn
    document, problem = plan(cluster, workspace, waiting, cache=invocation.cache_dir, rehash=rehash)
    if not invocation.console.json:
        _show_plan(invocation.console, document["nodes"], document["ignored"])
    invocation.console.finish(document, problem)


def _show_plan(console: Console, nodes: Sequence[Mapping[str, Any]], ignored: Sequence[IgnoredPath]) -> None:
    groups: dict[tuple[Any, ...], list[int]] = {}
    for node in nodes:
        if node["ok"]:
            send = tuple((item["path"], item["bytes"]) for item in node["send"])
            groups.setdefault((node["job"], send, tuple(node["delete"])), []).append(node["node"])
    for (job, send, delete), ids in groups.items():
        total = sum(size for _, size in send)
        what = f"has {job}; nothing to send" if job else f"{plural(len(send), 'file')}, {human_bytes(total)} each"
        console.say(f"{'nodes' if len(ids) > 1 else 'node'} {fold(ids)}  {what}")
        for path, size in send:
            console.say(f"  send    {path}  {human_bytes(size)}")
        for path in delete:
            console.say(f"  delete  {path}")
    for item in ignored:
        console.say(f"  ignore  {item['path']}  {item['reason']}")
    console.say("nothing was sent")
