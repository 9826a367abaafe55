"""The docker backend: containers that act as SSH nodes, from docker/compose.yaml, in a separate project."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterctl.common.procfs import wait_until
from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.fake.backend import NodeStatus, UpOptions, answers
from clusterctl.fake.layout import FakeNode, FakePaths, FakeState, write_files
from clusterctl.fake.programs import call, end_everything, end_keeper, find_program, make_key, start_keeper, variable
from clusterctl.templates import data_file

IMAGE = "clusterctl/node"
USER, HOME = "trainer", Path("/home/trainer")
HOST_KEY = "/etc/ssh/host_keys/ssh_host_ed25519_key.pub"
SSH_PORT = "22/tcp"
PROJECT, SERVICE, NUMBER = (f"com.docker.compose.{name}" for name in ("project", "service", "container-number"))
BUILD_S = 1200.0
UP_S = 180.0
HEALTHY_S = 60.0
SYSTEM_PROCESSES = ("tini", "sshd", "sshd-session", "sshd-answers", "entrypoint")


class Docker:
    name = "docker"
    faults = frozenset({"kill", "pause", "cut"})

    def check(self, n: int) -> None:
        """Check for the docker command, its daemon, and compose."""
        if find_program("docker") is None:
            raise UsageError("the docker backend needs docker", hint="apt-get install docker.io docker-compose")
        done = call(["docker", "version", "--format", "{{.Server.Version}}"])
        if done.returncode:
            raise UsageError(f"docker does not answer: {_last_lines(done.stderr)}", hint=_remedy(done.stderr))
        _compose()

    def start(self, layout: FakePaths, n: int, terms: UpOptions) -> FakeState:
        state = FakeState(self.name)
        if terms.lifeline:
            state = replace(state, server=start_keeper(layout, remove=terms.remove))
        layout.keys.mkdir(mode=0o700)
        make_key(layout.identity, "clusterctl fake cluster")
        settings = {"NODES": str(n), "CLUSTERCTL_AUTHORIZED_KEY": layout.identity.with_suffix(".pub").read_text()}
        if call(["docker", "image", "inspect", variable("CLUSTERCTL_NODE_IMAGE", IMAGE)]).returncode:
            terms.tell("building the node image; this takes a minute or two, only once")
            _run_compose(layout, "build", "node", settings=settings, deadline_s=BUILD_S)
        _run_compose(layout, "up", "-d", "--no-build", "node", settings=settings, deadline_s=UP_S)
        if not wait_until(lambda: _are_healthy(layout, n), HEALTHY_S):
            raise ClusterctlError(
                "the containers did not become healthy", hint=f"see: docker ps -a | grep {project_name(layout)}"
            )
        state = replace(state, nodes=tuple(_read_node(index, c) for index, c in enumerate(_containers(layout))))
        write_files(layout, state.nodes)
        return state

    def stop(self, layout: FakePaths, state: FakeState | None) -> int:
        end_keeper(state)
        end_everything(layout)  # a compose process whose parent was killed
        containers = _containers(layout, service=None)
        ended = sum(_count_processes(container) for container in containers)
        for container in containers:
            if container["State"]["Paused"]:
                _docker("unpause", container["Id"])
        if containers:
            _docker("rm", "--force", "--volumes", *(container["Id"] for container in containers))
        for kind in ("network", "volume"):
            names = _docker(kind, "ls", "--quiet", "--filter", f"label={PROJECT}={project_name(layout)}").split()
            if names:
                _docker(kind, "rm", *names)
        return ended

    def is_up(self, layout: FakePaths, state: FakeState) -> bool:
        return any(container["State"]["Running"] for container in _containers(layout))

    def look(self, layout: FakePaths, state: FakeState) -> Sequence[NodeStatus]:
        containers = {_index(container): container for container in _containers(layout)}
        return [_look(node, containers.get(node.index)) for node in state.nodes]

    def commands(self, layout: FakePaths, state: FakeState) -> Sequence[str]:
        running = [container for container in _containers(layout) if container["State"]["Running"]]
        return [line for one in running for line in _docker("top", one["Id"], "-o", "pid,args").splitlines()[1:]]

    def harm(self, layout: FakePaths, state: FakeState, node: FakeNode, fault: str) -> FakeState:
        container = _container(layout, node)
        if fault == "cut":
            for network in container["NetworkSettings"]["Networks"]:
                _docker("network", "disconnect", "--force", network, container["Id"])
        else:
            _docker(fault, container["Id"])
        return state

    def heal(self, layout: FakePaths, state: FakeState, node: FakeNode, node_state: str) -> FakeState:
        """Heal a node. A container that is restarted or reconnected gets a new port, and maybe a new address."""
        container = _container(layout, node)
        if node_state == "paused":
            _docker("unpause", container["Id"])
            return state
        if node_state == "killed":
            _docker("start", container["Id"])
        if not _container(layout, node)["NetworkSettings"]["Networks"]:
            _docker("network", "connect", "--alias", "node", f"{project_name(layout)}_cluster", container["Id"])
        wait_until(lambda: _port(_container(layout, node)) is not None, HEALTHY_S)
        healed = _read_node(node.index, _container(layout, node))
        nodes = tuple(healed if one.index == node.index else one for one in state.nodes)
        return replace(state, nodes=nodes)


BACKEND = Docker()


def project_name(layout: FakePaths) -> str:
    """Return the name of the compose project, one per directory."""
    return "clusterctl-" + hashlib.sha256(str(layout.directory).encode()).hexdigest()[:12]


def _compose() -> list[str]:
    """Return the command that runs compose on this machine."""
    if call(["docker", "compose", "version"]).returncode == 0:
        return ["docker", "compose"]
    if find_program("docker-compose") is not None:
        return ["docker-compose"]
    raise UsageError("the docker backend needs docker compose", hint="apt-get install docker-compose")


def _run_compose(layout: FakePaths, *words: str, settings: dict[str, str], deadline_s: float) -> None:
    file = data_file("docker") / "compose.yaml"
    argv = [*_compose(), "--file", str(file), "--project-name", project_name(layout), *words]
    done = call(argv, more={**settings, "CLUSTERCTL_FAKE": str(layout.directory)}, deadline_s=deadline_s)
    if done.returncode:
        raise ClusterctlError(
            f"docker compose {words[0]} failed: {_last_lines(done.stderr or done.stdout, 2)}",
            hint="set BASE_IMAGE=... to a Debian image to build on" if words[0] == "build" else None,
            details={"log": (done.stdout + done.stderr)[-4000:]},
        )


def _docker(*words: str) -> str:
    done = call(["docker", *words])
    if done.returncode:
        raise ClusterctlError(f"docker {' '.join(words[:2])} failed: {_last_lines(done.stderr)}")
    return done.stdout


def _containers(layout: FakePaths, service: str | None = "node") -> list[dict[str, Any]]:
    """Return the output of `docker inspect` for each container of the project, running or not, ordered by number."""
    filters = ["--filter", f"label={PROJECT}={project_name(layout)}"]
    if service is not None:
        filters += ["--filter", f"label={SERVICE}={service}"]
    ids = _docker("ps", "--all", "--quiet", *filters).split()
    containers = json.loads(_docker("inspect", *ids)) if ids else []
    return sorted(containers, key=_index)


def _container(layout: FakePaths, node: FakeNode) -> dict[str, Any]:
    for container in _containers(layout):
        if _index(container) == node.index:
            return container
    raise ClusterctlError("its container is gone", node=node.label)


def _index(container: dict[str, Any]) -> int:
    return int(container["Config"]["Labels"].get(NUMBER, 1)) - 1


def _are_healthy(layout: FakePaths, n: int) -> bool:
    containers = _containers(layout)
    dead = [container["Name"].lstrip("/") for container in containers if container["State"]["Status"] == "exited"]
    if dead:
        raise ClusterctlError(f"the container {dead[0]} exited at once", hint=f"see: docker logs {dead[0]}")
    return len([c for c in containers if c["State"].get("Health", {}).get("Status") == "healthy"]) == n


def _read_node(index: int, container: dict[str, Any]) -> FakeNode:
    """Read a node's facts. The host key comes directly from the container, so it cannot be forged on the way."""
    port = _port(container)
    if port is None:
        raise ClusterctlError("its port is not published", node=f"node{index}")
    key = " ".join(_docker("exec", container["Id"], "cat", HOST_KEY).split()[:2])
    addresses = [network["IPAddress"] for network in container["NetworkSettings"]["Networks"].values()]
    return FakeNode(index, port, HOME, key, USER, addresses[0])


def _port(container: dict[str, Any]) -> int | None:
    published = container["NetworkSettings"]["Ports"].get(SSH_PORT)
    return int(published[0]["HostPort"]) if published else None


def _look(node: FakeNode, container: dict[str, Any] | None) -> NodeStatus:
    state = _state(container)
    processes = _count_processes(container) if container is not None else 0
    return NodeStatus(node, state, state == "up" and answers(node.port), processes)


def _state(container: dict[str, Any] | None) -> str:
    if container is None:
        return "down"
    if container["State"]["Paused"]:
        return "paused"
    if not container["State"]["Running"]:
        return "killed"
    return "up" if container["NetworkSettings"]["Networks"] else "cut"


def _count_processes(container: dict[str, Any]) -> int:
    """Return the number of processes that the image itself does not start."""
    if not container["State"]["Running"]:
        return 0
    names = _docker("top", container["Id"], "-o", "pid,comm").splitlines()[1:]
    return len([line for line in names if line.split()[-1] not in SYSTEM_PROCESSES])


def _remedy(stderr: str) -> str:
    if "permission denied" in stderr.lower():
        return "run as root, or join the docker group"
    return "start it: systemctl start docker"


def _last_lines(text: str, count: int = 1) -> str:
    return " / ".join(text.strip().splitlines()[-count:]) or "no output"
