"""ON_TRAINER_LOSS: a run that continues without a node, and one that waits for it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from real.faults.laboratory import Laboratory
from real.faults.runs import Model, assert_same, begin, dispatch, model_of, start

pytestmark = pytest.mark.faults


def test_a_run_that_may_shrink_continues_without_a_node_of_trainers_and_reports_the_skipped_samples(
    lab: Laboratory, expected: Model
) -> None:
    run = begin(lab, dispatch(lab, ON_TRAINER_LOSS="shrink"))
    run.reach(100)  # in pass 2
    lab.machines[3].power_off()
    lost = run.event("lost", role="trainer", rank=2)
    assert lost["node"] == 3
    run.open_gate()
    out, err = run.starting.communicate(timeout=180)
    lab.wait_for_end(run.job)
    assert run.starting.returncode == 0, f"{out}\n{err}\n{lab.story(run.job)}"
    assert run.event("ended", node=0)["state"] == "succeeded"
    lab.boot()
    output = lab.ok("logs", run.job, "--role", "pserver").out
    assert re.search(r"continues without trainer 2, which gave 320 of 640 samples of pass 2: the rest", output), output
    np.testing.assert_allclose(model_of(lab, run.job)["w"], expected["w"], atol=0.1)  # it has learnt the same thing
    lab.assert_nothing_remains(half_written=False)


def test_a_run_that_waits_continues_when_a_cut_is_healed(lab: Laboratory, expected: Model) -> None:
    """Node 1 has a pserver and a trainer."""
    run = start(lab, ON_TRAINER_LOSS="wait")
    run.reach(50)
    lab.cut("node1")
    run.event("lost", node=1)
    lab.wait_for_silence(1)
    lab.heal_network()
    run.event("rejoined", node=1)
    run.succeeds()
    assert_same(model_of(lab, run.job), expected)


def test_a_run_that_waits_continues_when_a_machine_is_switched_on_again_and_rejoins(
    lab: Laboratory, expected: Model
) -> None:
    run = start(lab, ON_TRAINER_LOSS="wait")
    run.reach(50)
    lab.machines[3].power_off()
    run.event("lost", node=3)
    lab.boot()
    lab.ok("start", "--rejoin", "--only", "node3", "--job_workspace", run.job)
    run.succeeds()
    assert_same(model_of(lab, run.job), expected)
