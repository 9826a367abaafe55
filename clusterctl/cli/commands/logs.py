"""`clusterctl logs`."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Iterable, Mapping

from clusterctl.api.logs import RunLogs, check, final_state, parse_since, read, select
from clusterctl.api.logs import follow as follow_lines
from clusterctl.cli import style
from clusterctl.cli.commands.scheduled import once_it_runs, tell_end
from clusterctl.cli.console import Console
from clusterctl.cli.invocation import Invocation
from clusterctl.cluster import Cluster, combined
from clusterctl.common.requests import LogSelection
from clusterctl.documents.jobs import LogLineDocument
from clusterctl.errors import ClusterctlError, JobFailedError
from clusterctl.escape import clean
from clusterctl.inventory import fold
from clusterctl.observe.folding import WINDOW_S, FoldedLine, Folder
from clusterctl.observe.follow import Follower, OutputLine, is_passing


def logs(
    invocation: Invocation,
    job: str | None,
    *,
    follow: bool,
    role: str | None,
    rank: int | None,
    node: str | None,
    since: str | None,
    tail: int | None,
    grep: str | None,
    fold: bool,
) -> None:
    if node is not None:
        invocation.options.only = node
    wanted: LogSelection = {"role": role, "rank": rank, "since": None, "tail": tail, "grep": grep}
    check(wanted)
    invocation.console.stream()
    wanted["since"] = parse_since(since)
    with contextlib.ExitStack() as stack:

        def find() -> tuple[Cluster, RunLogs]:
            stack.close()
            cluster = stack.enter_context(invocation.cluster_of(job))
            named = invocation.run_of(cluster, job)
            scheduled = invocation.scheduled if follow else None
            return cluster, select(cluster, named, cluster.nodes, wanted, to_follow=scheduled)

        cluster, chosen = once_it_runs(invocation, find) if follow else find()
        printer = LinePrinter(invocation.console, cluster)
        if fold and not invocation.console.json:
            printer = FoldingPrinter(invocation.console, cluster, chosen.process_counts)
        if follow:
            with printer, follow_lines(cluster, chosen) as follower:
                ends = _follow(invocation, follower, printer, len(chosen.nodes))
            tell_end(invocation)
            _report_end(invocation, chosen.known.job, ends, chosen.known.members.lead)
            return
        with printer:
            for line in read(cluster, chosen):
                printer.line(line, in_order=True)


def _follow(invocation: Invocation, follower: Follower, printer: LinePrinter, nodes: int) -> dict[int, str]:
    """Print lines until the run has ended; return each node's final state. Raises the errors of nodes that failed."""
    ends: dict[int, str] = {}
    errors: list[ClusterctlError] = []
    for news in follower:
        printer.tick()
        if news is None:
            continue
        for line in news.lines:
            printer.line(line, in_order=news.in_order)
        if news.error is not None and not is_passing(news.error):
            errors.append(news.error)
        elif news.error is not None:
            invocation.console.warn(f"{news.error}; retrying")
        elif news.back:
            invocation.console.warn(style.good(f"{news.node.label} is back"))
            ends.pop(news.node.id, None)
        if news.ended is not None:
            ends[news.node.id] = news.ended["node"]["state"]
    if errors:
        raise combined(errors, nodes, "following")
    return ends


def _report_end(invocation: Invocation, ref: str, ends: dict[int, str], lead: int) -> None:
    if not ends:
        return
    state = final_state(ends, lead)
    if state in ("failed", "lost"):
        raise JobFailedError(f"{ref} {'failed' if state == 'failed' else 'is lost'}", hint=f"clusterctl why {ref}")
    words = "was stopped" if state == "stopped" else state
    invocation.console.warn(style.join(" ", (ref, style.state(state, words))))


class LinePrinter:
    """Prints log lines, labelled with their process and coloured by process on a terminal. A context manager."""

    def __init__(self, console: Console, cluster: Cluster) -> None:
        self._console = console
        ranks = [f"trainer{rank}@{node.label}" for node in cluster.nodes for rank in node.trainer_ranks or (0,)]
        self._width = max(len(name) for name in ranks) + 1
        self._has_colour = console.has_colour(console.people)

    def __enter__(self) -> LinePrinter:
        return self

    def __exit__(self, *_: object) -> None:
        """Print the lines that are left."""

    def tick(self) -> None:
        """Print lines that have been held back long enough."""

    def line(self, line: OutputLine, *, in_order: bool) -> None:
        """Print a line; `in_order` if no older one follows."""
        if self._console.json:
            document: LogLineDocument = {
                "t": line.t,
                "node": line.node.id,
                "role": line.role,
                "rank": line.rank,
                "line": line.text,
            }
            self._console.record(document)
            return
        self._print(line, self._label(line))

    def _label(self, line: OutputLine) -> str:
        label = f"{line.role}{line.rank}@{line.node.label}".ljust(self._width)
        colour = f"{31 + (line.rank + 3 * (line.role == 'pserver')) % 6}"
        return style.render(style.paint(label, colour), colour=self._has_colour)

    def _print(self, line: OutputLine, label: str) -> None:
        moment = datetime.datetime.fromtimestamp(line.t).strftime("%H:%M:%S.%f")[:-3]
        parts = [part for part in line.text.split("\r") if part] or [""]
        begin = f"{moment} {label} "  # the label is ours, so it is safe
        print("\n".join(begin + clean(part) for part in parts), flush=True)


class FoldingPrinter(LinePrinter):
    """Prints identical lines that several processes print about the same time once, with their ranks."""

    def __init__(self, console: Console, cluster: Cluster, processes: Mapping[str, int]) -> None:
        super().__init__(console, cluster)
        self._folder = Folder(processes)
        self._in_order = True
        self._newest_t = 0.0
        self._added = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._print_folded(self._folder.rest())  # also if some nodes failed

    def tick(self) -> None:
        now = time.monotonic()
        if not self._in_order:
            self._print_folded(self._folder.due(now))
        elif now - self._added > WINDOW_S:
            self._print_folded(self._folder.rest())

    def line(self, line: OutputLine, *, in_order: bool) -> None:
        if in_order != self._in_order:
            self._print_folded(self._folder.rest())
            self._in_order = in_order
        self._newest_t, self._added = max(self._newest_t, line.t), time.monotonic()
        self._print_folded(self._folder.add(line, self._newest_t if in_order else self._added))

    def _print_folded(self, lines: Iterable[FoldedLine]) -> None:
        for folded in lines:
            first = folded.first
            one = len(folded.ranks) == 1
            self._print(first, self._label(first) if one else f"{first.role}s {fold(folded.ranks)}:".ljust(self._width))
