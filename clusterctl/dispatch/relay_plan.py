"""The relay tree: the path of dispatched bytes from node to node, and the keys that authenticate the nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict, TypeVar

from clusterctl.common.tree import Entry
from clusterctl.common.wheels import Wheel

File = TypeVar("File", Entry, Wheel)

CHAIN = 16  # nodes; a longer chain starts more slowly and loses more when a node fails
FEWEST = 2  # nodes for any relay
FEWEST_NODES = 3  # nodes for RELAY = "auto"
FEWEST_BYTES = 8 << 20  # in total for "auto"; less is sent before the nodes finish their handshakes


class RelayPart(TypedDict):
    """One node's part in a relay. Holds secrets; never log it.

    `own`: its key with certificate. `authority`: the one it trusts, both as PEM. `upstream`: the name of the node that
    it receives the stream from; None for the head. `downstream`: address, port, name and number of nodes of each
    branch. `length`: the bytes of the stream.
    """

    own: str
    authority: str
    upstream: str | None
    downstream: list[tuple[str, int, str, int]]
    length: int


@dataclass(frozen=True)
class Branch:
    """A downstream node, and the number of nodes that get the stream through it, including itself."""

    node: int
    nodes: int


@dataclass(frozen=True)
class Hop:
    """One node's neighbours. The head has no upstream: it gets the stream from the control machine."""

    upstream: int | None
    downstream: tuple[Branch, ...]


def plan(ids: Sequence[int]) -> dict[int, Hop]:
    """Return a tree over all nodes, in order: chains of `CHAIN` nodes, whose first nodes form a chain themselves."""
    chains = [ids[begin : begin + CHAIN] for begin in range(0, len(ids), CHAIN)]
    upstream: dict[int, int] = {}
    downstream: dict[int, list[Branch]] = {node: [] for node in ids}
    for number, chain in enumerate(chains):
        rest = len(ids) - (number + 1) * CHAIN
        if rest > 0:  # the next chain comes first: more nodes depend on it
            _join(upstream, downstream, chain[0], Branch(chains[number + 1][0], rest))
        for position in range(1, len(chain)):
            _join(upstream, downstream, chain[position - 1], Branch(chain[position], len(chain) - position))
    return {node: Hop(upstream.get(node), tuple(downstream[node])) for node in ids}


def _join(upstream: dict[int, int], downstream: dict[int, list[Branch]], node: int, branch: Branch) -> None:
    downstream[node].append(branch)
    upstream[branch.node] = node


def worth_it(nodes: int, total: int, mode: str) -> bool:
    """Return True if RELAY = mode relays `total` bytes to `nodes` nodes; each node's missing bytes count separately."""
    if mode == "auto":
        return nodes >= FEWEST_NODES and total >= FEWEST_BYTES
    return mode == "always" and nodes >= FEWEST


def common(lacking: Mapping[int, Sequence[File]]) -> dict[int, list[File]]:
    """Return what each node lacks of the files that more than half of the nodes lack: the stream reaches every node.

    The others, such as shards, are sent to the nodes that lack them.
    """
    counts = Counter(digest for files in lacking.values() for digest in {file.digest for file in files})
    return {node: [file for file in files if 2 * counts[file.digest] > len(lacking)] for node, files in lacking.items()}


def shared(
    lacking: Mapping[int, Sequence[Entry]], torn: Mapping[int, Mapping[str, int]]
) -> tuple[list[Entry], dict[str, int]]:
    """Return the files that any node lacks, each once, and by digest the leading bytes that all those nodes have."""
    files: dict[str, Entry] = {}
    begun: dict[str, int] = {}
    for node, entries in lacking.items():
        for entry in entries:
            size = torn[node].get(entry.digest, 0)
            files[entry.digest] = entry
            begun[entry.digest] = min(begun.get(entry.digest, size), size)
    return list(files.values()), {digest: size for digest, size in begun.items() if size}


def words(where: Mapping[int, tuple[str, int]], length: int) -> dict[int, RelayPart]:
    """Return by node id the part of each node in the relay: its keys and its neighbours. Secrets; never log them.

    `where`: the address and port on which each node listens, in the order of the chains. `length`: bytes of the stream.
    """
    from clusterctl.certificates import issue_for_nodes  # noqa: PLC0415 - cryptography takes 40 ms

    keys = issue_for_nodes(where)
    return {
        node: {
            "own": keys[node].own,
            "authority": keys[node].authority,
            "upstream": None if hop.upstream is None else name_of(hop.upstream),
            "downstream": [(*where[branch.node], name_of(branch.node), branch.nodes) for branch in hop.downstream],
            "length": length,
        }
        for node, hop in plan(list(where)).items()
    }


def name_of(node: int) -> str:
    """Return the name in a node's certificate."""
    return f"node{node}"
