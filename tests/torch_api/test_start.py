"""`start` trains the program of docs/torch.md on two nodes, each with a process that reads its data."""

from __future__ import annotations

import json
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


@pytest.mark.parametrize("call", ["ps.distribute", "ps.outer"])
def test_a_torch_workspace_trains_on_two_nodes_with_workers(tmp_path: Path, call: str) -> None:
    block = next(block for block in blocks(REPOSITORY / "docs" / "torch.md", "python") if call in block.body)
    with make_site("embedded", tmp_path, 2) as site:
        site.conf(PYTHON=sys.executable)  # which has torch
        package = str(site.workspace(block.body.replace("shuffle=True", "shuffle=True, num_workers=1") + SAYS))
        events = site.ok("start", "--job_dispatch_package", package, "--json").out.splitlines()
        job: str = json.loads(events[-1])["job"]
        logs = [(site.job_dir(job, node) / "log/train.log").read_text() for node in range(2)]
        told = [line.partition(": ")[2] for log in logs for line in log.splitlines() if line.startswith("rank ")]
        assert len(told) == 2
        assert told[0] == told[1]
        model = load_model(site.job_dir(job, 0) / "output/pass-00004/model.safetensors")
        assert sorted(float(np.sum(value, dtype=np.float64)) for value in model.values()) == pytest.approx(
            sorted(float(number) for number in told[0].split())
        )
        assert wait_until(lambda: not site.leftovers())
