"""A sweep: how many runs go on at a time, what each becomes, and what stops them. The jobs are made up."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import clusterctl
from clusterctl.api.sweep import Sweep, TrialOptions, run_name, split
from clusterctl.errors import NodeError, UsageError, WaitTimeoutError

WAIT_S = 30.0


class MadeUpRun:
    """A run that ends once the test lets it, or when it is stopped."""

    def __init__(self, job: MadeUpJob) -> None:
        self.id = f"{job.id}/1"
        self._job = job
        self._over = threading.Event()
        self._state = "succeeded"

    def end(self, state: str = "succeeded") -> None:
        self._state = state
        self._over.set()

    def wait(self, timeout: float | None, *, check: bool) -> Any:
        assert not check
        if not self._over.wait(WAIT_S if timeout is None else timeout):
            raise WaitTimeoutError("it has not ended")
        outcome = SimpleNamespace(state=self._state, ok=self._state == "succeeded", seconds=1.0, cause=None)
        return SimpleNamespace(**vars(outcome), job=self._job.id, run=1)

    def stop(self) -> None:
        if self._job.cannot_stop:
            raise NodeError("it cannot be stopped")
        self.end("stopped")

    def collect(self, directory: Path) -> Path:
        return directory


class MadeUpJob:
    def __init__(self, id_: str, *, refused: bool = False) -> None:
        self.id = id_
        self.given: tuple[list[str], Mapping[str, object], str | None] | None = None
        self.started = threading.Event()
        self.cannot_stop = False
        self.refused = refused
        self.live = MadeUpRun(self)

    def start(self, args: list[str], *, set: Mapping[str, object], name: str | None) -> MadeUpRun:
        self.given = (args, set, name)
        if self.refused:
            raise UsageError("it cannot be started")
        self.started.set()
        return self.live

    def is_started(self) -> bool:
        return self.started.wait(0.2)


def sweep_of(jobs: list[MadeUpJob], most: int = 1, **options: Any) -> Sweep:
    planned = cast("Any", [({"lr": number}, job) for number, job in enumerate(jobs)])
    return Sweep(planned, most, lambda job: {"loss": 0.5}, TrialOptions(**options))


def made_up(count: int) -> list[MadeUpJob]:
    return [MadeUpJob(f"JOB{number}") for number in range(count)]


def test_so_many_runs_go_on_at_a_time_and_results_come_as_they_end() -> None:
    jobs = made_up(3)
    sweep = sweep_of(jobs, most=2)
    assert not jobs[0].is_started()  # nothing starts before somebody iterates
    jobs[1].live.end()
    trials = iter(sweep)
    assert next(trials).job.id == "JOB1"
    assert jobs[2].started.wait(WAIT_S)
    jobs[2].live.end()
    assert next(trials).job.id == "JOB2"
    jobs[0].live.end()
    assert [trial.job.id for trial in trials] == ["JOB0"]
    assert [trial.job.id for trial in sweep.trials] == ["JOB0", "JOB1", "JOB2"]
    assert [trial.job.id for trial in sweep] == ["JOB1", "JOB2", "JOB0"]  # once more, without a run


def test_no_more_runs_go_on_than_were_wanted() -> None:
    jobs = made_up(2)
    trials = iter(sweep_of(jobs))
    waiting = threading.Thread(target=lambda: next(trials))
    waiting.start()
    assert jobs[0].is_started()
    assert not jobs[1].is_started()
    jobs[0].live.end()
    waiting.join()
    assert jobs[1].started.wait(WAIT_S)


def test_a_run_that_fails_or_cannot_start_does_not_stop_the_others() -> None:
    jobs = [MadeUpJob("JOB0"), MadeUpJob("JOB1", refused=True), MadeUpJob("JOB2")]
    jobs[0].live.end("failed")
    jobs[2].live.end()
    first, second, third = sweep_of(jobs)
    assert (first.ok, str(first.error)) == (False, "JOB0 run 1 failed")
    assert (second.run, second.outcome, str(second.error)) == (None, None, "it cannot be started")
    assert (third.ok, third.values) == (True, {"loss": 0.5})


def test_the_table_has_settings_and_results_in_the_order_of_the_settings() -> None:
    jobs = [MadeUpJob("JOB0"), MadeUpJob("JOB1", refused=True)]
    jobs[0].live.end()
    assert sweep_of(jobs, most=2).table() == [
        {"lr": 0, "run": "JOB0/1", "state": "succeeded", "seconds": 1.0, "loss": 0.5},
        {"lr": 1, "run": None, "state": "failed", "seconds": None},
    ]


def test_a_run_gets_its_arguments_after_those_of_all_and_is_collected_under_its_job(tmp_path: Path) -> None:
    job = MadeUpJob("JOB0")
    job.live.end()
    (trial,) = sweep_of([job], args=["--passes=2"], collect=tmp_path)
    assert job.given == (["--passes=2", "--lr=0"], {}, "lr=0")
    assert trial.collected == tmp_path / "JOB0"


def test_a_run_that_takes_too_long_is_stopped() -> None:
    job = MadeUpJob("JOB0")
    (trial,) = sweep_of([job], timeout=0.01)
    assert isinstance(trial.error, clusterctl.WaitTimeoutError)
    assert job.live.wait(None, check=False).state == "stopped"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_exception_in_the_loop_stops_what_runs_and_starts_no_more(error: type[BaseException]) -> None:
    jobs = made_up(4)
    jobs[0].live.end()

    def leave() -> None:
        with sweep_of(jobs, most=2) as sweep:
            for _ in sweep:
                assert jobs[1].started.wait(WAIT_S)
                raise error

    with pytest.raises(error):
        leave()
    assert jobs[1].live.wait(None, check=False).state == "stopped"
    assert not jobs[3].started.is_set()


def test_leaving_the_loop_early_stops_what_runs() -> None:
    jobs = made_up(2)
    jobs[0].live.end()
    for _ in sweep_of(jobs, most=2):
        break
    assert jobs[1].live.wait(None, check=False).state == "stopped"


def test_a_stop_raises_if_a_run_may_still_be_there() -> None:
    jobs = made_up(2)
    jobs[0].live.end()
    jobs[1].cannot_stop = True
    sweep = sweep_of(jobs, most=2)
    trials: Iterator[Any] = iter(sweep)
    next(trials)
    assert jobs[1].started.wait(WAIT_S)
    threading.Timer(0.2, jobs[1].live.end).start()
    with pytest.raises(NodeError, match="cannot be stopped"):
        sweep.stop()


def test_names_in_upper_case_are_settings_and_all_others_arguments() -> None:
    assert split({"lr": 0.1, "MODE": "async", "KEEP": 3}) == (["--lr=0.1"], {"MODE": "async", "KEEP": 3})
    assert run_name({"lr": 0.1, "MODE": "async"}) == "lr=0.1+MODE=async"
    assert run_name({"words": "a b"}) is None
    for name in ("", "--lr", "lr=1"):
        with pytest.raises(UsageError, match="not the name"):
            split({name: 1})
