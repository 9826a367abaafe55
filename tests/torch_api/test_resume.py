"""`start --resume` on other nodes continues with the state of trainers: the same bits, and the same buffers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from clusterctl.runtime import torch_state_dict
from support.models import assert_same_bits, model_bits
from support.site import Site, make_site

pytestmark = pytest.mark.engines
# With an argument, trainer 1 of the first run dies at step 17, once a checkpoint of step 10 or later is complete.
TRAIN = """
import glob, os, signal, sys, time
import clusterctl.torch as ct
import torch
from torch import nn
from torch.utils.data import TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.7)
dies = len(sys.argv) > 1 and os.environ["CLUSTERCTL_RUN"] == "0001"
lead = os.getcwd().replace("/node1/", "/node0/")
x = torch.randn(96, 4, generator=torch.Generator().manual_seed(1))
with ct.connect() as ps:
    ps.distribute(model, optimizer)
    ps.keep("scheduler", scheduler)
    for inputs, targets in ps.loader(TensorDataset(x, x.sum(1, keepdim=True)), 8, passes=4, shuffle=True):
        if dies and ps.rank == 1 and ps.step == 17:
            while not glob.glob(f"{lead}/.clusterctl/runs/0001/checkpoints/step-00000001*/manifest.json"):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()
        scheduler.step()
"""


def model_of(site: Site, job: str, home: str) -> Path:
    site.ok("collect", job, "-o", home)
    return site.directory / home / "model"


def test_a_run_resumed_on_other_nodes_has_the_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    with make_site("embedded", tmp_path, 3) as site:
        settings = {"PYTHON": sys.executable, "SAVE_EVERY": 5}
        site.conf(**settings, TRAINERS=site.hosts[:2])
        job = site.dispatch(TRAIN)
        site.ok("start", "--job_workspace", job)
        expected = model_of(site, job, "undisturbed")
        again = site.dispatch(TRAIN)
        assert site.run("start", "--job_workspace", again, "--", "die").code == 1
        site.assert_nothing_left(again)
        site.conf(**settings, PSERVERS=1, TRAINERS=site.hosts[1:])
        site.ok("start", "--resume", "--job_workspace", again)
        spec = json.loads((site.job_dir(again, 0) / ".clusterctl/runs/0002/spec.json").read_text())
        assert spec["resume"]["step"] in (10, 15)
        assert_same_bits(model_of(site, again, "resumed"), model_bits(expected))
        assert torch_state_dict(expected)["1.num_batches_tracked"] == torch.tensor(24)
