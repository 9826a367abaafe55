"""kill -9, SIGSTOP and power failures: the outcome of the run, and no process left anywhere."""

from __future__ import annotations

import time

import pytest

from real.faults.laboratory import Laboratory
from real.faults.runs import Model, assert_same, model_of, resume, start

pytestmark = pytest.mark.faults


def test_a_run_waits_for_a_stopped_process_and_restarts_killed_ones_and_the_model_is_the_same(
    lab: Laboratory, expected: Model
) -> None:
    run = start(lab)
    run.reach(20)
    with lab.paused("pserver0"):
        time.sleep(2.5)  # less than NODE_GRACE_S
    run.reach(40)
    assert run.events("restarting") == run.events("rolled_back") == run.events("lost") == []
    lab.kill("trainer1")
    run.event("restarting", role="trainer", rank=1)
    run.reach(70)
    lab.kill("pserver1")
    run.event("rolled_back")
    run.succeeds()
    assert_same(model_of(lab, run.job), expected)


@pytest.mark.parametrize(
    ("node", "state", "how"), [(3, "failed", "off"), (0, "lost", "killed")], ids=["node is off", "lead is killed"]
)
def test_a_lost_node_ends_the_run_everywhere_and_it_can_be_resumed(
    lab: Laboratory, expected: Model, node: int, state: str, how: str
) -> None:
    run = start(lab, ON_NODE_LOSS="fail")
    run.reach(50)
    if how == "off":
        lab.machines[node].power_off()
    else:
        lab.kill(f"supervisor{node}")
    lab.wait_for_end(run.job)
    lab.boot()
    output = run.ends(state, 1, half_written=how != "off")
    assert f"first cause: node{node} is lost" in output
    lab.ok("stop", run.job)
    lab.assert_nothing_remains()
    resume(lab, run.job).succeeds()
    assert_same(model_of(lab, run.job), expected)


def test_a_lead_that_was_stopped_for_too_long_finds_the_run_over_and_exits(lab: Laboratory) -> None:
    run = start(lab, ON_NODE_LOSS="fail")
    run.reach(50)
    with lab.paused("supervisor0"):
        run.event("ended", node=1)
        time.sleep(1)  # it wakes after all others have gone
    run.fails()
    assert lab.ok("why", run.job, "--json").json()["cause"]["node"] == 0


def test_a_supervisor_that_was_stopped_for_too_long_finds_its_processes_elsewhere_and_is_a_spare(
    lab: Laboratory, expected: Model
) -> None:
    run = start(lab)
    run.reach(50)
    with lab.paused("supervisor3"):
        run.event("moved", role="trainer", rank=2)
    run.event("rejoined", node=3)
    run.succeeds()
    assert_same(model_of(lab, run.job), expected)
