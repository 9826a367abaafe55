"""Training programs that misbehave: the run fails cleanly, reports the reason, and leaves nothing."""

from __future__ import annotations

import os
import signal
import time

import pytest

from contract.e2e.programs import DEAF, SLEEP
from support.site import GRACE_S, Result, Site

pytestmark = pytest.mark.nodes(2)

ONLY_RANK_1 = "import os, sys, time\nif os.environ['CLUSTERCTL_RANK'] != '1':\n    time.sleep(600)\n"


def start_and_fail(site: Site, train: str, *args: str) -> Result:
    result = site.run("start", "--job_dispatch_package", str(site.workspace(train)), *args)
    assert result.code == 1, result.out + result.err
    job = newest_job(site)
    assert site.status(job)["state"] == "failed"
    site.assert_nothing_left(job)
    return result


PYTHON_WITHOUT_ZMQ = """#!/bin/sh
case "$*" in
  *numpy*) echo "ModuleNotFoundError: No module named 'zmq'" >&2; exit 1 ;;
esac
exec python3 "$@"
"""


def newest_job(site: Site) -> str:
    job: str = site.ok("jobs", "--json").json()["jobs"][0]["job"]
    return job


def test_a_program_that_raises_fails_the_run_and_its_last_lines_are_shown(site: Site) -> None:
    result = start_and_fail(site, ONLY_RANK_1 + "raise ValueError('bad shard')")
    assert "first cause: trainer1@node1" in result.err
    assert "exited with code 1" in result.err
    assert "ValueError: bad shard" in result.err
    assert "nothing is left running on 2/2 nodes" in result.err


def test_a_program_that_exits_3_at_once_fails_a_detached_start(site: Site) -> None:
    site.conf(ENGINE="none")
    result = start_and_fail(site, ONLY_RANK_1 + "print('no licence'); sys.exit(3)", "--detach")
    assert "trainer1@node1" in result.err
    assert "exited with code 3" in result.err
    assert "no licence" in result.err


@pytest.mark.slow
def test_a_command_that_cannot_be_started_is_named(site: Site) -> None:
    site.conf(ENGINE="none", TRAINER_COMMAND="does-not-exist --now")
    result = start_and_fail(site, "", "--detach")
    assert "cannot start 'does-not-exist'" in result.err
    assert "node" in result.err


def test_a_missing_module_on_a_node_has_its_own_error(site: Site) -> None:
    site.conf(PYTHON="/usr/bin/env")
    result = site.run("start", "--job_dispatch_package", str(site.workspace("")))
    assert result.code == 3
    bare = site.directory / "bare-python"
    bare.write_text(PYTHON_WITHOUT_ZMQ)
    bare.chmod(0o755)
    site.conf(PYTHON=str(bare))
    result = site.run("start", "--job_dispatch_package", str(site.workspace("")))
    assert result.code == 3
    assert "has no zmq" in result.err
    assert "run clusterctl setup: it makes an environment" in result.err


@pytest.mark.slow
def test_a_hundred_megabytes_of_output_are_kept_completely(site: Site) -> None:
    lines = 1_000_000
    train = f"import sys\nfor i in range({lines}): sys.stdout.write('%099d\\n' % i)\n"
    site.conf(HOSTS=site.hosts[:1], PSERVERS=0)
    site.ok("start", "--job_dispatch_package", str(site.workspace(train)), timeout_s=300)
    job = newest_job(site)
    log = site.job_dir(job, 0) / "log/train.log"
    assert log.stat().st_size == 100 * lines
    last = site.ok("logs", job, "--role=trainer", "--tail=2").out.splitlines()
    assert [int(line.split()[-1]) for line in last] == [lines - 2, lines - 1]


def test_escape_sequences_do_not_reach_the_terminal(site: Site) -> None:
    train = "import sys; sys.stdout.buffer.write(b'\\x1b[31mred\\x1b]0;title\\x07\\xff\\x9b2J bell\\x08 end\\n')"
    site.conf(HOSTS=site.hosts[:1], PSERVERS=0)
    attached = site.ok("start", "--job_dispatch_package", str(site.workspace(train)))
    job = newest_job(site)
    for out in (attached.out, site.ok("logs", job).out):
        assert "red" in out
        assert not set(out) & {"\x1b", "\x07", "\x08", "\x9b"}
    assert (site.job_dir(job, 0) / "log/train.log").read_bytes().startswith(b"\x1b[31mred")


def test_stop_kills_a_program_that_ignores_term(site: Site) -> None:
    site.conf(ENGINE="none")
    job = site.start(DEAF)
    started = time.monotonic()
    stopped = site.ok("stop", job, "--json").json()
    assert time.monotonic() - started >= GRACE_S
    assert stopped["survivors"] == 0
    assert sum(node["killed"] for node in stopped["nodes"]) == 2
    site.assert_nothing_left(job)


GRANDCHILD = """
import os, signal, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("left one behind", flush=True)
"""


@pytest.mark.slow
def test_a_grandchild_that_called_setsid_is_ended_with_the_run(site: Site) -> None:
    site.conf(ENGINE="none")
    site.ok("start", "--job_dispatch_package", str(site.workspace(GRANDCHILD)))
    site.assert_nothing_left(newest_job(site))


def test_a_program_killed_by_a_signal_is_reported_with_its_name(site: Site) -> None:
    site.conf(ENGINE="none")
    result = start_and_fail(site, ONLY_RANK_1 + "os.kill(os.getpid(), 11)")
    assert "trainer1@node1" in result.err
    assert "signal 11 (segmentation fault)" in result.err


@pytest.mark.slow
def test_a_pserver_that_dies_fails_the_run(site: Site) -> None:
    job = site.start(SLEEP)
    pserver = next(p for p in site.status(job)["processes"] if (p["role"], p["rank"]) == ("pserver", 1))
    with site.popen("logs", "-f", job) as following:
        os.kill(pserver["pid"], signal.SIGKILL)
        _, err = following.communicate(timeout=180)
    assert following.returncode == 1
    assert "failed" in err
    status = site.status(job)
    assert status["state"] == "failed"
    site.assert_nothing_left(job)
