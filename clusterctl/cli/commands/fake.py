"""`clusterctl fake`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from clusterctl import fake
from clusterctl.cli.console import Console, plural
from clusterctl.documents.local import (
    FakeDownDocument,
    FakeFaultDocument,
    FakeNodeDocument,
    FakeStatusDocument,
    FakeUpDocument,
)
from clusterctl.errors import RefusedError
from clusterctl.fake import NodeStatus

DONE = {
    "kill": "is down, with everything on it, as after a power cut",
    "pause": "is frozen: all its processes are stopped",
    "cut": "is cut off: its processes run without a network",
}


def up(console: Console, nodes: int, backend: str, directory: Path) -> None:
    cluster = fake.up(directory, nodes, backend=backend, tell=console.say)
    document: FakeUpDocument = {
        "dir": str(cluster.directory),
        "backend": cluster.backend,
        "conf": str(cluster.conf),
        "hosts": list(cluster.hosts),
    }
    console.document(document)
    console.say(
        f"started {plural(nodes, 'fake node')} ({backend})     to remove: clusterctl fake down --dir {directory}"
    )
    console.say(f"to use: export CLUSTERCTL_CONF={cluster.conf}     next: clusterctl dispatch")


def down(console: Console, directory: Path, *, yes: bool) -> None:
    jobs = [] if yes else fake.running_jobs(directory)
    if jobs and not _may_end(console, jobs, directory):
        console.say("nothing was stopped")
        return
    killed = fake.down(directory)
    document: FakeDownDocument = {"dir": str(directory), "killed": killed}
    console.document(document)
    ended = f"; killed {killed} {'process' if killed == 1 else 'processes'} on it" if killed else ""
    console.say(f"the fake cluster in {directory} is down{ended}")


def _may_end(console: Console, jobs: Sequence[str], directory: Path) -> bool:
    """Ask if running jobs may be ended. Raises RefusedError if nobody can be asked."""
    problem = f"{', '.join(jobs)} {'is' if len(jobs) == 1 else 'are'} running on the fake cluster in {directory}"
    if console.json or not sys.stdin.isatty():
        place, conf = shlex.quote(str(directory)), shlex.quote(str(directory / "conf.py"))
        stop, end = f"clusterctl stop --conf {conf} {jobs[0]}", f"clusterctl fake down --yes --dir {place}"
        raise RefusedError(problem, hint=f"{stop} stops it; {end} ends everything", details={"jobs": list(jobs)})
    answer = input(f"{problem}. End everything on it? [y/N] ")
    return answer.strip().lower() in ("y", "yes")


def status(console: Console, directory: Path) -> None:
    cluster = fake.status(directory)
    rows = [_row(one) for one in cluster.nodes]
    document: FakeStatusDocument = {
        "dir": str(cluster.directory),
        "backend": cluster.backend,
        "pid": cluster.pid,
        "alive": cluster.alive,
        "nodes": rows,
    }
    console.document(document)
    if not console.json:
        process = f", pid {cluster.pid}" if cluster.pid is not None else ""
        console.say(f"{cluster.directory}: {'up' if cluster.alive else 'down'}, {cluster.backend}{process}")
        cells = [
            [str(r["node"]), str(r["port"]), str(r["state"]), "yes" if r["answers"] else "no", str(r["processes"])]
            for r in rows
        ]
        headings = ("node", "port", "state", "answers", "processes")
        console.table(headings, cells, ("node", "port", "processes"))


def harm(console: Console, node: str, fault: str, directory: Path) -> None:
    harmed = fake.harm(directory, node, fault)
    document: FakeFaultDocument = {"dir": str(directory), "node": harmed.index, "done": fault}
    console.document(document)
    console.say(f"{harmed.label} {DONE[fault]}     undo: clusterctl fake heal {harmed.label}")


def heal(console: Console, node: str, directory: Path) -> None:
    healed = fake.heal(directory, node)
    one = healed.node
    document: FakeFaultDocument = {"dir": str(directory), "node": one.index, "done": "heal", "host": one.host}
    console.document(document)
    address = f", now at {one.host}" if healed.moved else ""
    console.say(f"{one.label} is back{address}")
    if not healed.conf_is_right:
        console.warn(f"conf.py was edited, so it is left unchanged: set HOSTS[{one.index}] to {one.entry}")


def _row(one: NodeStatus) -> FakeNodeDocument:
    return {
        "node": one.node.index,
        "port": one.node.port,
        "state": one.state,
        "answers": one.answers,
        "processes": one.processes,
    }
