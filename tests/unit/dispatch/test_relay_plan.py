"""The relay tree, and the keys of its connections."""

from __future__ import annotations

import pytest
from cryptography import x509

from clusterctl.certificates import issue_for_nodes
from clusterctl.common.tree import Entry
from clusterctl.dispatch.relay_plan import Hop, common, plan, worth_it


@pytest.mark.parametrize("count", [1, 2, 17, 256])
def test_every_node_gets_the_stream_once_and_there_is_one_head(count: int) -> None:
    ids = list(range(100, 100 + count))
    hops = plan(ids)
    assert list(hops) == ids
    assert [node for node in ids if hops[node].upstream is None] == ids[:1]
    assert reached(hops, ids[0]) == set(ids)
    for node, hop in hops.items():
        assert len(hop.downstream) <= 2
        for branch in hop.downstream:
            assert hops[branch.node].upstream == node
            assert branch.nodes == len(reached(hops, branch.node))


@pytest.mark.parametrize(("count", "most"), [(16, 15), (40, 16), (256, 30)])
def test_no_node_is_far_from_the_head(count: int, most: int) -> None:
    hops = plan(range(count))

    def depth(node: int) -> int:
        upstream = hops[node].upstream
        return 0 if upstream is None else 1 + depth(upstream)

    assert max(map(depth, hops)) == most


def reached(hops: dict[int, Hop], node: int) -> set[int]:
    below = (reached(hops, branch.node) for branch in hops[node].downstream)
    return {node}.union(*below)


@pytest.mark.parametrize(
    ("nodes", "total", "mode", "relayed"),
    [
        (3, 100 << 20, "auto", True),
        (2, 100 << 20, "auto", False),
        (16, 100_000, "auto", False),
        (2, 1, "always", True),
        (1, 100 << 20, "always", False),
        (16, 100 << 20, "never", False),
    ],
)
def test_relaying_is_chosen_by_nodes_bytes_and_setting(nodes: int, total: int, mode: str, relayed: bool) -> None:
    assert worth_it(nodes, total, mode) is relayed


def test_only_files_that_most_nodes_lack_are_relayed() -> None:
    both, own, half = (Entry(name, "f", 0o644, 0, 5, name * 32) for name in ("aa", "bb", "cc"))
    lacking = {0: [both, own], 1: [both, half], 2: [both, half], 3: [half, half]}
    assert common({0: [own], 1: [half]}) == {0: [], 1: []}
    assert common(lacking) == {0: [both], 1: [both, half], 2: [both, half], 3: [half, half]}
    assert common({**lacking, 3: []}) == {0: [both], 1: [both], 2: [both], 3: []}


def test_each_node_has_a_certificate_in_its_own_name_from_one_common_authority() -> None:
    keys = issue_for_nodes([3, 7])
    names = [x509.load_pem_x509_certificate(own.encode()).subject.rfc4514_string() for own, _ in keys.values()]
    assert names == ["CN=node3", "CN=node7"]
    assert keys[3][1] == keys[7][1]
    assert issue_for_nodes([3])[3][1] != keys[3][1]
