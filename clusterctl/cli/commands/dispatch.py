"""`clusterctl dispatch`."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.cli.console import Console, human_bytes, plural
from clusterctl.cli.session import Session, job_name

if TYPE_CHECKING:
    from clusterctl.cluster import Cluster
    from clusterctl.dispatch import Dispatched, Progress
    from clusterctl.errors import ClusterctlError
    from clusterctl.inventory import Node


def dispatch(session: Session, workspace: Path) -> None:
    with session.whole_cluster() as cluster:
        done = send(session, cluster, workspace)
        name = job_name(cluster.settings, cluster.inventory, done.job)
        error = partial_failure(done, len(cluster.nodes))
        document = {"job": done.job, "job_workspace": name, "nodes": [_node(o) for o in done.outcomes]}
        session.console.finish(document, error)
        session.console.say(
            f"{done.job} is on {len(done.outcomes)}/{len(cluster.nodes)} nodes"
            f"     next: clusterctl start --job_workspace {name}"
        )


def send(session: Session, cluster: Cluster, directory: Path) -> Dispatched:
    """Scans and sends a workspace, with progress; outcomes may be partial."""
    from clusterctl.dispatch import dispatch, scan
    from clusterctl.timing import new_job_id

    workspace = scan(directory)
    ignored = f" ({len(workspace.ignored)} ignored)" if workspace.ignored else ""
    session.console.say(
        f"workspace  {plural(workspace.files, 'file')}, {human_bytes(workspace.bytes)}{ignored}"
        f"     {cluster.settings.source}: {len(cluster.nodes)} nodes"
    )
    started = time.monotonic()
    with _progress(session.console, cluster) as progress:
        done = dispatch(cluster, workspace, progress, new_job_id())
    _summarise(session.console, done, time.monotonic() - started)
    return done


def _summarise(console: Console, done: Dispatched, seconds: float) -> None:
    from clusterctl.inventory import fold

    reached = [outcome for outcome in done.outcomes if outcome.ok]
    if reached:
        sent = sum(outcome.get().bytes_sent for outcome in reached)
        ids = fold(outcome.node.id for outcome in reached)
        console.say(f"nodes {ids}  {human_bytes(sent)} sent from here, compressed  {seconds:.1f} s")


def partial_failure(done: Dispatched, of: int) -> ClusterctlError | None:
    """What to say when some nodes do not have the job."""
    from clusterctl.cluster import combined, failures

    errors = [outcome.error for outcome in failures(done.outcomes) if outcome.error]
    if not errors:
        return None
    error = combined(errors, of, "dispatch")
    error.message += f"\n{of - len(errors)}/{of} nodes have {done.job}; nothing will start until all do"
    return error


def _node(outcome: Any) -> dict[str, Any]:

    node = {"node": outcome.node.id, "host": outcome.node.where, "ok": outcome.ok}
    if not outcome.ok:
        return {**node, "error": outcome.error.to_json(), "seconds": round(outcome.seconds, 3)}
    sent = outcome.get()
    return {
        **node,
        "dir": sent.dir,
        "files_sent": sent.files_sent,
        "bytes_sent": sent.bytes_sent,
        "seconds": round(sent.seconds, 3),
    }


@contextlib.contextmanager
def _progress(console: Console, cluster: Cluster) -> Iterator[Progress]:
    """A bar per node on a terminal, up to a dozen; one for all beyond that."""
    from clusterctl.dispatch import Progress

    if not console.live:
        yield Progress()
        return
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bars(*columns, console=console.rich(), transient=False) as bars:
        yield Progress(_Reporter(bars, cluster).report)


MOST_BARS = 12


class _Reporter:
    def __init__(self, bars: Any, cluster: Cluster) -> None:
        self._bars = bars
        self._lock = threading.Lock()
        self._done: dict[int, tuple[int, int]] = {}
        self._single = len(cluster.nodes) > MOST_BARS
        names = (
            [f"nodes 0-{len(cluster.nodes) - 1}"] if self._single else [f"{n.label} {n.where}" for n in cluster.nodes]
        )
        self._tasks = [bars.add_task(name, total=None) for name in names]
        self._ids = {node.id: 0 if self._single else i for i, node in enumerate(cluster.nodes)}

    def report(self, node: Node, done: int, total: int) -> None:
        with self._lock:
            self._done[node.id] = (done, total)
            if self._single:
                done = sum(part for part, _ in self._done.values())
                total = sum(whole for _, whole in self._done.values())
            self._bars.update(self._tasks[self._ids[node.id]], completed=done, total=total)
