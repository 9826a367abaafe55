"""Logs and events from a node: in time order, filtered, and continued from an offset."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.agent import peer as peer_module
from clusterctl.agent.node import log_files
from clusterctl.agent.node.log_files import EventReader, LogWriter
from clusterctl.agent.operations import logs as watch
from clusterctl.agent.operations.logs import Budget, events, follow, logs
from clusterctl.agent.peer import Peer
from clusterctl.common.errors import AgentError, Gone
from clusterctl.common.files import write_json
from clusterctl.common.paths import JobPaths, RunPaths
from clusterctl.common.procfs import identify
from unit.agent.specs import spec_json

JOB = "JOB20261121-081530"
PROCESSES = [
    {"role": "pserver", "rank": 3, "index": 0},
    {"role": "trainer", "rank": 6, "index": 0},
    {"role": "trainer", "rank": 7, "index": 1},
]


class Node:
    """A job directory with a run; `say` writes to a process's log at a chosen time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        job = JobPaths(root / JOB)
        self.run: RunPaths = job.run("0001")
        for place in (self.run.dir, job.log):
            place.mkdir(parents=True)
        write_json(job.record, {"job": JOB})
        write_json(self.run.spec, spec_json(processes=PROCESSES, t=1.0, mode="sync", engine="clusterctl"))
        self.t = 0.0
        self._supervisor: subprocess.Popen[bytes] | None = None
        self.alive(False)
        stems = {"pserver3": "server", "trainer6": "train", "trainer7": "train.1"}
        self.writers = {name: LogWriter(job.log, stem, clock=lambda: self.t) for name, stem in stems.items()}

    def alive(self, alive: bool) -> None:
        """Start a process that counts as the supervisor, or end it."""
        if alive:
            self._supervisor = subprocess.Popen(["sleep", "600"])
        elif self._supervisor is not None:
            self._supervisor.kill()
            self._supervisor.wait()
        supervisor = identify(self._supervisor.pid) if alive and self._supervisor is not None else None
        write_json(self.run.state, {"processes": [], "supervisor": supervisor, "ended": None})

    def say(self, t: float, process: str, text: str) -> None:
        self.t = t
        self.writers[process].write(text.encode())

    def event(self, **event: Any) -> None:
        with self.run.events.open("a") as f:
            f.write(json.dumps(event) + "\n")

    def ask(self, op: Any, **request: Any) -> list[dict[str, Any]]:
        """Send the request and collect the agent's answers."""
        with Listening() as listening:
            op(self.root, {"ref": JOB, **request}, listening.peer)
        return listening.messages

    def rows(self, **request: Any) -> list[list[Any]]:
        return [row for message in self.ask(logs, **request) for row in message.get("lines", ())]

    def texts(self, **request: Any) -> list[str]:
        return [row[2] for row in self.rows(**request)]


class Listening:
    """The control machine's end of the pipe, read by a thread so that the agent never blocks."""

    def __enter__(self) -> Listening:
        self._read, self._write = os.pipe()
        self._input = os.pipe()
        self.peer = Peer(self._input[0], self._write)
        self.messages: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()
        return self

    def _listen(self) -> None:
        with os.fdopen(self._read) as f:
            for line in f:
                self.messages.append(json.loads(line))

    def __exit__(self, *_: object) -> None:
        for fd in (self._write, *self._input):
            os.close(fd)
        self._thread.join()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.alive(False)
    for writer in made.writers.values():
        writer.close()


def test_lines_of_all_processes_are_sent_in_time_order(node: Node) -> None:
    for t, process, text in (
        (1, "trainer6", "a\n"),
        (2, "pserver3", "b\n"),
        (3, "trainer7", "c\n"),
        (4, "trainer6", "d"),
    ):
        node.say(t, process, text)
    first, *rest = node.ask(logs)
    assert first["streams"] == [{"role": p["role"], "rank": p["rank"], "at": 0} for p in PROCESSES]
    assert [row for message in rest for row in message["lines"]] == [
        [1, 1, "a", 2],
        [2, 0, "b", 2],
        [3, 2, "c", 2],
        [4, 1, "d", 3],
    ]


def test_lines_are_selected_by_role_rank_time_and_pattern(node: Node) -> None:
    for t in range(6):
        node.say(t, ("pserver3", "trainer6", "trainer7")[t % 3], f"line {t}\n")
    assert node.texts(role="trainer") == ["line 1", "line 2", "line 4", "line 5"]
    assert node.texts(role="trainer", rank=7) == ["line 2", "line 5"]
    assert node.texts(rank=9) == []
    assert node.texts(since=3) == ["line 3", "line 4", "line 5"]
    assert node.texts(grep="[25]$") == ["line 2", "line 5"]
    assert node.texts(grep="line", since=4, role="pserver") == []


def test_thousands_of_lines_arrive_in_batches_and_none_is_missing(node: Node) -> None:
    node.say(1, "trainer6", "".join(f"{n}\n" for n in range(1234)))
    assert node.texts() == [str(n) for n in range(1234)]
    assert [len(m["lines"]) for m in node.ask(logs)[1:]] == [500, 500, 234]


def test_bytes_that_are_not_text_are_replaced(node: Node) -> None:
    node.t = 1
    node.writers["trainer6"].write(b"\xff\xfe\x00ok\n")
    assert node.texts() == ["\ufffd\ufffd\0ok"]


@pytest.mark.parametrize("more", [{}, {"grep": "line"}])
def test_the_tail_is_the_last_lines_of_each_process(node: Node, more: dict[str, Any]) -> None:
    for n in range(5):
        node.say(n, "pserver3", f"line {n}\n")
    for n in range(5, 10):
        node.say(n, "trainer6", f"line {n}\n")
    assert node.texts(tail=2, **more) == ["line 3", "line 4", "line 8", "line 9"]


def test_the_tail_since_a_time_is_the_last_matching_lines_since_then(node: Node) -> None:
    for n in range(20):
        node.say(n, "trainer6", f"{n}\n")
    assert node.texts(since=9, tail=3, grep="[24680]$") == ["14", "16", "18"]
    assert node.texts(since=17, tail=3, grep="[24680]$") == ["18"]
    assert node.texts(since=18, tail=5) == ["18", "19"]
    assert node.texts(since=30, tail=5) == []


def test_following_begins_with_the_last_matching_lines(node: Node) -> None:
    for n in range(20):
        node.say(n, "trainer6", f"{n}\n")
    messages = node.ask(follow, tail=2, grep="5$", since=1)
    assert [row[2] for m in messages for row in m.get("lines", ())] == ["5", "15"]
    (at,) = [stream["at"] for stream in messages[0]["streams"] if stream["rank"] == 6]
    again = node.ask(follow, tail=2, grep="5$", since=1, offsets={"trainer6": at, "trainer7": 0, "pserver3": 0})
    assert [row[2] for m in again for row in m.get("lines", ())] == ["5", "15"]


def test_following_separates_the_lines_of_the_past_from_new_ones(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.alive(True)
    node.say(1, "trainer6", "early\nhal")

    def meanwhile(*_: object) -> list[int]:
        node.say(2, "trainer6", "f\nlate")
        node.alive(False)
        return []

    monkeypatch.setattr(Peer, "readable", meanwhile)
    messages = node.ask(follow, tail=5)
    kinds = [[row[2] for row in m["lines"]] if "lines" in m else next(iter(m)) for m in messages]
    assert kinds == ["run", ["early"], "caught_up", ["half", "late"]]


def test_a_follower_without_interest_in_events_gets_none(node: Node) -> None:
    node.event(event="one")
    node.say(1, "trainer6", "a\n")
    assert not any("events" in message for message in node.ask(follow, events=False))


def test_a_search_that_finds_nothing_sends_heartbeats(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control machine would otherwise take the node for dead while it searches gigabytes."""
    monkeypatch.setattr(peer_module, "HEARTBEAT_EVERY_S", 0.0)
    monkeypatch.setattr(log_files, "READ_BYTES", 10)
    node.say(1, "trainer6", "nothing\n" * 20)
    for request in ({}, {"tail": 3}):
        assert node.ask(logs, grep="something", **request).count({"alive": True}) > 5
        assert node.ask(follow, grep="something", **request).count({"alive": True}) > 5


def test_a_job_that_never_ran_has_no_logs_and_reports_so(tmp_path: Path) -> None:
    job = JobPaths(tmp_path / JOB)
    job.meta.mkdir(parents=True)
    write_json(job.record, {})
    with pytest.raises(AgentError) as raised:
        logs(tmp_path, {"ref": JOB}, Peer(-1, -1))
    assert raised.value.kind == "no_run"


def test_following_continues_where_it_left_off(node: Node) -> None:
    node.event(event="one")
    node.say(1, "trainer6", "a\n")
    at = node.run.events.stat().st_size
    node.event(event="two")
    node.say(2, "trainer6", "b\n")
    messages = node.ask(follow, at=at, offsets={"trainer6": 2})
    assert [e["event"] for m in messages for e in m.get("events", ())] == ["two"]
    assert [row[2] for m in messages for row in m.get("lines", ())] == ["b"]


def test_following_lasts_as_long_as_the_supervisor_and_includes_its_last_lines(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.alive(True)
    node.say(1, "trainer6", "early\nhalf")
    turns = iter(range(100))

    def meanwhile(*_: object) -> list[int]:
        turn = next(turns)
        if turn == 1:
            node.say(2, "trainer6", " a line\nlate")
            node.event(event="ended")
            node.alive(False)
        return []

    monkeypatch.setattr(Peer, "readable", meanwhile)
    messages = node.ask(follow)
    assert [row[2] for m in messages for row in m.get("lines", ())] == ["early", "half a line", "late"]
    assert [e["event"] for m in messages for e in m.get("events", ())] == ["ended"]
    assert next(turns) == 2


def test_following_a_run_that_is_over_by_the_word_of_a_scheduler_ends(node: Node) -> None:
    node.alive(True)
    node.say(1, "trainer6", "last\n")
    messages = node.ask(follow, over=True)
    assert [row[2] for m in messages for row in m.get("lines", ())] == ["last"]


def test_a_follower_that_disconnects_is_noticed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.alive(True)
    monkeypatch.setattr(watch, "HEARTBEAT_S", 0.0)
    read_end, write_end = os.pipe()
    os.close(read_end)
    quiet = os.pipe()
    with pytest.raises(Gone):
        follow(node.root, {"ref": JOB}, Peer(quiet[0], write_end))
    for fd in (write_end, *quiet):
        os.close(fd)


def test_events_are_read_as_complete_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    reader = EventReader(path)
    assert reader.read() == []
    path.write_text('{"n":1}\n{"n":')
    assert reader.read() == [{"n": 1}]
    with path.open("a") as f:
        f.write("2}\n")
    assert reader.read() == [{"n": 2}]
    assert EventReader(path, reader.offset).read() == []


def test_the_events_of_some_kinds_are_sent_up_to_the_present_end(node: Node) -> None:
    """Of a live run, too: a view does not wait for its end."""
    node.alive(True)
    kinds = ("step", "phase", "log")
    lines = [json.dumps({"event": kinds[number % 3], "t": number, "line": "x" * 300}) for number in range(9_000)]
    node.run.events.write_text("\n".join([*lines, '{"event": "step", "t": ']))
    batches = node.ask(events, kinds=["step", "log"])
    found = [event["t"] for message in batches for event in message["events"]]
    assert found == [number for number in range(9_000) if number % 3 != 1]
    assert len(batches) > 2, "memory does not grow with the run"
    assert [message["at"] for message in batches] == sorted(message["at"] for message in batches)


def test_a_run_without_events_has_none(node: Node) -> None:
    assert node.ask(events, kinds=["step"]) == []


def test_a_budget_allows_a_rate_of_lines_and_ten_times_as_many_in_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(watch.time, "monotonic", lambda: now)
    budget = Budget(2)

    def passing(tries: int) -> int:
        return sum(budget.spend() for _ in range(tries))

    assert passing(50) == 20
    now += 0.5
    assert passing(50) == 1
    now += 60
    assert passing(50) == 20
    assert not Budget(0).spend()
    assert sum(Budget(None).spend() for _ in range(50)) == 50


def test_lines_beyond_the_budget_are_counted_and_skipped(node: Node) -> None:
    node.say(1, "trainer6", "".join(f"{n}\n" for n in range(100)))
    node.say(2, "trainer7", "".join(f"{n}\n" for n in range(100)))
    node.say(3, "pserver3", "quiet\nERROR\n")
    speaker = {"role": "trainer", "rank": 7, "budget": None}
    messages = node.ask(follow, budget=3, grep="(?i)error|^[0-9]+$", speaker=speaker)
    rows = [row for m in messages for row in m.get("lines", ())]
    assert [row[2] for row in rows if row[1] == 1] == [str(n) for n in range(30)]
    assert [row[2] for row in rows if row[1] == 2] == [str(n) for n in range(100)]
    assert [row[2] for row in rows if row[1] == 0] == ["ERROR"]
    (held,) = [m["held"] for m in messages if "held" in m]
    assert held == [[1, 70, 290]]
    assert not any("held" in m for m in node.ask(follow, budget=0))


def test_streams_report_the_offset_at_which_they_start(node: Node) -> None:
    """A follower that loses its connection before the first line continues there, not at the tail as of that moment."""
    node.say(1, "trainer6", "1\n2\n3\n")
    assert [stream["at"] for stream in node.ask(follow, tail=1)[0]["streams"]] == [0, 4, 0]
    assert [stream["at"] for stream in node.ask(follow, tail=0)[0]["streams"]] == [0, 6, 0]
    node.say(2, "trainer6", "4\n")
    messages = node.ask(follow, tail=0, offsets={"trainer6": 6, "trainer7": 0, "pserver3": 0})
    assert [row[2] for m in messages for row in m.get("lines", ())] == ["4"]
