"""Read a workspace and send it to the nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clusterctl.cluster import Cluster, NodeOutcome, combined, failures, fold_errors
from clusterctl.common.shards import described, is_directory_of_copies
from clusterctl.config.scripts import scripts
from clusterctl.dispatch import (
    Dispatched,
    NodeDispatch,
    Planned,
    Progress,
    Reservations,
    Workspace,
    dispatch,
    new_job_id,
)
from clusterctl.dispatch import plan as look
from clusterctl.dispatch import scan as read
from clusterctl.dispatch.shards import Shards
from clusterctl.documents.nodes import (
    DispatchDocument,
    DispatchedNode,
    DispatchPlan,
    FailedNode,
    IgnoredPath,
    NodeHead,
    NodePlan,
    by_node,
    failed,
    head,
)
from clusterctl.errors import ClusterctlError, NodeError, RefusedError
from clusterctl.fake.layout import conf_is_ours
from clusterctl.inventory import Node
from clusterctl.observe.record.references import job_name


@dataclass(frozen=True)
class ScannedWorkspace:
    """A workspace that was read. `missing`: a message for each script that a role runs and that is not in it."""

    workspace: Workspace
    missing: tuple[str, ...]
    warnings: tuple[str, ...]


def scan(
    cluster: Cluster, directory: Path, *, cache: Path, rehash: bool = False, report: Callable[[int, int], None]
) -> ScannedWorkspace:
    """Read a workspace, while connections to the nodes are being made. `report(done, total)` counts bytes."""
    cluster.warm_up()

    workspace = read(directory, rehash=rehash, cache=cache, report=report)
    paths = {entry.path for entry in workspace.entries}
    needed = [one for one in scripts(cluster.settings) if one[1] not in paths]
    missing = [f"{name} runs {script}, which is not in the workspace" for name, script in needed]
    shards = Shards(workspace.entries, cluster.settings.shards, cluster.inventory.trainer_count)
    shards.check_spelling()
    listed = cluster.settings.shards and not _is_of_a_fake_cluster(cluster.settings.source)
    unmatched = shards.unmatched() if listed else []
    warnings = (*unmatched, *shards.too_few(cluster.inventory.nodes), *workspace.warnings)
    return ScannedWorkspace(workspace, tuple(missing), warnings)


def _is_of_a_fake_cluster(conf: Path | None) -> bool:
    """True for a fake cluster's conf.py: it lists the shards of the template for every workspace."""
    return conf is not None and conf_is_ours(conf)


def need_scripts(cluster: Cluster, directory: Path, scanned: ScannedWorkspace) -> None:
    """Refuse a workspace without the scripts that are to run: its job is to start now."""
    if scanned.missing:
        hint = f"add it to {directory}, or set the command in {cluster.settings.source}"
        raise RefusedError(f"nothing was sent: {'; '.join(scanned.missing)}", hint=hint)


def send(
    cluster: Cluster,
    workspace: Workspace,
    report: Callable[[Node, int, int], None],
    waiting: Callable[[str], None],
    *,
    cache: Path,
    rehash: bool = False,
    allow_partial: bool = False,
    to_start: bool = False,
    reservations: Reservations | None = None,
    fresh: bool | None = False,
) -> Dispatched:
    """Send a workspace to all nodes under a new id; some outcomes may be errors. See `clusterctl.dispatch.dispatch`.

    `report(node, done, total)` counts bytes; `waiting` receives a message about what this waits for. Without
    `reservations`, the job is reserved until this program ends.
    """
    return dispatch(
        cluster,
        workspace,
        Progress(report, waiting),
        new_job_id(),
        cache=cache,
        rehash=rehash,
        allow_partial=allow_partial,
        to_start=to_start,
        reservations=reservations or Reservations(cache),
        fresh=fresh,
    )


def plan(
    cluster: Cluster, workspace: Workspace, waiting: Callable[[str], None], *, cache: Path, rehash: bool = False
) -> tuple[DispatchPlan, ClusterctlError | None]:
    """Return what a dispatch would send, delete and ignore, as in `dispatch --plan --json`, and the error to report."""
    outcomes = look(cluster, workspace, Progress(waiting=waiting), cache=cache, rehash=rehash)
    ignored: list[IgnoredPath] = [
        {"path": item.path, "rule": item.rule, "source": item.source, "line": item.line, "reason": item.reason}
        for item in workspace.ignored
    ]
    errors = [outcome.error for outcome in outcomes if outcome.error]
    problem = combined(errors, len(outcomes), "plan") if errors else None
    return {"nodes": by_node(outcomes, _planned), "ignored": ignored}, problem


def _planned(node: NodeHead, planned: Planned) -> NodePlan:
    return {
        **node,
        "job": planned.job,
        "send": [{"path": described(entry.path), "bytes": entry.size} for entry in planned.send],
        "delete": [described(path) for path in planned.delete if not is_directory_of_copies(path)],
        "bytes": sum(entry.size for entry in planned.send),
    }


def partial_failure(done: Dispatched, of: int) -> ClusterctlError | None:
    """Return the error to report if some nodes do not have the job."""
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
    none_refused = all(outcome.error is None or isinstance(outcome.error, NodeError) for outcome in done.outcomes)
    return none_refused and any(outcome.ok for outcome in done.outcomes)


def failed_nodes(done: Dispatched, of: int, *, allow_partial: bool) -> dict[int, ClusterctlError]:
    """Return the errors of nodes that do not have the job; raise one for all unless --allow-partial covers them."""
    error = partial_failure(done, of)
    if error is not None and not (allow_partial and may_go_on(done)):
        raise error
    return {outcome.node.id: outcome.error for outcome in done.outcomes if outcome.error}


def document(cluster: Cluster, done: Dispatched) -> DispatchDocument:
    """Return the document of `dispatch --json`."""
    name = job_name(cluster.inventory, done.job)
    return {"job": done.job, "job_workspace": name, "nodes": [_dispatched(outcome) for outcome in done.outcomes]}


def _dispatched(outcome: NodeOutcome[NodeDispatch]) -> DispatchedNode | FailedNode:
    if outcome.error is not None:
        return {**failed(outcome, outcome.error), "seconds": round(outcome.seconds, 3)}
    sent = outcome.get()
    return {
        **head(outcome),
        "dir": sent.dir,
        "kept": sent.kept,
        "files_sent": sent.files_received,
        "bytes_received": sent.bytes_received,
        "bytes_sent": sent.bytes_sent,
        "bytes_copied": sent.bytes_copied,
        "copy_seconds": round(sent.copy_seconds, 3),
        "seconds": round(sent.seconds, 3),
    }
