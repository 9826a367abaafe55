"""Epochs with a scheduler on two nodes: kill -9 of a process changes no rate and no sum of weights, not by a bit."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator

import pytest

from support.processes import wait_until
from support.site import Site, make_site

pytestmark = pytest.mark.engines

# The arguments are what counts epochs, and the epoch in which trainer 1 waits in its third batch, once.
TRAIN = """
import os, pathlib, sys, time
import torch
from torch import nn
import clusterctl.torch as ct

torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(256, 8)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True).tanh())
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

def wait():
    if not os.path.exists("here"):
        pathlib.Path("here").touch()
        while not os.path.exists("go_on"):
            time.sleep(0.02)

with ct.connect() as ps:
    ps.distribute(model, optimizer)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch))
    ps.keep("scheduler", scheduler)
    for epoch in ps.epochs(6) if sys.argv[1] == "epochs" else range(6):
        trained = False
        for number, (a, b) in enumerate(ps.loader(torch.utils.data.DataLoader(data, 32))):
            if ps.rank == 1 and (epoch, number) == (int(sys.argv[2]), 2):
                wait()
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(a), b)
            loss.backward()
            optimizer.step(loss=loss)
            trained = True
        state = [float(value.double().sum()) for value in model.state_dict().values()]
        if trained:
            print("EPOCH", epoch, optimizer.param_groups[0]["lr"], state, flush=True)
        scheduler.step()
    print("END", optimizer.param_groups[0]["lr"], state, flush=True)
"""
LINE = re.compile(r"(EPOCH \d|END) (.*)")
NEVER = 99


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with make_site("embedded", tmp_path_factory.mktemp("real"), 2) as made:
        made.conf(PSERVERS=2, TRAINERS=2, RESTARTS=3, COPIES=1, MODEL_ON_LEAD_MB=0)
        yield made


def run(site: Site, counts: str, victim: str = "", epoch: int = NEVER) -> list[dict[str, set[str]]]:
    """Kill a process in an epoch. Return what each trainer printed, in all its attempts."""
    job = site.dispatch(TRAIN)
    starting = site.popen("start", "--job_workspace", job, "--", counts, str(epoch))
    if victim:
        assert wait_until((site.job_dir(job, 1) / "here").exists)
        processes = site.status(job)["processes"]
        os.kill(next(p["pid"] for p in processes if f"{p['role']}{p['rank']}" == victim), signal.SIGKILL)
        events = site.job_dir(job, 0) / ".clusterctl/runs/0001/events.jsonl"
        assert wait_until(lambda: '"event":"restarting"' in events.read_text())
        (site.job_dir(job, 1) / "go_on").touch()
    out, err = starting.communicate(timeout=300)
    assert starting.returncode == 0, out + err
    site.assert_nothing_left(job)
    return [printed(site.ok("logs", job, "--role", "trainer", "--rank", str(rank)).out) for rank in range(2)]


def printed(output: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, numbers in LINE.findall(output):
        found.setdefault(name, set()).add(numbers)
    return found


@pytest.fixture(scope="module")
def expected(site: Site) -> list[dict[str, set[str]]]:
    found = run(site, "epochs")
    assert [sorted(of_one) for of_one in found] == [["END", *(f"EPOCH {epoch}" for epoch in range(6))]] * 2
    return found


@pytest.mark.parametrize(
    ("counts", "victim", "epoch"),
    [("epochs", "pserver1", 3), ("range", "trainer1", 3)],
)
def test_a_killed_process_changes_no_rate_and_no_weight(
    site: Site, expected: list[dict[str, set[str]]], counts: str, victim: str, epoch: int
) -> None:
    assert run(site, counts, victim, epoch) == expected
