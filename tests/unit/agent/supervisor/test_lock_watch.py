"""A supervisor ends when another machine has taken its job over, whatever its own lock is worth there."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.agent.node.locks import JobLock
from clusterctl.agent.supervisor.exits import signal_from_outside
from clusterctl.agent.supervisor.watchdog import LockWatch
from clusterctl.common.paths import JobPaths


class Watched:
    """A watch of a lock that this process holds; `ended` are the signals that it sends to itself."""

    def __init__(self, job: JobPaths, fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.job = job
        self.events: list[Any] = []
        self.ended: list[int] = []
        monkeypatch.setattr(os, "kill", lambda pid, number: self.ended.append(number))
        self.run = job.run("0001")
        self.run.dir.mkdir(parents=True)
        self.watch = LockWatch(self.run, fd, lambda event, child=None: self.events.append(event))

    def look(self) -> list[int]:
        self.watch.look()
        return self.ended


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    job = JobPaths(tmp_path / "JOB")
    job.meta.mkdir(parents=True)
    with JobLock(job) as fd:
        made = Watched(job, fd, monkeypatch)
        assert made.look() == []
        yield made


def test_a_name_written_over_ours_ends_the_run_here_once(watched: Watched) -> None:
    """As by a machine that its lock does not reach."""
    watched.job.lock.write_text('{"pid": 1, "ticks": 2, "boot": "x", "host": "n7"}')
    assert watched.look() == [signal.SIGTERM]
    assert "another machine has taken this job over" in watched.events[0]["message"]
    assert signal_from_outside(watched.run, signal.SIGTERM) is None
    assert watched.look() == [signal.SIGTERM]


def test_so_does_another_lock_in_its_place(watched: Watched) -> None:
    watched.job.lock.unlink()
    assert watched.look() == [], "somebody has removed the files of the job"
    with JobLock(watched.job):
        assert watched.look() == [signal.SIGTERM]


def test_a_lock_that_cannot_be_read_any_more_counts_as_removed(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(fd: int) -> Any:
        raise OSError(116, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", stale)
        ended = watched.look()
    assert ended == [signal.SIGTERM]


def test_without_a_lock_nothing_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Watched(JobPaths(tmp_path), -1, monkeypatch).look() == []
