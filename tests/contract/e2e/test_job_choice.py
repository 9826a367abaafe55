"""The job that a command means if it names none: the one that runs, else the one that ran last, else the newest."""

from __future__ import annotations

import json
import os
import time

import pytest

from contract.e2e.programs import REGRESSION, SLEEP
from support.site import Site

pytestmark = [pytest.mark.nodes(2), pytest.mark.slow]
DONE = "print('done')\n"


def test_the_running_job_is_meant_though_a_newer_one_was_dispatched(site: Site) -> None:
    site.conf(ENGINE="none", PSERVERS=0)
    running = site.start(SLEEP)
    newer = site.dispatch(SLEEP)
    assert newer > running
    assert site.ok("status", "--json").json()["job"] == running
    assert "up" in site.ok("logs").out
    assert running in site.ok("why").out
    assert json.loads(site.ok("collect", "-o", "got", "--json").out)["job"] == running
    stopped = site.ok("stop")
    assert f"stopping {running}" in stopped.out
    assert "already ended" not in stopped.out
    site.assert_nothing_left(running)


def test_a_stop_of_an_ended_job_says_when_it_ended(site: Site) -> None:
    site.conf(ENGINE="none", PSERVERS=0)
    never = site.dispatch(DONE)
    assert "it was not running" in site.ok("stop", never).out
    job = site.start(DONE)
    site.wait_for_end(job)
    today = time.strftime("%Y-%m-%d", time.localtime((site.job_dir(job, 0) / ".clusterctl/lock").stat().st_mtime))
    assert f"it had already ended: succeeded at {today} " in site.ok("stop").out


def test_of_two_running_jobs_one_has_to_be_named_and_status_shows_both(site: Site) -> None:
    site.conf(ENGINE="none", PSERVERS=0)
    jobs = [site.start(SLEEP) for _ in range(2)]
    for command in (["logs"], ["why"], ["stop"], ["collect"], ["status", "--watch"]):
        refused = site.run(*command)
        assert refused.code == 2, refused
        assert f"2 jobs are running: {jobs[1]}, {jobs[0]}" in refused.err
    shown = site.ok("status").out
    assert [line.split()[0] for line in shown.splitlines() if line.startswith("JOB")] == jobs[::-1]
    found = site.ok("status", "--json").json()["jobs"]
    assert [(one["job"], one["state"]) for one in found] == [(job, "running") for job in jobs[::-1]]
    for job in jobs:
        site.ok("stop", job)
        site.assert_nothing_left(job)


def test_if_none_runs_the_one_that_ran_last_is_meant_whatever_a_node_that_is_away_knows(site: Site) -> None:
    site.conf(ENGINE="none", PSERVERS=0)
    first, older = site.start(DONE), site.start(DONE + "\n")
    site.wait_for_end(first)
    site.wait_for_end(older)
    site.dispatch(DONE)
    assert site.ok("status", "--json").json()["job"] == older
    site.conf(ENGINE="none", PSERVERS=0, HOSTS=[site.hosts[0], "127.0.0.1:1"])
    away = site.run("status", "--json")
    assert away.code == 3
    assert away.json()["job"] == older
    assert "node1" in away.err


def test_resume_means_the_one_that_ran_last_even_if_a_node_has_another_in_mind(site: Site) -> None:
    site.conf(SAVE_EVERY=5)
    job = site.start(REGRESSION, "--", "--num_passes", "2")
    site.wait_for_end(job)
    other = site.start(REGRESSION, "--", "--num_passes", "1")
    site.wait_for_end(other)
    last = site.dispatch(REGRESSION)
    later = time.time() + 1000  # than all jobs of other tests on these nodes
    for name, node, age_s in (
        (job, 0, 0),
        (job, 1, 100),
        (other, 0, 90),
        (other, 1, 90),
    ):  # the clock of node 1 is slow
        os.utime(site.job_dir(name, node) / ".clusterctl/runs/0001/spec.json", (later - age_s, later - age_s))
    planned = site.ok("start", "--resume", "--plan", "--json").json()
    resumed = site.ok("start", "--resume")
    for node in (0, 1):  # the tests that follow on these nodes run theirs last
        os.utime(site.job_dir(other, node) / ".clusterctl/runs/0001/spec.json")
    assert (planned["job"], planned["resume"]["run"]) == (job, "0001")
    assert f"{job} run 2" in resumed.out
    assert last not in resumed.out
