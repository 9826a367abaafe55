"""Several processes per node, several nodes per machine, and cluster addresses that differ from those of SSH."""

from __future__ import annotations

import json
import os

import pytest

from contract.e2e.programs import REGRESSION
from support.site import Site

pytestmark = pytest.mark.slow

HOSTS = """
first, second = HOSTS[:2]
HOSTS = [
    Host(first, address="127.0.0.1", pservers=2),
    Host(second, address="127.0.0.10", trainers=3, env={"OMP_NUM_THREADS": "7"}),
]
"""


def test_hosts_run_the_configured_number_of_processes_at_the_configured_addresses(site: Site) -> None:
    conf = site.conf()
    conf.write_text(conf.read_text() + HOSTS)
    job = site.start(REGRESSION + "\nimport os\nprint('threads', os.environ['OMP_NUM_THREADS'])")
    site.ok("status", job, "--watch", "--json")
    seen = site.status(job)
    assert seen["state"] == "succeeded"
    placed = sorted((row["node"], row["role"], row["rank"]) for row in seen["processes"])
    servers = [(0, "pserver", 0), (0, "pserver", 1), (1, "pserver", 2)]
    assert placed == sorted([*servers, (0, "trainer", 0), *((1, "trainer", rank) for rank in (1, 2, 3))])
    logs = {path.name for path in (site.job_dir(job, 0) / "log").glob("[a-z]*.log")}
    assert logs == {"server.log", "server.1.log", "train.log", "supervisor.log"}
    output = site.ok("logs", job, "--role", "trainer").out
    threads = max(1, len(os.sched_getaffinity(0)) // 7)  # both nodes are on one machine
    assert output.count(f"threads {threads}\n") == 1
    assert output.count("threads 7\n") == 3
    spec = json.loads((site.job_dir(job, 1) / ".clusterctl/runs/0001/spec.json").read_text())
    assert (spec["address"], spec["sharing"]) == ("127.0.0.10", 7)
    site.assert_nothing_left(job)
