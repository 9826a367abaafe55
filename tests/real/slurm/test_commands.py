"""Commands of clusterctl on the nodes of an allocation, by srun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from real.slurm.lab import Lab

pytestmark = pytest.mark.slurm
TRAIN = """\
import os

print("trained", *(os.environ[name] for name in ("CLUSTERCTL_RANK", "CLUSTERCTL_NODE_ID", "SLURM_JOB_ID")))
foreign = [name for name in os.environ if name.startswith(("SLURM", "PMI", "OMPI", "MINE"))]
assert all(name.startswith("SLURM_JOB_") for name in foreign), foreign
"""


def clusterctl(lab: Lab, directory: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run the program as a rank of MPI would: srun passes on its environment."""
    conf = str(directory / "conf.py")
    foreign = {"PMIX_RANK": "7", "OMPI_COMM_WORLD_RANK": "7", "PMI_RANK": "7", "MINE": "x"}
    return lab.run(sys.executable, "-m", "clusterctl", "--conf", conf, *argv, timeout_s=120, **foreign)


def test_a_job_runs_on_the_nodes_of_an_allocation(lab: Lab, tmp_path: Path) -> None:
    job = lab.allocate("-N3", "--ntasks-per-node=2")
    (tmp_path / "conf.py").write_text(
        f"HOSTS = slurm(job={job})\nROOT_DIR = '{tmp_path}/root'\nPYTHON = '{sys.executable}'\nPSERVERS = 0\n"
    )
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace/train.py").write_text(TRAIN)
    named = clusterctl(lab, tmp_path, "exec", "--fold", "--", "sh", "-c", "echo $SLURMD_NODENAME")
    assert named.stdout.split()[2::3] == lab.nodes_of(job), named
    checked = clusterctl(lab, tmp_path, "check")
    assert "nodes 0-2     srun ok" in checked.stdout
    assert "srun does not encrypt" in checked.stdout, checked
    started = clusterctl(lab, tmp_path, "start", "--job_dispatch_package", str(tmp_path / "workspace"))
    assert started.returncode == 0, started
    trained = {line.split("trained ")[1] for line in clusterctl(lab, tmp_path, "logs").stdout.splitlines()}
    assert trained == {f"{rank} {rank // 2} {job}" for rank in range(6)}
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == ["node0", "node1", "node2"]
    lab.run("scancel", job)
    lab.wait_for(job, "CANCELLED")
    ended = clusterctl(lab, tmp_path, "status")
    assert ended.returncode == 0
    assert f"Slurm job {job} has ended: it was cancelled" in ended.stdout
