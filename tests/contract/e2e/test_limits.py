"""A run that fails because of its limits or non-finite numbers says so, and is not restarted in vain."""

from __future__ import annotations

from typing import Any

import pytest

from support.site import Site, events_in

pytestmark = pytest.mark.nodes(2)

GREEDY = """
import resource
print("limits", resource.getrlimit(resource.RLIMIT_AS)[1], resource.getrlimit(resource.RLIMIT_NOFILE)[1], flush=True)
bytearray(10**9)
"""
NAN = """
import numpy as np
from clusterctl.runtime import connect, SGD

with connect() as ps:
    w = ps.dense("weights", shape=(4,), rule=SGD(0.1))
    for number in ps.steps(lambda pass_, rng: range(10), passes=1):
        gradient = np.full(4, np.nan if number == 3 and ps.rank == 1 else 1.0, np.float32)
        ps.push({w: gradient}, samples=8, loss=0.5)
"""


def events(site: Site, job: str, node: int) -> list[dict[str, Any]]:
    return events_in(site.job_dir(job, node) / ".clusterctl/runs/0001/events.jsonl")


@pytest.mark.slow
def test_a_program_runs_under_its_limits_and_hitting_one_is_reported(site: Site) -> None:
    site.conf(ENGINE="none", PSERVERS=0, TRAINERS=1, MEMORY_LIMIT_MB=500, OPEN_FILES=100)
    job = site.dispatch(GREEDY)
    done = site.run("start", "--job_workspace", job)
    assert done.code == 1
    assert "limits 500000000 100" in done.out + done.err
    assert "trainer0@node0" in done.err
    (ended,) = [event for event in events(site, job, 0) if event["event"] == "exited"]
    assert ended["message"] == "exited with code 1 (out of memory: MEMORY_LIMIT_MB = 500)"
    site.assert_nothing_left(job)


def test_nothing_is_started_with_more_open_files_than_a_node_allows(site: Site) -> None:
    site.conf(ENGINE="none", PSERVERS=0, TRAINERS=1, OPEN_FILES=10**9)
    job = site.dispatch(GREEDY)
    done = site.run("start", "--job_workspace", job)
    assert done.code == 3
    assert "nothing was started" in done.err
    assert "nodes 0,1 OPEN_FILES = 1,000,000,000 is more than the limit of" in done.err
    assert site.status(job)["state"] == "dispatched"
    site.assert_nothing_left(job)


@pytest.mark.slow
def test_on_nan_fail_ends_the_run_regardless_of_restarts_and_on_trainer_loss(site: Site) -> None:
    site.conf(PSERVERS=1, TRAINERS=2, ON_NAN="fail", RESTARTS=3, ON_TRAINER_LOSS="shrink")
    job = site.dispatch(NAN)
    done = site.run("start", "--job_workspace", job)
    assert done.code == 1
    message = "the gradient of table 'weights' of trainer 1 is not finite (pass 0, step 3)"
    assert "trainer1@node1" in done.err
    assert message in done.err
    (reported,) = [event for event in events(site, job, 1) if event["event"] == "nan"]
    assert (reported["action"], reported["role"], reported["rank"], reported["step"]) == ("failed", "trainer", 1, 3)
    assert [event for event in events(site, job, 0) if event["event"] in ("restarting", "lost")] == []
    (ended,) = [e for e in events(site, job, 1) if e["event"] == "exited" and e["role"] == "trainer"]
    assert (ended["message"], ended["hopeless"]) == (f"exited with code 1: {message}", True)
    site.assert_nothing_left(job)
