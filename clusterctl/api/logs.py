"""The log lines of a run: their selection, checked before nodes are asked for them, and the two ways to read them."""

from __future__ import annotations

import collections
import datetime
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from clusterctl.cluster import Cluster
from clusterctl.common.requests import FollowSelection, LogSelection
from clusterctl.common.schema import typed
from clusterctl.errors import UsageError
from clusterctl.inventory import Node, fold, nodeset
from clusterctl.observe.follow import OutputLine, read_logs
from clusterctl.observe.in_order import OrderedFollower
from clusterctl.observe.record.members import Members
from clusterctl.observe.record.references import Reference, run_title
from clusterctl.observe.record.status import LIVE, JobStatus, status, worst
from clusterctl.schedulers import JobWatch, NoRunError

AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class LogLine:
    """One line of a process's output. `t` is the time by the clock of its node, in seconds since the epoch."""

    t: float
    node: int
    role: str
    rank: int
    text: str


@dataclass(frozen=True)
class RunLogs:
    """The lines of a run to read: of which `nodes`, and what is `wanted` of them, as for `read_logs`.

    `known` is the state of the run, `run` its number if it was named.
    """

    known: JobStatus
    nodes: Sequence[Node]
    run: str | None
    wanted: LogSelection

    @property
    def process_counts(self) -> dict[str, int]:
        """How many of the selected processes have each role."""
        ids, role, rank = {node.id for node in self.nodes}, self.wanted["role"], self.wanted["rank"]
        return collections.Counter(
            process.role
            for process in self.known.processes
            if process.node.id in ids and role in (None, process.role) and rank in (None, process.rank)
        )


def select(
    cluster: Cluster,
    named: Reference,
    selected: Sequence[Node],
    wanted: LogSelection,
    *,
    to_follow: JobWatch | None = None,
) -> RunLogs:
    """Return the lines of a run on the `selected` nodes. Raises UsageError if there can be none.

    A scheduler's job `to_follow` needs a run that has begun on all nodes: raises NoRunError.
    """
    known = status(cluster, named.job, run=named.run)
    nodes = taking_part(known.job, known.members, selected)
    if to_follow is not None and not _has_begun(known, nodes):
        raise NoRunError(to_follow.now())
    check_process(known, wanted["role"], wanted["rank"])
    return RunLogs(known, nodes, named.run, wanted)


def _has_begun(known: JobStatus, nodes: Sequence[Node]) -> bool:
    """Return False while some of the nodes know nothing of a run that is beginning: they cannot be followed yet."""
    with_processes = {node.id for node in nodes if node.pserver_ranks or node.trainer_ranks}
    return known.state not in LIVE or with_processes <= {process.node.id for process in known.processes}


def read(cluster: Cluster, chosen: RunLogs) -> Iterator[OutputLine]:
    """Yield the lines so far, in time order. Errors of nodes come after the lines of the others."""
    return read_logs(cluster, chosen.nodes, chosen.known.job, chosen.run, chosen.wanted)


def follow(cluster: Cluster, chosen: RunLogs) -> OrderedFollower:
    """Return the news of the lines so far and of all to come, until the run has ended. A context manager."""
    labels = {error.node for error in chosen.known.errors}
    silent = [node for node in chosen.nodes if node.label in labels]
    wanted = typed(FollowSelection, {"events": False, **chosen.wanted})
    return OrderedFollower(cluster, chosen.nodes, chosen.known.job, chosen.run, wanted, silent=silent)


def final_state(ends: Mapping[int, str], lead: int) -> str:
    """Return how a run ended, given the final state on each node that reported one: the lead's state decides."""
    return ends.get(lead) or worst(ends.values())


def check(wanted: LogSelection) -> None:
    if wanted["role"] not in (None, "pserver", "trainer", "scheduler"):
        raise UsageError(f"unknown --role {wanted['role']}", hint="choose one of pserver, trainer, scheduler")
    try:
        re.compile(wanted["grep"] or "")
    except re.error as exc:
        raise UsageError(f"--grep {wanted['grep']!r} is not a regular expression: {exc}") from exc


def check_process(known: JobStatus, role: str | None, rank: int | None) -> None:
    """Raise UsageError if the selected nodes have processes, but none of this role and rank."""
    rows = [(process.role, process.rank) for process in known.processes]
    if not rows or any(role in (None, one[0]) and rank in (None, one[1]) for one in rows):
        return
    roles = sorted({one[0] for one in rows if role in (None, one[0])}) or sorted({one[0] for one in rows})
    there = ", ".join(f"{name} {fold(sorted({r for n, r in rows if n == name}))}" for name in roles)
    wanted = f"{role or 'process'}{'' if rank is None else f' {rank}'}"
    raise UsageError(f"there is no {wanted} in {run_title(known.job, known.members)}", hint=f"there: {there}")


def taking_part(job: str, members: Members, selected: Sequence[Node]) -> list[Node]:
    """Return the selected nodes that are in the run."""
    nodes = [node for node in selected if node in members]
    if not nodes:
        absent = nodeset(node.id for node in selected)
        raise UsageError(f"{absent} not in {run_title(job, members)}", hint=f"its nodes: {nodeset(members.by_id)}")
    return nodes


def parse_since(text: str | None) -> float | None:
    """Parse `90s`, `5m`, `2h`, `1d` (ago) or an ISO date and time into seconds since the epoch."""
    if text is None:
        return None
    ago = AGO.fullmatch(text)
    if ago:
        return time.time() - float(ago[1]) * UNITS_S[ago[2]]
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise UsageError(f"--since {text!r} is not a time; write 90s, 5m, 2h, 1d or 2026-11-21T08:15") from None
