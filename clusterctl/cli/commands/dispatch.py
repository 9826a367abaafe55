"""`clusterctl dispatch`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.cli import style
from clusterctl.cli.console import Console, human_bytes, plural
from clusterctl.cli.invocation import Invocation, job_name
from clusterctl.escape import clean

if TYPE_CHECKING:
    from clusterctl.cluster import Cluster
    from clusterctl.dispatch import Dispatched, Workspace
    from clusterctl.errors import ClusterctlError


def dispatch(
    invocation: Invocation, workspace: Path, *, rehash: bool = False, plan: bool = False, allow_partial: bool = False
) -> None:
    with invocation.cluster() as cluster:
        if plan:
            _plan(invocation, cluster, workspace, rehash)
            return
        done = send(invocation, cluster, workspace, rehash=rehash, allow_partial=allow_partial)
        name = job_name(cluster.settings, cluster.inventory, done.job)
        error = partial_failure(done, len(cluster.nodes))
        document = {"job": done.job, "job_workspace": name, "nodes": [_node(o) for o in done.outcomes]}
        partial = error is not None and allow_partial and may_go_on(done)
        if partial and error is not None:
            invocation.tolerate(error)
            invocation.console.warn(clean(f"{error}\n  {error.hint}", keep_newlines=True))
        invocation.console.finish(document, None if partial else error)
        reached = sum(outcome.ok for outcome in done.outcomes)
        outcome = (style.warning if partial else style.good)(f"{done.job} is on {reached}/{len(cluster.nodes)} nodes")
        more = " --allow-partial" if partial else ""
        invocation.console.say(outcome + f"     next: clusterctl start --job_workspace {name}{more}")


def _scan(
    invocation: Invocation, cluster: Cluster, directory: Path, rehash: bool, *, to_start: bool = False
) -> Workspace:
    """Read a workspace. If its job is `to_start` now, refuse one without the scripts that are to run."""
    cluster.warm_up()
    from clusterctl.dispatch import scan
    from clusterctl.dispatch.shards import Shards
    from clusterctl.errors import RefusedError
    from clusterctl.launch import scripts

    with invocation.progress.operation("hashing") as operation:
        workspace = scan(directory, rehash=rehash, cache=invocation.cache_dir, report=operation.bytes)
    paths = {entry.path for entry in workspace.entries}
    needed = [one for one in scripts(cluster.settings) if one[1] not in paths]
    missing = [f"{name} runs {script}, which is not in the workspace" for name, script in needed]
    if missing and to_start:
        hint = f"add it to {directory}, or set the command in {cluster.settings.source}"
        raise RefusedError(f"nothing was sent: {'; '.join(missing)}", hint=hint)
    for problem in missing:
        invocation.console.warn(f"warning: {problem}")
    shards = Shards(workspace.entries, cluster.settings.shards, cluster.inventory.trainer_count)
    unmatched = [] if _is_of_a_fake_cluster(cluster.settings.source) else shards.unmatched()
    for warning in [*unmatched, *shards.too_few(cluster.inventory.nodes), *workspace.warnings]:
        invocation.console.warn(warning)
    ignored = f" ({len(workspace.ignored)} ignored)" if workspace.ignored else ""
    invocation.console.say(
        f"workspace  {plural(workspace.files, 'file')}, {human_bytes(workspace.bytes)}{ignored}"
        f"     {cluster.settings.source}: {plural(len(cluster.nodes), 'node')}"
    )
    return workspace


def _is_of_a_fake_cluster(conf: Path | None) -> bool:
    """True for a fake cluster's conf.py: it lists the shards of the template for every workspace."""
    from clusterctl.fake.layout import conf_is_ours

    return conf is not None and conf_is_ours(conf)


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
    from clusterctl.dispatch import Progress, dispatch, new_job_id

    workspace = _scan(invocation, cluster, directory, rehash, to_start=to_start)
    options: Any = {
        "cache": invocation.cache_dir,
        "rehash": rehash,
        "allow_partial": allow_partial,
        "to_start": to_start,
    }
    started = time.monotonic()
    with invocation.progress.operation(f"sending to {plural(len(cluster.nodes), 'node')}") as operation:
        progress = Progress(operation.node_bytes, invocation.console.warn)
        done = dispatch(cluster, workspace, progress, new_job_id(), **options)
    _summarise(invocation.console, done, time.monotonic() - started)
    return done


def _summarise(console: Console, done: Dispatched, seconds: float) -> None:
    from clusterctl.inventory import fold

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


def partial_failure(done: Dispatched, of: int) -> ClusterctlError | None:
    """Return the error to report if some nodes do not have the job."""
    from clusterctl.cluster import combined, failures, fold_errors
    from clusterctl.errors import NodeError

    errors = [outcome.error for outcome in failures(done.outcomes) if outcome.error]
    if not errors:
        return None
    error = combined(errors, of, "dispatch")
    have = f"{of - len(errors)}/{of} nodes have {done.job}"
    changed = [one for one in errors if "changed" in one.details]
    if changed:  # the last dispatch cannot be completed from another workspace
        others = [one for one in errors if "changed" not in one.details]
        message = "\n".join([changed[0].message, *fold_errors(others), have])
        return NodeError(message, hint=changed[0].hint, details=error.details)
    lines = [error.message] + ([f"  {error.hint}"] if error.hint else [])
    lines.append(f"{have}; start needs it on all nodes, or --allow-partial")
    retry = "retry the others: clusterctl dispatch --only failed@last"
    return type(error)("\n".join(lines), node=error.node, hint=retry, details=error.details)


def may_go_on(done: Dispatched) -> bool:
    """Return True if --allow-partial covers all failures: some node has the job, and none refused it for safety."""
    from clusterctl.errors import NodeError

    none_refused = all(outcome.error is None or isinstance(outcome.error, NodeError) for outcome in done.outcomes)
    return none_refused and any(outcome.ok for outcome in done.outcomes)


def _node(outcome: Any) -> dict[str, Any]:
    node = {"node": outcome.node.id, "host": outcome.node.where, "ok": outcome.ok}
    if not outcome.ok:
        return {**node, "error": outcome.error.to_json(), "seconds": round(outcome.seconds, 3)}
    sent = outcome.get()
    return {
        **node,
        "dir": sent.dir,
        "kept": sent.kept,
        "files_sent": sent.files_received,
        "bytes_received": sent.bytes_received,
        "bytes_sent": sent.bytes_sent,
        "bytes_copied": sent.bytes_copied,
        "copy_seconds": round(sent.copy_seconds, 3),
        "seconds": round(sent.seconds, 3),
    }


def _plan(invocation: Invocation, cluster: Cluster, directory: Path, rehash: bool) -> None:
    """Print the paths that would be sent, deleted and ignored; change nothing."""
    from clusterctl.cluster import combined
    from clusterctl.dispatch import Progress, plan

    workspace = _scan(invocation, cluster, directory, rehash)
    outcomes = plan(
        cluster, workspace, Progress(waiting=invocation.console.warn), cache=invocation.cache_dir, rehash=rehash
    )
    ignored = [
        {"path": item.path, "rule": item.rule, "source": item.source, "line": item.line, "reason": item.reason}
        for item in workspace.ignored
    ]
    nodes = []
    for outcome in outcomes:
        view: dict[str, Any] = {"node": outcome.node.id, "host": outcome.node.where, "ok": outcome.ok}
        if outcome.ok:
            planned = outcome.get()
            view["job"] = planned.job
            view["send"] = [{"path": entry.path, "bytes": entry.size} for entry in planned.send]
            view["delete"] = planned.delete
            view["bytes"] = sum(entry.size for entry in planned.send)
        else:
            view["error"] = outcome.error.to_json() if outcome.error else None
        nodes.append(view)
    if not invocation.console.json:
        _show_plan(invocation.console, nodes, ignored)
    errors = [outcome.error for outcome in outcomes if outcome.error]
    invocation.console.finish(
        {"nodes": nodes, "ignored": ignored}, combined(errors, len(outcomes), "plan") if errors else None
    )


def _show_plan(console: Console, nodes: list[dict[str, Any]], ignored: list[dict[str, Any]]) -> None:
    from clusterctl.inventory import fold

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
