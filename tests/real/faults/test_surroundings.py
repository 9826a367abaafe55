"""Faults of disks, clocks, SSH servers and the control machine."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from real.faults.laboratory import Laboratory
from real.faults.runs import Model, assert_same, begin, dispatch, model_of, resume, start

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("node", [0, 1])
def test_a_full_disk_fails_the_run_and_is_named_and_the_last_checkpoint_is_intact(
    lab: Laboratory, expected: Model, node: int
) -> None:
    """Node 0 leads, and its pserver fails first; on node 1 it may be the log of a trainer."""
    run = start(lab)
    run.event("saved", checkpoint=True)
    lab.machines[node].fill_disk()
    run.open_gate()
    output = run.fails()
    assert "No space left on device" in output
    assert f"node{node}" in output.partition("first cause:")[2].splitlines()[0]
    lab.machines[node].free_disk()
    resume(lab, run.job).succeeds()
    assert_same(model_of(lab, run.job), expected)


def test_pservers_of_the_users_have_one_port_that_is_free_on_all_machines(lab: Laboratory) -> None:
    listen = "import socket, sys; s = socket.create_server(('', 7164)); print(flush=True); sys.stdin.read()"
    argv = [*lab.machines[1].inside(), sys.executable, "-c", listen]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        lab.conf(PSERVERS=3, PSERVER_COMMAND="python train.py")
        show = "print(*(os.environ[name] for name in ('PADDLE_INIT_PORT', 'CLUSTERCTL_PSERVERS')), flush=True)"
        wait = "while os.environ['TRAINING_ROLE'] == 'PSERVER': time.sleep(60)"
        job = lab.dispatch(f"import os, time\n{show}\n{wait}")
        started = lab.ok("start", "--job_workspace", job)
    assert "PADDLE_INIT_PORT" not in started.out + started.err
    lines = [line.split()[2:] for line in lab.ok("logs", job).out.splitlines()]
    assert {line[0] for line in lines} == {"7165"}
    assert {endpoint.rpartition(":")[2] for line in lines for endpoint in line[1].split(",")} == {"7165"}
    lab.assert_nothing_remains()


def test_a_run_outlives_its_control_machine_and_others_can_follow_and_stop_it(lab: Laboratory, tmp_path: Path) -> None:
    job = dispatch(lab)
    run = begin(lab, job, passes=1000)
    run.reach(10)
    run.starting.send_signal(signal.SIGKILL)
    run.starting.communicate()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(lab.conf_path, elsewhere)
    other = {"cwd": elsewhere, "env": {"CLUSTERCTL_CONF": "conf.py", "XDG_CACHE_HOME": str(elsewhere)}}
    with lab.popen("logs", "-f", job, "--json", **other) as following:
        assert following.stdout is not None
        seen = [json.loads(following.stdout.readline()) for _ in range(3)]
        assert {line["role"] for line in seen} <= {"trainer", "pserver"}
        assert json.loads(lab.ok("status", job, "--json", **other).out)["state"] == "running"
        stopped = lab.ok("stop", job, "--json", **other).json()
        following.communicate(timeout=180)
    assert stopped["survivors"] == 0
    lab.assert_nothing_remains()
    assert lab.status(job)["state"] == "stopped"


def test_clocks_that_are_an_hour_off_and_a_restart_of_sshd_do_not_affect_the_run(
    lab: Laboratory, expected: Model
) -> None:
    off_s = {2: 3600, 3: -3600}
    try:
        for node, seconds in off_s.items():
            lab.machines[node].set_clock(seconds)
        run = start(lab)
        run.reach(30)
        for machine in lab.machines:
            machine.stop_sshd(sessions=True)
            machine.start_sshd()
        output = run.succeeds()
        for node, seconds in off_s.items():
            words = "ahead" if seconds > 0 else "behind"
            assert re.search(rf"node {node} +clock is 3,\d+ s {words}", output), output
            off = run.event("spawned", node=node)["t"] - run.event("spawned", node=1)["t"]
            assert abs(off - seconds) < 60
        assert_same(model_of(lab, run.job), expected)
    finally:
        for node in off_s:
            lab.machines[node].set_clock(0)
