"""A pserver that reads a checkpoint or a model from a slow disk: it is busy, and answers meanwhile."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.common.manifest import checkpoint_tag
from clusterctl.runtime import SGD, constant, save_model
from clusterctl.runtime.checkpoint.safetensors import TensorFile
from clusterctl.runtime.errors import ModelError
from clusterctl.runtime.pserver import process
from clusterctl.runtime.pserver.core import ServerCore
from clusterctl.runtime.pserver.lane_state import Output, Reply
from clusterctl.runtime.trainer.session import Session
from clusterctl.runtime.wire import messages as wire
from support.processes import wait_until
from unit.runtime.cluster import ThreadCluster, thread_cluster

EVERY = {"checkpoints": True, "save_every": {"unit": "step", "n": 3}}


class SlowDisk:
    """Calls of `read` wait until the test lets each go on, or `ends` the delays."""

    def __init__(self, read: Callable[..., Any]) -> None:
        self.reached, self.go_on = queue.SimpleQueue[bool](), queue.SimpleQueue[bool]()
        self.ended = False
        self._read = read

    def read(self, *args: Any) -> Any:
        if not self.ended:
            self.reached.put(True)
            self.go_on.get(timeout=180)
        return self._read(*args)

    def end(self) -> None:
        self.ended = True
        self.go_on.put(True)


class Asked:
    """A pserver that the test pings and probes."""

    def __init__(self, cluster: ThreadCluster) -> None:
        (self._pserver,) = cluster.pservers
        self._lane = cluster.lanes[0]
        self._pongs = queue.SimpleQueue[dict[str, Any]]()
        hear = self._pserver._send
        self._pserver._send = lambda event, facts: self._pongs.put(facts) if event == "pong" else hear(event, facts)

    def ping(self) -> dict[str, Any]:
        self._pserver.handle_command({"cmd": "ping"})
        return self._pongs.get(timeout=180)

    def standstill(self) -> dict[str, Any]:
        """Return the answer that no longer changes, as nothing is read."""
        answers = [self.ping()]
        assert wait_until(lambda: bool(answers.append(self.ping()) or answers[-1] == answers[-2]))  # type: ignore[func-returns-value]
        return answers[-1]

    def probe(self, attempt: int = 1) -> dict[str, Any]:
        answers = queue.SimpleQueue[Output]()

        def ask(core: ServerCore) -> list[Output]:
            [answer] = core.handle(0, wire.Message(wire.PROBE, 0, 99, attempt=attempt))
            answers.put(answer)
            return []

        self._lane.submit(ask, at_any_time=True)
        answer = answers.get(timeout=180)
        assert isinstance(answer, Reply)
        return answer.message.json()


def trains(passes: int) -> Callable[[Session], list[float]]:
    def run(ps: Session) -> list[float]:
        dense = ps.dense("w", (3, 2), SGD(1.0), init=constant(0.0))
        rows = ps.embedding("word", 2, SGD(0.5), init=constant(1.0))
        for _ in ps.steps(lambda pass_, rng: range(3), passes=passes):
            got = rows.pull([1, 5])
            ps.push({dense: np.ones((3, 2), np.float32), rows: ([1, 5], np.ones_like(got))}, samples=1)
        return [float(dense.value[0, 0]), float(rows.pull([5])[0, 0])]

    return run


def in_thread(train: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(train())
        except ModelError as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results


def test_a_pserver_that_reads_a_checkpoint_answers_and_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with thread_cluster(tmp_path, 1, 1, **EVERY) as cluster:
        cluster.train(trains(2))
    resume = {"run": "0001", "tag": checkpoint_tag(6), "step": 6, "pass": 1, "dir": "."}
    with thread_cluster(tmp_path, 1, 1, **EVERY, resume=resume) as cluster:
        disk, asked = SlowDisk(TensorFile.tensor), Asked(cluster)
        monkeypatch.setattr(TensorFile, "tensor", lambda *args: disk.read(*args))  # noqa: PLW0108 - a method
        assert asked.ping() == {}
        thread, results = in_thread(lambda: cluster.train(trains(3)))
        assert disk.reached.get(timeout=180)
        first, probed = asked.standstill(), asked.probe()
        assert list(first) == ["progress"]
        assert (len(probed["held"]), probed["waiting"], probed.get("saving")) == (1, [], None)
        disk.go_on.put(True)
        assert disk.reached.get(timeout=180)
        assert asked.ping() != first
        disk.end()
        thread.join(180)
        assert results == [[[-9.0, -3.5]]]
        assert asked.ping() == {}


@pytest.mark.parametrize("fails", [False, True])
def test_a_pserver_that_verifies_a_model_answers_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """All trainers wait for it, and all get its error."""

    def opened(*args: Any) -> Any:
        if fails:
            raise ModelError("the model is damaged")
        return open_saved_model(*args)

    open_saved_model = process.open_saved_model  # type: ignore[attr-defined]
    disk = SlowDisk(opened)
    monkeypatch.setattr(process, "open_saved_model", disk.read)
    save_model(tmp_path / "made", {"w": np.full((3, 2), 4.0)})
    with thread_cluster(tmp_path, 1, 2) as cluster:
        asked = Asked(cluster)
        thread, results = in_thread(lambda: cluster.train(trains(1), load="made"))
        assert disk.reached.get(timeout=180)
        assert "progress" in asked.standstill()
        assert wait_until(lambda: len(asked.probe()["held"]) == 1)
        disk.end()
        thread.join(180)
        [result] = results
        assert "damaged" in str(result) if fails else result == [[1.0, -0.5]] * 2
