"""Where copies of pieces are made, and where the processes of a lost node go. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from clusterctl.common.run_spec import MemberPlace

Key = tuple[str, int]  # role, rank


class NoPlaceError(Exception):
    """No member may have these processes; `reasons` says for each of them why."""

    def __init__(self, reasons: Mapping[Key, str]) -> None:
        super().__init__("; ".join(f"{role}{rank}: {why}" for (role, rank), why in reasons.items()))
        self.reasons = reasons


def place(
    lost: Iterable[Key],
    node_of: Mapping[Key, int],
    members: Iterable[MemberPlace],
    holders: Mapping[int, Collection[int]],
) -> dict[Key, int]:
    """Return a node for each of the `lost` processes. Raises NoPlaceError if one may run nowhere.

    `node_of` has the processes of the run and where they were until now, `members` those nodes that are here, `holders`
    for each node those that have copies of its pieces. A node has to allow the role, and for a trainer to have its
    shards if there are any, and a GPU that none of its trainers uses if trainers use GPUs. Of those: nodes without
    processes first, the spares, then holders of the copies, then the one with the fewest processes for each core, then
    the lowest id.
    """
    lost = sorted(lost)
    here = {member.node: member for member in members}
    load = Counter(node for key, node in node_of.items() if key not in lost)
    trainers = Counter(node for key, node in node_of.items() if key not in lost and key[0] == "trainer")
    spares = here.keys() - load.keys()
    placed: dict[Key, int] = {}
    reasons: dict[Key, str] = {}
    for key in lost:
        fit = [one for one in here.values() if _may_have(key, one, trainers[one.node])]
        if not fit:
            reasons[key] = _reason(key, here.values())
            continue
        copies = holders.get(node_of[key], ())
        best = min(
            fit,
            key=lambda one: (
                one.node not in spares,
                one.node not in copies,
                load[one.node] / max(1, one.cores),
                one.node,
            ),
        )
        placed[key] = best.node
        load[best.node] += 1
        trainers[best.node] += key[0] == "trainer"
    if reasons:
        raise NoPlaceError(reasons)
    return placed


def stranded_trainers(
    lost: Iterable[Key],
    node_of: Mapping[Key, int],
    members: Sequence[MemberPlace],
    holders: Mapping[int, Collection[int]],
) -> dict[Key, str]:
    """Return the trainers that `place` has no place for, and why, if trainers have shards: a run goes on without."""
    if all(member.shards is None for member in members):
        return {}
    try:
        place(lost, node_of, members, holders)
    except NoPlaceError as exc:
        return {key: why for key, why in exc.reasons.items() if key[0] == "trainer"}
    return {}


def names_by_node(placed: Mapping[str, int]) -> dict[int, str]:
    """Return the names of the processes on each node, such as "pserver1, trainer1", from the node of each by name."""
    names: dict[int, list[str]] = {}
    for name, node in placed.items():
        names.setdefault(node, []).append(name)
    return {node: ", ".join(some) for node, some in names.items()}


def _may_have(key: Key, member: MemberPlace, trainers: int) -> bool:
    role, rank = key
    if role not in member.roles:
        return False
    if role != "trainer":
        return True
    return _has_shards(rank, member) and (member.gpus is None or trainers < member.gpus)


def _has_shards(rank: int, member: MemberPlace) -> bool:
    return member.shards is None or rank in member.shards


def _reason(key: Key, members: Collection[MemberPlace]) -> str:
    role, rank = key
    if role == "trainer" and members and not any(_has_shards(rank, member) for member in members):
        return "no node that is left has its shards (SHARDS) or a copy of them (SHARD_COPIES)"
    if not any(role in member.roles for member in members):
        return f"no other node that is left may run a {role}"
    return "no node that is left has a GPU that no trainer uses"


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


def holders_of(sources: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
    """Return for each node those that have copies of its pieces, given whose pieces each node copies."""
    holders: dict[int, list[int]] = {}
    for holder, nodes in sources.items():
        for node in nodes:
            holders.setdefault(node, []).append(holder)
    return holders
