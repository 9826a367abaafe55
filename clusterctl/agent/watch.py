"""Reads a run's events and logs for the control machine, once or as they come.

Streams are announced first: `{"streams": [{"role", "rank"}, ...], "run": ...}`. Lines follow in time order as
`{"lines": [[time, stream, text, offset behind it], ...]}`, events as `{"events": [...], "at": offset}`.
"""

from __future__ import annotations

import heapq
import json
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Callable

from clusterctl.agent.files import read_json
from clusterctl.agent.jobs import describe, find_job, pick_run, read_state, supervisor_of
from clusterctl.agent.logs import Line, LogReader
from clusterctl.agent.paths import RunPaths, log_stem
from clusterctl.agent.processes import is_alive
from clusterctl.agent.protocol import AgentError, Peer

BATCH = 500
POLL_S = 0.1
HEARTBEAT_S = 2.0


class EventReader:
    """The whole lines of events.jsonl from an offset on."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self.offset = offset

    def read(self) -> list[dict[str, Any]]:
        try:
            with self._path.open("rb") as f:
                f.seek(self.offset)
                data = f.read(1 << 20)
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        return [event for event in map(_parse, whole.splitlines()) if event]


def _parse(line: bytes) -> dict[str, Any] | None:
    """The event of a line; None for a torn one."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


class Streams:
    """The logs that a request selects."""

    def __init__(self, run: RunPaths, request: dict[str, Any]) -> None:
        spec = read_json(run.spec)
        self.plans = [p for p in spec["processes"] if _wanted(p, request)]
        offsets = request.get("offsets") or {}
        self.readers = [
            LogReader(run.log, log_stem(p["role"], p["index"]), offsets.get(f"{p['role']}{p['rank']}", 0))
            for p in self.plans
        ]
        self._match = _matcher(request.get("grep"))
        self._since = float(request.get("since") or 0)

    def announce(self) -> list[dict[str, Any]]:
        return [{"role": p["role"], "rank": p["rank"]} for p in self.plans]

    def lines(self, *, final: bool, tail: int | None = None) -> Iterator[list[Any]]:
        """New lines of all streams in time order, the last `tail` of each: [time, stream, text, offset behind]."""
        tagged = [self._tagged(i, reader.lines(final=final)) for i, reader in enumerate(self.readers)]
        if tail is not None:
            tagged = [iter(deque(rows, maxlen=tail)) for rows in tagged]
        return heapq.merge(*tagged, key=lambda row: row[0])

    def _tagged(self, stream: int, lines: Iterable[Line]) -> Iterator[list[Any]]:
        for t, text, end in lines:
            if t >= self._since and self._match(text):
                yield [t, stream, text.decode(errors="replace"), end]


def _wanted(plan: dict[str, Any], request: dict[str, Any]) -> bool:
    role, rank = request.get("role"), request.get("rank")
    return (role is None or plan["role"] == role) and (rank is None or plan["rank"] == rank)


def _matcher(pattern: str | None) -> Callable[[bytes], object]:
    if not pattern:
        return lambda text: True
    return re.compile(pattern.encode()).search


def logs(root: Path, request: dict[str, Any], peer: Peer) -> dict[str, Any]:
    """What the logs hold now; with `tail` only the last so many lines of each."""
    run = _run(root, request)
    streams = Streams(run, request)
    peer.send({"run": run.run, "streams": streams.announce()})
    tail = request.get("tail")
    if tail is not None and not request.get("grep"):
        for reader in streams.readers:
            reader.seek_tail(tail)
    _send_lines(peer, streams.lines(final=True, tail=tail))
    return {}


def _send_lines(peer: Peer, rows: Iterable[list[Any]]) -> int:
    batch: list[list[Any]] = []
    count = 0
    for row in rows:
        batch.append(row)
        if len(batch) == BATCH:
            peer.send({"lines": batch})
            count, batch = count + BATCH, []
    if batch:
        peer.send({"lines": batch})
    return count + len(batch)


def follow(root: Path, request: dict[str, Any], peer: Peer) -> dict[str, Any]:
    """Events and logs as they come, until the run has ended on this node. `budget` caps lines a second per node."""
    run = _run(root, request)
    streams = Streams(run, request)
    events = EventReader(run.events, int(request.get("at") or 0))
    peer.send({"run": run.run, "streams": streams.announce()})
    if request.get("tail") is not None and not request.get("offsets"):
        for reader in streams.readers:
            reader.seek_tail(request["tail"])
    budget = Budget(request.get("budget"))
    quiet_since = time.monotonic()
    while True:
        over = not is_alive(supervisor_of(read_state(run)))
        sent = _send_events(peer, events) + (_send_lines(peer, budget.take(streams.lines(final=over))))
        if over and not sent:
            return {"node": describe(run.job, run.run), "at": events.offset, "skipped": budget.skipped}
        if sent:
            quiet_since = time.monotonic()
        elif time.monotonic() - quiet_since > HEARTBEAT_S:
            peer.send({"alive": time.time()})  # and so learn whether anybody listens still
            quiet_since = time.monotonic()
        if not over:
            time.sleep(POLL_S)


def _send_events(peer: Peer, reader: EventReader) -> int:
    events = reader.read()
    if events:
        peer.send({"events": events, "at": reader.offset})
    return len(events)


class Budget:
    """Passes at most so many lines a second, and counts what it holds back."""

    def __init__(self, lines_per_s: float | None) -> None:
        self._rate = lines_per_s
        self._left = lines_per_s or 0.0
        self._then = time.monotonic()
        self.skipped = 0

    def take(self, rows: Iterable[list[Any]]) -> Iterator[list[Any]]:
        if self._rate is None:
            yield from rows
            return
        now = time.monotonic()
        self._left = min(self._rate, self._left + (now - self._then) * self._rate)
        self._then = now
        for row in rows:
            if self._left >= 1:
                self._left -= 1
                yield row
            else:
                self.skipped += 1


def _run(root: Path, request: dict[str, Any]) -> RunPaths:
    job = find_job(root, request["ref"])
    run = pick_run(job, request.get("run"))
    if run is None or not run.spec.is_file():
        raise AgentError(f"{job.dir.name} was never started", kind="no_run", hint="clusterctl start")
    return run
