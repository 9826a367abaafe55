"""The exit code of a rank, from what the supervisor of its node writes down."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from clusterctl.common.files import write_json
from clusterctl.common.procfs import Identity, identify
from clusterctl.ranks.node_run import NodeRun, exit_code, is_cause, outcome


def last_state(state: str, *codes: int | None, **cause: Any) -> dict[str, Any]:
    processes = [{"role": "trainer", "rank": 4 + at, "exit_code": code} for at, code in enumerate(codes)]
    server = {"role": "pserver", "rank": 4, "exit_code": 9}
    return {"ended": {"state": state, "cause": cause or None}, "processes": [server, *processes]}


@pytest.mark.parametrize(
    ("state", "code", "expected"),
    [
        ("succeeded", 0, 0),
        ("failed", 3, 3),
        ("failed", -9, 137),
        ("stopped", -15, 143),
        ("failed", 0, 1),
        ("stopped", None, 1),
    ],
)
def test_a_rank_ends_as_its_trainer_did_and_with_0_only_if_the_run_succeeded(
    state: str, code: int | None, expected: int
) -> None:
    assert exit_code(last_state(state, code), 4) == expected


def test_the_trainer_is_found_by_its_rank() -> None:
    state = last_state("failed", 0, -11)
    assert [exit_code(state, rank) for rank in (4, 5, 6)] == [1, 139, 1]


def test_the_cause_is_told_from_what_it_caused() -> None:
    state = last_state("failed", 3, -15, role="trainer", rank=4, message="exited with code 3")
    assert [is_cause(state, rank) for rank in (4, 5)] == [True, False]
    assert not is_cause(last_state("failed", 3, role="pserver", rank=4, message="x"), 4)
    assert not is_cause(last_state("succeeded", 0), 4)


def test_the_outcome_has_its_reason() -> None:
    assert outcome(last_state("succeeded", 0)) == "succeeded"
    cause = {"role": "trainer", "rank": 4, "node": 2, "message": "exited with code 3"}
    assert outcome(last_state("failed", 3, **cause)) == "failed: trainer4@node2 exited with code 3"
    assert outcome(last_state("stopped", 3, message="stopped by the user")) == "stopped: stopped by the user"
    assert outcome(last_state("lost", 3)) == "lost"


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    (tmp_path / ".clusterctl/runs/0001").mkdir(parents=True)
    return tmp_path


def write_state(job_dir: Path, supervisor: Identity | None, ended: dict[str, Any] | None = None) -> None:
    state = {"supervisor": supervisor, "ended": ended, "processes": []}
    write_json(job_dir / ".clusterctl/runs/0001/state.json", state)


DEAD = Identity(1, 1, "an earlier boot")


def test_a_run_whose_supervisor_is_gone_without_an_end_is_lost(job_dir: Path) -> None:
    node = NodeRun(job_dir)
    write_state(job_dir, identify(os.getpid()))
    assert (node.is_lost(), node.is_over()) == (False, False)
    write_state(job_dir, DEAD)
    assert (node.is_lost(), node.is_over()) == (True, True)
    write_state(job_dir, DEAD, {"state": "failed"})
    assert (node.is_lost(), node.is_over()) == (False, True)
    assert node.ended() is not None
