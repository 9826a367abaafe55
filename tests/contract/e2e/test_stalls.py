"""Hanging processes that all others wait for: the right one is named, with its stacks, and may be killed."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from support.processes import wait_until
from support.site import Site, events_in

pytestmark = [pytest.mark.nodes(2), pytest.mark.slow]

QUICK = {"PSERVERS": 1, "TRAINERS": 2, "STALL_S": 2, "SAVE_EVERY": 5}
# Trainer 1 hangs in batch 7 of its first attempt until the file `go_on` exists, or stops itself with SIGSTOP.
TRAIN = """
import os, signal, sys, time
import numpy as np
from clusterctl.runtime import connect, SGD, zeros

def reader(pass_, rng):
    for number in range(10):
        yield number, rng.standard_normal((8, 4), dtype=np.float32)

def a_loop_that_goes_on():
    while not os.path.exists("go_on"):
        time.sleep(0.02)

with connect() as ps:
    w = ps.dense("w", shape=(4,), rule=SGD(0.1), init=zeros())
    for number, x in ps.steps(reader, passes=1):
        if number == 7 and ps.rank == 1 and os.environ["CLUSTERCTL_ATTEMPT"] == "1":
            if "stop" in sys.argv:
                os.kill(os.getpid(), signal.SIGSTOP)
            a_loop_that_goes_on()
        ps.push({w: x.mean(0)}, samples=len(x))
"""
# All trainers request the values of a step that never comes.
WAITS = """
from clusterctl.runtime import connect, SGD
from clusterctl.runtime.wire import messages as wire

def for_what_never_comes():
    ps._client.ask(wire.PULL, ps._client.used, version=1_000_000)

with connect() as ps:
    w = ps.dense("w", shape=(4,), rule=SGD(0.1))
    for number in ps.steps(lambda pass_, rng: range(9), passes=1):
        if number == 3:
            for_what_never_comes()
        ps.push({w: w.value}, samples=1)
"""


def stalls(site: Site, job: str) -> list[dict[str, Any]]:
    """Return the `stalled` events of all nodes."""
    logs = [site.job_dir(job, node) / ".clusterctl/runs/0001/events.jsonl" for node in range(len(site.hosts))]
    return [event for log in logs if log.exists() for event in events_in(log) if event["event"] == "stalled"]


def states(site: Site, job: str) -> dict[str, str]:
    return {f"{p['role']}{p['rank']}": p["state"] for p in site.status(job)["processes"]}


def test_a_hanging_process_is_stalled_with_its_stacks_until_it_continues_and_its_waiting_peers_are_not(
    site: Site,
) -> None:
    site.conf(**QUICK)
    job = site.start(TRAIN)
    hangs = {"pserver0": "ready", "trainer0": "running", "trainer1": "stalled"}
    assert wait_until(lambda: bool(stalls(site, job)))
    assert wait_until(lambda: states(site, job) == hangs), states(site, job)
    output = site.ok("logs", job, "--role", "trainer").out
    assert "trainer1 has made no step for 2 s: stalled; the stacks of its threads follow" in output
    assert "in a_loop_that_goes_on" in output
    (pserver,) = [p["pid"] for p in site.status(job)["processes"] if p["role"] == "pserver"]
    os.kill(pserver, signal.SIGSTOP)
    (site.job_dir(job, 1) / "go_on").touch()
    hangs = {"pserver0": "stalled", "trainer0": "running", "trainer1": "running"}
    assert wait_until(lambda: any(stall["role"] == "pserver" for stall in stalls(site, job)))
    assert wait_until(lambda: states(site, job) == hangs), states(site, job)
    os.kill(pserver, signal.SIGCONT)
    assert wait_until(lambda: site.has_ended(job))
    assert site.status(job)["state"] == "succeeded"
    reported = {(e["role"], e.get("over", False)): e["message"] for e in stalls(site, job)}
    assert reported == {
        ("trainer", False): "has made no step for 2 s: stalled",
        ("trainer", True): "goes on",
        ("pserver", False): "has not answered for 2 s: stalled (it is stopped by a signal)",
        ("pserver", True): "answers again",
    }
    site.assert_nothing_left(job)


def test_with_on_stall_fail_a_hanging_process_is_killed_and_restarted(site: Site) -> None:
    site.conf(**{**QUICK, "STALL_S": 10}, ON_STALL="fail", RESTARTS=1)  # no other process is taken for a stalled one
    job = site.dispatch(TRAIN)
    done = site.ok("start", "--job_workspace", job, "--", "stop")
    words = "trainer1@node1 stalled for 10 s (it is stopped by a signal); restarting in 1 s (restart 1 of 1)"
    assert words in done.out
    site.assert_nothing_left(job)


def test_a_trainer_that_hangs_before_it_connects_is_stalled_once_others_wait_for_it(site: Site) -> None:
    site.conf(**QUICK, ON_STALL="fail", RESTARTS=0)
    hangs = "import os, time\nwhile os.environ['CLUSTERCTL_RANK'] == '1':\n    time.sleep(1)\n"
    job = site.dispatch(hangs + TRAIN)
    done = site.run("start", "--job_workspace", job)
    assert done.code == 1
    assert "has not connected for 2 s, and others wait for it: stalled" in done.out
    explanation = site.run("why", job, "--json").json()
    assert [explanation["cause"][name] for name in ("reason", "role", "rank")] == ["stalled", "trainer", 1]
    assert "before connect()" in explanation["advice"]
    site.assert_nothing_left(job)


def test_a_deadlock_of_responsive_trainers_is_reported_with_all_stacks_and_fails_with_on_stall_fail(
    site: Site,
) -> None:
    site.conf(**QUICK, ON_STALL="fail", RESTARTS=3)
    job = site.dispatch(WAITS)
    done = site.run("start", "--job_workspace", job)
    assert done.code == 1
    assert "the run is stalled: all trainers have been waiting for " in done.out
    assert "(trainer0 for trainer1; trainer1 for trainer0)" in done.out
    assert "first cause: the run is stalled: all trainers have been waiting for " in done.err
    for role, place in (("trainer", "in for_what_never_comes"), ("pserver", "in _run_module_as_main")):
        output = site.ok("logs", job, "--role", role).out
        assert output.count("every process responds") == output.count(place) == QUICK[f"{role.upper()}S"]
    assert stalls(site, job) == [], "nobody is blamed"
    explanation = site.run("why", job, "--json").json()
    assert (explanation["cause"]["kind"], explanation["cause"]["role"]) == ("stalled", None)
    site.assert_nothing_left(job)
