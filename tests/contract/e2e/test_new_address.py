"""A node that was lost comes back with another address, as a pod does that was replaced, and rejoins its run."""

from __future__ import annotations

import json
import os
import signal

import pytest

from clusterctl.config import Host
from clusterctl.runtime import load_model
from support.processes import wait_until
from support.site import Site

pytestmark = [pytest.mark.nodes(2), pytest.mark.slow]

#: Trainer 0 waits before batch 5 until the file `go` exists; so do all others then.
TRAIN = """
import os, time
import numpy as np
from clusterctl.runtime import connect, Adagrad, zeros

def reader(pass_, rng):
    for number in range(10):
        while number == 5 and os.environ["CLUSTERCTL_RANK"] == "0" and not os.path.exists("go"):
            open("held", "w").close()
            time.sleep(0.02)
        yield rng.standard_normal((8, 4), dtype=np.float32)

with connect() as ps:
    w = ps.dense("w", shape=(4,), rule=Adagrad(0.1), init=zeros())
    for x in ps.steps(reader, passes=1):
        ps.push({w: x.mean(0)}, samples=len(x))
"""


def test_a_lost_node_rejoins_at_another_address(site: Site) -> None:
    """It has a pserver as well, which the others find where it listens now."""

    def use(second: str) -> None:
        hosts = [Host(site.hosts[0], address="127.0.0.1"), Host(site.hosts[1], address=second)]
        site.conf(HOSTS=hosts, ON_TRAINER_LOSS="wait", SAVE_EVERY="2 steps")

    use("127.0.0.12")
    undisturbed = site.dispatch(TRAIN)
    (site.job_dir(undisturbed, 0) / "go").touch()
    site.ok("start", "--job_workspace", undisturbed)
    job = site.dispatch(TRAIN + "\n# another job\n")
    site.ok("start", "--job_workspace", job, "--detach")
    assert wait_until((site.job_dir(job, 0) / "held").exists)
    lead = site.job_dir(job, 0) / ".clusterctl/runs/0001/events.jsonl"
    os.kill(site.supervisor(job, 1), signal.SIGKILL)
    assert wait_until(lambda: '"event":"lost"' in lead.read_text())
    use("127.0.0.13")
    rejoined = site.ok("start", "--rejoin", "--only", "node1", "--job_workspace", job)
    assert "node1 has rejoined run 1" in rejoined.out
    run = site.job_dir(job, 1) / ".clusterctl/runs/0001"
    assert json.loads((run / "spec.json").read_text())["address"] == "127.0.0.13"
    (site.job_dir(job, 0) / "go").touch()
    site.wait_for_end(job)
    assert site.status(job)["state"] == "succeeded"
    assert '"endpoint":"127.0.0.13:' in (run / "events.jsonl").read_text()
    assert weights(site, job) == weights(site, undisturbed)


def weights(site: Site, job: str) -> bytes:
    site.ok("collect", job, "-o", job)
    return bytes(load_model(site.directory / job / "model")["w"].tobytes())
