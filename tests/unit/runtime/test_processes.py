"""Real pserver and trainer processes with a control socket, as a supervisor runs them."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.common.manifest import build_manifest, write_manifest
from clusterctl.common.procfs import stat_fields
from clusterctl.runtime import load_model
from support.processes import wait_until
from unit.runtime.cluster import DEADLINE_S, Process, make_job, process_cluster

TRAIN = """
import numpy as np
from clusterctl.runtime import Adagrad, connect, uniform

def reader(pass_, rng):
    for _ in range(4 + ps.rank):
        yield rng.integers(-50, 50, size=30)

with connect() as ps:
    w = ps.dense("w", shape=(300, 70), rule=Adagrad(0.05), init=uniform(0.1))
    emb = ps.embedding("word", dim=4, rule=Adagrad(0.05))
    for ids in ps.steps(reader, passes=2):
        rows = emb.pull(ids)
        ps.push({w: w.value * rows.mean(), emb: (ids, rows)}, samples=len(ids), loss=float((rows ** 2).sum()))
        ps.log(norm=float(np.abs(w.value).sum()), weight=len(ids))
"""

WAIT = """
import sys, threading
from clusterctl.runtime import connect
with connect() as ps:
    print("in", flush=True)
    threading.Event().wait()
"""


def test_a_job_of_processes_runs_to_completion_and_its_events_have_the_figures_that_status_shows(
    tmp_path: Path,
) -> None:
    with process_cluster(tmp_path, 2, 2, TRAIN, security="curve") as (servers, trainers):
        for rank, trainer in enumerate(trainers):
            status, out, err = trainer.wait()
            assert (status, err) == (0, "")
            assert [line[:7] for line in out.splitlines()] == ["pass 0:", "pass 1:"]
            names = [event["event"] for event in trainer.events]
            assert names.count("pass") == 2
            assert [event["line"] for event in trainer.events if event["event"] == "pass"] == out.splitlines()
            assert "log" in names
            steps = [event for event in trainer.events if event["event"] == "step"]
            assert {"pass", "step", "loss", "samples", "samples_per_s", "compute", "wait", "wire"} <= set(steps[-1])
            assert sum(steps[-1][share] for share in ("compute", "wait", "wire")) == pytest.approx(1, abs=1e-4)
            assert sum(step["samples"] for step in steps) == 2 * (4 + rank) * 30
        for server in servers:
            server.send("unknown command")
            server.send("finish")
            status, out, err = server.wait()
            assert (status, err) == (0, "")
            saved = [event["line"] for event in server.events if event["event"] == "saved"]
            assert saved, "and each is a line of its log"
            assert set(saved) <= set(out.splitlines())
        receipts = [e for s in servers for e in s.events if e["event"] == "saved" and e["tag"] == "pass-00001"]
        manifest = build_manifest("JOB", "0001", receipts)
        assert manifest is not None
        write_manifest(tmp_path / "output" / "pass-00001", manifest)
    model: Any = load_model(tmp_path / "output" / "pass-00001")
    assert model["w"].shape == (300, 70)
    assert manifest["tables"]["word"]["held"] == len(model["word"][0])
    assert np.isfinite(model["w"]).all()


def test_processes_exit_at_once_when_their_supervisor_is_gone(tmp_path: Path) -> None:
    with process_cluster(tmp_path, 1, 1, WAIT) as ([server], [trainer]):
        assert trainer.process.stdout is not None
        assert trainer.process.stdout.readline() == "in\n"
        for process in (trainer, server):
            process.control.shutdown(socket.SHUT_RDWR)
            assert process.process.wait(DEADLINE_S) == 70


UNWOKEN = """
import signal, sys, threading
from clusterctl.runtime.pserver.__main__ import main

def take():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Event().wait()

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
threading.Thread(target=take, daemon=True).start()
sys.exit(main())
"""


def test_sigterm_ends_a_pserver_also_if_it_did_not_interrupt_its_wait(tmp_path: Path) -> None:
    """As one that comes just before the wait: here another thread takes it, so the main thread is not woken."""
    make_job(tmp_path, 1, 0)
    pserver = Process(tmp_path, "pserver", 0, ["-c", UNWOKEN], ())
    try:
        pserver.until("ready")
        pserver.send("ping")
        pserver.until("pong")  # its lanes run
        assert wait_until(lambda: (stat_fields(pserver.process.pid) or "R")[0] == "S")  # the main thread waits
        pserver.process.send_signal(signal.SIGTERM)
        assert pserver.process.wait(DEADLINE_S) == 128 + signal.SIGTERM
    finally:
        pserver.reap()


def test_a_taken_port_is_skipped_and_having_no_free_port_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with process_cluster(tmp_path / "a", 1, 0, "", port=port) as ([server], _):
            assert server.events[-1]["ports"][0] > port
    make_job(tmp_path / "b", 1, 1, port=65_536)
    process = Process(tmp_path / "b", "pserver", 0, ["-m", "clusterctl.runtime.pserver"], ())
    try:
        status, _, err = process.wait()
    finally:
        process.reap()
    assert status == 1
    assert err.startswith("pserver: no free port in ")
    assert "Traceback" not in err


def test_a_save_that_fails_ends_the_pserver_with_one_clear_line(tmp_path: Path) -> None:
    with process_cluster(tmp_path, 1, 1, TRAIN) as ([server], [trainer]):
        (tmp_path / "output").write_text("a file where the directory should be")
        status, _, err = server.wait()
        assert status == 1
        assert err.startswith("pserver: a save failed: ")
        assert "Traceback" not in err
        trainer.reap()


def test_missing_keys_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    make_job(tmp_path, 1, 1, security="curve")
    (tmp_path / ".clusterctl/runs/0001/keys/pserver-0.json").unlink()
    process = Process(tmp_path, "pserver", 0, ["-m", "clusterctl.runtime.pserver"], ())
    try:
        status, _, err = process.wait()
    finally:
        process.reap()
    assert status == 1
    assert "keys/pserver-0.json cannot be read" in err
