"""Reachability between nodes: the pairs to try, and the findings from the results."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from clusterctl.check.findings import STOPS, Facts, Finding, on
from clusterctl.documents.nodes import FailedPair

ALL_PAIRS_UP_TO = 32
PEERS_EACH = 8

OUTCOMES: Mapping[str, tuple[str, str]] = {
    "silent": (
        "does not respond",
        "open TCP {range} between the nodes in any firewall, or set NIC in conf.py to another network",
    ),
    "refused": (
        "refuses connections",
        "open TCP {range} between the nodes in any firewall; if the address is wrong, set NIC or Host(address=...)",
    ),
    "no_route": (
        "cannot be reached (no route, or rejected)",
        "check that the nodes share a network and TCP {range} is open, or set NIC or Host(address=...)",
    ),
    "mute": (
        "accepts connections but sends nothing",
        "check that no proxy or firewall answers in its place, and open TCP {range} between the nodes",
    ),
    "stranger": (
        "is not the machine that answers",
        "another machine has this address; set NIC or Host(address=...) to the right address",
    ),
}


def peers(node: int, listening: Sequence[int]) -> list[int]:
    """Return the nodes that `node` tries: all of `listening` if they are few, else eight of them.

    Beyond 32 nodes these are the lead, which every node needs, the next node in the ring, and a random sample that is
    the same on every call.
    """
    others = sorted(other for other in listening if other != node)
    if len(others) < ALL_PAIRS_UP_TO:
        return others
    after = next((other for other in others if other > node), others[0])
    chosen = {others[0], after} if 0 in others else {after}
    rest = [other for other in others if other not in chosen]
    return sorted(chosen | set(random.Random(node).sample(rest, PEERS_EACH - len(chosen))))


def targets(node: int, facts: Facts) -> list[list[Any]]:
    """Return [node, address, port, token] for every port that `node` should try; `facts` hold the listening ports."""
    listening = [peer for peer, info in facts.items() if info["listening"]]
    return [
        [peer, facts[peer]["address"], port, token]
        for peer in peers(node, listening)
        for port, token in facts[peer]["listening"]
    ]


def failures_in(results: Mapping[int, Sequence[Sequence[Any]]]) -> list[FailedPair]:
    """Return the failures among the results that each node reports."""
    return [FailedPair(source, *row) for source, rows in results.items() for row in rows if row[3] != "ok"]


def failed(failures: Sequence[FailedPair], port: int) -> Iterator[Finding]:
    """Merge failures by target, and then targets that the same nodes cannot reach."""
    span = f"{port}-{min(port + 999, 65_535)}"
    by_target: dict[tuple[str, int], list[FailedPair]] = {}
    for failure in failures:
        by_target.setdefault((failure.outcome, failure.to), []).append(failure)
    groups: dict[tuple[str, frozenset[int]], list[FailedPair]] = {}
    for (outcome, target), same_target in by_target.items():
        nodes = frozenset({target, *(failure.from_ for failure in same_target)})
        groups.setdefault((outcome, nodes), []).extend(same_target)
    for (outcome, _), group in groups.items():
        problem, hint = OUTCOMES[outcome]
        targets = sorted({failure.to for failure in group})
        sources = {failure.from_ for failure in group}
        endpoints = sorted({f"{failure.address}:{failure.port}" for failure in group})
        ports = ", ".join(str(number) for number in sorted({failure.port for failure in group})[:4])
        where = ", ".join(endpoints) if len(endpoints) <= 2 else f"TCP {ports}"
        message = f"{problem} at {where}, tried from {on(sources)}"
        yield Finding("pairs", STOPS, tuple(targets), message, hint.format(range=span))
