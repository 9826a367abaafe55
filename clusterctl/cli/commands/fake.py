"""`clusterctl fake`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.cli.invocation import Session

if TYPE_CHECKING:
    from clusterctl.fake import FakeCluster, NodeStatus

DONE = {
    "kill": "is dead, with everything on it, as after a power cut",
    "pause": "stands still: every process of it is stopped",
    "cut": "is cut off: it runs, and no network reaches it",
}


def up(session: Session, nodes: int, backend: str, directory: Path) -> None:
    from clusterctl import fake

    cluster = fake.up(directory, nodes, backend=backend, tell=session.console.say)
    session.console.document(_describe(cluster))
    session.console.say(
        f"{nodes} fake nodes answer ({backend}); they live until: clusterctl fake down --dir {directory}"
    )
    session.console.say(f"use them: export CLUSTERCTL_CONF={cluster.conf}     next: clusterctl dispatch")


def down(session: Session, directory: Path) -> None:
    from clusterctl import fake

    killed = fake.down(directory)
    session.console.document({"dir": str(directory), "killed": killed})
    ended = f", {killed} processes on it ended" if killed else ""
    session.console.say(f"the fake cluster in {directory} is down{ended}")


def status(session: Session, directory: Path) -> None:
    from clusterctl import fake

    seen = fake.status(directory)
    rows = [_row(one) for one in seen.nodes]
    session.console.document(
        {"dir": str(seen.directory), "backend": seen.backend, "pid": seen.pid, "alive": seen.alive, "nodes": rows}
    )
    if not session.console.json:
        process = f", pid {seen.pid}" if seen.pid is not None else ""
        session.console.say(f"{seen.directory}: {'up' if seen.alive else 'down'}, {seen.backend}{process}")
        cells = [
            [str(r["node"]), str(r["port"]), str(r["state"]), "yes" if r["answers"] else "no", str(r["processes"])]
            for r in rows
        ]
        headings = ("node", "port", "state", "answers", "processes")
        session.console.table(headings, cells, ("node", "port", "processes"))


def harm(session: Session, node: str, fault: str, directory: Path) -> None:
    from clusterctl import fake

    harmed = fake.harm(directory, node, fault)
    session.console.document({"dir": str(directory), "node": harmed.index, "done": fault})
    session.console.say(f"{harmed.label} {DONE[fault]}     undo: clusterctl fake heal {harmed.label}")


def heal(session: Session, node: str, directory: Path) -> None:
    from clusterctl import fake

    healed = fake.heal(directory, node)
    one = healed.node
    session.console.document({"dir": str(directory), "node": one.index, "done": "heal", "host": one.host})
    place = f" at {one.host} now" if healed.moved else ""
    session.console.say(f"{one.label} answers{place}")
    if not healed.conf_is_right:
        session.console.warn(f"conf.py was edited and stays as it is: HOSTS[{one.index}] must become {one.entry}")


def _describe(cluster: FakeCluster) -> dict[str, object]:
    return {
        "dir": str(cluster.directory),
        "backend": cluster.backend,
        "conf": str(cluster.conf),
        "hosts": cluster.hosts,
    }


def _row(one: NodeStatus) -> dict[str, object]:
    return {
        "node": one.node.index,
        "port": one.node.port,
        "state": one.state,
        "answers": one.answers,
        "processes": one.processes,
    }
