"""Machines that are switched off for good, the first one among them, and the keepers."""

from __future__ import annotations

import pytest

from clusterctl.runtime import load_model
from real.faults.laboratory import Laboratory
from real.faults.runs import Model, Run, assert_same, begin, dispatch

pytestmark = pytest.mark.faults


def start(lab: Laboratory, *options: str) -> Run:
    """Start a run whose every piece has a copy, and return once there is a checkpoint that has."""
    run = begin(lab, dispatch(lab, COPIES=2), *options)
    run.event("copied", node=0)
    return run


def finish(run: Run, lab: Laboratory, expected: Model) -> str:
    """Wait for the end of an attached start, and check that the result is that of an undisturbed run."""
    out, err = run.starting.communicate(timeout=180)
    assert run.starting.returncode == 0, f"{out}\n{err}\n{lab.story(run.job)}"
    collected = lab.run("collect", run.job, "-o", "home")
    assert collected.code in (0, 3), collected.err  # logs of machines that are off are missing
    assert_same(load_model(lab.directory / "home/model"), expected)
    lab.boot()
    lab.assert_nothing_remains(half_written=False)
    return out + err


@pytest.mark.parametrize("node", [1, 3], ids=["with a pserver", "with a trainer"])
def test_a_run_goes_on_without_a_machine_that_is_switched_off(lab: Laboratory, expected: Model, node: int) -> None:
    run = start(lab)
    lab.machines[node].power_off()
    run.event("moved", role="trainer", rank=node - 1)
    assert f"node{node} was lost: " in finish(run, lab, expected)
    assert bool(run.events("rolled_back")) == (node == 1)


def test_an_attached_start_resumes_a_run_whose_first_machine_is_switched_off(lab: Laboratory, expected: Model) -> None:
    run = start(lab)
    lab.machines[0].power_off()
    output = finish(run, lab, expected)
    assert "resuming it on node[1-3]" in output
    assert "the run has 2 of 2 pservers and 3 of 3 trainers" in output
    assert "made with" not in output
    assert "node0 is lost" in output


def test_a_run_that_was_resumed_without_its_first_machine_may_lose_the_next_one_at_once(
    lab: Laboratory, expected: Model
) -> None:
    run = start(lab)
    lab.machines[0].power_off()
    second = Run(lab, run.job, run.starting, "0002")
    copied = second.event("copied", node=1)
    assert copied["tag"] == lab.status(run.job)["resumed"]["tag"]
    lab.machines[1].power_off()
    output = finish(run, lab, expected)
    assert "resuming it on node[2,3]" in output


def test_of_two_keepers_one_resumes_the_run_and_the_other_follows_it(lab: Laboratory, expected: Model) -> None:
    run = start(lab)
    keeper = lab.popen("--json", "keep", run.job)
    lab.machines[0].power_off()
    output = finish(run, lab, expected)
    out, err = keeper.communicate(timeout=180)
    assert keeper.returncode == 0, out + err + output
    assert '"resumes": 1' in out
    assert sorted(path.name for path in (lab.job_dir(run.job, 1) / ".clusterctl/runs").iterdir()) == ["0001", "0002"]
