"""Commands of the real program before and after `fake down`."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl import fake
from clusterctl.cli.fake_down import explained
from clusterctl.errors import RefusedError
from contract.fake.test_fake_cluster import kill_servers
from support import forked
from support.person import on_terminal, read_until

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(directory: Path) -> Run:
    """Run the program beside the cluster in `directory`, whose conf.py it uses; its terminal is not ours."""
    env = {**os.environ, "CLUSTERCTL_CONF": "fake/conf.py", "XDG_CACHE_HOME": str(directory.parent / "cache")}

    def call(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = forked.run([sys.executable, "-m", "clusterctl", *words], cwd=directory.parent, env=env)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return call


def paste(run: Run, text: str) -> None:
    command = text.partition("clusterctl ")[2].partition(" starts ")[0]
    run(*shlex.split(command))


def test_a_cluster_whose_servers_died_is_reported_and_the_hint_brings_it_up(directory: Path, run: Run) -> None:
    fake.up(directory, 2)
    assert run("jobs").stdout.startswith("no jobs")
    kill_servers(directory)
    for command in (["status"], ["check"], ["exec", "--", "true"]):
        assert "the fake cluster in fake is down\n" in run(*command, code=3).stderr
        error = json.loads(run("--json", *command, code=3).stdout)["error"]
        assert (error["kind"], error["message"]) == ("unreachable", "the fake cluster in fake is down")
    taken = RefusedError("the host key of 127.0.0.1 has CHANGED", node="node0")  # another server has its port
    assert "is down" in explained(taken, directory / "conf.py").message
    own = RefusedError("there is such a file")
    assert explained(own, directory / "conf.py") is own
    paste(run, error["hint"])
    assert explained(taken, directory / "conf.py") is taken
    assert run("jobs").stdout.startswith("no jobs")
    assert len(fake.status(directory).nodes) == 2


def test_after_down_the_missing_conf_is_explained_and_the_hint_brings_a_cluster_up(directory: Path, run: Run) -> None:
    fake.up(directory, 1)
    run("fake", "down")
    failed = run("status", code=2).stderr
    assert failed.startswith("fake/conf.py: no such file\n")
    paste(run, failed.partition("is down: ")[2])
    assert run("jobs").stdout.startswith("no jobs")


def test_after_down_a_conf_that_was_edited_or_copied_still_belongs_to_the_cluster(directory: Path, run: Run) -> None:
    conf = fake.up(directory, 1).conf
    (directory.parent / "copied.py").write_text(conf.read_text())
    conf.write_text(conf.read_text() + "RESTARTS = 0\n")
    run("fake", "down")
    edited = run("status", code=3).stderr.splitlines()
    assert edited[0] == "the fake cluster in fake is down"
    assert edited[1].startswith("  fake/conf.py was edited: move it away; then clusterctl fake up")
    conf.rename(directory.parent / "edited.py")
    for name in ("copied.py", "edited.py"):
        failed = run("status", "--conf", name, code=3).stderr
        assert failed.startswith("the fake cluster in fake is down\n")
    paste(run, failed)


def test_other_errors_and_other_clusters_are_reported_as_they_are(directory: Path, run: Run) -> None:
    fake.up(directory, 1)
    fake.harm(directory, "node0", "kill")
    assert "is down" not in run("status", code=3).stderr
    fake.heal(directory, "node0")
    assert "there is no job" in run("status", code=2).stderr
    kill_servers(directory)
    assert "is neither an option" in run("exec", "JOB1", "--", "true", code=2).stderr
    foreign = directory.parent / "conf.py"
    ours = (directory / "conf.py").read_text()
    for text in (ours.partition("\n")[2], ours + f"IDENTITY_FILE = {str(directory / 'keys/node0')!r}\n"):
        foreign.write_text(text)
        assert "refused" in run("status", "--conf", "conf.py", code=3).stderr


@pytest.fixture
def job(directory: Path, run: Run) -> str:
    """A job that runs on a cluster of one node, until the test ends it."""
    fake.up(directory, 1)
    workspace = directory.parent / "workspace"
    workspace.mkdir()
    (workspace / "train.py").write_text("import time\ntime.sleep(600)\n")
    started = run("start", "--engine", "none", "--job_dispatch_package", "workspace", "--detach", "--json")
    name: str = json.loads(started.stdout)["job"]
    return name


def test_down_refuses_to_end_a_running_job_and_its_hint_stops_it(directory: Path, job: str, run: Run) -> None:
    assert "nothing was stopped" in answered("", directory, job)
    error = json.loads(run("fake", "down", "--json", code=4).stdout)["error"]
    assert (error["kind"], error["details"]["jobs"]) == ("refused", [job])
    assert error["message"] == f"{job} is running on the fake cluster in fake"
    assert run("fake", "down", code=4).stderr.startswith(error["message"])
    assert json.loads(run("status", "--json").stdout)["state"] == "running"
    stop, _, end = (part.partition("clusterctl ")[2] for part in error["hint"].partition("; "))
    assert end == "fake down --yes --dir fake ends everything"
    run(*shlex.split(stop.partition(" stops it")[0]))
    assert json.loads(run("status", "--json").stdout)["state"] == "stopped"
    run("fake", "down")
    assert not directory.exists()


def test_down_ends_a_running_job_for_a_yes_at_a_terminal(directory: Path, job: str) -> None:
    assert " is down" in answered("y", directory, job)
    assert not directory.exists()


def answered(answer: str, directory: Path, job: str) -> str:
    """Return what `fake down` printed after an answer to its question, which names the job."""
    pid, terminal = on_terminal(sys.executable, "-m", "clusterctl", "fake", "down", "--dir", str(directory))
    assert job.encode() in read_until(terminal, b"[y/N] ")
    os.write(terminal, f"{answer}\n".encode())
    printed = read_until(terminal, b" is down" if answer else b"nothing was stopped")
    os.waitpid(pid, 0)
    os.close(terminal)
    return printed.decode()
