"""Which node copies whose pieces, so that a node that is lost for good takes no model with it (COPIES)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def copy_plan(
    originals: Sequence[int], members: Sequence[int], machines: Mapping[int, str], copies: int
) -> dict[str, tuple[int, ...]]:
    """Return, for each node that copies, the nodes whose pieces it copies.

    The pieces of each of the nodes `originals` go to the next members on other machines, so that there are `copies` of
    them with the original. If there are too few machines, as in a fake cluster, other nodes of a machine take them.
    """
    plan: dict[str, tuple[int, ...]] = {}
    for node in originals:
        for holder in _holders(node, members, machines)[: copies - 1]:
            plan[str(holder)] = (*plan.get(str(holder), ()), node)
    return plan


def _holders(node: int, members: Sequence[int], machines: Mapping[int, str]) -> list[int]:
    """Return the other members in the order in which they are to hold copies: one of each other machine first."""
    at = list(members).index(node)
    following = [*members[at + 1 :], *members[:at]]
    used, first = {machines[node]}, []
    for other in following:
        if machines[other] not in used:
            used.add(machines[other])
            first.append(other)
    return first + [other for other in following if other not in first]
