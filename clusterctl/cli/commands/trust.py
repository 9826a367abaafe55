"""`clusterctl trust`."""

from __future__ import annotations

import sys
from collections import defaultdict

from clusterctl.api.nodes import PresentedKey, record_host_keys, scan_host_keys
from clusterctl.cli.console import plural
from clusterctl.cli.invocation import Invocation
from clusterctl.errors import RefusedError, UsageError
from clusterctl.inventory import Node, fold


def trust(invocation: Invocation, *, yes: bool) -> None:
    with invocation.cluster() as cluster:
        keys = scan_host_keys(cluster)
        if keys.without:
            invocation.console.say(
                f"{plural(keys.without, 'host')} without a host key: VIA reaches them by other means than SSH"
            )
        unknown = keys.unknown
        _show(invocation, keys.known, unknown)
        recorded = bool(unknown) and (yes or _ask(invocation, len(unknown)))
        unaccepted = []
        if recorded:
            record_host_keys(cluster, unknown)
            invocation.console.say(f"recorded {plural(len(unknown), 'key')}")
        elif unknown:
            unaccepted.append(RefusedError(f"{plural(len(unknown), 'host key')} not accepted"))
        invocation.console.finish(keys.document(recorded=recorded), keys.problem(*unaccepted))


def _show(invocation: Invocation, known: int, unknown: list[PresentedKey]) -> None:
    by_key: dict[tuple[str, str], list[Node]] = defaultdict(list)
    for node, key, _ in unknown:
        by_key[key.type, key.fingerprint].append(node)
    if known:
        invocation.console.say(f"{plural(known, 'host')} already known")
    for (kind, fingerprint), nodes in by_key.items():
        where = nodes[0].where if len(nodes) == 1 else f"{len(nodes)} hosts with the same key"
        invocation.console.say(f"node {fold(node.id for node in nodes)}  {where}  {kind}  {fingerprint}")


def _ask(invocation: Invocation, count: int) -> bool:
    keys = plural(count, "host key")
    if invocation.console.json or not sys.stdin.isatty():
        message = f"{keys} unknown; cannot ask for confirmation (no terminal, or --json)"
        raise UsageError(message, hint="trust --yes records keys without asking")
    answer = input(f"Compare with the fingerprints from the machines' owners. Record {keys}? [y/N] ")
    return answer.strip().lower() in ("y", "yes")
