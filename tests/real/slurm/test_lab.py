"""The laboratory starts, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from real.slurm.lab import slurm
from support.processes import is_alive, processes_below, processes_with_environment

pytestmark = pytest.mark.slurm


@pytest.mark.parametrize("tracking", ["linuxproc", "cgroup"])
def test_nothing_is_left_of_a_laboratory(tracking: str) -> None:
    with slurm(tracking) as lab:
        assert set(lab.output("sinfo", "-hN", "-o", "%T").split()) == {"idle"}
        job = lab.allocate("-N2")
        script = "setsid sleep 300 >/dev/null 2>&1 </dev/null & echo $!; exec sleep 300"
        with lab.begin_step(job, lab.node_of(job), "sh", "-c", script) as step:
            assert step.stdout is not None
            child = int(step.stdout.readline())
            assert is_alive(child)
            lab.close()
            step.kill()
    assert not is_alive(child)
    assert processes_below(lab.directory) == []
    assert not lab.directory.exists()
    assert processes_with_environment("SLURM_CONF", str(lab.conf)) == []
    assert [top for name in lab.nodes for top in Path("/sys/fs/cgroup").glob(f"*/slurm_{name}")] == []
