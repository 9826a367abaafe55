"""Where the processes of a lost node go."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.common.placement import NoPlaceError, place, stranded_trainers
from clusterctl.common.run_spec import MemberPlace

BOTH = ("pserver", "trainer")


def one_each(nodes: int) -> dict[tuple[str, int], int]:
    return {(role, node): node for role in BOTH for node in range(nodes)}


def test_a_spare_comes_first_then_the_holder_of_the_copies_then_the_least_loaded() -> None:
    members = [MemberPlace(node=node, roles=BOTH, cores=8) for node in (0, 1, 3)]
    spare = MemberPlace(node=4, roles=BOTH, cores=1)
    lost = [("pserver", 2), ("trainer", 2)]
    assert place(lost, one_each(4), [*members, spare], {2: [3]}) == {("pserver", 2): 4, ("trainer", 2): 4}
    assert place(lost, one_each(4), members, {2: [3]}) == {("pserver", 2): 3, ("trainer", 2): 3}
    assert place(lost, one_each(4), members, {}) == {("pserver", 2): 0, ("trainer", 2): 1}


def test_processes_are_counted_for_each_core() -> None:
    members = [MemberPlace(node=0, roles=BOTH, cores=2), MemberPlace(node=1, roles=BOTH, cores=64)]
    trainers = {("trainer", rank): rank // 4 for rank in range(12)}
    lost = [key for key, node in trainers.items() if node == 2]
    assert set(place(lost, trainers, members, {}).values()) == {1}


def test_a_node_gets_only_roles_that_it_may_have_and_no_more_trainers_than_gpus() -> None:
    members = [
        MemberPlace(node=0, roles=("pserver",), cores=64),
        MemberPlace(node=1, roles=BOTH, gpus=2),
        MemberPlace(node=3, roles=BOTH, gpus=1),
    ]
    placed = place([("pserver", 2), ("trainer", 2)], one_each(4), members, {})
    assert placed == {("pserver", 2): 0, ("trainer", 2): 1}


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([MemberPlace(node=0, roles=("pserver",))], "no other node that is left may run a trainer"),
        ([MemberPlace(node=0, roles=BOTH, gpus=1)], "no node that is left has a GPU that no trainer uses"),
        ([], "no other node that is left may run a trainer"),
    ],
)
def test_what_may_run_nowhere_is_named_with_the_reason(members: list[MemberPlace], why: str) -> None:
    with pytest.raises(NoPlaceError) as raised:
        place([("trainer", 1)], one_each(2), members, {})
    assert raised.value.reasons == {("trainer", 1): why}
    assert stranded_trainers([("trainer", 1)], one_each(2), members, {}) == {}


def test_a_trainer_goes_where_its_shards_are_and_nowhere_if_there_is_none() -> None:
    members = [MemberPlace(node=node, roles=BOTH, cores=64 >> node, shards=(node, node - 1)) for node in (0, 2, 3)]
    assert place([("trainer", 1), ("pserver", 1)], one_each(4), members, {}) == {("trainer", 1): 2, ("pserver", 1): 0}
    lost = [("pserver", 1), ("trainer", 0), ("trainer", 1)]
    left = [members[0], members[2]]
    assert list(stranded_trainers(lost, one_each(4), left, {})) == [("trainer", 1)]
    with pytest.raises(NoPlaceError, match=r"^trainer1: no node that is left has its shards \(SHARDS\) or a copy"):
        place(lost, one_each(4), left, {})


@given(st.integers(2, 6), st.lists(st.integers(0, 5), max_size=12), st.data())
def test_whatever_is_lost_goes_to_members_only_and_is_spread_over_them(
    nodes: int, homes: list[int], data: st.DataObject
) -> None:
    node_of = {("trainer", rank): home % nodes for rank, home in enumerate(homes)}
    gone = data.draw(st.integers(0, nodes - 1))
    members = [MemberPlace(node=node, roles=BOTH, cores=4) for node in range(nodes) if node != gone]
    lost = [key for key, node in node_of.items() if node == gone]
    placed = place(lost, node_of, members, {})
    assert placed.keys() == set(lost)
    assert gone not in placed.values()
    spares = {member.node for member in members} - set(node_of.values())
    if spares and lost:
        assert set(placed.values()) <= spares
        return
    load = Counter({member.node: 0 for member in members})
    load.update(node for key, node in node_of.items() if key not in lost)
    before = max(load.values())
    load.update(placed.values())
    assert max(load.values()) <= max(before, -(-len(homes) // len(members)))
