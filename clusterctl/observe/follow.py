"""Events and log lines of all nodes as they arrive, across broken connections.

One thread per node receives; one iterator yields everything received. A node that cannot be reached is retried
from the byte where it stopped, without gaps or repeats, until the caller leaves.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clusterctl.cluster import AGENT_ENDED, NONSENSE, AgentCall, Cluster, answers, combined, failures, senseless
from clusterctl.cluster.answers import FollowEnd, LogNews, LogStream
from clusterctl.common.requests import FollowRequest, FollowSelection, LogSelection, LogsRequest, ShownProcess
from clusterctl.common.schema import typed
from clusterctl.errors import ClusterctlError, UnreachableError
from clusterctl.inventory import Node
from clusterctl.observe.record.model import ProcessRecord

QUEUE_NEWS = 100  # a node's news may be megabytes
SILENCE_S = 20.0  # the agent sends something every two seconds
RETRY_S = (1.0, 1.0, 2.0, 4.0, 8.0)  # the last one again and again
LEAVE_S = 2.0  # for agents to end following, so that they can serve the next request
REJOIN_S = 2.0
TICK_S = 0.25
SILENT_S = 20.0  # wait for the last nodes that have not reported the end of their run
LOST_S = 3.0  # the same for a run that is resumed when most of its nodes are lost, which its keeper looks into
PASSING = ("deadline", "no_channel", "input_closed", AGENT_ENDED)


@dataclass(frozen=True)
class OutputLine:
    """One line of a process's output. `t` is the node's clock, in seconds since the epoch."""

    t: float
    node: Node
    role: str
    rank: int
    text: str


@dataclass(frozen=True)
class News:
    """News of one node: events, log lines, the end of its run, an error, or its return.

    A node whose run `ended` as lost may come back and end again; the end is `final` once all others have ended too.
    `held`: (role, rank, count) of lines beyond the budget, which followed the last lines delivered. A node has
    `caught_up` when it has delivered the lines from before the follow began. Lines `in_order` are those of several
    nodes, in time order. `shown`: lines of the process that `Follower.show` names; `anew`: the first of them.
    """

    node: Node
    events: tuple[Mapping[str, Any], ...] = ()
    lines: tuple[OutputLine, ...] = ()
    held: tuple[tuple[str, int, int], ...] = ()
    ended: FollowEnd | None = None
    final: bool = True
    error: ClusterctlError | None = None
    back: bool = False
    caught_up: bool = False
    in_order: bool = False
    shown: tuple[OutputLine, ...] = ()
    anew: bool = False


@dataclass(frozen=True)
class _ScreenProcess:
    """The process that is shown, and the id of this request: answers to earlier ones may still arrive."""

    id: int
    node: Node
    role: str
    rank: int
    tail: int

    def request(self) -> ShownProcess:
        return {"id": self.id, "role": self.role, "rank": self.rank, "tail": self.tail}


@dataclass
class _Cursor:
    """The position up to which a node's news is in the queue or delivered: where to continue."""

    run: str | None
    at: int = 0
    offsets: dict[str, int] = field(default_factory=dict)
    away: bool = False  # reported as unreachable
    lost: FollowEnd | None = None  # the reported end of a lost run, which another supervisor may take over


@dataclass
class _Endings:
    """The nodes whose run has ended or is lost for now, and the `silent` ones, which cannot be reached."""

    ended: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    silent: set[int] = field(default_factory=set)
    since: float | None = None

    def take(self, news: News) -> None:
        node = news.node.id
        for known in (self.silent, self.lost) if news.back else (self.silent,):
            known.discard(node)
        if news.ended is not None and not news.final:
            self.lost.add(node)
        elif news.ended is not None or (news.error is not None and not is_passing(news.error)):
            self.lost.discard(node)
            self.ended.add(node)
        elif news.error is not None:
            self.silent.add(node)

    def only_silent_nodes_left(self, nodes: int, now: float, *, kept: bool = False) -> bool:
        """True if all reachable nodes have ended, and have waited for the others.

        If the run is `kept`, more than half of its nodes need not wait for them once they are lost; and it goes on
        without less than half, so these are no sign of its end while the others cannot be reached.
        """
        reported = self.ended | self.lost
        decides = kept and not self.ended
        is_lost = decides and 2 * len(self.lost) > nodes
        goes_on = decides and 2 * len(self.lost) < nodes
        if not is_lost and (not reported or goes_on or len(reported | self.silent) < nodes):
            self.since = None
        elif self.since is None:
            self.since = now
        return self.since is not None and now - self.since > (LOST_S if is_lost else SILENT_S)


class Follower:
    """Follows run `run` of `job` on `nodes`. A context manager and an iterator of `News`; None every quarter second.

    `at` are the offsets, by node, from which its events are followed; from the first one by default. With the role ""
    no log lines are `wanted`. Nodes that stay silent once all others have ended are left: soon if the run is `kept`,
    which means that it is resumed when most of its nodes are lost.
    """

    def __init__(
        self,
        cluster: Cluster,
        nodes: Sequence[Node],
        job: str,
        run: str | None,
        wanted: FollowSelection,
        *,
        at: Mapping[int, int] | None = None,
        kept: bool = False,
    ) -> None:
        self._at = at or {}
        self._kept = kept
        self._cluster = cluster
        self._request = typed(FollowRequest, {"op": "follow", "ref": job, **wanted})
        self._run = run
        self._news: queue.Queue[News] = queue.Queue(QUEUE_NEWS)
        self._calls: dict[int, AgentCall] = {}
        self._lock = threading.Lock()  # on the calls and their inputs
        self._ended: set[int] = set()
        self._shown: _ScreenProcess | None = None
        self._request_ids = itertools.count(1)
        self._answered = 0
        self._over = threading.Event()
        self._all_reported = threading.Event()
        self._threads = [
            threading.Thread(target=self._listen, args=(node,), daemon=True, name=f"follow-{node.label}")
            for node in nodes
        ]

    def __enter__(self) -> Follower:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with self._lock:
            for call in self._calls.values():
                with contextlib.suppress(ClusterctlError):  # its thread sees it too
                    call.send({"over": True})
        deadline = time.monotonic() + LEAVE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def show(self, process: ProcessRecord | None, tail: int = 0) -> None:
        """Also deliver the lines of one process, from the last `tail` ones on, as `shown`; None: of no process."""
        with self._lock:
            before = self._shown
            self._shown = None
            if process is not None:
                self._shown = _ScreenProcess(next(self._request_ids), process.node, process.role, process.rank, tail)
            for shown in (before, self._shown):
                if shown is not None and shown.node.id in self._calls:
                    self._send_request(self._calls[shown.node.id], shown if shown is self._shown else None)
            if self._shown is not None and self._shown.node.id in self._ended:
                threading.Thread(target=self._read_shown, args=(self._shown,), daemon=True).start()

    @staticmethod
    def _send_request(call: AgentCall, shown: _ScreenProcess | None) -> None:
        with contextlib.suppress(ClusterctlError):  # its thread sees it too
            call.send({"show": shown and shown.request()})

    def _read_shown(self, shown: _ScreenProcess) -> None:
        """Read the log of a process whose node has ended the run."""
        request: LogsRequest = {
            "id": shown.id,
            "role": shown.role,
            "rank": shown.rank,
            "tail": shown.tail,
            "op": "logs",
            "ref": self._request["ref"],
            "run": self._run,
        }
        with contextlib.suppress(ClusterctlError, *NONSENSE), self._cluster.call(shown.node, request) as call:
            while "done" not in (message := answers.news(call.receive())):
                self._take_shown(shown.node, {**message, "shown": shown.id})

    def __iter__(self) -> Iterator[News | None]:
        """End once the run has ended or is lost on every node, or on all but nodes that stay silent too long."""
        endings = _Endings()
        while len(endings.ended) < len(self._threads):
            try:
                news = self._news.get(timeout=TICK_S)
            except queue.Empty:
                news = None
            if news is not None:
                endings.take(news)
            if endings.lost and len(endings.ended | endings.lost) == len(self._threads):
                self._all_reported.set()
            yield news
            if endings.only_silent_nodes_left(len(self._threads), time.monotonic(), kept=self._kept):
                return

    def _listen(self, node: Node) -> None:
        cursor = _Cursor(self._run, self._at.get(node.id, 0))
        retries = itertools.chain(RETRY_S, itertools.repeat(RETRY_S[-1]))
        while not self._over.is_set():
            final = cursor.lost is not None and self._all_reported.is_set()
            try:
                ended = self._receive_checked(node, cursor)
            except ClusterctlError as exc:
                if cursor.lost is not None and final:
                    self._put(News(node, ended=cursor.lost))
                    return
                if not cursor.away or not is_passing(exc):
                    self._put(News(node, error=exc))
                if not is_passing(exc):
                    return
                if not cursor.away:
                    retries = itertools.chain(RETRY_S, itertools.repeat(RETRY_S[-1]))
                cursor.away = True
                self._over.wait(next(retries))
                continue
            if ended is None or self._is_end(node, cursor, ended, final):
                self._ended.add(node.id)
                return
            self._all_reported.wait(REJOIN_S)

    def _is_end(self, node: Node, cursor: _Cursor, ended: FollowEnd, final: bool) -> bool:
        """Report the end; return True if it is final. Another supervisor may take over a lost run, so look again."""
        final = final or ended["node"]["state"] != "lost"
        if final or cursor.lost is None:
            self._put(News(node, ended=ended, final=final))
        cursor.lost, cursor.away = ended, True
        return final

    def _receive_checked(self, node: Node, cursor: _Cursor) -> FollowEnd | None:
        try:
            return self._receive(node, cursor)
        except NONSENSE as exc:
            raise senseless(node, exc) from exc

    def _receive(self, node: Node, cursor: _Cursor) -> FollowEnd | None:
        request: FollowRequest = {
            **self._request,
            "run": cursor.run,
            "at": cursor.at,
            "offsets": cursor.offsets,
        }
        with self._cluster.call(node, request, answer_s=SILENCE_S) as call:
            streams = self._begin(answers.news(call.receive()), cursor)
            with self._lock:
                self._calls[node.id] = call
                if self._shown is not None and self._shown.node.id == node.id:
                    self._shown = replace(self._shown, id=next(self._request_ids))
                    self._send_request(call, self._shown)
            try:
                while not self._over.is_set():
                    message = answers.news(call.receive(SILENCE_S))
                    if "done" in message:
                        end: FollowEnd = answers.read(FollowEnd, message["done"], "follow")
                        return end
                    if cursor.away and not (cursor.lost is not None and "caught_up" in message):
                        cursor.away, cursor.lost = False, None
                        self._put(News(node, back=True))
                    self._take(node, message, streams, cursor)
                call.send({"over": True})
                call.result(LEAVE_S)
            finally:
                with self._lock:
                    del self._calls[node.id]
        return None

    @staticmethod
    def _begin(announced: LogNews, cursor: _Cursor) -> list[LogStream]:
        """Return the streams; pin the run and the offsets, so that a retry continues here even after a newer start."""
        cursor.run = announced["run"]
        for stream in announced["streams"]:
            cursor.offsets[_name(stream)] = stream["at"]
        return list(announced["streams"])

    def _take(self, node: Node, message: LogNews, streams: list[LogStream], cursor: _Cursor) -> None:
        if "events" in message:
            self._put(News(node, events=tuple(message["events"])))
            cursor.at = message["at"]
        elif "shown" in message:
            self._take_shown(node, message)
        elif "lines" in message:
            self._put(News(node, lines=lines_of(node, streams, message["lines"])))
            for _, stream, _, end in message["lines"]:
                cursor.offsets[_name(streams[stream])] = end
        elif "held" in message:
            held = ((streams[stream]["role"], streams[stream]["rank"], count) for stream, count, _ in message["held"])
            self._put(News(node, held=tuple(held)))
            for stream, _, end in message["held"]:
                cursor.offsets[_name(streams[stream])] = end
        elif "caught_up" in message:
            self._put(News(node, caught_up=True))

    def _take_shown(self, node: Node, message: LogNews) -> None:
        shown, rows = self._shown, message.get("lines", ())
        if shown is None or shown.id != message["shown"] or not rows:
            return
        lines = tuple(OutputLine(t, node, shown.role, shown.rank, text) for t, _, text, _ in rows)
        anew, self._answered = self._answered != shown.id, shown.id
        self._put(News(node, shown=lines, anew=anew))

    def _put(self, news: News) -> None:
        while not self._over.is_set():
            try:
                self._news.put(news, timeout=TICK_S)
                return
            except queue.Full:
                continue


def is_passing(error: ClusterctlError) -> bool:
    """Return True if the node may answer again: it is unreachable, silent, or cannot keep an agent running."""
    return isinstance(error, UnreachableError) or error.details.get("reason") in PASSING


def _name(stream: LogStream) -> str:
    return f"{stream['role']}{stream['rank']}"


def lines_of(
    node: Node, streams: Sequence[LogStream], rows: Sequence[tuple[float, int, str, int]]
) -> tuple[OutputLine, ...]:
    return tuple(
        OutputLine(t, node, streams[stream]["role"], streams[stream]["rank"], text) for t, stream, text, _ in rows
    )


def read_logs(
    cluster: Cluster, nodes: Sequence[Node], job: str, run: str | None, wanted: LogSelection
) -> Iterator[OutputLine]:
    """Yield every line of a run that is `wanted`, in time order; raise the errors of nodes that failed at the end.

    Memory does not grow with the logs.
    """
    calls: dict[int, AgentCall] = {}
    request = typed(LogsRequest, {"op": "logs", "ref": job, "run": run, **wanted})

    def begin(node: Node) -> tuple[Node, AgentCall, list[LogStream]]:
        call = calls[node.id] = cluster.call(node, request)
        return node, call, answers.news(call.receive())["streams"]

    try:
        outcomes = cluster.map(begin, nodes)
        errors = [outcome.error for outcome in failures(outcomes) if outcome.error]
        streams = (_lines_of(*outcome.get(), errors) for outcome in outcomes if outcome.ok)
        yield from heapq.merge(*streams, key=lambda line: line.t)
        if errors:
            raise combined(errors, len(outcomes), "logs")
    finally:
        for call in calls.values():
            call.close()


def _lines_of(
    node: Node, call: AgentCall, streams: list[LogStream], errors: list[ClusterctlError]
) -> Iterator[OutputLine]:
    """Yield one node's lines; a failure of the node goes to `errors` and does not end the other nodes' lines."""
    try:
        while "lines" in (message := answers.news(call.receive())) or "alive" in message:
            yield from lines_of(node, streams, message.get("lines", []))
    except ClusterctlError as exc:
        errors.append(exc)
    except NONSENSE as exc:
        errors.append(senseless(node, exc))
