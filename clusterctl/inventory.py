"""The nodes of the job: their hosts, roles and ranks, and the selection of nodes by name."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from clusterctl.common.placement import NoPlaceError, copy_plan, place
from clusterctl.common.run_spec import MemberPlace
from clusterctl.config import Host, Settings
from clusterctl.config.carriers import IN_THE_CLEAR, LEAVE_NOTHING, carrier_name
from clusterctl.config.endpoint import host_and_port, parse_endpoint
from clusterctl.config.findings import ConfMistake, config_error
from clusterctl.config.hosts import own_root
from clusterctl.config.node_loss import reaction_to_loss
from clusterctl.errors import UsageError

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Node:
    """A host as a member of the job, for the transport and the launch plan.

    `where` is for messages: the host, with its port unless that is 22. An `ssh_user`, `ssh_port` or `identity` of None
    is left to ~/.ssh/config and SSH's defaults. If `address` is None, the agent determines it. `root_dir` is a path on
    the node and may start with `~`. `via` carries commands to it; `carrier` is its name in messages.
    `env` is ENV with the host's own variables on top; it is read-only. `shard_copies`: the trainers of other nodes of
    whose shards it has copies.
    """

    id: int
    host: Host
    label: str
    where: str
    ssh_user: str | None
    ssh_host: str
    ssh_port: int | None
    address: str | None
    root_dir: str
    identity: Path | None
    tags: tuple[str, ...]
    env: Mapping[str, str] = field(hash=False, repr=False)
    pserver_ranks: tuple[int, ...]
    trainer_ranks: tuple[int, ...]
    via: str | tuple[str, ...] = "ssh"
    shard_copies: tuple[int, ...] = ()

    @property
    def carrier(self) -> str:
        return carrier_name(self.via)

    @property
    def in_the_clear(self) -> bool:
        """True if the carrier does not encrypt."""
        return self.carrier in IN_THE_CLEAR

    @property
    def leaves_nothing(self) -> bool:
        """True if the carrier may end what a command has left behind when the command ends."""
        return self.carrier in LEAVE_NOTHING


@dataclass(frozen=True)
class Inventory:
    """All nodes in the order of HOSTS: `nodes[i].id == i`. The ranks 0, 1, ... of each role ascend with the id.

    `places`: what each node may run when others are missing, if their processes move. `node_loss`: the reaction to the
    loss of a node, "move", "wait" or "fail".
    """

    nodes: tuple[Node, ...]
    places: tuple[MemberPlace, ...] = ()
    node_loss: str = "fail"

    @property
    def pserver_count(self) -> int:
        """The number of pservers in the whole job."""
        return sum(len(node.pserver_ranks) for node in self.nodes)

    @property
    def trainer_count(self) -> int:
        """The number of trainers in the whole job."""
        return sum(len(node.trainer_ranks) for node in self.nodes)


def build(settings: Settings) -> Inventory:
    """Build the nodes from the hosts in `settings`, and assign their roles and ranks.

    PSERVERS and TRAINERS select from the hosts that allow the role (by their `roles` and counts): a number selects the
    first ones, a list the hosts that it names, in any order. Raises ConfigError with every mistake.
    """
    findings: list[ConfMistake] = []
    pservers = _ranks(_counts(settings, "pserver", findings))
    trainers = _ranks(_counts(settings, "trainer", findings))
    spares = [number for number, host in enumerate(settings.hosts) if host.spare]
    node_loss = reaction_to_loss(settings, len(settings.hosts), has_pservers=any(pservers))
    if spares and node_loss != "move":
        file, line = str(settings.source or "settings"), settings.lines.get("HOSTS")
        message = f'HOSTS[{spares[0]}] is a spare, which needs ON_NODE_LOSS = "move"'
        findings.append(ConfMistake(file, line, "HOSTS", message))
    if findings:
        raise config_error(findings)
    nodes = tuple(
        _node(settings, number, host, pservers[number], trainers[number]) for number, host in enumerate(settings.hosts)
    )
    if settings.shards and node_loss == "move":
        nodes = with_shard_copies(nodes, _shard_copies(settings, nodes))
    return Inventory(nodes, places(settings, nodes) if node_loss == "move" else (), node_loss)


def _shard_copies(settings: Settings, nodes: Sequence[Node]) -> dict[int, list[int]]:
    """Return the trainers of whose shards each node is to have copies: those of the nodes before it (SHARD_COPIES)."""
    members = [node for node in nodes if "trainer" in node.host.roles]
    originals = [node.id for node in members if node.trainer_ranks]
    machines = {node.id: node.ssh_host for node in members}
    plan = copy_plan(originals, [node.id for node in members], machines, settings.shard_copies)
    return {int(holder): [rank for of in homes for rank in nodes[of].trainer_ranks] for holder, homes in plan.items()}


def with_shard_copies(nodes: Iterable[Node], copies: Mapping[int, Collection[int]]) -> tuple[Node, ...]:
    """Return the nodes, given the trainers of whose shards each has copies."""
    return tuple(replace(node, shard_copies=tuple(sorted(copies.get(node.id, ())))) for node in nodes)


def places(settings: Settings, nodes: Iterable[Node]) -> tuple[MemberPlace, ...]:
    """Return what each node may run when others are missing; its cores and its machine are known at the start only."""
    return tuple(
        MemberPlace(
            node=node.id,
            roles=node.host.roles,
            cores=1,
            gpus=node.host.gpus if settings.use_gpu else None,
            machine=node.ssh_host,
            shards=tuple(sorted({*node.trainer_ranks, *node.shard_copies})) if settings.shards else None,
        )
        for node in nodes
    )


def among(inventory: Inventory, ids: Collection[int]) -> tuple[Node, ...]:
    """Return the nodes of a run in which only `ids` take part, in order of id, with their ranks in it.

    If processes move, these have those of the others, too. Otherwise, and if there is no place for one of them, the
    ranks are 0, 1, ... without gaps.
    """
    if inventory.places:
        with contextlib.suppress(NoPlaceError):
            return with_all_processes(inventory, ids)
    members = [node for node in inventory.nodes if node.id in ids]
    pservers = _ranks([len(node.pserver_ranks) for node in members])
    trainers = _ranks([len(node.trainer_ranks) for node in members])
    return tuple(
        replace(node, pserver_ranks=servers, trainer_ranks=workers, shard_copies=())
        for node, servers, workers in zip(members, pservers, trainers, strict=True)
    )


def with_all_processes(inventory: Inventory, ids: Collection[int]) -> tuple[Node, ...]:
    """Return the nodes `ids` with all processes of the inventory. Raises NoPlaceError if one may run nowhere."""
    node_of = {
        (role, rank): node.id
        for node in inventory.nodes
        for role, ranks in (("pserver", node.pserver_ranks), ("trainer", node.trainer_ranks))
        for rank in ranks
    }
    lost = [key for key, node in node_of.items() if node not in ids]
    node_of |= place(lost, node_of, [one for one in inventory.places if one.node in ids], {})

    def ranks(role: str, node: Node) -> tuple[int, ...]:
        return tuple(sorted(rank for (of, rank), home in node_of.items() if (of, home) == (role, node.id)))

    return tuple(
        replace(node, pserver_ranks=ranks("pserver", node), trainer_ranks=ranks("trainer", node))
        for node in inventory.nodes
        if node.id in ids
    )


def _node(settings: Settings, number: int, host: Host, pservers: tuple[int, ...], trainers: tuple[int, ...]) -> Node:
    return Node(
        id=number,
        host=host,
        label=f"node{number}",
        where=host_and_port(host.hostname, host.port) if host.port not in (None, 22) else host.hostname,
        ssh_user=host.user,
        ssh_host=host.hostname,
        ssh_port=host.port,
        address=host.address or (LOOPBACK if settings.nic is None and _all_here(settings) else None),
        root_dir=own_root(host, settings.root_dir, number),
        identity=host.identity or settings.identity_file,
        tags=host.tags,
        env={**settings.env, **host.env},
        pserver_ranks=pservers,
        trainer_ranks=trainers,
        via=host.via or settings.via,
    )


def _all_here(settings: Settings) -> bool:
    return all((host.via or settings.via) == "local" for host in settings.hosts)


def _counts(settings: Settings, role: str, findings: list[ConfMistake]) -> list[int]:
    """Return the number of `role` processes on each host; 0 for hosts that PSERVERS or TRAINERS excludes."""
    setting = f"{role.upper()}S"
    per_node, wanted = (
        (settings.pservers_per_node, settings.pservers)
        if role == "pserver"
        else (settings.trainers_per_node, settings.trainers)
    )
    able = [_count(host, role, per_node) for host in settings.hosts]
    chosen, problems = _chosen(settings.hosts, able, role, wanted)
    needed = role == "trainer" or (settings.engine == "clusterctl" and wanted != 0)
    if needed and not chosen and not problems:
        problems = [f"leaves no host to run a {role}; check the roles and counts of Host(...) too"]
    file, line = str(settings.source or "settings"), settings.lines.get(setting)
    findings += [ConfMistake(file, line, setting, f"{setting} {problem}") for problem in problems]
    return [count if number in chosen else 0 for number, count in enumerate(able)]


def _count(host: Host, role: str, per_node: int) -> int:
    own = host.pservers if role == "pserver" else host.trainers
    if role not in host.roles or host.spare:
        return 0
    return per_node if own is None else own


def _chosen(
    hosts: tuple[Host, ...], able: list[int], role: str, wanted: int | tuple[str, ...] | None
) -> tuple[set[int], list[str]]:
    """Return the ids of the nodes that run `role`, and the problems with `wanted`, the PSERVERS or TRAINERS setting."""
    eligible = [number for number, count in enumerate(able) if count]
    if wanted is None:
        return set(eligible), []
    if isinstance(wanted, int):
        short = [f"= {wanted}: only {len(eligible)} of the {len(able)} hosts may run a {role}"]
        return set(eligible[:wanted]), short if wanted > len(eligible) else []
    chosen: set[int] = set()
    problems = []
    for word in wanted:
        matches = _hosts_called(hosts, word)
        if not matches:
            problems.append(f"names {word!r}, which is not in HOSTS{_did_you_mean(word, _host_names(hosts))}")
        elif not any(able[number] for number in matches):
            problems.append(f"names {word!r}, whose Host(...) does not allow a {role}{_or_spare(hosts, matches)}")
        chosen.update(number for number in matches if able[number])
    return chosen, problems


def _or_spare(hosts: tuple[Host, ...], numbers: Collection[int]) -> str:
    return ": it is a spare" if all(hosts[number].spare for number in numbers) else ""


def _ranks(counts: list[int]) -> list[tuple[int, ...]]:
    starts = [sum(counts[:number]) for number in range(len(counts))]
    return [tuple(range(start, start + count)) for start, count in zip(starts, counts, strict=True)]


def _hosts_called(hosts: Iterable[Host], word: str) -> set[int]:
    """Return the ids of the hosts that match `word`: by Host(name=), else by `user@host:port` or a part of it."""
    by_name = {number for number, host in enumerate(hosts) if host.name == word}
    return by_name or {number for number, host in enumerate(hosts) if _is_endpoint_of(host, word)}


def _is_endpoint_of(host: Host, word: str) -> bool:
    try:
        endpoint = parse_endpoint(word)
    except ValueError:
        return word.lower() == host.hostname.lower()  # an IPv6 address without brackets
    return (
        endpoint.host.lower() == host.hostname.lower()
        and endpoint.user in (None, host.user)
        and endpoint.port in (None, host.port or 22)
    )


def _host_names(hosts: Iterable[Host]) -> list[str]:
    return list(dict.fromkeys(host.name or host.hostname for host in hosts))


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def select(inventory: Inventory, nodeset: str, failed_last: Collection[int] = ()) -> tuple[Node, ...]:
    """Return the nodes selected by a `--only` value, in order of id: at least one, each once.

    `nodeset` is a comma-separated list of `node3`, `node[0-3,7]`, host names (`host`, `user@host:port`, or
    Host(name=)), tags, and `failed@last`, which stands for `failed_last`, the ids that failed in the last operation.
    Raises UsageError for an unknown word, with a hint that lists the known ones, and for an empty selection.
    """
    chosen: set[int] = set()
    for word in _split_nodeset(nodeset):
        chosen |= _ids(inventory, word, failed_last)
    if not chosen:
        raise UsageError(f"--only {nodeset}: selects no nodes", hint=_existing(inventory))
    return tuple(node for node in inventory.nodes if node.id in chosen)


def _split_nodeset(nodeset: str) -> Iterator[str]:
    """Split at the commas that are outside brackets."""
    parts = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+|[\[\]]", nodeset)
    if {"[", "]"} & set(parts):
        raise UsageError(f"--only {nodeset}: a bracket is missing", hint="write node[0-3,7]")
    return (part.strip() for part in parts if part.strip())


def _ids(inventory: Inventory, word: str, failed_last: Collection[int]) -> set[int]:
    if word == "failed@last":
        failed = {node.id for node in inventory.nodes if node.id in failed_last}
        if not failed:
            raise UsageError("--only failed@last: no node failed last time")
        return failed
    if match := re.fullmatch(r"node\[(.*)\]", word):
        return set().union(*(_range(inventory, part, word) for part in match[1].split(",")))
    by_host = _hosts_called([node.host for node in inventory.nodes], word)
    by_tag = {node.id for node in inventory.nodes if word in node.tags}
    if match := re.fullmatch(r"node([0-9]+)", word):
        return _labelled(inventory, word, match[1], by_host)
    if not by_host | by_tag:
        known = [*_host_names(node.host for node in inventory.nodes), *_tags(inventory)]
        raise _unknown(inventory, word, _did_you_mean(word, known))
    return by_host | by_tag


def _labelled(inventory: Inventory, word: str, digits: str, by_host: set[int]) -> set[int]:
    """Return the node with a label. A label that is also the host name of another node is ambiguous."""
    by_label = {int(digits)} if int(digits) < len(inventory.nodes) else set()
    if by_label and by_host and by_label != by_host:
        raise UsageError(
            f"--only {word} is ambiguous: one node has this label, and another has this host name",
            hint=f"write node[{int(digits)}] for the label, or node[{fold(by_host)}] for the host",
        )
    if not by_label | by_host:
        raise _unknown(inventory, word)
    return by_label or by_host


def _range(inventory: Inventory, part: str, word: str) -> set[int]:
    """Return the ids in `3` or `0-3`; both ends must exist."""
    match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part.strip())
    if not match:
        raise UsageError(f"--only {word}: {part!r} is not a node id or a range of ids", hint="write node[0-3,7]")
    first, last = int(match[1]), int(match[2] or match[1])
    if first > last:
        raise UsageError(f"--only {word}: the range {part} runs backwards")
    if last >= len(inventory.nodes):
        raise _unknown(inventory, f"node{max(first, len(inventory.nodes))}")
    return set(range(first, last + 1))


def _unknown(inventory: Inventory, word: str, suggestion: str = "") -> UsageError:
    return UsageError(f"--only: no node {word!r}{suggestion}", hint=_existing(inventory))


def _existing(inventory: Inventory) -> str:
    names = _host_names(node.host for node in inventory.nodes)
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    tags = ", ".join(_tags(inventory))
    ids = nodeset(node.id for node in inventory.nodes)
    return f"known: {ids}; hosts {shown}" + (f"; tags {tags}" if tags else "")


def _tags(inventory: Inventory) -> list[str]:
    return sorted({tag for node in inventory.nodes for tag in node.tags})


def nodeset(ids: Iterable[int]) -> str:
    """Return the `--only` value that selects exactly these nodes: `node3` or `node[0-3,7]`; empty without ids."""
    folded = fold(ids)
    if folded.isdigit() or not folded:
        return folded and f"node{folded}"
    return f"node[{folded}]"


def fold(ids: Iterable[int]) -> str:
    """Format node ids as `0-13,15`: ascending, each once, empty without ids."""
    runs: list[list[int]] = []
    for number in sorted(set(ids)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(_run(first, last) for first, last in runs)


def _run(first: int, last: int) -> str:
    if last - first >= 2:
        return f"{first}-{last}"
    return str(first) if first == last else f"{first},{last}"
