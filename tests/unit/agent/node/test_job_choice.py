"""The job that is meant when none is named, as one node sees it and as the answers of all nodes decide it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from clusterctl.agent.node.jobs import choose_job
from clusterctl.agent.node.locks import JobLock
from clusterctl.cluster import SeveralRunningError
from clusterctl.cluster import choose_job as choose_among
from clusterctl.common.errors import AgentError
from clusterctl.common.files import write_json
from clusterctl.common.paths import JobPaths
from clusterctl.common.procfs import identify
from unit.agent.specs import spec_json

A, B, C = "JOB20261121-081530", "JOB20261121-081531", "JOB20261121-081532"


def make(root: Path, name: str, ran: float | None = None) -> JobPaths:
    job = JobPaths(root / name)
    job.meta.mkdir(parents=True)
    write_json(job.record, {"job": name})
    if ran is not None:
        run = job.run("0001")
        run.dir.mkdir(parents=True)
        write_json(run.spec, spec_json(t=ran, mode="sync", engine="clusterctl"))
        os.utime(run.spec, (ran, ran))
        state: dict[str, Any] = {
            "processes": [],
            "ended": None,
            "phase": "running",
            "supervisor": identify(os.getpid()),
        }
        write_json(run.state, state)
    return job


def test_a_node_prefers_the_live_job_then_the_last_that_ran_then_the_newest(tmp_path: Path) -> None:
    make(tmp_path, A)
    make(tmp_path, C)
    assert choose_job(tmp_path, None)[0].dir.name == C
    make(tmp_path, B, ran=50.0)
    job, ran = choose_job(tmp_path, None)
    assert (job.dir.name, ran) == (B, [{"job": B, "t": 50.0, "live": False}])
    live = make(tmp_path, "JOB20261121-081529", ran=40.0)
    with JobLock(live):
        job, ran = choose_job(tmp_path, None)
        assert (job.dir.name, [one["live"] for one in ran]) == (live.dir.name, [True, False])
        assert choose_job(tmp_path, None, to_resume=True)[0].dir.name == B


def test_without_any_job_the_error_says_how_to_create_one(tmp_path: Path) -> None:
    with pytest.raises(AgentError) as raised:
        choose_job(tmp_path / "missing", None)
    assert "dispatch" in str(raised.value.hint)


def test_a_job_that_others_can_write_to_is_named_not_passed_over(tmp_path: Path) -> None:
    make(tmp_path, A, ran=1.0)
    make(tmp_path, B).dir.chmod(0o777)
    with pytest.raises(AgentError) as raised:
        choose_job(tmp_path, None)
    assert raised.value.kind == "refused"


def says(job: str, *ran: tuple[str, float, bool]) -> Any:
    return {"job": job, "ran": [{"job": name, "t": t, "live": live} for name, t, live in ran]}


def test_of_all_nodes_answers_the_live_job_counts_then_the_last_by_the_median_of_clocks() -> None:
    assert choose_among([says(C), says(A)]) == C
    assert choose_among([says(C), says(B, (B, 9.0, False))]) == B
    assert choose_among([says(C, (C, 99.0, False)), says(B, (B, 9.0, True))]) == B
    assert choose_among([says(C, (C, 99.0, False)), says(B, (B, 9.0, True))], to_resume=True) == C
    wrong_clock = says(A, (A, 1e9, False), (B, 1e9 + 1, False))
    others = [says(A, (A, 10.0, False), (B, 5.0, False))] * 2
    assert choose_among([wrong_clock, *others]) == A


def test_several_live_jobs_are_listed_newest_first() -> None:
    with pytest.raises(SeveralRunningError) as raised:
        choose_among([says(A, (A, 1.0, True)), says(B, (B, 1.0, True))])
    assert raised.value.jobs == [B, A]
    assert raised.value.exit_code == 2
