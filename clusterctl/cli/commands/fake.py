"""`clusterctl fake`."""

from __future__ import annotations

from pathlib import Path

from clusterctl.cli.session import Session


def up(session: Session, nodes: int, directory: Path) -> None:
    from clusterctl import fake

    cluster = fake.up(directory, nodes)
    session.console.document({"dir": str(cluster.directory), "conf": str(cluster.conf), "hosts": cluster.hosts})
    session.console.say(f"{nodes} fake nodes answer; they live until: clusterctl fake down --dir {directory}")
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
    rows = [
        {"node": one.node.index, "port": one.node.port, "answers": one.answers, "processes": one.processes}
        for one in seen.nodes
    ]
    session.console.document({"dir": str(seen.directory), "pid": seen.pid, "alive": seen.alive, "nodes": rows})
    if not session.console.json:
        session.console.say(f"{seen.directory}: {'up' if seen.alive else 'down'}, server pid {seen.pid or '-'}")
        cells = [[str(r["node"]), str(r["port"]), "yes" if r["answers"] else "no", str(r["processes"])] for r in rows]
        session.console.table(("node", "port", "answers", "processes"), cells, ("node", "port", "processes"))
