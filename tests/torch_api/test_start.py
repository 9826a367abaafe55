"""`start` trains the program of docs/torch.md on two nodes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from clusterctl.runtime import load_model
from docs.pages import REPOSITORY, blocks
from support.processes import wait_until
from support.site import make_site

pytestmark = pytest.mark.engines

SAYS = 'print(f"rank {ps.rank}:", *(value.detach().double().sum().item() for value in model.parameters()))\n'


def test_a_torch_workspace_trains_on_two_nodes(tmp_path: Path) -> None:
    [block] = blocks(REPOSITORY / "docs" / "torch.md", "python")
    with make_site("embedded", tmp_path, 2) as site:
        site.conf(PYTHON=sys.executable)  # which has torch
        package = str(site.workspace(block.body + SAYS))
        job: str = site.ok("start", "--job_dispatch_package", package, "--json").json()["job"]
        logs = [(site.job_dir(job, node) / "log/train.log").read_text() for node in range(2)]
        told = [line.partition(": ")[2] for log in logs for line in log.splitlines() if line.startswith("rank ")]
        assert len(told) == 2
        assert told[0] == told[1]
        model = load_model(site.job_dir(job, 0) / "output/pass-00004/model.safetensors")
        assert [float(np.sum(value, dtype=np.float64)) for value in model.values()] == pytest.approx(
            [float(number) for number in told[0].split()]
        )
        assert wait_until(lambda: not site.leftovers())
