"""Kill -9 of a pserver or a trainer in each phase of a cut, then a resume: each push of each trainer counts once."""

from __future__ import annotations

import contextlib
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import load_model
from support.processes import wait_until
from unit.runtime.cluster import DEADLINE_S, Process, TestLead, make_job

pytestmark = pytest.mark.slow
PSERVERS = TRAINERS = 2
PASSES, BATCHES = 5, 20
CASES = [("hold", "half-async"), ("write", "geo(2)"), ("written", "async")]
KILLED_AT_CUT = 3
# Trainers wait for the files `pass-1` ... `pass-5`: on a busy machine they would have left before a cut is made.
SCRIPT = f"""
import os, time
import numpy as np
from clusterctl.runtime import SGD, connect, zeros

with connect() as ps:
    w = ps.dense("w", 40_000, SGD(1.0))
    e = ps.embedding("e", 1, SGD(1.0), zeros())

    def until(name):
        while not os.path.exists(name):
            time.sleep(0.01)

    def read(pass_, rng):
        for batch in range({BATCHES}):
            yield 1000 * ps.rank + {BATCHES} * pass_ + batch
        until(f"pass-{{pass_ + 1}}")

    for number in ps.steps(read, passes={PASSES}):
        ps.push({{w: np.ones(40_000), e: (np.array([number]), -np.ones((1, 1)))}}, samples=1)
"""


class KilledRun:
    """Pserver and trainer processes with a lead that kills `victim` at the order `phase` of the cut KILLED_AT_CUT.

    Cuts that are dropped, because nothing was pushed since the one before, do not count.
    """

    def __init__(self, root: Path, stack: contextlib.ExitStack, victim: str = "", phase: str = "") -> None:
        self.root = root
        self._stack = stack
        self._victim, self._phase = victim, phase
        self.complete: dict[str, int] = {}  # checkpoints, with their steps
        self._passes = 0 if victim else PASSES  # that may end
        self._pieces: Counter[str] = Counter()
        (root / "train.py").write_text(SCRIPT)
        for number in range(1, self._passes + 1):
            (root / f"pass-{number}").touch()
        self.servers = [self._start("pserver", p, ["-m", "clusterctl.runtime.pserver"]) for p in range(PSERVERS)]
        ready = [server.until("ready")["ports"][0] for server in self.servers]
        self.addresses = tuple(f"127.0.0.1:{port}" for port in ready)
        self.lead = TestLead(PSERVERS, self._order)
        stack.callback(self.lead.stop)
        for rank, server in enumerate(self.servers):
            server.listen(lambda event, facts, rank=rank: self._hear(rank, event, facts))  # type: ignore[misc]
        self.trainers = [self.start_trainer(rank) for rank in range(TRAINERS)]

    def start_trainer(self, rank: int, attempt: int = 1) -> Process:
        return self._start("trainer", rank, ["train.py"], self.addresses, attempt)

    def _start(self, role: str, rank: int, argv: list[str], addresses: Any = (), attempt: int = 1) -> Process:
        process = Process(self.root, role, rank, argv, addresses, attempt)
        self._stack.callback(process.reap)
        return process

    def _hear(self, rank: int, event: str, facts: dict[str, Any]) -> None:
        if event == "saved" and facts.get("checkpoint"):
            self._pieces[facts["tag"]] += 1
            if self._pieces[facts["tag"]] == PSERVERS:
                self.complete[facts["tag"]] = facts["step"]
                if len(self.complete) < KILLED_AT_CUT or not self._phase:
                    self._end_pass()
        self.lead.hear(rank, event, facts)
        if event == "saved" and self._phase == "written" and len(self.complete) == KILLED_AT_CUT:
            self._kill()

    def _order(self, rank: int, order: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            if rank == 1 and order["order"] == self._phase and len(self.complete) == KILLED_AT_CUT - 1:
                self._kill()
            self.servers[rank].send(order.pop("cmd"), **order)

    def _kill(self) -> None:
        """Kill the victim. The first pserver has the order by now, the second does not."""
        role, rank = self._victim[:-1], int(self._victim[-1])
        victim = (self.servers if role == "pserver" else self.trainers)[rank]
        victim.process.send_signal(signal.SIGKILL)
        self._phase = ""
        self._end_pass()

    def _end_pass(self) -> None:
        self._passes += 1
        (self.root / f"pass-{self._passes}").touch()

    def finish(self) -> None:
        """Wait until the trainers and then the pservers have ended."""
        for process in (*self.trainers, *self.servers):
            if process in self.servers:
                process.send("finish")
            assert process.process.wait(DEADLINE_S) == 0, process.process.communicate()


@contextlib.contextmanager
def killed_run(root: Path, victim: str = "", phase: str = "") -> Iterator[KilledRun]:
    with contextlib.ExitStack() as stack:
        yield KilledRun(root, stack, victim, phase)


def make(root: Path, mode: str, **more: Any) -> None:
    every = {"unit": "step", "n": 4}
    make_job(root, PSERVERS, TRAINERS, mode=mode, ports_num=2, checkpoints=True, save_every=every, **more)


def assert_each_push_counts_once(root: Path) -> None:
    ids, values = load_model(root / "output" / f"pass-{PASSES - 1:05d}")["e"]
    expected = [1000 * rank + number for rank in range(TRAINERS) for number in range(PASSES * BATCHES)]
    assert sorted(ids.tolist()) == expected
    np.testing.assert_array_equal(values, np.ones_like(values))


@pytest.mark.parametrize(("phase", "mode"), [("make", "async"), *CASES])
def test_a_run_resumes_after_a_pserver_was_killed_in_a_cut(tmp_path: Path, mode: str, phase: str) -> None:
    make(tmp_path, mode)
    with killed_run(tmp_path, "pserver1", phase) as run:
        assert wait_until(lambda: run.servers[1].process.poll() is not None)
    assert len(run.complete) >= KILLED_AT_CUT - 1
    tag, step = max(run.complete.items(), key=lambda item: item[1])
    make(tmp_path, mode, recover={"tag": tag, "step": step})
    with killed_run(tmp_path) as again:
        again.finish()
    assert_each_push_counts_once(tmp_path)


@pytest.mark.parametrize(("phase", "mode"), CASES)
def test_a_run_goes_on_after_a_trainer_was_killed_in_a_cut(tmp_path: Path, mode: str, phase: str) -> None:
    make(tmp_path, mode)
    with killed_run(tmp_path, "trainer1", phase) as run:
        assert run.trainers[1].process.wait(DEADLINE_S) == -signal.SIGKILL
        run.trainers[1] = run.start_trainer(1, attempt=2)
        run.finish()
    assert len(run.complete) > KILLED_AT_CUT
    assert_each_push_counts_once(tmp_path)
