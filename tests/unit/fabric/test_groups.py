"""fabric's Group over the nodes of a conf.py."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import invoke
import pytest
from fabric.exceptions import GroupException

from clusterctl.errors import ConfigError, RefusedError, UnreachableError, UsageError
from clusterctl.fabric import Group, group
from support.clusters import Cluster

MakeGroup = Callable[..., Group]


def test_a_method_runs_on_all_nodes_and_returns_a_result_for_each(nodes: Group) -> None:
    results = nodes.run("echo $((20 + 1))", hide=True)
    assert list(results) == list(nodes)
    assert [result.stdout for result in results.values()] == ["21\n"] * 3
    assert [connection.node.label for connection in results] == ["node0", "node1", "node2"]


def aliases(cluster: Cluster, directory: Path, count: int) -> dict[str, object]:
    """Return settings with several nodes that are one account of one server."""
    config = directory / "ssh_config"
    port = cluster.nodes[0].ssh_port
    config.write_text(f"Include {cluster.settings.ssh_config}\nHost alias*\n HostName 127.0.0.1\n Port {port}\n")
    return {"HOSTS": [f"alias{number}" for number in range(count)], "SSH_CONFIG": config}


def test_results_of_nodes_on_one_machine_do_not_replace_each_other(
    cluster: Cluster, make_group: MakeGroup, tmp_path: Path
) -> None:
    twice = make_group(**aliases(cluster, tmp_path, 2))
    assert len({(connection.host, connection.user, connection.port) for connection in twice}) == 1
    assert len(twice.run("true", hide=True)) == 2


def test_failures_are_in_one_exception_with_the_results_of_the_others(cluster: Cluster, make_group: MakeGroup) -> None:
    some = make_group(HOSTS=[f"127.0.0.1:{cluster.nodes[0].ssh_port}", "127.0.0.1:1"])
    with pytest.raises(GroupException) as raised:
        some.run("echo fine", hide=True)
    assert [result.stdout for result in raised.value.result.succeeded.values()] == ["fine\n"]
    assert [type(error) for error in raised.value.result.failed.values()] == [UnreachableError]
    with pytest.raises(GroupException) as raised:
        make_group().run("exit 3", hide=True)
    assert [type(error) for error in raised.value.result.failed.values()] == [invoke.UnexpectedExit] * 3


def test_host_keys_are_checked(make_group: MakeGroup, tmp_path: Path) -> None:
    with pytest.raises(GroupException) as raised:
        make_group(KNOWN_HOSTS=tmp_path / "none").run("true")
    assert {type(error) for error in raised.value.result.failed.values()} == {RefusedError}
    assert not (tmp_path / "none").exists()


def test_no_more_than_64_nodes_run_at_a_time(cluster: Cluster, make_group: MakeGroup, tmp_path: Path) -> None:
    many = make_group(**aliases(cluster, tmp_path, 70))
    lock, at_once, most = threading.Lock(), [0], [0]
    full = threading.Event()

    def hold(command: str) -> None:
        with lock:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
            if at_once[0] == 64:
                full.set()
        assert full.wait(180)
        with lock:
            at_once[0] -= 1

    for connection in many:
        connection._set(run=hold)
    many.run("true")
    assert most[0] == 64


def test_files_of_all_nodes_come_into_a_directory_of_each_node(
    nodes: Group, remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    nodes.run(f"echo text > {remote}")
    nodes.get(remote)
    assert [(tmp_path / f"node{number}" / "remote").read_text() for number in range(3)] == ["text\n"] * 3


def test_only_selects_nodes_and_mistakes_in_conf_py_are_reported(make_group: MakeGroup, tmp_path: Path) -> None:
    make_group()
    conf = tmp_path / "conf.py"
    with group(conf, only="node[1-2]") as some:
        assert [connection.node.id for connection in some] == [1, 2]
    with pytest.raises(UsageError, match="no node 'node7'"):
        group(conf, only="node7")
    conf.write_text("HOSTS = []\n")
    with pytest.raises(ConfigError, match="HOSTS"):
        group(str(conf))


def test_connections_are_given_back_after_each_call_unless_they_were_open(nodes: Group) -> None:
    nodes[0].open()
    promises = nodes.run("sleep 0.2; echo later", asynchronous=True)
    assert [connection.is_connected for connection in nodes] == [True, False, False]
    assert [promise.join().stdout for promise in promises.values()] == ["later\n"] * 3


def test_the_program_ends_although_its_group_was_not_closed(make_group: MakeGroup, tmp_path: Path) -> None:
    make_group()
    program = "from clusterctl.fabric import group\nprint(len(group('conf.py').run('true')))\n"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


def test_fabric_can_be_imported_while_another_thread_connects() -> None:
    """The loader of paramiko hides invoke from it. A thread waits in that import until fabric is wanted, too."""
    program = """
import importlib.abc, sys, threading
from clusterctl.transport import paramiko_loader

inside, go_on = threading.Event(), threading.Event()

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "paramiko.client":
            inside.set()
            go_on.wait(0.5)

sys.meta_path.insert(0, Finder())
loading = threading.Thread(target=paramiko_loader.load)
loading.start()
assert inside.wait(180)
import clusterctl.fabric
loading.join()
print(clusterctl.fabric.Connection.__mro__[1].__module__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False)
    assert (done.stdout, done.stderr) == ("fabric.connection\n", "")
