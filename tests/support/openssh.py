"""Real OpenSSH daemons on loopback, run by the current user, one per node, each with its own home."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest

from clusterctl.fake.sshd import config_text
from support.processes import assert_none_left, descendants, kill_all, processes_with_environment, wait_until

ADDRESS = "127.0.0.1"
MARK = "CLUSTERCTL_TEST_SSHD"
NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Daemon:
    port: int
    home: Path
    host_key: Path  # the .pub next to it is the line for known_hosts
    process: subprocess.Popen[bytes]


@dataclass(frozen=True)
class OpenSshCluster:
    """The daemons, and the settings a conf.py needs to use them."""

    directory: Path
    hosts: tuple[str, ...]
    identity: Path
    known_hosts: Path
    ssh_config: Path
    daemons: tuple[Daemon, ...]

    def write_conf(self, path: Path) -> None:
        """Write a conf.py for these daemons."""
        values = {
            "HOSTS": list(self.hosts),
            "IDENTITY_FILE": str(self.identity),
            "KNOWN_HOSTS": str(self.known_hosts),
            "SSH_CONFIG": str(self.ssh_config),
        }
        path.write_text("".join(f"{name} = {value!r}\n" for name, value in values.items()))


def find_sshd() -> str:
    """Return the path of sshd. Without one, skip the test, or fail it if CI is set."""
    sshd = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin:/sbin")
    if sshd is None or shutil.which("ssh-keygen") is None:
        reason = "needs sshd and ssh-keygen (apt-get install openssh-server)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return sshd


@contextlib.contextmanager
def openssh_cluster(
    directory: Path, n: int, *extra_options: str, inside: Sequence[str] = (), environment: Mapping[str, str] = NOTHING
) -> Iterator[OpenSshCluster]:
    """Run `n` daemons with everything they need under `directory`, and end all their processes afterwards.

    `extra_options` are further lines of sshd_config; `inside` is the prefix of a command that starts a daemon;
    `environment` is added to that of commands. As always with sshd, a command starts in the real home of the user,
    while $HOME is the node's own.
    """
    sshd = find_sshd()
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # privilege separation requires it
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    identity = make_key(directory / "client")
    started: list[Daemon] = []
    try:
        for index in range(n):
            started.append(_start([*inside, sshd], directory, index, identity, extra_options, environment))
        yield _describe(directory, identity, tuple(started))
    finally:
        _end(directory, started)


def free_port() -> int:
    """Return a port that is free now. The caller must be ready to try another if binding it fails."""
    with socket.socket() as sock:
        sock.bind((ADDRESS, 0))
        port: int = sock.getsockname()[1]
        return port


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    """Make a private key file with its public half next to it; return its path."""
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)], check=True)
    return path


def _start(
    sshd: Sequence[str],
    directory: Path,
    index: int,
    identity: Path,
    extra: tuple[str, ...],
    environment: Mapping[str, str],
) -> Daemon:
    node = directory / f"node{index}"
    home = node / "home"
    home.mkdir(parents=True)
    host_key = make_key(node / "host_key")
    for _ in range(5):
        port = free_port()
        config = node / "sshd_config"
        variables = {**environment, "HOME": str(home), MARK: str(directory)}
        config.write_text(_config(node, port, identity, extra, variables))
        with (node / "sshd.log").open("ab") as log:
            process = subprocess.Popen(
                [*sshd, "-D", "-e", "-f", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if _comes_up(process, port):
            return Daemon(port, home, host_key, process)
        process.kill()
        process.wait()
    raise RuntimeError("sshd does not start:\n" + (node / "sshd.log").read_text())


def _config(node: Path, port: int, identity: Path, extra: tuple[str, ...], variables: Mapping[str, str]) -> str:
    authorized = identity.with_suffix(".pub")
    return config_text(port, node / "host_key", authorized, variables, path_first=[node / "bin"], first=extra)


def _comes_up(process: subprocess.Popen[bytes], port: int) -> bool:
    wait_until(lambda: process.poll() is not None or _answers(port))
    return process.poll() is None


def _answers(port: int) -> bool:
    try:
        with socket.create_connection((ADDRESS, port), timeout=2) as sock:
            return sock.recv(4) == b"SSH-"
    except OSError:
        return False


def _describe(directory: Path, identity: Path, daemons: tuple[Daemon, ...]) -> OpenSshCluster:
    lines = [
        f"[{ADDRESS}]:{daemon.port} {' '.join(daemon.host_key.with_suffix('.pub').read_text().split()[:2])}\n"
        for daemon in daemons
    ]
    known_hosts = directory / "known_hosts"
    known_hosts.write_text("".join(lines))
    ssh_config = directory / "ssh_config"
    ssh_config.write_text("")  # so that the user's own has no effect
    return OpenSshCluster(
        directory=directory,
        hosts=tuple(f"{getpass.getuser()}@{ADDRESS}:{daemon.port}" for daemon in daemons),
        identity=identity,
        known_hosts=known_hosts,
        ssh_config=ssh_config,
        daemons=daemons,
    )


def _end(directory: Path, daemons: list[Daemon]) -> None:
    for daemon in daemons:
        # Its sessions outlive it, and can be found by their parent only while it is alive.
        below = descendants(daemon.process.pid)
        daemon.process.send_signal(signal.SIGTERM)
        kill_all(below)
        try:
            daemon.process.wait(60)
        except subprocess.TimeoutExpired:
            daemon.process.kill()
            daemon.process.wait()
    kill_all(process.pid for process in processes_with_environment(MARK, str(directory)))
    assert_none_left(MARK, str(directory))
