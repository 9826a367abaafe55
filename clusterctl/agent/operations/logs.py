"""Read a run's events and logs for the control machine, once or as they arrive.

Streams are announced first: `{"streams": [{"role", "rank", "at"}, ...], "run": ...}`, each from the offset `at` on.
Lines follow in time order as `{"lines": [[time, stream, text, offset after it], ...]}`, events as `{"events": [...],
"at": offset}`, and the number of lines held back by a budget as `{"held": [[stream, lines, offset after them], ...]}`.
"""

from __future__ import annotations

import heapq
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Callable

from clusterctl.agent.node.jobs import describe_run, find_job, need_spec, pick_run, read_state, supervisor_of
from clusterctl.agent.node.log_files import EventReader, Line, LogReader
from clusterctl.agent.peer import Peer
from clusterctl.common.errors import AgentError
from clusterctl.common.paths import RunPaths, log_stem
from clusterctl.common.procfs import is_alive
from clusterctl.common.run_spec import ProcessSpec

BATCH = 500
BATCH_CHARS = 1 << 20  # each may become six bytes, and a message may have a few megabytes
POLL_S = 0.1
HEARTBEAT_S = 2.0
BURST_S = 10.0  # a budget of so many seconds may be used at once


class Streams:
    """The logs that a request selects."""

    def __init__(self, run: RunPaths, request: dict[str, Any]) -> None:
        self.spec = need_spec(run)
        self.plans = [process for process in self.spec.processes if _wanted(process, request)]
        offsets = request.get("offsets") or {}
        self.readers = [LogReader(run.log, log_stem(p.role, p.index), offsets.get(p.name, 0)) for p in self.plans]
        match, speaker = _matcher(request.get("grep")), request.get("speaker")
        self.speaks = [_is(speaker, p) for p in self.plans]
        self._matches = [_matcher(None) if speaks else match for speaks in self.speaks]
        self._since = float(request.get("since") or 0)

    def announce(self) -> list[dict[str, Any]]:
        return [{"role": p.role, "rank": p.rank, "at": r.offset} for p, r in zip(self.plans, self.readers)]

    def lines(self, *, final: bool, tail: int | None = None) -> Iterator[list[Any]]:
        """Yield new lines of all streams in time order, the last `tail` of each: [time, stream, text, offset after]."""
        tagged = [self._tagged(i, reader.lines(final=final)) for i, reader in enumerate(self.readers)]
        if tail is not None:
            tagged = [iter(deque(rows, maxlen=tail)) for rows in tagged]
        return heapq.merge(*tagged, key=lambda row: row[0])

    def _tagged(self, stream: int, lines: Iterable[Line]) -> Iterator[list[Any]]:
        for t, text, end in lines:
            if t >= self._since and self._matches[stream](text):
                yield [t, stream, text.decode(errors="replace"), end]


def _wanted(plan: ProcessSpec, request: dict[str, Any]) -> bool:
    role, rank = request.get("role"), request.get("rank")
    return (role is None or plan.role == role) and (rank is None or plan.rank == rank)


def _is(speaker: dict[str, Any] | None, plan: ProcessSpec) -> bool:
    """Return True if the process is the speaker, whose lines are all sent, regardless of `grep`."""
    return speaker is not None and plan.role == speaker["role"] and plan.rank == speaker["rank"]


def _matcher(pattern: str | None) -> Callable[[bytes], object]:
    if not pattern:
        return lambda text: True
    return re.compile(pattern.encode()).search


def logs(root: Path, request: dict[str, Any], peer: Peer) -> dict[str, Any]:
    """Send the present lines of the logs; with `tail` only the last so many of each."""
    run = _run(root, request)
    streams = Streams(run, request)
    tail = request.get("tail")
    if tail is not None and not request.get("grep"):
        for reader in streams.readers:
            reader.seek_tail(tail)
    peer.send({"run": run.run, "streams": streams.announce()})
    _send_lines(peer, streams.lines(final=True, tail=tail))
    return {}


def _send_lines(peer: Peer, rows: Iterable[list[Any]]) -> int:
    batch: list[list[Any]] = []
    count = chars = 0
    for row in rows:
        batch.append(row)
        chars += len(row[2])
        if len(batch) == BATCH or chars > BATCH_CHARS:
            peer.send({"lines": batch})
            count, chars, batch = count + len(batch), 0, []
    if batch:
        peer.send({"lines": batch})
    return count + len(batch)


def follow(root: Path, request: dict[str, Any], peer: Peer) -> dict[str, Any]:
    """Send events and logs as they arrive, until the run has ended on this node.

    `budget` caps each process's lines per second; the `speaker` (`role`, `rank`, `budget`) has a separate one, and no
    `grep`.
    """
    run = _run(root, request)
    streams = Streams(run, request)
    events = EventReader(run.events, int(request.get("at") or 0))
    if request.get("tail") is not None and not request.get("offsets"):
        for reader in streams.readers:
            reader.seek_tail(request["tail"])
    peer.send({"run": run.run, "streams": streams.announce()})
    budgets = [Budget(request["speaker"]["budget"] if own else request.get("budget")) for own in streams.speaks]
    quiet_since = time.monotonic()
    while True:
        over = not is_alive(supervisor_of(read_state(run)))
        sent = _send_events(peer, events) + _send_within(peer, streams.lines(final=over), budgets)
        if over and not sent:
            return {"node": describe_run(run, streams.spec), "at": events.offset}
        if sent:
            quiet_since = time.monotonic()
        elif time.monotonic() - quiet_since > HEARTBEAT_S:
            peer.send({"alive": time.time()})  # raises Gone if the control machine has left
            quiet_since = time.monotonic()
        if not over:
            time.sleep(POLL_S)


def _send_within(peer: Peer, rows: Iterable[list[Any]], budgets: list[Budget]) -> int:
    """Send the lines within the streams' budgets, then the numbers of lines held back, unless a budget is 0."""
    held: dict[int, list[int]] = {}

    def allowed() -> Iterator[list[Any]]:
        for row in rows:
            stream, end = row[1], row[3]
            if budgets[stream].spend():
                yield row
            else:
                count, _ = held.get(stream, (0, 0))
                held[stream] = [count + 1, end]

    sent = _send_lines(peer, allowed())
    reported = [[stream, *counted] for stream, counted in held.items() if budgets[stream].lines_per_s]
    if reported:
        peer.send({"held": reported})
    return sent + len(reported)


def _send_events(peer: Peer, reader: EventReader) -> int:
    events = reader.read()
    if events:
        peer.send({"events": events, "at": reader.offset})
    return len(events)


class Budget:
    """A limit on lines per second, with bursts of up to BURST_S seconds' worth. None passes all lines, 0 no line."""

    def __init__(self, lines_per_s: float | None) -> None:
        self.lines_per_s = lines_per_s
        self._left = self._most = (lines_per_s or 0.0) * BURST_S
        self._then = time.monotonic()

    def spend(self) -> bool:
        """Return True if one more line may pass now."""
        if not self.lines_per_s:
            return self.lines_per_s is None
        if self._left < 1:
            now = time.monotonic()
            self._left = min(self._most, self._left + (now - self._then) * self.lines_per_s)
            self._then = now
        passes = self._left >= 1
        self._left -= passes
        return passes


def _run(root: Path, request: dict[str, Any]) -> RunPaths:
    job = find_job(root, request["ref"])
    run = pick_run(job, request.get("run"))
    if run is None or not run.spec.is_file():
        raise AgentError(f"{job.dir.name} was never started", kind="no_run", hint="start it with clusterctl start")
    return run
