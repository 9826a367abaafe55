"""Waiting for the run of a scheduler's job, which may end just before it is found."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.cli.commands import scheduled
from clusterctl.errors import ClusterctlError, NodeError
from clusterctl.schedulers import NoRunError, ScheduledJob


def job(stage: str) -> ScheduledJob:
    return ScheduledJob("Slurm", "12", stage)


def waiting(outcomes: Iterator[Any], stage: str | None, notes: list[str]) -> Any:
    """Wait for the first outcome that is no error. The scheduler says `stage` when it is asked again."""

    def find() -> Any:
        outcome = next(outcomes)
        if isinstance(outcome, ClusterctlError):
            raise outcome
        return outcome

    watch = None if stage is None else SimpleNamespace(again=lambda: job(stage))
    invocation: Any = SimpleNamespace(scheduled=watch, console=SimpleNamespace(note=notes.append))
    return scheduled.once_it_runs(invocation, find)


def test_it_waits_until_there_is_a_run_and_says_once_why(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    notes: list[str] = []
    monkeypatch.setattr(scheduled.time, "sleep", slept.append)
    queued = NoRunError(job("queued"))
    assert waiting(iter([queued, queued, "run"]), "running", notes) == "run"
    assert (len(slept), notes) == (2, [queued.message])


def test_a_job_that_ends_meanwhile_is_looked_for_once_more() -> None:
    gone = NodeError("there is no allocation")
    assert waiting(iter([gone, "run"]), "ended", []) == "run"
    with pytest.raises(NodeError):
        waiting(iter([gone, gone, "run"]), "ended", [])


@pytest.mark.parametrize("stage", ["running", None])
def test_other_errors_of_nodes_are_raised(stage: str | None) -> None:
    with pytest.raises(NodeError, match="down"):
        waiting(iter([NodeError("down"), "run"]), stage, [])


def test_a_job_that_ends_without_a_run_is_not_waited_for() -> None:
    with pytest.raises(NoRunError):
        waiting(iter([NoRunError(job("ended"))]), "ended", [])
