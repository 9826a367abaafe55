"""`clusterctl logs`."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.cli.console import Console, clean
from clusterctl.cli.invocation import Invocation, job_ref

if TYPE_CHECKING:
    from clusterctl.cluster import Cluster
    from clusterctl.errors import ClusterctlError
    from clusterctl.inventory import Node
    from clusterctl.observe.follow import LogLine
    from clusterctl.observe.members import Members
    from clusterctl.observe.status import JobStatus

AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
FOLD_WINDOW = 2000


def logs(invocation: Invocation, job: str | None, *, follow: bool, node: str | None, fold: bool, **wanted: Any) -> None:
    from clusterctl.observe.logs import read_logs
    from clusterctl.observe.status import status

    if node is not None:
        invocation.options.only = node
    _check(wanted)
    invocation.console.stream()
    wanted["since"] = parse_since(wanted["since"])
    with invocation.cluster() as cluster:
        known = status(cluster, job_ref(cluster.settings, job))
        ref, members = known.job, known.members
        nodes = _taking_part(ref, members, cluster)
        _check_process(known, wanted["role"], wanted["rank"])
        printer = LinePrinter(invocation.console, cluster)
        if follow:
            _follow(invocation, cluster, nodes, ref, printer, wanted, members.lead)
            return
        lines = read_logs(cluster, nodes, ref, **wanted)
        if fold and not invocation.console.json:
            printer.folded(lines)
            return
        for line in lines:
            printer.line(line)


def _taking_part(job: str, members: Members, cluster: Cluster) -> list[Node]:
    """Return the selected nodes that are in the run."""
    from clusterctl.errors import UsageError
    from clusterctl.inventory import nodeset

    nodes = [node for node in cluster.nodes if node in members]
    if not nodes:
        selected = nodeset(node.id for node in cluster.nodes)
        raise UsageError(f"{selected} not in the newest run of {job}", hint=f"its nodes: {nodeset(members.by_id)}")
    return nodes


def _check(wanted: dict[str, Any]) -> None:
    from clusterctl.errors import UsageError

    if wanted["role"] not in (None, "pserver", "trainer", "scheduler"):
        raise UsageError(f"unknown --role {wanted['role']}", hint="choose one of pserver, trainer, scheduler")
    try:
        re.compile(wanted["grep"] or "")
    except re.error as exc:
        raise UsageError(f"--grep {wanted['grep']!r} is not a regular expression: {exc}") from exc


def _check_process(known: JobStatus, role: str | None, rank: int | None) -> None:
    """Raise UsageError if the selected nodes have processes, but none of this role and rank."""
    from clusterctl.errors import UsageError
    from clusterctl.inventory import fold

    rows = [(row["role"], row["rank"]) for row in known.processes]
    if not rows or any(role in (None, one[0]) and rank in (None, one[1]) for one in rows):
        return
    roles = sorted({one[0] for one in rows if role in (None, one[0])}) or sorted({one[0] for one in rows})
    there = ", ".join(f"{name} {fold(sorted({r for n, r in rows if n == name}))}" for name in roles)
    wanted = f"{role or 'process'}{'' if rank is None else f' {rank}'}"
    raise UsageError(f"there is no {wanted} in the newest run of {known.job}", hint=f"there: {there}")


def parse_since(text: str | None) -> float | None:
    """Parse `90s`, `5m`, `2h`, `1d` (ago) or an ISO date and time into seconds since the epoch."""
    from clusterctl.errors import UsageError

    if text is None:
        return None
    ago = AGO.fullmatch(text)
    if ago:
        return time.time() - float(ago[1]) * UNITS_S[ago[2]]
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise UsageError(f"--since {text!r} is not a time; write 90s, 5m, 2h, 1d or 2026-11-21T08:15") from None


def _follow(
    invocation: Invocation,
    cluster: Cluster,
    nodes: Sequence[Node],
    ref: str,
    printer: LinePrinter,
    wanted: dict[str, Any],
    lead: int,
) -> None:
    from clusterctl.cluster import combined
    from clusterctl.observe.follow import Follower, is_passing

    ends: dict[int, str] = {}
    errors: list[ClusterctlError] = []
    with Follower(cluster, nodes, ref, None, **wanted) as follower:
        for news in follower:
            if news is None:
                continue
            for line in news.lines:
                printer.line(line)
            if news.error is not None and not is_passing(news.error):
                errors.append(news.error)
            elif news.error is not None:
                invocation.console.warn(f"{news.error}; retrying")
            elif news.back:
                invocation.console.warn(f"{news.node.label} is back")
                ends.pop(news.node.id, None)
            if news.ended is not None:
                ends[news.node.id] = news.ended["node"]["state"]
    if errors:
        raise combined(errors, len(nodes), "following")
    _report_end(invocation, ref, ends, lead)


def _report_end(invocation: Invocation, ref: str, ends: dict[int, str], lead: int) -> None:
    from clusterctl.errors import JobFailedError
    from clusterctl.observe.status import worst

    if not ends:
        return
    state = ends.get(lead) or worst(ends.values())  # the lead's state decides
    if state in ("failed", "lost"):
        raise JobFailedError(f"{ref} {'failed' if state == 'failed' else 'is lost'}", hint=f"clusterctl why {ref}")
    invocation.console.warn(f"{ref} {'was stopped' if state == 'stopped' else state}")


class LinePrinter:
    """Prints log lines, labelled with their process and coloured by process on a terminal."""

    def __init__(self, console: Console, cluster: Cluster) -> None:
        self._console = console
        ranks = [f"trainer{rank}@{node.label}" for node in cluster.nodes for rank in node.trainer_ranks or (0,)]
        self._width = max(len(name) for name in ranks) + 1
        self._color = console.live

    def label(self, line: LogLine) -> str:
        return f"{line.role}{line.rank}@{line.node.label}"

    def line(self, line: LogLine) -> None:
        if self._console.json:
            self._console.record(
                {"t": line.t, "node": line.node.id, "role": line.role, "rank": line.rank, "line": line.text}
            )
            return
        for part in line.text.split("\r"):
            if part:
                self._print(line, part)
        if not line.text:
            self._print(line, "")

    def _print(self, line: LogLine, text: str) -> None:
        moment = datetime.datetime.fromtimestamp(line.t).strftime("%H:%M:%S.%f")[:-3]
        label = f"{self.label(line):<{self._width}}"
        if self._color:
            label = f"\x1b[{31 + (line.rank + 3 * (line.role == 'pserver')) % 6}m{label}\x1b[0m"
        print(f"{moment} {label} {clean(text)}", flush=not self._color)  # the label is ours, so it is safe

    def folded(self, lines: Iterable[LogLine]) -> None:
        """Print identical lines near each other once, with the ranks that wrote them."""
        groups: dict[tuple[str, str], _Group] = {}
        try:
            for line in lines:
                group = groups.setdefault((line.role, line.text), _Group(line, set()))
                group.ranks.add(line.rank)
                group.count += 1
                if len(groups) >= FOLD_WINDOW:
                    self._print_group(groups.pop(next(iter(groups))))
        finally:  # show the lines of some nodes even if others failed
            for group in groups.values():
                self._print_group(group)

    def _print_group(self, group: _Group) -> None:
        from clusterctl.inventory import fold

        first, ranks = group.first, fold(group.ranks)
        times = f" (x{group.count})" if group.count > len(group.ranks) else ""
        moment = datetime.datetime.fromtimestamp(first.t).strftime("%H:%M:%S.%f")[:-3]
        self._console.output(f"{moment} {first.role}[{ranks}]{times} {clean(first.text)}")


@dataclass
class _Group:
    """Identical lines: the first one, the ranks that wrote it, the count. Memory does not grow with the count."""

    first: LogLine
    ranks: set[int]
    count: int = 0
