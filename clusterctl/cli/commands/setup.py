"""`clusterctl setup`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.cli import style
from clusterctl.cli.console import Console, human_bytes, plural
from clusterctl.cli.invocation import Invocation
from clusterctl.common.errors import first_of

if TYPE_CHECKING:
    from clusterctl.errors import ClusterctlError
    from clusterctl.setup import Group, Prepared

MOST_SHOWN = 4


def setup(
    invocation: Invocation, workspace: Path, *, offline: bool, upgrade: bool, uv: bool | None, engine: str | None
) -> None:
    from clusterctl.setup import Wishes, prepare, read_requirements

    console = invocation.console
    settings = invocation.settings(ENGINE=engine)
    requirements = read_requirements(workspace, runtime=settings.engine == "clusterctl")
    with invocation.cluster(settings) as cluster:
        nodes = plural(len(cluster.nodes), "node")
        packages = first_of(requirements.packages, MOST_SHOWN)
        console.say(f"{requirements.source}: {packages}     {settings.source}: {nodes}")
        if requirements.lock and requirements.ignored:
            console.say(f"{requirements.ignored} is not used, because {requirements.lock.name} is there")
        with invocation.progress.operation("setting up") as operation:
            wishes = Wishes(offline, upgrade, uv)
            done = prepare(cluster, requirements, wishes, console.say, invocation.cache_dir, operation.step)
    error = _partial_failure(done)
    document = {
        "requirements": requirements.packages,
        "lock": requirements.lock.name if requirements.lock else None,
        "environments": [_group(group) for group in done.groups],
        "nodes": [_node(outcome) for outcome in done.outcomes],
    }
    _summarise(console, done)
    console.finish(document, error)
    count = len(done.outcomes)
    console.say(style.good(f"{count}/{count} nodes ready") + f"     next: clusterctl dispatch {workspace}")


def _summarise(console: Console, done: Prepared) -> None:
    from clusterctl.inventory import nodeset

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


def _differences(groups: list[Group]) -> list[str]:
    """Report packages whose version differs between kinds of nodes, which may change the results of a job."""
    from clusterctl.inventory import nodeset

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


def _partial_failure(done: Prepared) -> ClusterctlError | None:
    from clusterctl.cluster import combined, failures

    errors = [outcome.error for outcome in failures(done.outcomes) if outcome.error]
    if not errors:
        return None
    of = len(done.outcomes)
    error = combined(errors, of, "setup")
    if len(errors) < of:
        error.message += f"\n{of - len(errors)}/{of} nodes ready; run setup again for the others"
    return error


def _group(group: Group) -> dict[str, Any]:
    return {
        "python": group.kind.python,
        "machine": group.kind.machine,
        "packages": group.packages,
        "chosen_by": group.chosen_by,
        "relayed": group.relayed,
        "nodes": [node.id for node in group.nodes],
    }


def _node(outcome: Any) -> dict[str, Any]:
    node = {"node": outcome.node.id, "host": outcome.node.where, "ok": outcome.ok}
    node["seconds"] = round(outcome.seconds, 3)
    if not outcome.ok:
        return {**node, "error": outcome.error.to_json()}
    ready = outcome.get()
    built = {"built": ready.built, "built_by": ready.builder, "uv_problem": ready.problem}
    return {**node, "environment": ready.environment, **built, "bytes_sent": ready.bytes_sent}
