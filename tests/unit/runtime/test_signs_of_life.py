"""Signs of life for stall detection: a pserver answers when all its lanes do; a trainer reports what it waits for."""

from __future__ import annotations

import os
import queue
import signal
import threading
from pathlib import Path
from typing import Any

from clusterctl.runtime import SGD
from clusterctl.runtime.trainer.session import Session
from unit.runtime.cluster import process_cluster, thread_cluster

HANGS = """
import threading
from clusterctl.runtime import connect

def a_place_to_hang():
    threading.Event().wait()

with connect() as ps:
    threading.Thread(target=a_place_to_hang, daemon=True).start()
    print("up", flush=True)
    a_place_to_hang()
"""


def test_a_pserver_answers_when_all_its_lanes_do(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 1, 1, ports_num=2) as cluster:
        (pserver,), events = cluster.pservers, queue.SimpleQueue[str]()
        pserver._send = lambda event, facts: events.put(event)
        pserver.handle_command({"cmd": "ping"})
        assert events.get(timeout=180) == "pong"
        held, reached = threading.Event(), threading.Event()
        cluster.lanes[1].submit(lambda core: (reached.set(), held.wait(), [])[-1])  # type: ignore[func-returns-value]
        assert reached.wait(180)
        pserver.handle_command({"cmd": "ping"})
        other = threading.Event()
        cluster.lanes[0].submit(lambda core: (other.set(), [])[-1])  # type: ignore[func-returns-value]
        assert other.wait(180), "the other lane has answered by now"
        assert events.empty()
        held.set()
        assert events.get(timeout=180) == "pong"


def test_a_pserver_says_that_it_writes_a_save_and_how_far_it_is(tmp_path: Path, monkeypatch: Any) -> None:
    """The disk is slow: here it ends one flush each time the test allows it."""
    reached, go_on = queue.SimpleQueue[bool](), queue.SimpleQueue[bool]()
    fsync = os.fsync

    def slow(file: int) -> None:
        reached.put(True)
        go_on.get()
        fsync(file)

    monkeypatch.setattr(os, "fsync", slow)
    pongs: list[dict[str, Any]] = []

    def program(ps: Session) -> None:
        w = ps.dense("w", 3 * 65_536, SGD(1.0))
        for _ in ps.steps(lambda pass_, rng: [1], passes=1):
            ps.push({w: w.value}, samples=1)
        ps.save("mine")

    with thread_cluster(tmp_path, 1, 1) as cluster:
        (pserver,), answered = cluster.pservers, threading.Event()
        hear = pserver._send
        pserver._send = lambda event, facts: (
            (pongs.append(facts), answered.set()) if event == "pong" else hear(event, facts)
        )  # type: ignore[func-returns-value]

        def ping() -> None:
            answered.clear()
            pserver.handle_command({"cmd": "ping"})
            assert answered.wait(180)

        ping()
        trainer = threading.Thread(target=cluster.train, args=(program,), daemon=True)
        trainer.start()
        for _ in range(2):  # the file of the pass, that of the call; and no other one after it
            assert reached.get(timeout=180)
            ping()
            go_on.put(True)
            reached.get(timeout=180)  # the directory
            go_on.put(True)
        trainer.join(180)
        assert not trainer.is_alive()
        ping()
    assert pongs == [{}, {"progress": [3]}, {"progress": [7]}, {}]


def test_a_waiting_trainer_keeps_reporting_which_processes_it_waits_for(tmp_path: Path) -> None:
    events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def program(ps: Session) -> None:
        w = ps.dense("w", 1, SGD(1.0))
        ps._client._link._on_wait = events.put  # type: ignore[attr-defined]
        for _ in ps.steps(lambda pass_, rng: range(2), passes=1):
            while ps.rank == 1 and (event := events.get(timeout=180))["trainers"] != [1]:
                pass
            assert ps.rank == 0 or 0 < event["for_s"] < events.get(timeout=180)["for_s"], "the wait continues"
            ps.push({w: [1.0]}, samples=1)

    with thread_cluster(tmp_path, 1, 2) as cluster:
        cluster.probe_every_s = 0.05
        cluster.train(program)


def test_trainers_and_pservers_print_the_stacks_of_all_threads_on_the_signal_that_they_reported(
    tmp_path: Path,
) -> None:
    with process_cluster(tmp_path, 1, 1, HANGS) as (servers, trainers):
        (server,), (trainer,) = servers, trainers
        assert trainer.process.stdout is not None
        assert trainer.process.stdout.readline() == "up\n"
        (server_event,) = [event for event in server.events if event["event"] == "stacks"]
        assert server_event["pid"] == server.process.pid
        for process, reported, place in (
            (trainer, trainer.until("stacks"), "a_place_to_hang"),
            (server, server_event, "_run_lane"),
        ):
            process.process.send_signal(reported["signal"])
            assert process.process.stderr is not None
            lines = iter(process.process.stderr.readline, "")
            assert any(place in line for line in lines)
            assert process.process.poll() is None
            process.process.send_signal(signal.SIGKILL)
