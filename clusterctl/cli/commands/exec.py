"""`clusterctl exec`."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from clusterctl.cli.console import clean
from clusterctl.cli.session import Session

if TYPE_CHECKING:
    from clusterctl.cluster import NodeOutcome
    from clusterctl.transport import Command, Completed

JSON_OUTPUT_CHARS = 1 << 20


def exec_(session: Session) -> None:

    command = remote_command(session.program_args)
    with session.cluster() as cluster:
        outcomes = cluster.map(lambda node: cluster.transport.run(node, command, deadline_s=None))
    nodes = []
    for outcome in outcomes:
        view: dict[str, Any] = {"node": outcome.node.id, "host": outcome.node.where, "seconds": outcome.seconds}
        if outcome.error is not None:
            nodes.append({**view, "exit_code": None, "error": outcome.error.to_json()})
        else:
            done = outcome.get()
            nodes.append(
                {**view, "exit_code": done.exit_code, "stdout": _text(done.stdout), "stderr": _text(done.stderr)}
            )
    if not session.console.json:
        _show_folded(session, outcomes)
    session.console.finish({"nodes": nodes}, _problem(outcomes))


def remote_command(words: list[str]) -> Command:
    """One word is a shell command line, several are a program and its arguments."""
    from clusterctl.transport import Command, Raw

    return Command((Raw(words[0]),)) if len(words) == 1 else Command(tuple(words))


def _text(data: bytes) -> str:
    return data.decode(errors="replace")[:JSON_OUTPUT_CHARS]


def _show_folded(session: Session, outcomes: list[NodeOutcome[Completed]]) -> None:
    """Nodes that said the same are shown together."""
    from clusterctl.inventory import nodeset

    groups: dict[bytes, list[NodeOutcome[Completed]]] = {}
    for outcome in outcomes:
        if outcome.ok:
            done = outcome.get()
            key = hashlib.sha256(repr((done.exit_code, done.stdout, done.stderr)).encode()).digest()
            groups.setdefault(key, []).append(outcome)
    for group in groups.values():
        done = group[0].get()
        code = f" (exit code {done.exit_code})" if done.exit_code else ""
        session.console.say(f"--- {nodeset(outcome.node.id for outcome in group)}{code}")
        for line in _text(done.stdout).splitlines() + _text(done.stderr).splitlines():
            session.console.say(clean(line))


def _problem(outcomes: list[NodeOutcome[Completed]]) -> Any:
    from clusterctl.cluster import combined, failures
    from clusterctl.errors import NodeError
    from clusterctl.inventory import nodeset

    errors = [outcome.error for outcome in failures(outcomes) if outcome.error]
    failed = [outcome.node.id for outcome in outcomes if outcome.ok and outcome.get().exit_code]
    if errors:
        return combined(errors, len(outcomes), "exec")
    if failed:
        return NodeError(f"the command failed on {len(failed)} of {len(outcomes)} nodes: {nodeset(failed)}")
    return None
