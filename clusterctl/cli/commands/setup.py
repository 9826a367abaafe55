"""`clusterctl setup`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clusterctl.api.nodes import requirements_of
from clusterctl.api.nodes import setup as set_up
from clusterctl.cli import style
from clusterctl.cli.console import Console, human_bytes, plural
from clusterctl.cli.invocation import Invocation
from clusterctl.common.errors import first_of
from clusterctl.inventory import nodeset
from clusterctl.setup import NodeGroup, SetupResult

MOST_SHOWN = 4


def setup(
    invocation: Invocation, workspace: Path, *, offline: bool, upgrade: bool, uv: bool | None, engine: str | None
) -> None:
    console = invocation.console
    settings = invocation.settings(ENGINE=engine)
    requirements = requirements_of(workspace, settings)
    with invocation.cluster(settings) as cluster:
        nodes = plural(len(cluster.nodes), "node")
        packages = first_of(requirements.packages, MOST_SHOWN)
        console.say(f"{requirements.source}: {packages}     {settings.source}: {nodes}")
        if requirements.lock and requirements.ignored:
            console.say(f"{requirements.ignored} is not used, because {requirements.lock.name} is there")
        with invocation.progress.operation("setting up") as operation:
            options: Any = {"offline": offline, "upgrade": upgrade, "uv": uv, "on_step": operation.step}
            found = set_up(cluster, requirements, say=console.say, cache=invocation.cache_dir, **options)
    _summarise(console, found.done)
    console.finish(found.document, found.problem)
    count = len(found.done.outcomes)
    console.say(style.good(f"{count}/{count} nodes ready") + f"     next: clusterctl dispatch {workspace}")


def _summarise(console: Console, done: SetupResult) -> None:
    ready = {outcome.node.id: outcome for outcome in done.outcomes if outcome.ok}
    for group in done.groups:
        outcomes = [ready[node.id] for node in group.nodes if node.id in ready]
        problems = [outcome for outcome in outcomes if outcome.get().problem]
        if problems:
            where = nodeset(outcome.node.id for outcome in problems)
            console.say(style.warning(f"{where}  built without uv, which failed: {problems[0].get().problem}"))
        for builder in sorted({outcome.get().builder or "" for outcome in outcomes}):
            nodes = [outcome for outcome in outcomes if (outcome.get().builder or "") == builder]
            sent = sum(outcome.get().bytes_sent for outcome in nodes)
            seconds = f"built in {max(outcome.seconds for outcome in nodes):.1f} s"
            what = f"{seconds} by {builder}" if builder.startswith("uv") else seconds if builder else "already ready"
            relayed = ", relayed" if group.relayed and builder else ""
            traffic = f", {human_bytes(sent)} sent from here{relayed}" if sent else ""
            console.say(f"{nodeset(o.node.id for o in nodes)}  {group.kind}, {what}{traffic}")
    for line in _differences(done.groups):
        console.say(line)


def _differences(groups: list[NodeGroup]) -> list[str]:
    """Report packages whose version differs between kinds of nodes, which may change the results of a job."""
    names = sorted({name for group in groups for name in group.packages})
    lines = []
    for name in names:
        versions: dict[str, list[int]] = {}
        for group in groups:
            if group.lock:
                versions.setdefault(group.packages.get(name, "none"), []).extend(node.id for node in group.nodes)
        if len(versions) > 1:
            shown = ", ".join(f"{version} on {nodeset(ids)}" for version, ids in versions.items())
            lines.append(style.warning(f"{name} differs: {shown}"))
    return lines
