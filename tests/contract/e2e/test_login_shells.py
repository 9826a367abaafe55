"""Accounts whose start-up file puts another program in the place of the command: no answer is never a success."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import forked
from support.openssh import OpenSshCluster, openssh_cluster

TASKS = """
from fabric import task

@task
def hello(c):
    c.run("echo hello")
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSshCluster]:
    with openssh_cluster(tmp_path_factory.mktemp("sshd"), 1) as made:
        yield made


@pytest.fixture
def run(sshd: OpenSshCluster, tmp_path: Path) -> Run:
    conf = tmp_path / "conf.py"
    sshd.write_conf(conf)
    (tmp_path / "tasks.py").write_text(TASKS)

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return forked.run([sys.executable, "-m", "clusterctl", "--conf", str(conf), *args], timeout=300)

    return run


@pytest.mark.parametrize("line", ["exec zsh", "echo password expired >&2; exit"])
def test_a_start_up_file_that_runs_another_program_is_an_error_of_every_command(
    line: str, sshd: OpenSshCluster, run: Run
) -> None:
    start_up = sshd.daemons[0].home / ".bashrc"
    start_up.write_text("echo welcome\n")
    if "'welcome'" not in run("status").stderr:
        pytest.skip("the login shell here reads no start-up file")
    shell = line.removeprefix("exec ")
    if shell in ("zsh", "fish") and shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    start_up.write_text(f"{line}\n")
    for command in (["exec", "--", "echo", "hello"], ["exec", "--", "echo hello"], ["status"], ["task", "hello"]):
        done = run(*command)
        assert done.returncode == 3, (command, done.stdout, done.stderr)
        assert "did not run the command that it was given" in done.stderr
        assert ".bashrc" in done.stderr
        assert ("password expired" in done.stderr) == ("expired" in line)
        assert "hello" not in done.stdout
