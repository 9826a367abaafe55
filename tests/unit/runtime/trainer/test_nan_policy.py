"""ON_NAN: a batch whose loss or gradient is not finite is reported, refused, or left out as if without samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import SGD, connect, zeros
from clusterctl.runtime.arrays import Floats
from clusterctl.runtime.errors import NotFiniteError, ProcessError
from clusterctl.runtime.supervisor_socket import SupervisorSocket
from clusterctl.runtime.trainer.nan_policy import NanPolicy
from clusterctl.runtime.trainer.packing import Gradient
from clusterctl.runtime.trainer.progress import ProgressReporter
from clusterctl.runtime.trainer.session import Session
from unit.runtime.cluster import thread_cluster

BATCHES = 6
Result = tuple[list[float], float]


def program(bad: dict[int, str], accumulate: int = 1, big: float = np.inf) -> Callable[[Session], Result]:
    """Batch n has gradient n + 1 and n + 1 samples, or in one element `big`, or a loss that is not a number."""

    def run(ps: Session) -> Result:
        w = ps.dense("w", 3, SGD(1.0), zeros())
        rows = ps.embedding("e", 2, SGD(1.0), zeros())
        for n in ps.steps(lambda pass_, rng: range(BATCHES), passes=1, accumulate=accumulate):
            what = bad.get(n, "") if ps.rank == ps.trainers - 1 else ""
            dense, sparse = np.full(3, n + 1, np.float32), np.full((1, 2), n + 1, np.float32)
            if what == "w":
                dense[1] = big
            elif what == "e":
                sparse[0, 1] = -big
            ps.push({w: dense, rows: ([7], sparse)}, samples=n + 1, loss=np.nan if what == "loss" else 1.0)
        return w.value.tolist(), float(rows.pull([7])[0, 0])

    return run


def expected(bad: dict[int, str], accumulate: int, trainers: int) -> float:
    """In float64, by definition: the mean over all samples that a step takes in."""
    value = 0.0
    for start in range(0, BATCHES, accumulate):
        taken = [n + 1 for n in range(start, start + accumulate) for _ in range(trainers - 1)]
        taken += [n + 1 for n in range(start, start + accumulate) if n not in bad]
        value -= sum(n * n for n in taken) / sum(taken) if taken else 0.0
    return value


@pytest.mark.parametrize(
    ("mode", "accumulate", "trainers", "bad"),
    [
        ("sync", 1, 2, {0: "loss", 1: "w", 5: "e"}),
        ("sync", 2, 2, {2: "w", 3: "e"}),
        ("async", 3, 1, {0: "loss", 1: "w", 5: "e"}),
        ("geo(4)", 1, 1, {2: "w", 3: "e"}),
    ],
)
def test_skip_treats_a_batch_as_if_it_had_no_samples(
    tmp_path: Path, mode: str, accumulate: int, trainers: int, bad: dict[int, str]
) -> None:
    with thread_cluster(tmp_path, 1, trainers, mode=mode, on_nan="skip") as cluster:
        results = cluster.train(program(bad, accumulate))
    value = expected(bad, accumulate, trainers)
    for dense, row in results:
        assert dense == pytest.approx([value] * 3, rel=1e-6)
        assert row == pytest.approx(value, rel=1e-6)


def test_a_gradient_that_float16_makes_infinite_is_left_out_too(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 1, 1, on_nan="skip", wire="float16") as cluster:
        ((dense, _),) = cluster.train(program({2: "w"}, big=65_520.0))
    assert dense == [expected({2: "w"}, 1, 1)] * 3


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_batches_whose_sum_is_too_large_are_left_out_together(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 1, 1, on_nan="skip") as cluster:
        ((dense, _),) = cluster.train(program({2: "w"}, accumulate=2, big=3e38))
    assert dense == pytest.approx([expected({2: "w", 3: "w"}, 2, 1)] * 3, rel=1e-6)


@pytest.mark.parametrize(
    ("what", "expected", "accumulate"),
    [("w", "the gradient of table 'w' of trainer 1", 2), ("loss", "the loss of trainer 1", 1)],
)
def test_fail_raises_an_error_that_names_trainer_table_pass_and_step(
    tmp_path: Path, what: str, expected: str, accumulate: int
) -> None:
    step = 2 // accumulate
    with (
        thread_cluster(tmp_path, 1, 2, on_nan="fail") as cluster,
        pytest.raises(NotFiniteError, match=rf"^{expected} is not finite \(pass 0, step {step}\); .*clip_by_norm"),
    ):
        cluster.train(program({2: what}, accumulate))


def test_local_mode_uses_an_environment_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSTERCTL_ON_NAN", "skip")
    with connect() as ps:
        assert program({1: "w", 2: "loss"})(ps)[0] == [expected({1: "", 2: ""}, 1, 1)] * 3
    assert "6 steps, 16 samples" in (out := capsys.readouterr().out)
    assert ", 2 batches skipped; " in out
    monkeypatch.setenv("CLUSTERCTL_ON_NAN", "fail")
    with connect() as ps, pytest.raises(NotFiniteError, match="table 'e' of trainer 0"):
        program({1: "e"})(ps)
    monkeypatch.setenv("CLUSTERCTL_ON_NAN", "stop")
    with pytest.raises(ProcessError, match="CLUSTERCTL_ON_NAN='stop' is not warn, fail or skip"):
        connect()


class Recorder(SupervisorSocket):
    def __init__(self) -> None:
        super().__init__(None)
        self.sent: list[dict[str, Any]] = []

    def send(self, event: str, **fields: Any) -> None:
        self.sent.append({"event": event, **fields})


@pytest.mark.parametrize(("policy", "action"), [("warn", "warned"), ("skip", "skipped"), ("fail", "failed")])
def test_the_event_reports_the_action_at_most_once_a_second(policy: str, action: str) -> None:
    supervisor, now = Recorder(), 100.0
    finite = NanPolicy(policy, 3, half=False, progress=ProgressReporter(supervisor), clock=lambda: now)
    for now in (100.0, 100.4, 101.1):  # noqa: B007 - the clock reads it
        if policy == "fail":
            with pytest.raises(NotFiniteError):
                finite.admits(7, Gradient(), float("nan"))
        else:
            assert finite.admits(7, Gradient(), float("-inf")) == (policy == "warn")
    events = [(e["event"], e["action"], e["step"], e["what"]) for e in supervisor.sent]
    assert events == [("nan", action, 7, "the loss of trainer 3")] * (3 if policy == "fail" else 2)
    assert [event["skipped"] for event in supervisor.sent][-1] == (3 if policy == "skip" else 0)
    assert finite.admits(8, Gradient(), 1.0)


class Large(Gradient):
    """A large gradient that is not finite."""

    def arrays(self) -> list[Floats]:
        return [np.zeros(300_000, np.float32)]

    def not_finite(self, half: bool = False) -> str:
        return "w"


def test_a_loss_alone_does_not_postpone_the_check_of_a_large_gradient() -> None:
    """In the outer mode the losses of inner steps are checked between the gradients of rounds."""
    supervisor, now = Recorder(), 100.0
    finite = NanPolicy("warn", 0, half=False, progress=ProgressReporter(supervisor), clock=lambda: now)
    assert finite.admits(7, Gradient(), 1.0)
    now = 100.1
    assert finite.admits(7, Large())
    assert [event["what"] for event in supervisor.sent] == ["the gradient of table 'w' of trainer 0"]
