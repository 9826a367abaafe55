"""Machines that are switched off for good, the first one among them, and the keepers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from real.faults.laboratory import CONTROL, Laboratory
from real.faults.runs import Model, Run, assert_same, begin, dispatch, model_of

pytestmark = pytest.mark.faults


def start(lab: Laboratory) -> Run:
    """Start a run whose every piece has a copy, and return once there is a checkpoint that has."""
    run = begin(lab, dispatch(lab, COPIES=2))
    run.event("copied", node=0)
    return run


def finish(run: Run, lab: Laboratory, expected: Model) -> str:
    """Let an attached start end, and check that the result is that of an undisturbed run."""
    run.open_gate()
    out, err = run.starting.communicate(timeout=180)
    assert run.starting.returncode == 0, f"{out}\n{err}\n{lab.story(run.job)}"
    check(run, lab, expected)
    return out + err


def check(run: Run, lab: Laboratory, expected: Model) -> None:
    """Assert that a run has made the model of an undisturbed one, and that nothing is left."""
    assert_same(model_of(lab, run.job, may_lack_logs=True), expected)
    lab.boot()
    lab.assert_nothing_remains(half_written=False)


def test_a_run_goes_on_without_a_machine_that_is_switched_off(lab: Laboratory, expected: Model) -> None:
    run = start(lab)
    lab.machines[1].power_off()
    run.event("moved", role="pserver", rank=1)
    assert "node1 was lost: " in finish(run, lab, expected)
    assert run.events("rolled_back")


def test_a_run_outlives_its_first_machine_and_the_next_one_and_of_two_keepers_one_resumes_it(
    lab: Laboratory, expected: Model
) -> None:
    """The attached start is a keeper, too. Each time one of the two resumes the run, and the other follows."""
    run = start(lab)
    keeper = lab.popen("--json", "keep", run.job)
    lab.machines[0].power_off()
    second = replace(run, run="0002")
    copied = second.event("copied", node=1)
    assert copied["tag"] == lab.status(run.job)["resumed"]["tag"]
    lab.machines[1].power_off()
    output = finish(run, lab, expected)
    out, err = keeper.communicate(timeout=180)
    assert keeper.returncode == 0, out + err + output
    assert '"resumes": 2' in out
    runs = lab.job_dir(run.job, 2) / ".clusterctl/runs"
    assert sorted(path.name for path in runs.iterdir()) == ["0001", "0002", "0003"]
    said = output + err
    assert "run 1 was lost: node0 is lost" in said
    assert "resuming it on node[1-3]" in said
    assert "resuming it on node[2,3]" in said
    assert "the run has 2 of 2 pservers and 3 of 3 trainers" in said
    assert "made with" not in said


def test_a_keeper_on_the_wrong_side_of_a_cut_resumes_nothing_until_it_is_healed(
    lab: Laboratory, expected: Model
) -> None:
    """The first node and the keeper are cut off from the others."""
    run = start(lab)
    keeper = lab.popen("keep", run.job)
    assert keeper.stdout is not None
    assert "keeping" in keeper.stdout.readline()
    run.starting.kill()  # it would be a keeper, too, but not so patient
    run.starting.communicate()
    for node in ("node1", "node2", "node3"):
        for one in ("node0", CONTROL):
            lab.rule(one, node, loss=1)
            lab.rule(node, one, loss=1)
    assert "only 1 of 4 nodes are left" in run.cause()["message"]
    assert any("1 of its 4 nodes answer; more than half are needed" in line for line in keeper.stdout)
    lab.heal_network()
    run.open_gate()
    out, err = keeper.communicate(timeout=180)
    assert keeper.returncode == 0, f"{out}\n{err}\n{lab.story(run.job)}"
    assert "resuming it on node[0-3]" in out
    check(run, lab, expected)
    runs = lab.job_dir(run.job, 2) / ".clusterctl/runs"
    assert sorted(path.name for path in runs.iterdir()) == ["0001", "0002"]
