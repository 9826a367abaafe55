"""kill -9 and SIGSTOP on real machines: what becomes of the run, and that no process is left anywhere."""

from __future__ import annotations

import time

import pytest

from faults import runs
from faults.laboratory import Laboratory
from faults.runs import Model, assert_same, model_of, resume, start

pytestmark = pytest.mark.faults


@pytest.mark.parametrize(("victim", "what"), [("trainer1", "restarting"), ("pserver1", "rolled_back")])
def test_a_killed_process_begins_again_and_the_model_is_the_same(
    lab: Laboratory, expected: Model, victim: str, what: str
) -> None:
    run = start(lab)
    run.reach(30)
    lab.kill(victim)
    run.event(what)
    run.succeeds()
    assert_same(model_of(lab, run.job), expected)


def test_a_killed_supervisor_is_a_lost_node(lab: Laboratory, expected: Model) -> None:
    run = start(lab)
    run.reach(30)
    lab.kill("supervisor3")
    said = run.fails()
    assert "node3" in said
    assert run.cause()["node"] == 3
    again = resume(lab, run.job)
    again.succeeds()
    assert_same(model_of(lab, run.job), expected)


def test_without_its_lead_a_run_ends_everywhere_and_can_be_resumed(lab: Laboratory, expected: Model) -> None:
    run = start(lab)
    run.reach(50)
    lab.kill("supervisor0")
    said = run.ends("lost", 1)
    assert "lost" in said
    lab.ok("stop", run.job)
    again = resume(lab, run.job)
    again.succeeds()
    assert_same(model_of(lab, run.job), expected)


def test_a_pserver_that_stops_for_a_while_is_waited_for(lab: Laboratory, expected: Model) -> None:
    run = start(lab)
    run.reach(30)
    with lab.paused("pserver0"):
        time.sleep(2.5)  # less than NODE_GRACE_S
    run.succeeds()
    assert run.events("restarting") == run.events("rolled_back") == run.events("lost") == []
    assert_same(model_of(lab, run.job), expected)


def test_a_machine_that_is_switched_off_is_lost_and_the_run_can_be_resumed_when_it_is_back(
    lab: Laboratory, expected: Model
) -> None:
    run = start(lab)
    run.reach(50)
    lab.machines[3].power_off()
    assert run.event("lost", node=3)
    said = run.fails()
    assert "node3 is lost" in said
    lab.boot()
    resume(lab, run.job).succeeds()
    assert_same(model_of(lab, run.job), expected)


def test_the_leads_machine_may_go_too(lab: Laboratory, expected: Model) -> None:
    run = start(lab)
    run.reach(50)
    lab.machines[0].power_off()
    lab.wait_for_end(run.job, 30)
    lab.boot()
    run.ends("lost", 1)
    lab.ok("stop", run.job)
    runs.resume(lab, run.job).succeeds()
    assert_same(model_of(lab, run.job), expected)
