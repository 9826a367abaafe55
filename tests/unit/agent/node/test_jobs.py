"""Finding a node's jobs by name, and the state that the node reports for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from clusterctl.agent.node import jobs
from clusterctl.agent.node.jobs import find_job, processes_now, run_state
from clusterctl.agent.node.runs import describe_dispatched, describe_run, find_run, list_jobs, mark_ended
from clusterctl.agent.operations.names import find_named
from clusterctl.common.errors import AgentError
from clusterctl.common.files import read_json, write_json
from clusterctl.common.paths import JobPaths, RunPaths, is_job_id
from clusterctl.common.procfs import identify
from unit.agent.specs import spec_json

FIRST, SECOND = "JOB20261121-081530", "JOB20261121-081530-2"
ME = identify(os.getpid())
GONE = (2**22 + 1, 1, "boot")
ENDED = {"state": "succeeded", "cause": None}


def describe(job: JobPaths, name: str | None = None, *, over: bool = False) -> dict[str, Any]:
    found = find_run(job, name)
    return describe_dispatched(job) if found is None else describe_run(*found, over=over)


def make(root: Path, *names: str) -> None:
    for name in names:
        JobPaths(root / name).meta.mkdir(parents=True)
        write_json(JobPaths(root / name).record, {"job": name})


def begin(root: Path, **state: Any) -> RunPaths:
    make(root, FIRST)
    run = JobPaths(root / FIRST).run("0001")
    run.dir.mkdir(parents=True)
    write_json(run.spec, spec_json(t=1.0, mode="sync", engine="clusterctl"))
    write_json(run.state, {"processes": [], "supervisor": ME, "ended": None, "phase": None, **state})
    return run


def process(state: str, identity: Any = ME) -> dict[str, Any]:
    return {"role": "trainer", "rank": 0, "state": state, "identity": identity, "cpu": 0.5, "memory": 1}


def test_a_job_is_found_by_id_prefix_or_directory(tmp_path: Path) -> None:
    make(tmp_path, FIRST, SECOND, "JOB20251231-000000")
    for ref, name in (
        (FIRST, FIRST),
        ("JOB2025", "JOB20251231-000000"),
        (str(tmp_path / FIRST), FIRST),
        (f"{tmp_path}/x/../{FIRST}/", FIRST),
    ):
        assert find_job(tmp_path, ref).dir == tmp_path / name


@pytest.mark.parametrize(("ref", "kind"), [("JOB2026", "usage"), ("JOB1999", "no_job"), ("/nowhere/JOB1", "no_job")])
def test_a_name_that_matches_no_job_or_several_is_an_error(tmp_path: Path, ref: str, kind: str) -> None:
    make(tmp_path, FIRST, SECOND)
    with pytest.raises(AgentError) as raised:
        find_job(tmp_path, ref)
    assert raised.value.kind == kind


def test_a_job_reached_through_a_link_is_the_same_job(tmp_path: Path) -> None:
    """Its processes are found by CLUSTERCTL_JOB_DIR, which must not depend on the path used to ask."""
    make(tmp_path / "real", FIRST)
    (tmp_path / "link").symlink_to("real")
    assert find_job(tmp_path / "real", str(tmp_path / "link" / FIRST)).dir == find_job(tmp_path / "real", FIRST).dir


@pytest.mark.parametrize(
    ("state", "seen"),
    [
        ({"supervisor": None}, "lost"),
        ({"supervisor": GONE}, "lost"),
        ({"supervisor": GONE, "ended": ENDED}, "succeeded"),
        ({"phase": "gathering"}, "starting"),
        ({"phase": "running"}, "running"),
        ({"phase": "running", "away": True}, "lost"),
        ({"processes": [process("starting")]}, "starting"),
    ],
)
def test_a_state_file_alone_is_never_trusted(tmp_path: Path, state: dict[str, Any], seen: str) -> None:
    run = begin(tmp_path)
    assert run_state(run, {"processes": [], "supervisor": ME, "ended": None, "phase": None, **state}) == seen


def test_the_word_of_a_scheduler_counts_more_than_a_pid_of_another_machine(tmp_path: Path) -> None:
    """A job that is over may have left locks, and pids that are those of other processes by now."""
    run = begin(tmp_path, phase="running", processes=[process("running"), process("failed", GONE)])
    assert describe(run.job)["state"] == "running"
    seen = describe(run.job, over=True)
    assert seen["state"] == "lost"
    assert [(p["state"], p["cpu"]) for p in seen["processes"]] == [("lost", None), ("failed", 0.5)]
    write_json(run.state, {"processes": [], "supervisor": ME, "ended": ENDED})
    assert describe(run.job, over=True)["state"] == "succeeded"


def test_processes_reported_as_alive_are_verified() -> None:
    state = {"supervisor": ME, "processes": [process("running"), process("running", GONE), process("failed", GONE)]}
    assert [p["state"] for p in processes_now(state, False)] == ["running", "lost", "failed"]
    assert processes_now(state, False)[1]["cpu"] is None
    lost = {"supervisor": GONE, "processes": [process("waiting", None), process("running")]}
    assert [p["state"] for p in processes_now(lost, True)] == ["lost", "running"]
    assert all("identity" not in p for p in processes_now(state, False))


def test_a_run_that_ends_during_the_check_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor writes its last state and exits after we read its state, but before we look for it."""
    run = begin(tmp_path, phase="running")

    def leaves(who: object) -> bool:
        write_json(run.state, {**read_json(run.state), "ended": ENDED})
        return False

    monkeypatch.setattr(jobs, "is_alive", leaves)
    assert describe(run.job)["state"] == "succeeded"


def test_a_run_without_a_final_state_gets_one(tmp_path: Path) -> None:
    run = begin(tmp_path, supervisor=GONE, processes=[process("running", GONE), process("failed", GONE)])
    mark_ended(run, "stopped", "stopped by the user")
    seen = describe(run.job)
    assert (seen["state"], seen["ended"]["cause"]["message"]) == ("stopped", "stopped by the user")
    assert [p["state"] for p in seen["processes"]] == ["stopped", "failed"]
    assert run.events.read_text().count('"ended"') == 1


def test_a_dropped_cut_is_shown_while_the_run_is_live(tmp_path: Path) -> None:
    dropped = {"t": 5.0, "message": "not this time", "trainers": [1], "saves": ["model"]}
    run = begin(tmp_path, phase="running", cut_dropped=dropped)
    assert describe(run.job)["cut_dropped"] == dropped
    write_json(run.state, {**(read_json(run.state) or {}), "supervisor": GONE})
    assert "cut_dropped" not in describe(run.job), "the lead was killed"


def test_a_listed_run_has_its_name_its_arguments_its_duration_and_the_figures_of_its_trainers(tmp_path: Path) -> None:
    metrics = {"acc": [0.5, 0.25, 0.75]}
    run = begin(
        tmp_path,
        ended={**ENDED, "t": 8.5},
        processes=[
            {**process("succeeded"), "loss": 0.5, "metrics": metrics, "step": 7},
            {**process("succeeded"), "rank": 1},
            {**process("succeeded"), "role": "pserver", "loss": 9.0},
        ],
    )
    best = {"name": "acc", "direction": "max"}
    words = {"name": "lr-0.1", "arguments": ["--token", "x"], "env": {"TOKEN": "y"}, "keep_best": best}
    write_json(run.spec, spec_json(t=1.0, **words))
    (listed,) = list_jobs(tmp_path)[0]["runs"]
    assert listed == {
        **{"run": "0001", "state": "succeeded", "started": 1.0, "members": None, "left_out": [], "seconds": 7.5},
        **words,
        "trainers": [{"loss": 0.5, "metrics": metrics}],
    }
    assert describe(run.job)["name"] == "lr-0.1"


def test_runs_are_found_by_the_name_they_were_given_unless_a_job_is_meant(tmp_path: Path) -> None:
    first = begin(tmp_path)
    second = first.job.run("0002")
    second.dir.mkdir()
    write_json(first.spec, spec_json(t=1.0, name="lr-0.1"))
    write_json(second.spec, spec_json(t=2.0, name="lr-0.01", arguments=["lr-0.1"]))
    first.job.run("0003").dir.mkdir()  # of a start that was killed
    peer: Any = None

    def named(ref: str) -> Any:
        return find_named(tmp_path, {"ref": ref}, peer)

    assert named("lr-0.1") == {"job": None, "runs": [{"job": FIRST, "run": "0001", "t": 1.0}]}
    assert named("lr-0.01") == {"job": None, "runs": [{"job": FIRST, "run": "0002", "t": 2.0}]}
    assert named("lr") == {"job": None, "runs": []}
    assert named(FIRST[:6]) == named(str(tmp_path / FIRST)) == {"job": FIRST, "runs": []}


@pytest.mark.parametrize("text", ["", '{"node": "first"}', '{"node": 0, "members": 3}'])
def test_a_damaged_spec_affects_only_its_own_run(tmp_path: Path, text: str) -> None:
    run = begin(tmp_path, ended=ENDED)
    newer = run.job.run("0002")
    newer.dir.mkdir()
    newer.spec.write_text(text)
    write_json(newer.state, {"processes": [], "supervisor": GONE, "ended": None, "phase": None})
    assert [(known["run"], known["state"]) for known in list_jobs(tmp_path)[0]["runs"]] == [
        ("0001", "succeeded"),
        ("0002", "lost"),
    ]
    assert describe(run.job, "0001")["state"] == "succeeded"
    with pytest.raises(AgentError, match=r"0002/spec\.json is"):
        describe(run.job)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("JOB20261121-081530", True),
        ("JOB20261121-081530-", False),
        ("JOB2026112x-081530", False),
        ("JOB\u0662\u0660\u0662\u0666\u0661\u0661\u0662\u0661-081530", False),
    ],
)
def test_job_ids_are_distinguished_from_other_names(name: str, is_one: bool) -> None:
    assert is_job_id(name) is is_one
