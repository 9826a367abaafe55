"""`clusterctl trust`."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from clusterctl.cli.console import plural
from clusterctl.cli.invocation import Invocation

if TYPE_CHECKING:
    from clusterctl.inventory import Node
    from clusterctl.transport import HostKey, Verdict


def trust(invocation: Invocation, *, yes: bool) -> None:
    from clusterctl.cluster import combined, failures
    from clusterctl.errors import RefusedError

    with invocation.cluster() as cluster:

        def look(node: Node) -> tuple[Node, HostKey, Verdict]:
            key = cluster.transport.scan_host_key(node)
            return node, key, cluster.transport.host_key_verdict(node, key)

        by_ssh = [node for node in cluster.nodes if node.via == "ssh"]
        if others := len(cluster.nodes) - len(by_ssh):
            invocation.console.say(
                f"{plural(others, 'host')} without a host key: VIA reaches them by other means than SSH"
            )
        outcomes = cluster.map(look, by_ssh)
        scanned = [outcome.get() for outcome in outcomes if outcome.ok]
        refused = [one for one in scanned if one[2].state in ("changed", "revoked")]
        unknown = [(node, key) for node, key, verdict in scanned if verdict.state == "unknown"]
        _show(invocation, len(scanned) - len(unknown) - len(refused), unknown)
        recorded = bool(unknown) and (yes or _ask(invocation, len(unknown)))
        if recorded:
            for node, key in unknown:
                cluster.transport.record_host_key(node, key)
            invocation.console.say(f"recorded {plural(len(unknown), 'key')}")
        errors = [outcome.error for outcome in failures(outcomes) if outcome.error]
        errors += [cluster.transport.host_key_refusal(*one) for one in refused]
        if unknown and not recorded:
            errors.append(RefusedError(f"{plural(len(unknown), 'host key')} not accepted"))
        problem = combined(errors, len(outcomes), "trust") if errors else None
        invocation.console.finish({"nodes": [_view(*one, recorded) for one in scanned]}, problem)


def _show(invocation: Invocation, known: int, unknown: list[tuple[Node, HostKey]]) -> None:
    from clusterctl.inventory import fold

    by_key: dict[tuple[str, str], list[Node]] = defaultdict(list)
    for node, key in unknown:
        by_key[key.type, key.fingerprint].append(node)
    if known:
        invocation.console.say(f"{plural(known, 'host')} already known")
    for (kind, fingerprint), nodes in by_key.items():
        where = nodes[0].where if len(nodes) == 1 else f"{len(nodes)} hosts with the same key"
        invocation.console.say(f"node {fold(node.id for node in nodes)}  {where}  {kind}  {fingerprint}")


def _ask(invocation: Invocation, count: int) -> bool:
    from clusterctl.errors import UsageError

    keys = plural(count, "host key")
    if invocation.console.json or not sys.stdin.isatty():
        message = f"{keys} unknown; cannot ask for confirmation (no terminal, or --json)"
        raise UsageError(message, hint="trust --yes records keys without asking")
    answer = input(f"Compare with the fingerprints from the machines' owners. Record {keys}? [y/N] ")
    return answer.strip().lower() in ("y", "yes")


def _view(node: Node, key: HostKey, verdict: Verdict, recorded: bool) -> dict[str, Any]:
    state = "recorded" if recorded and verdict.state == "unknown" else verdict.state
    return {"node": node.id, "host": node.where, "type": key.type, "fingerprint": key.fingerprint, "state": state}
