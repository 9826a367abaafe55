"""Read a run's events and logs for the control machine, once or as they arrive.

Streams are announced first: `{"streams": [{"role", "rank", "at"}, ...], "run": ...}`, each from the offset `at` on.
Lines follow in time order as `{"lines": [[time, stream, text, offset after it], ...]}`, events as `{"events": [...],
"at": offset}`, and the number of lines held back by a budget as `{"held": [[stream, lines, offset after them], ...]}`.
One process may be shown besides, at the control machine's wish: its lines follow as `{"shown": id, "lines": ...}`.
`{"caught_up": true}` separates the lines that were there before following began from later ones.
"""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Callable

from clusterctl.agent.node.jobs import find_job, pick_run, read_state, supervisor_of
from clusterctl.agent.node.log_files import EventReader, LoggedLine, LogReader
from clusterctl.agent.node.runs import describe_run, need_spec
from clusterctl.agent.peer import Peer
from clusterctl.common.errors import AgentError
from clusterctl.common.paths import RunPaths, log_stem
from clusterctl.common.procfs import Identity, is_alive
from clusterctl.common.requests import (
    EventsRequest,
    FollowRequest,
    LogSelection,
    LogsRequest,
    RunRequest,
    ShownProcess,
    Speaker,
)
from clusterctl.common.run_spec import ProcessSpec

BATCH = 500
BATCH_CHARS = 1 << 20  # each may become six bytes, and a message may have a few megabytes
POLL_S = 0.1
HEARTBEAT_S = 2.0
SPECIAL = "\\.^$*+?{}[]()|"  # in regular expressions
BURST_S = 10.0  # a budget of so many seconds may be used at once


class Streams:
    """The logs that a request selects, from `offsets` on. `heartbeat` is called periodically while they are read."""

    def __init__(
        self,
        run: RunPaths,
        wanted: LogSelection,
        heartbeat: Callable[[], None],
        *,
        speaker: Speaker | None = None,
        offsets: Mapping[str, int] | None = None,
    ) -> None:
        self.spec = need_spec(run)
        self.plans = [process for process in self.spec.processes if _is_selected(process, wanted)]
        offsets = offsets or {}
        self.speaks = [_is(speaker, p) for p in self.plans]
        patterns = ["" if speaks else wanted.get("grep") or "" for speaks in self.speaks]
        self._matches = [re.compile(pattern.encode()).search for pattern in patterns]
        self.readers = [
            LogReader(
                run.log, log_stem(p.role, p.index), offsets.get(p.name, 0), words=_literal(pattern), heartbeat=heartbeat
            )
            for p, pattern in zip(self.plans, patterns)
        ]
        self._since = wanted.get("since") or 0.0
        self._ends: list[int] = []

    def seek(self, tail: int | None, *, final: bool) -> None:
        """Go to the first wanted line of each stream, or to its last `tail` ones; the present end becomes known."""
        self._ends = [reader.end(final=final) for reader in self.readers]
        for i, (reader, end) in enumerate(zip(self.readers, self._ends)):
            if self._since:
                reader.seek_time(self._since, end)
            if tail is not None:
                reader.seek_tail(tail, lambda line, stream=i: self._is_wanted(stream, line), end)  # type: ignore[misc]

    def announce(self) -> list[dict[str, Any]]:
        return [{"role": p.role, "rank": p.rank, "at": r.offset} for p, r in zip(self.plans, self.readers)]

    def present(self, *, final: bool) -> Iterator[list[Any]]:
        """Yield the lines up to the ends that `seek` found, of all streams: see `lines`."""
        return self._merged(reader.lines(final=final, until=end) for reader, end in zip(self.readers, self._ends))

    def lines(self, *, final: bool) -> Iterator[list[Any]]:
        """Yield new lines of all streams in time order: [time, stream, text, offset after]."""
        return self._merged(reader.lines(final=final) for reader in self.readers)

    def _merged(self, streams: Iterable[Iterable[LoggedLine]]) -> Iterator[list[Any]]:
        return heapq.merge(*(self._tagged(i, lines) for i, lines in enumerate(streams)), key=lambda row: row[0])

    def _tagged(self, stream: int, lines: Iterable[LoggedLine]) -> Iterator[list[Any]]:
        for line in lines:
            if self._is_wanted(stream, line):
                yield [line.t, stream, line.text.decode(errors="replace"), line.end]

    def _is_wanted(self, stream: int, line: LoggedLine) -> bool:
        return line.t >= self._since and bool(self._matches[stream](line.text))


def _is_selected(plan: ProcessSpec, wanted: LogSelection) -> bool:
    role, rank = wanted.get("role"), wanted.get("rank")
    return (role is None or plan.role == role) and (rank is None or plan.rank == rank)


def _is(speaker: Speaker | None, plan: ProcessSpec) -> bool:
    """Return True if the process is the speaker, whose lines are all sent, regardless of `grep`."""
    return speaker is not None and plan.role == speaker["role"] and plan.rank == speaker["rank"]


def _literal(pattern: str) -> bytes:
    """Return the bytes that every match contains, if the pattern stands for itself."""
    return b"" if any(char in pattern for char in SPECIAL) else pattern.encode()


def logs(root: Path, request: LogsRequest, peer: Peer) -> dict[str, Any]:
    """Send the present lines of the logs; with `tail` only the last so many of each."""
    run = _run(root, request)
    streams = Streams(run, request, peer.heartbeat)
    streams.seek(request.get("tail"), final=True)
    peer.send({"run": run.run, "streams": streams.announce()})
    _send_lines(peer, streams.present(final=True))
    return {}


def _send_lines(peer: Peer, rows: Iterable[list[Any]], **about: Any) -> int:
    batch: list[list[Any]] = []
    count = chars = 0
    for row in rows:
        batch.append(row)
        chars += len(row[2])
        if len(batch) == BATCH or chars > BATCH_CHARS:
            peer.send({**about, "lines": batch})
            count, chars, batch = count + len(batch), 0, []
    if batch:
        peer.send({**about, "lines": batch})
    return count + len(batch)


def follow(root: Path, request: FollowRequest, peer: Peer) -> dict[str, Any]:
    """Send events and logs as they arrive, until the run has ended on this node.

    `budget` caps each process's lines per second; the `speaker` (`role`, `rank`, `budget`) has a separate one, and no
    `grep`. `tail` limits the present lines, unless they continue at `offsets`. A message
    `{"show": {"id", "role", "rank", "tail"}}` adds the last and all later lines of one process, and `{"show": None}`
    ends that. Any other message ends the following. `over`: the run lives no more, by the word of the scheduler whose
    machines it ran on.
    """
    run = _run(root, request)
    speaker, offsets = request.get("speaker"), request.get("offsets")
    streams = Streams(run, request, peer.heartbeat, speaker=speaker, offsets=offsets)
    events = EventReader(run.events, request.get("at", 0))
    gone = request.get("over", False)
    supervision = Supervision(run, over=gone)
    over = supervision.is_over()
    streams.seek(None if offsets else request.get("tail"), final=over)
    peer.send({"run": run.run, "streams": streams.announce()})
    budgets = [Budget(speaker["budget"] if speaker and own else request.get("budget")) for own in streams.speaks]

    def send(rows: Iterable[list[Any]]) -> int:
        count = _send_events(peer, events) if request.get("events", True) else 0
        return count + _send_within(peer, rows, budgets)

    send(streams.present(final=over))
    peer.send({"caught_up": True})
    quiet_since = time.monotonic()
    shown: _ScreenLog | None = None
    while True:
        over = supervision.is_over()
        sent = send(streams.lines(final=over)) + (shown.send(peer, final=over) if shown else 0)
        if over and not sent:
            return {"node": describe_run(run, streams.spec, over=gone), "at": events.offset}
        if sent:
            quiet_since = time.monotonic()
        elif time.monotonic() - quiet_since > HEARTBEAT_S:
            peer.send({"alive": time.time()})  # raises Gone if the control machine has left
            quiet_since = time.monotonic()
        message = peer.arrived()
        if message is not None and "show" not in message:
            return {}
        if message is not None:
            shown = _ScreenLog(run, message["show"], peer.heartbeat, final=over) if message["show"] else None
            continue
        if not over:
            peer.readable((), POLL_S)


class _ScreenLog:
    """One process whose log is on the screen."""

    def __init__(self, run: RunPaths, wanted: ShownProcess, heartbeat: Callable[[], None], *, final: bool) -> None:
        self._id = wanted["id"]
        self._streams = Streams(run, {"role": wanted["role"], "rank": wanted["rank"]}, heartbeat)
        self._streams.seek(wanted["tail"], final=final)

    def send(self, peer: Peer, *, final: bool) -> int:
        return _send_lines(peer, self._streams.lines(final=final), shown=self._id)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return values that change when a file is replaced; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


class Supervision:
    """The supervisor of a run, gone for certain if `over`. Its state may be large: it is read only when replaced."""

    def __init__(self, run: RunPaths, *, over: bool = False) -> None:
        self._run = run
        self._over = over
        self._supervisor: Identity | None = None
        self._away = False
        self._file: tuple[int, int] | None = None

    def is_over(self) -> bool:
        """Return True if no supervisor is alive, or it has lost the lead and runs nothing any more."""
        if self._over:
            return True
        file = _identity(self._run.state)
        if file is None or file != self._file or not is_alive(self._supervisor):
            state = read_state(self._run)
            self._supervisor, self._away, self._file = supervisor_of(state), bool(state.get("away")), file
        return self._away or not is_alive(self._supervisor)


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


def events(root: Path, request: EventsRequest, peer: Peer) -> dict[str, Any]:
    """Send the events of these `kinds` up to the present end of the log."""
    run = _run(root, request)
    reader = EventReader(run.events)
    end = run.events.stat().st_size if run.events.exists() else 0
    before = -1
    while before < reader.offset < end:  # a torn line at the end is not read
        before = reader.offset
        wanted = [event for event in reader.read() if event.get("event") in request["kinds"]]
        if wanted:
            peer.send({"events": wanted, "at": reader.offset})
    return {}


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


def _run(root: Path, request: RunRequest) -> RunPaths:
    job = find_job(root, request["ref"])
    run = pick_run(job, request.get("run"))
    if run is None or not run.spec.is_file():
        raise AgentError(f"{job.dir.name} was never started", kind="no_run", hint="start it with clusterctl start")
    return run
