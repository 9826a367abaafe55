"""BEFORE_START and AFTER_END: tasks on this machine before a run and after its end."""

from __future__ import annotations

import signal

import pytest

from support.site import Site

pytestmark = pytest.mark.nodes(1)

TASKS = """
from fabric import task

@task
def prepare(c):
    c.run("echo preparing; echo x >> prepared")

@task
def failing(c):
    c.run("echo trying; exit 5")

@task
def announce(c, state, job, run, exit_code):
    print("announced", state, job, run, exit_code)

@task
def brief(c, state):
    raise RuntimeError(f"cannot say {state}")

@task
def needs(c, more):
    pass
"""
FAIL = "raise SystemExit(3)"
SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)"


@pytest.fixture
def hooked(site: Site) -> Site:
    (site.directory / "tasks.py").write_text(TASKS)
    site.conf(ENGINE="none", PSERVERS=0, BEFORE_START="prepare", AFTER_END="announce")
    return site


def test_the_tasks_run_before_and_after_an_attached_start(hooked: Site) -> None:
    done = hooked.run("start", str(hooked.workspace(FAIL)))
    assert done.code == 1
    lines = done.out.splitlines()
    assert lines[0] == "preparing"
    announced = next(line for line in lines if line.startswith("announced")).split()
    assert (announced[1], *announced[3:]) == ("failed", "1", "1")
    job = announced[2]
    assert f"{job} run 1" in done.out
    assert (hooked.directory / "prepared").read_text() == "x\n"
    spec = hooked.job_dir(job, 0) / ".clusterctl/runs/0001/spec.json"
    assert "prepare" not in spec.read_text()
    again = hooked.run("start", job, "--json", "--set", "AFTER_END=announce", "--set", "SEED=3")
    assert "announced" not in again.out
    assert f"announced failed {job} 2 1\n" in again.err
    spec = hooked.job_dir(job, 0) / ".clusterctl/runs/0002/spec.json"
    assert "AFTER_END" not in spec.read_text()
    assert "SEED" in spec.read_text()


def test_a_failed_before_start_starts_nothing(hooked: Site) -> None:
    hooked.conf(ENGINE="none", PSERVERS=0, BEFORE_START="failing", AFTER_END="announce")
    before = hooked.ok("jobs", "--json").json()["jobs"]
    done = hooked.run("start", str(hooked.workspace("")))
    assert (done.code, done.out) == (1, "trying\n")
    assert done.err == (
        "BEFORE_START: the task failing failed on this machine: exit code 5 of: echo trying; exit 5 (tasks.py:10); "
        "nothing was started\n"
    )
    assert hooked.ok("jobs", "--json").json()["jobs"] == before


@pytest.mark.slow
def test_ctrl_c_stops_the_run_and_the_outcome_says_so(hooked: Site) -> None:
    with hooked.popen("start", str(hooked.workspace(SLEEP))) as starting:
        assert starting.stdout is not None
        next(line for line in starting.stdout if "all processes are running" in line)
        starting.send_signal(signal.SIGINT)
        out, _ = starting.communicate(timeout=180)
    assert starting.returncode == 130
    announced = next(line for line in out.splitlines() if line.startswith("announced")).split()
    assert (announced[1], announced[-1]) == ("stopped", "130")


@pytest.mark.slow
def test_a_start_that_does_not_see_the_end_says_that_nothing_ran_then(hooked: Site) -> None:
    job = hooked.dispatch(SLEEP)
    detached = hooked.ok("start", job, "--detach")
    assert "AFTER_END does not run with --detach" in detached.err
    assert "announced" not in detached.out
    assert "preparing" in detached.out
    hooked.ok("stop", job)
    with hooked.popen("start", job) as starting:
        assert starting.stdout is not None
        next(line for line in starting.stdout if "all processes are running" in line)
        starting.send_signal(signal.SIGTERM)
        out, err = starting.communicate(timeout=180)
    assert starting.returncode == 143
    assert "announced" not in out
    assert "AFTER_END was not run: start did not see the end of the run" in err
    hooked.ok("stop", job)


def test_a_failing_after_end_is_a_warning(hooked: Site) -> None:
    hooked.conf(ENGINE="none", PSERVERS=0, AFTER_END="brief")
    done = hooked.ok("start", str(hooked.workspace("")))
    assert "AFTER_END: the task brief failed on this machine: RuntimeError: cannot say succeeded" in done.err
    assert "the exit code stays 0" in done.err


def test_a_plan_runs_nothing_and_mistakes_are_found_before_anything_happens(hooked: Site) -> None:
    package = str(hooked.workspace(""))
    assert "preparing" not in hooked.ok("start", package, "--plan").out
    hooked.conf(ENGINE="none", PSERVERS=0, BEFORE_START="prepare", AFTER_END="anounce")
    done = hooked.run("start", package)
    assert (done.code, done.out) == (2, "")
    assert "conf.py:" in done.err
    assert "AFTER_END = 'anounce': tasks.py has no task 'anounce'; did you mean announce?" in done.err
    assert "needs more" in hooked.run("start", package, "--set", "AFTER_END=needs").err
    (hooked.directory / "tasks.py").unlink()
    done = hooked.run("start", package)
    assert done.code == 2
    assert "there is no tasks.py or fabfile.py" in done.err
    assert not (hooked.directory / "prepared").exists()
