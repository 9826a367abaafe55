"""Faults that `fake` injects into a node, and how it heals: the same for every backend that supports them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clusterctl import fake
from clusterctl.errors import RefusedError, UsageError
from clusterctl.fake import FakeCluster
from clusterctl.transport import Transport, command
from support.nodes import TestNode, TestSettings
from support.processes import is_alive, processes_with_environment, wait_until


@pytest.fixture
def cluster(directory: Path, backend: str) -> FakeCluster:
    return fake.up(directory, 2, backend=backend)


@pytest.fixture
def transport(cluster: FakeCluster) -> Iterator[Transport]:
    with Transport(TestSettings(cluster.ssh_config, cluster.identity, cluster.known_hosts)) as made:
        yield made


def member(cluster: FakeCluster, index: int) -> TestNode:
    return TestNode(f"node{index}", cluster.nodes[index].port)


def ssh(cluster: FakeCluster, index: int, script: str) -> str:
    argv = ["ssh", "-F", cluster.ssh_config, f"node{index}", script]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=180).stdout


def states(cluster: FakeCluster) -> list[tuple[str, bool]]:
    return [(node.state, node.answers) for node in fake.status(cluster.directory).nodes]


def pids(cluster: FakeCluster, index: int) -> list[int]:
    """Return the pids of all processes on a node."""
    of_cluster = {process.pid for process in processes_with_environment("CLUSTERCTL_FAKE", str(cluster.directory))}
    return [
        process.pid
        for process in processes_with_environment("CLUSTERCTL_FAKE_NODE", str(index))
        if process.pid in of_cluster
    ]


def states_of(processes: list[int]) -> set[str]:
    """Return the states as reported by the kernel: T is stopped."""
    stats = [Path(f"/proc/{pid}/stat").read_text() for pid in processes]
    return {stat.rpartition(")")[2].split()[0] for stat in stats}


def test_a_killed_node_dies_at_once_and_none_of_its_processes_saw_another_die(cluster: FakeCluster) -> None:
    ssh(cluster, 1, "cd; (sh -c 'while :; do sleep 300; echo saw it >noticed; done' </dev/null >/dev/null 2>&1 &)")
    ssh(cluster, 0, "(sleep 300 </dev/null >/dev/null 2>&1 &)")
    argv = ["ssh", "-F", cluster.ssh_config, "node1", "cd; echo on; cat"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == b"on\n"
        assert wait_until(lambda: len(pids(cluster, 1)) >= 3)  # the two of the loop, and what the user runs
        fake.harm(cluster.directory, "node1", "kill")
        assert pids(cluster, 1) == []
        assert user.wait(180) == 255  # as when the connection breaks
    assert not (cluster.nodes[1].home / "noticed").exists()
    assert states(cluster) == [("up", True), ("killed", False)]
    assert len(pids(cluster, 0)) == 1


def test_a_healed_node_has_its_address_key_and_files_back_but_no_processes(cluster: FakeCluster) -> None:
    ssh(cluster, 1, "cd; touch kept; (sleep 300 </dev/null >/dev/null 2>&1 &)")
    for _ in range(2):
        fake.harm(cluster.directory, "1", "kill")
        healed = fake.heal(cluster.directory, "1")
        assert (healed.node, healed.moved) == (cluster.nodes[1], False)
        assert ssh(cluster, 1, "cd; ls; echo $CLUSTERCTL_FAKE_NODE").split() == ["kept", "1"]
    assert states(cluster) == [("up", True), ("up", True)]
    assert pids(cluster, 1) == []


def test_a_daemon_is_healed_when_another_program_no_longer_uses_its_port(directory: Path) -> None:
    cluster = fake.up(directory, 1, backend="ssh")
    fake.harm(directory, "0", "kill")
    with ThreadPoolExecutor() as pool:
        with socket.create_server(("127.0.0.1", cluster.nodes[0].port)):
            healing = pool.submit(fake.heal, directory, "0")
            assert wait_until(lambda: "in use" in (directory / "sshd/node0.log").read_text())
        assert not healing.result(180).moved
    assert ssh(cluster, 0, "echo fine") == "fine\n"


def test_a_paused_node_freezes_and_continues_when_it_is_healed(cluster: FakeCluster, transport: Transport) -> None:
    node = member(cluster, 1)
    with transport.open(node, command("cat")) as talk, ThreadPoolExecutor() as pool:
        talk.write(b"before\n", deadline_s=180)
        assert talk.readline(deadline_s=180) == b"before\n"
        fake.harm(cluster.directory, "node1", "pause")
        assert states_of(pids(cluster, 1)) == {"T"}
        assert states(cluster) == [("up", True), ("paused", False)]
        talk.write(b"meanwhile\n", deadline_s=180)
        late = pool.submit(transport.run, node, command("echo", "late"))  # on the connection that is open
        new = pool.submit(ssh, cluster, 1, "echo new")
        assert ssh(cluster, 0, "echo other") == "other\n"
        assert states_of(pids(cluster, 1)) == {"T"}
        assert not late.done()
        assert not new.done()
        assert not fake.heal(cluster.directory, "node1").moved
        assert talk.readline(deadline_s=180) == b"meanwhile\n"
        assert (late.result(180).stdout, new.result(180)) == (b"late\n", "new\n")
    assert states(cluster) == [("up", True), ("up", True)]


def test_an_unsupported_fault_is_a_usage_error_that_names_a_backend_with_it(cluster: FakeCluster) -> None:
    with pytest.raises(UsageError, match=f"the {cluster.backend} backend cannot cut a node off") as caught:
        fake.harm(cluster.directory, "1", "cut")
    assert caught.value.hint == "clusterctl fake up --backend docker"
    for wrong in ("node2", "-1", "", "01x"):
        with pytest.raises(UsageError, match="no node '") as caught:
            fake.harm(cluster.directory, wrong, "kill")
        assert caught.value.hint == "choose one of node0 to node1"
    assert states(cluster) == [("up", True), ("up", True)]


def test_a_node_can_have_one_fault_and_healing_a_healthy_one_does_nothing(cluster: FakeCluster) -> None:
    fake.harm(cluster.directory, "1", "kill")
    for fault in ("kill", "pause"):
        with pytest.raises(RefusedError, match="node1 is killed") as caught:
            fake.harm(cluster.directory, "1", fault)
        assert caught.value.hint == "heal it first: clusterctl fake heal node1"
    fake.heal(cluster.directory, "0")
    assert states(cluster) == [("up", True), ("killed", False)]


def test_a_daemon_that_died_on_its_own_counts_as_killed_and_is_healed(directory: Path) -> None:
    cluster = fake.up(directory, 2, backend="ssh")
    daemon = next(
        int(stat.parent.name)
        for stat in Path("/proc").glob("[0-9]*/cmdline")
        if f"{directory}/sshd/node1.config".encode() in stat.read_bytes()
    )
    os.kill(daemon, signal.SIGKILL)
    assert wait_until(lambda: not is_alive(daemon))
    assert states(cluster) == [("up", True), ("killed", False)]
    fake.heal(directory, "1")
    assert ssh(cluster, 1, "echo fine") == "fine\n"


def test_nothing_is_healed_if_the_server_is_gone(directory: Path) -> None:
    cluster = fake.up(directory, 1)
    assert cluster.pid is not None
    os.kill(cluster.pid, signal.SIGKILL)
    assert wait_until(lambda: not is_alive(cluster.pid))
    with pytest.raises(RefusedError, match="is down"):
        fake.heal(directory, "0")
    assert states(cluster) == [("down", False)]
