"""A run on the nodes of a job: `start` leaves a step on each node, which lasts as long as the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.e2e.programs import REGRESSION, SLEEP
from real.slurm.lab import Lab, wait_until
from real.slurm.site import SlurmSite

pytestmark = pytest.mark.slurm


def steps(lab: Lab, job: str) -> list[str]:
    """Return the ids of a job's steps, but for the script itself."""
    ids = lab.output("squeue", "-h", "--steps", "-j", job, "-o", "%i").split()
    return [step for step in ids if not step.endswith((".batch", ".extern"))]


def test_a_detached_run_lasts_to_its_end_in_a_step_on_each_node_unless_scancel_stops_it(
    cgroup_lab: Lab, tmp_path: Path
) -> None:
    job = cgroup_lab.allocate("-N2")
    site = SlurmSite(cgroup_lab, tmp_path, job, 2)
    ours = site.start(REGRESSION, "--num_passes=2")
    site.wait_for_end(ours)
    assert site.status(ours)["state"] == "succeeded"
    assert wait_until(lambda: not steps(cgroup_lab, job)), steps(cgroup_lab, job)
    assert cgroup_lab.state(job) == "RUNNING"
    other = site.start(SLEEP)
    assert len(steps(cgroup_lab, job)) == 2
    cgroup_lab.run("scancel", job)
    site.wait_for_end(other)
    assert '"state":"stopped"' in (site.job_dir(other, 0) / ".clusterctl/runs/0001/events.jsonl").read_text()


def test_a_step_has_all_that_the_job_has_on_its_node(cgroup_lab: Lab, tmp_path: Path) -> None:
    """Even if the caller is a script whose tasks have a share each."""
    job = cgroup_lab.allocate("-N2", "--ntasks-per-node=3", "--mem=900", "--gres=gpu:2")
    site = SlurmSite(cgroup_lab, tmp_path, job, 2)
    site.environment |= {"SLURM_NTASKS_PER_NODE": "3", "SLURM_CPUS_PER_TASK": "1", "SLURM_MEM_PER_CPU": "100"}
    ours = site.start(SLEEP)
    for step in steps(cgroup_lab, job):
        shown = cgroup_lab.output("scontrol", "show", "step", step)
        assert "TRES=cpu=3,mem=900M,node=1" in shown, shown
        assert "TresPerNode=gres:gpu:2" in shown, shown
    site.ok("stop", ours)
    assert wait_until(lambda: not steps(cgroup_lab, job))


def test_a_node_rejoins_in_a_step_of_its_own(cgroup_lab: Lab, tmp_path: Path) -> None:
    job = cgroup_lab.allocate("-N2")
    site = SlurmSite(cgroup_lab, tmp_path, job, 2)
    site.conf(ON_TRAINER_LOSS="wait")
    ours = site.start(SLEEP)
    lead = site.job_dir(ours, 0) / ".clusterctl/runs/0001/events.jsonl"
    before = steps(cgroup_lab, job)
    lost = cgroup_lab.output("squeue", "-h", "--steps", "-j", job, "-w", cgroup_lab.nodes_of(job)[1], "-o", "%i")
    (step,) = (one for one in before if one in lost.split())
    cgroup_lab.run("scancel", "--signal=KILL", step)
    assert wait_until(lambda: '"event":"lost"' in lead.read_text())
    site.ok("start", "--rejoin", "--job_workspace", ours)
    assert wait_until(lambda: '"event":"rejoined"' in lead.read_text())
    assert len(set(steps(cgroup_lab, job)) - set(before)) == 1
    site.ok("stop", ours)
    site.assert_nothing_left(ours)
