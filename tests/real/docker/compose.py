"""The cluster of docker/compose.yaml, and queries to Docker about it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest

from support.openssh import make_key
from support.places import ROOT
from support.processes import wait_until

FILE = ROOT / "docker" / "compose.yaml"
USER = "trainer"
PREFIX = os.environ.get("CLUSTERCTL_TEST_PROJECT", "clusterctl-test")  # .ci/docker finds leftovers by it
IMAGES = {"CLUSTERCTL_NODE_IMAGE": "clusterctl/node", "CLUSTERCTL_CONTROL_IMAGE": "clusterctl/control"}


def docker(*args: str, **options: Any) -> str:
    """Run `docker ARGS`, which must succeed, and return its output."""
    return _output("docker", *args, **options)


def _output(*command: str, **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **options)
    assert done.returncode == 0, f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@functools.cache
def image(variable: str) -> str:
    return os.environ.get(variable) or IMAGES[variable]


@functools.cache
def compose_command() -> tuple[str, ...]:
    """Return the command of Docker Compose. Without it, skip the test, or fail it for root if CI is set."""
    if not _works("docker", "info"):
        missing("needs docker, and a daemon that runs")
    for command in (("docker", "compose"), ("docker-compose",)):
        if _works(*command, "version"):
            return command
    return missing("needs docker compose, or docker-compose")


def need_images() -> None:
    for variable in IMAGES:
        if not _works("docker", "image", "inspect", image(variable)):
            missing(f"needs the image {image(variable)}: `make docker` builds it")


def _works(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, timeout=180, check=False).returncode == 0


def missing(reason: str) -> NoReturn:
    if os.environ.get("CI") and os.getuid() == 0:
        pytest.fail(reason)
    pytest.skip(reason)


def wait_for_a_pass(starting: subprocess.Popen[str]) -> None:
    """Read what an attached start of REGRESSION prints until its trainers have finished a pass."""
    assert starting.stdout is not None
    seen = []
    for line in starting.stdout:
        seen.append(line)
        if "end of pass 0" in line:
            return
    raise AssertionError("".join([*seen, starting.communicate()[1]]))


@dataclass(frozen=True)
class Node:
    """One container. `run` works like its console, even while it has no network."""

    name: str

    @property
    def port(self) -> int:
        """The port of the host published for its sshd; it changes with each start."""
        return int(docker("port", self.name, "22").splitlines()[0].rpartition(":")[2])

    @property
    def host_key(self) -> str:
        return " ".join(self.run("cat", "/etc/ssh/host_keys/ssh_host_ed25519_key.pub").split()[:2])

    def run(self, *argv: str, **options: Any) -> str:
        return docker("exec", *(("-i",) if "input" in options else ()), self.name, *argv, **options)

    def inspect(self) -> Any:
        return json.loads(docker("inspect", self.name))[0]

    def processes(self) -> list[str]:
        """Return the processes of the job user and all zombies."""
        lines = self.run("ps", "-eo", "user=,stat=,args=").splitlines()
        return [line for line in lines if line.split()[0] == USER or line.split()[1].startswith("Z")]


@dataclass
class Compose:
    """A separate project of `docker/compose.yaml` whose nodes accept the key `identity`."""

    identity: Path
    count: int
    project: str = field(default_factory=lambda: f"{PREFIX}-{uuid.uuid4().hex[:8]}")

    @property
    def network(self) -> str:
        return f"{self.project}_cluster"

    def __call__(self, *args: str) -> str:
        key = self.identity.with_suffix(".pub").read_text().strip()
        images = {variable: image(variable) for variable in IMAGES}
        env = {**os.environ, **images, "NODES": str(self.count), "CLUSTERCTL_AUTHORIZED_KEY": key}
        command = (*compose_command(), "-p", self.project, "-f", str(FILE), "--profile", "control")
        return _output(*command, *args, env=env)

    def containers(self, service: str) -> list[Node]:
        """Return the containers of a service, ordered by number."""
        labels = {"project": self.project, "service": service}
        filters = [f"--filter=label=com.docker.compose.{name}={value}" for name, value in labels.items()]
        number = '{{.Label "com.docker.compose.container-number"}}'
        lines = docker("ps", "-a", *filters, "--format", f"{number} {{{{.Names}}}}").splitlines()
        return [Node(name) for _, name in sorted((int(line.split()[0]), line.split()[1]) for line in lines)]

    @property
    def nodes(self) -> list[Node]:
        return self.containers("node")

    @property
    def control(self) -> Node:
        (control,) = self.containers("control")
        return control

    def heal(self) -> None:
        """Start and reconnect all containers, and wait until they are healthy."""
        containers = [*self.nodes, *self.containers("control")]
        for container in containers:
            seen = container.inspect()
            if self.network not in seen["NetworkSettings"]["Networks"]:
                docker("network", "connect", self.network, container.name)
            if not seen["State"]["Running"]:
                docker("start", container.name)
        assert wait_until(lambda: all(is_healthy(container) for container in containers))


def objects(project: str) -> list[str]:
    """Return the containers, networks and volumes of a project."""
    mine = f"label=com.docker.compose.project={project}"
    kinds = (("ps", "-a"), ("network", "ls"), ("volume", "ls"))
    return [name for kind in kinds for name in docker(*kind, "-q", "--filter", mine).split()]


def is_healthy(container: Node) -> bool:
    health = docker("inspect", "-f", "{{.State.Health.Status}}", container.name).strip()
    return health == "healthy"


@contextlib.contextmanager
def compose_cluster(directory: Path, n: int) -> Iterator[Compose]:
    """Bring up `n` nodes and a control container, and remove everything of them afterwards."""
    compose_command()
    need_images()
    compose = Compose(make_key(directory / "key"), n)
    try:
        compose("up", "-d", "--no-build")
        compose.heal()
        yield compose
    finally:
        compose("down", "-v", "-t", "2")
        assert objects(compose.project) == []


@contextlib.contextmanager
def volumes(n: int) -> Iterator[list[str]]:
    """Create volumes, yield their names, and remove them afterwards."""
    compose_command()
    need_images()
    names = [f"{PREFIX}-{uuid.uuid4().hex[:8]}" for _ in range(n)]
    try:
        yield [docker("volume", "create", name).strip() for name in names]
    finally:
        docker("volume", "rm", "-f", *names)
