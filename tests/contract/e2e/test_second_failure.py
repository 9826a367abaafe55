"""A second failure, or a stop, while the processes of a restart are still ending: every node ends its own."""

from __future__ import annotations

import os
import signal

import pytest

from contract.e2e.programs import READY
from support.processes import wait_until
from support.site import Site

pytestmark = [pytest.mark.nodes(3), pytest.mark.slow]
# A trainer that takes 2 s to end on TERM, with a helper in a session of its own.
SLOW_TO_END = f"""
import os, signal, subprocess, sys, time
from clusterctl.runtime import SGD, connect

def end(*_):
    time.sleep(2)
    os._exit(0)

signal.signal(signal.SIGTERM, end)
subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
with connect() as ps:
    w = ps.dense("w", 4, SGD(0.1))
{READY}
    while True:
        time.sleep(0.1)
""".replace("\nimport os\nos.write", "\n    os.write")
SETTINGS = {"PSERVERS": 1, "RESTARTS": 3, "PS_SECURITY": "none", "ON_NODE_LOSS": "fail"}


def begin(site: Site, node_grace_s: int) -> str:
    """Start the job, kill its pserver, and return when trainers are being replaced."""
    site.conf(**SETTINGS, NODE_GRACE_S=node_grace_s)
    job = site.start(SLOW_TO_END)
    assert wait_until(lambda: all(p["state"] in ("running", "ready") for p in site.status(job)["processes"]))
    [pserver] = [p["pid"] for p in site.status(job)["processes"] if p["role"] == "pserver"]
    os.kill(pserver, signal.SIGKILL)
    # Not by `status`: on a busy machine one call takes longer than the restart.
    events = site.job_dir(job, 0) / ".clusterctl/runs/0001/events.jsonl"
    assert wait_until(lambda: '"event":"restarting"' in events.read_text())
    return job


def test_a_stop_during_a_restart_reaches_every_node(site: Site) -> None:
    job = begin(site, node_grace_s=600)  # a node that the stop did not reach would go on for so long
    assert site.ok("stop", job, "--json").json()["survivors"] == 0
    assert site.status(job)["state"] == "stopped"
    assert site.ok("why", job, "--json").json()["not_heard_of"] == []
    site.assert_nothing_left(job)


def test_a_node_that_is_lost_during_a_restart_does_not_silence_the_others(site: Site) -> None:
    job = begin(site, node_grace_s=10)
    os.kill(site.supervisor(job, 2), signal.SIGKILL)
    assert wait_until(lambda: site.has_ended(job))
    assert site.ok("why", job, "--json").json()["not_heard_of"] in ([], [2])
    site.assert_nothing_left(job)
