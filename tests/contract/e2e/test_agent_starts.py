"""How many agents a command starts on a node, however long it lasts: on some machines each is a step of a scheduler."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from contract.e2e.test_control_away import breakable
from support.processes import wait_until
from support.site import Site

pytestmark = [pytest.mark.nodes(2), pytest.mark.slow]

ATTACHED, STREAM = 2, 1  # at most so many
ROUNDS = 4
# Every start of an agent leaves a line in the node's home.
COUNTING = """#!/bin/sh
case "$*" in *signal.alarm*) echo agent >>"$HOME/agents" ;; esac
exec {python} "$@"
"""
FOLLOWED = """
import os, time
print("begun", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
print("ended", flush=True)
"""
Counted = Callable[[], int]


@pytest.fixture
def counted(site: Site) -> Counted:
    """Return a function that returns how many agents the node with the most of them has started since the last call."""
    python = site.directory / "counting-python"
    python.write_text(COUNTING.format(python=sys.executable))
    python.chmod(0o755)
    site.defaults = {**site.defaults, "PYTHON": python}
    site.conf()
    files = [site.home(node) / "agents" for node in range(2)]

    def most() -> int:
        counts = [len(file.read_text().splitlines()) if file.exists() else 0 for file in files]
        for file in files:
            file.unlink(missing_ok=True)
        return max(counts)

    most()
    return most


def release(site: Site, job: str) -> None:
    for node in range(2):
        (site.job_dir(job, node) / "go").touch()


def test_an_attached_start_needs_two_agents_on_a_node(site: Site, counted: Counted) -> None:
    """With the dispatch before it, even if that finds nothing changed, and the question for the cause after it."""
    site.conf(ENGINE="none")
    program = FOLLOWED + "raise ValueError\n"
    site.dispatch(program)
    counted()
    with site.popen("start", "--job_dispatch_package", str(site.workspace(program))) as starting:
        assert starting.stdout is not None
        began = next(line for line in starting.stdout if "supervisors are up" in line)
        job = Path(began.split()[0]).name
        next(line for line in starting.stdout if "begun" in line)
        release(site, job)
        starting.communicate(timeout=60)
    assert starting.returncode == 1
    assert counted() <= ATTACHED


def test_followers_need_one_agent_on_a_node_however_often_they_ask_and_one_for_each_lost_connection(
    site: Site, counted: Counted
) -> None:
    site.conf(ENGINE="none")
    job = site.start(FOLLOWED)
    with breakable(site) as break_it:
        site.conf(**{**parsed(site), "ENGINE": "none"})
        counted()
        with site.popen("status", "--watch", "--json", job) as watching:
            assert watching.stdout is not None
            for _ in range(ROUNDS):
                assert '"state":"running"' in watching.stdout.readline().replace(" ", "")
            assert counted() == STREAM
            watching.kill()
            watching.communicate()
        with site.popen("logs", "-f", job) as following:
            assert following.stdout is not None
            lines = {following.stdout.readline().split()[-1] for _ in range(2)}
            assert lines == {"begun"}
            assert counted() == STREAM
            break_it()
            assert following.stderr is not None
            assert wait_until(lambda: counted() == STREAM)
            release(site, job)
            out, err = following.communicate(timeout=60)
    assert following.returncode == 0, err
    assert [line.split()[-1] for line in out.splitlines()] == ["ended", "ended"]


def parsed(site: Site) -> dict[str, object]:
    values: dict[str, object] = {}
    exec(site.conf_path.read_text(), values)
    return {name: value for name, value in values.items() if name.isupper()}
