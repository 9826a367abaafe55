"""The recipe of docs/carriers.md for connections that stay open between commands, over real OpenSSH."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.docs.pages import blocks
from support.openssh import OpenSshCluster, openssh_cluster
from support.places import ROOT
from support.processes import wait_until

pytestmark = pytest.mark.slow

Call = Callable[..., subprocess.CompletedProcess[str]]


def recipe() -> dict[str, Any]:
    """Return the settings of the recipe."""
    values: dict[str, Any] = {}
    (block,) = (one for one in blocks(ROOT / "docs/carriers.md", "python") if "ControlPersist" in one.body)
    exec(block.body, values)
    return {name: value for name, value in values.items() if name.isupper()}


def end_masters() -> str:
    """Return the commands of the page that end the masters."""
    (block,) = (one for one in blocks(ROOT / "docs/carriers.md", "sh") if "-O exit" in one.body)
    return block.body


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[OpenSshCluster]:
    with openssh_cluster(tmp_path / "sshd", 2) as made:
        yield made


@pytest.fixture
def call(sshd: OpenSshCluster, tmp_path: Path) -> Iterator[Call]:
    """Runs a command with an `ssh` that knows the hosts of the recipe, and has its sockets in another directory."""
    hosts = [
        f"Host {name}\n HostName 127.0.0.1\n Port {daemon.port}\n IdentityFile {sshd.identity}\n IdentitiesOnly yes\n"
        f" UserKnownHostsFile {sshd.known_hosts}\n"
        for name, daemon in zip(recipe()["HOSTS"], sshd.daemons, strict=True)
    ]
    config, program = tmp_path / "config", tmp_path / "bin" / "ssh"
    config.write_text("".join(hosts))
    program.parent.mkdir()
    with tempfile.TemporaryDirectory(prefix="mux", dir="/tmp") as sockets:  # the path of a socket has to be short
        first = ["-F", str(config), "-o", f"ControlPath={sockets}/%C"]  # of two values `ssh` takes the first
        program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} {shlex.join(first)} "$@"\n')
        program.chmod(0o755)
        environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}

        def call(*words: str) -> subprocess.CompletedProcess[str]:
            options: dict[str, Any] = {"cwd": tmp_path, "env": environment, "timeout": 180}
            return subprocess.run(words, capture_output=True, text=True, check=False, **options)

        try:
            yield call
        finally:
            call("sh", "-c", end_masters())
            assert wait_until(lambda: not list(Path(sockets).iterdir()))


def logins(sshd: OpenSshCluster) -> list[int]:
    logs = [(daemon.home.parent / "sshd.log").read_text() for daemon in sshd.daemons]
    return [log.count("Accepted publickey") for log in logs]


def test_the_second_command_logs_in_nowhere_until_the_masters_are_ended(
    sshd: OpenSshCluster, call: Call, tmp_path: Path
) -> None:
    values = {**recipe(), "PYTHON": sys.executable}
    (tmp_path / "conf.py").write_text("".join(f"{name} = {value!r}\n" for name, value in values.items()))
    clusterctl = (sys.executable, "-m", "clusterctl")
    for words in (("exec", "--", "echo", "hello"), ("jobs",)):
        done = call(*clusterctl, *words)
        assert (done.returncode, done.stderr) == (0, "")
        assert logins(sshd) == [1, 1]
    ended = call("sh", "-c", end_masters())
    assert (ended.returncode, ended.stderr.count("Exit request sent.")) == (0, 2)
    assert call(*clusterctl, "exec", "--", "true").returncode == 0
    assert logins(sshd) == [2, 2]
