"""Which node tries to reach which, and what the results mean."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterctl.check.findings import STOPS, Finding, on

ALL_PAIRS_UP_TO = 32
PEERS_EACH = 8

OUTCOMES: Mapping[str, tuple[str, str]] = {
    "silent": (
        "gives no answer",
        "does a firewall drop it? open TCP {range} between the nodes; NIC in conf.py names another network",
    ),
    "refused": (
        "refuses connections",
        "does a firewall reject TCP {range}, or is it another machine's address? NIC or Host(address=...) tells",
    ),
    "no_route": (
        "cannot be reached (no route, or rejected)",
        "are they on one network, and TCP {range} open? NIC or Host(address=...) names another address",
    ),
    "mute": (
        "accepts connections and says nothing",
        "does a proxy or a firewall answer in its place? open TCP {range} between the nodes",
    ),
    "stranger": (
        "is answered by something else",
        "another machine has this address: NIC or Host(address=...) tells the right one",
    ),
}


@dataclass(frozen=True)
class Failure:
    """`source` could not reach `target` at this address and port; `outcome` is a key of OUTCOMES."""

    source: int
    target: int
    address: str
    port: int
    outcome: str

    def to_json(self) -> dict[str, Any]:
        return {
            "from": self.source,
            "to": self.target,
            "address": self.address,
            "port": self.port,
            "outcome": self.outcome,
        }


@dataclass(frozen=True)
class Pairs:
    """Ordered pairs of nodes of which the second listens: how many there are, were tried, and work."""

    possible: int
    tried: int
    ok: int
    failures: tuple[Failure, ...]


def peers(node: int, listening: Sequence[int]) -> list[int]:
    """Whom `node` tries: all of `listening`, or of more than 32 the first, the next in the ring, and six by chance.

    The same whenever it is asked. The first one is the lead, which every node needs.
    """
    others = sorted(other for other in listening if other != node)
    if len(others) < ALL_PAIRS_UP_TO:
        return others
    after = next((other for other in others if other > node), others[0])
    chosen = {others[0], after} if 0 in others else {after}
    rest = [other for other in others if other not in chosen]
    return sorted(chosen | set(random.Random(node).sample(rest, PEERS_EACH - len(chosen))))


def targets(node: int, facts: Mapping[int, Mapping[str, Any]]) -> list[list[Any]]:
    """[node, address, port, token] of every port that `node` is to try; `facts` say where each listens."""
    listening = [peer for peer, of in facts.items() if of["listening"]]
    return [
        [peer, facts[peer]["address"], port, token]
        for peer in peers(node, listening)
        for port, token in facts[peer]["listening"]
    ]


def failures_in(results: Mapping[int, Sequence[Sequence[Any]]]) -> list[Failure]:
    """What did not work, of what every node says of its tries."""
    return [Failure(source, *result) for source, found in results.items() for result in found if result[3] != "ok"]


def failed(failures: Sequence[Failure], port: int) -> Iterator[Finding]:
    """Folds failures: by target, and targets that the same nodes cannot reach."""
    span = f"{port}-{min(port + 999, 65_535)}"
    by_target: dict[tuple[str, int], list[Failure]] = {}
    for failure in failures:
        by_target.setdefault((failure.outcome, failure.target), []).append(failure)
    groups: dict[tuple[str, frozenset[int]], list[Failure]] = {}
    for (outcome, target), found in by_target.items():
        concerned = frozenset({target, *(failure.source for failure in found)})
        groups.setdefault((outcome, concerned), []).extend(found)
    for (outcome, _), found in groups.items():
        said, hint = OUTCOMES[outcome]
        targets = sorted({failure.target for failure in found})
        sources = {failure.source for failure in found}
        places = sorted({f"{failure.address}:{failure.port}" for failure in found})
        ports = ", ".join(str(number) for number in sorted({failure.port for failure in found})[:4])
        where = ", ".join(places) if len(places) <= 2 else f"TCP {ports}"
        yield Finding("pairs", STOPS, tuple(targets), f"{said} at {where} to {on(sources)}", hint.format(range=span))
