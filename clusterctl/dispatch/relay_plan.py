"""Which node gets the dispatched bytes from which, and the keys by which they know each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterctl.common.tree import Entry

Word = dict[str, Any]

CHAIN = 16  # nodes; a longer chain starts slower and loses more when a node breaks
FEWEST = 2  # nodes, for it to make sense at all
FEWEST_NODES = 3  # for it to be worth the trouble
FEWEST_BYTES = 8 << 20  # in all: below, sending is over before the nodes have shaken hands


@dataclass(frozen=True)
class Branch:
    """A downstream node, and how many nodes get the stream through it, with itself."""

    node: int
    nodes: int


@dataclass(frozen=True)
class Hop:
    """One node's neighbours; the head has no upstream: it gets the stream from the control machine."""

    upstream: int | None
    downstream: tuple[Branch, ...]


def plan(ids: Sequence[int]) -> dict[int, Hop]:
    """A tree over all nodes, in their order: chains of `CHAIN`, whose first nodes form a chain themselves."""
    chains = [ids[begin : begin + CHAIN] for begin in range(0, len(ids), CHAIN)]
    upstream: dict[int, int] = {}
    downstream: dict[int, list[Branch]] = {node: [] for node in ids}
    for number, chain in enumerate(chains):
        rest = len(ids) - (number + 1) * CHAIN
        if rest > 0:  # the next chain first: more wait for it
            _join(upstream, downstream, chain[0], Branch(chains[number + 1][0], rest))
        for place in range(1, len(chain)):
            _join(upstream, downstream, chain[place - 1], Branch(chain[place], len(chain) - place))
    return {node: Hop(upstream.get(node), tuple(downstream[node])) for node in ids}


def _join(upstream: dict[int, int], downstream: dict[int, list[Branch]], node: int, branch: Branch) -> None:
    downstream[node].append(branch)
    upstream[branch.node] = node


def worth_it(nodes: int, total: int, mode: str) -> bool:
    """Whether `total` bytes, counted once for each of `nodes` nodes that lacks them, are relayed under RELAY = mode."""
    if mode == "auto":
        return nodes >= FEWEST_NODES and total >= FEWEST_BYTES
    return mode == "always" and nodes >= FEWEST


def shared(
    lacking: Mapping[int, Sequence[Entry]], torn: Mapping[int, Mapping[str, int]]
) -> tuple[list[Entry], dict[str, int]]:
    """The files that any node lacks, each once, and by digest, how much of their beginning all those nodes have."""
    files: dict[str, Entry] = {}
    begun: dict[str, int] = {}
    for node, entries in lacking.items():
        for entry in entries:
            size = torn[node].get(entry.digest, 0)
            files[entry.digest] = entry
            begun[entry.digest] = min(begun.get(entry.digest, size), size)
    return list(files.values()), {digest: size for digest, size in begun.items() if size}


def words(where: Mapping[int, tuple[str, int]], length: int) -> dict[int, Word]:
    """What each node has to know, by its id: its keys, and its neighbours. Secrets; never log them.

    `where` says at which address and port each listens, in the order of the chains; `length`, how long the stream is.
    """
    keys = make_keys(list(where))
    return {
        node: {
            "own": keys[node][0],
            "authority": keys[node][1],
            "upstream": None if hop.upstream is None else name_of(hop.upstream),
            "downstream": [(*where[branch.node], name_of(branch.node), branch.nodes) for branch in hop.downstream],
            "length": length,
        }
        for node, hop in plan(list(where)).items()
    }


def make_keys(ids: Sequence[int]) -> Mapping[int, tuple[str, str]]:
    """For each node its key with its certificate, and the authority that it trusts, as PEM. Secrets; never log them."""
    from clusterctl.certificates import Authority

    authority = Authority()
    return {node: (authority.issue(name_of(node)), authority.trusted) for node in ids}


def name_of(node: int) -> str:
    """The name in the certificate of a node."""
    return f"node{node}"
