"""Connections are kept between commands, for as long as they are wanted and alive."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path

import pytest

from clusterctl.errors import UnreachableError
from clusterctl.transport import RemotePath, Transport, command
from clusterctl.transport.keep.client import Keeper
from clusterctl.transport.keep.ending import end_helpers
from support.clusters import Cluster, make_cluster
from support.kept import Kept, connection, freeze, helpers
from support.nodes import TestNode
from support.processes import is_alive, wait_until
from support.wires import wires_to

SLOW = command("sh", "-c", "echo $PPID; exec cat")


def test_the_next_command_uses_the_connection_of_the_one_before(kept: Kept, keep_in: Path, node: TestNode) -> None:
    with kept() as transport:
        first = connection(transport, node)
    with kept() as transport:
        assert connection(transport, node) == first
    assert len(helpers(keep_in)) == 1


def test_without_the_setting_nothing_stays(cluster: Cluster, keep_in: Path, node: TestNode) -> None:
    with Transport(cluster.settings, keep_s=0, keep_in=keep_in) as transport:
        assert not transport.keeps(node)
        connection(transport, node)
    assert not keep_in.exists()


def test_commands_that_start_at_the_same_time_share_one_helper(kept: Kept, keep_in: Path, node: TestNode) -> None:
    ports: list[bytes] = []

    def ask() -> None:
        with kept() as transport:
            ports.append(connection(transport, node))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
    assert len(ports) == 6
    assert len(set(ports)) == 1
    assert len(helpers(keep_in)) == 1


def test_the_helper_ends_some_time_after_the_last_use(kept: Kept, keep_in: Path, node: TestNode) -> None:
    with kept(keep_s=0.3) as transport, transport.open(node, command("cat")) as process:
        process.write(b"a\n")  # it is in use for longer than that
        assert process.readline(deadline_s=180) == b"a\n"
        assert not wait_until(lambda: not helpers(keep_in), 1.5)
    assert wait_until(lambda: not helpers(keep_in))
    assert list(keep_in.iterdir()) == []


def test_it_ends_when_the_directory_of_its_socket_vanishes(kept: Kept, keep_in: Path, node: TestNode) -> None:
    with kept() as transport:
        connection(transport, node)
    shutil.rmtree(keep_in)
    assert wait_until(lambda: not helpers(keep_in))


def test_disconnect_ends_it_and_names_what_it_closed(kept: Kept, keep_in: Path, node: TestNode) -> None:
    with kept() as transport:
        connection(transport, node)
    pid, closed = end_helpers(keep_in)[0]
    assert wait_until(lambda: not is_alive(pid))
    assert closed is not None
    assert [name.rpartition("@")[2] for name in closed] == [f"127.0.0.1:{node.ssh_port}"]
    assert end_helpers(keep_in) == []
    with kept() as transport:  # and the next command starts another one
        connection(transport, node)
    assert helpers(keep_in) != [pid]


def test_disconnect_kills_one_that_does_not_answer(
    kept: Kept, keep_in: Path, node: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterctl.transport.keep.ending.ANSWER_S", 0.2)
    with kept() as transport:
        connection(transport, node)
    (pid,) = helpers(keep_in)
    freeze(pid)
    assert end_helpers(keep_in) == [(pid, None)]
    assert wait_until(lambda: not is_alive(pid))


def test_a_killed_helper_ends_commands_in_progress_and_the_next_command_starts_another(
    kept: Kept, keep_in: Path, node: TestNode
) -> None:
    with kept() as transport:
        process = transport.open(node, SLOW)
        process.readline(deadline_s=180)
        (pid,) = helpers(keep_in)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(UnreachableError, match="lost the connection"):
            process.read(deadline_s=180)
        process.close()
    with kept() as transport:  # its socket is still there
        connection(transport, node)
        assert pid not in helpers(keep_in)


def test_a_helper_that_is_stuck_is_not_waited_for(kept: Kept, keep_in: Path, node: TestNode) -> None:
    count = command("sh", "-c", "echo x >>~/marks; wc -l <~/marks")
    with kept() as transport:
        first = connection(transport, node)
    (pid,) = helpers(keep_in)
    freeze(pid)
    try:
        with pytest.MonkeyPatch.context() as patch, kept() as transport:
            patch.setattr("clusterctl.transport.keep.client.HELLO_S", 0.2)
            patch.setattr("clusterctl.transport.keep.client.START_S", 0.2)
            assert transport.run(node, count, deadline_s=180).stdout.strip() == b"1"
            assert connection(transport, node) != first
    finally:
        os.kill(pid, signal.SIGCONT)
    with kept() as transport:  # it has not done later what it was not asked for in the end
        assert connection(transport, node) == first
        assert transport.run(node, count).stdout.strip() == b"2"
        transport.run(node, command("rm", RemotePath("~/marks")))


def test_nor_is_one_to_which_too_many_connect(
    kept: Kept, keep_in: Path, node: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(where: str) -> None:
        raise BlockingIOError("resource temporarily unavailable")

    monkeypatch.setattr("clusterctl.transport.keep.client._connect", full)
    with kept() as transport:
        connection(transport, node)
    assert helpers(keep_in) == []


def test_a_helper_that_cannot_start_does_no_harm(
    kept: Kept, keep_in: Path, node: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterctl.transport.keep.client.sys.executable", shutil.which("false"))
    with kept() as transport:
        connection(transport, node)
    assert helpers(keep_in) == []


def test_a_connection_that_died_silently_is_replaced_before_anything_is_sent(kept: Kept, node: TestNode) -> None:
    """As after a laptop was suspended, or a node has lost its power."""
    assert node.ssh_port is not None
    with wires_to([node.ssh_port]) as (wire,):
        through = TestNode("node7", wire.port)
        with kept(strict_host_keys=False) as transport:
            first = connection(transport, through)
            transport.run(through, command("sh", "-c", "rm -f ~/marks"))
        wire.silence()
        with kept(strict_host_keys=False) as transport:
            mark = transport.run(through, command("sh", "-c", "echo x >>~/marks; echo $SSH_CONNECTION"), deadline_s=180)
            assert mark.stdout.split()[1] != first
            assert transport.run(through, command("cat", RemotePath("~/marks"))).stdout == b"x\n"


def test_only_a_connection_that_breaks_is_dropped(kept: Kept, keep_in: Path, cluster: Cluster) -> None:
    with kept() as transport:
        server = int(transport.run(cluster.nodes[0], command("sh", "-c", "echo $PPID")).stdout)
        before = [connection(transport, node) for node in cluster.nodes[:2]]
    if cluster.kind == "embedded":
        pytest.skip("its server is one process with all connections")
    os.kill(server, signal.SIGKILL)
    with kept() as transport:
        after = [connection(transport, node) for node in cluster.nodes[:2]]
    assert after[0] != before[0]
    assert after[1] == before[1]
    assert len(helpers(keep_in)) == 1


def test_a_server_that_opens_no_more_channels_gets_another_connection(tmp_path: Path, keep_in: Path) -> None:
    with make_cluster("openssh", tmp_path, 1, "MaxSessions 1") as cluster:
        node = cluster.nodes[0]
        with (
            Transport(cluster.settings, keep_s=60, keep_in=keep_in) as transport,
            transport.open(node, SLOW) as process,
        ):
            process.readline(deadline_s=180)
            assert connection(transport, node)
        end_helpers(keep_in)


def test_every_wait_of_a_command_ends_with_the_transport(kept: Kept, node: TestNode) -> None:
    with kept() as transport:
        process = transport.open(node, SLOW)
        process.readline(deadline_s=180)
        timer = threading.Timer(0.2, transport.abort)
        timer.start()
        with pytest.raises(UnreachableError, match="lost the connection"):
            process.read(deadline_s=180)
        timer.join()


def test_a_path_that_is_too_long_for_a_socket_is_no_obstacle(cluster: Cluster, node: TestNode, tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a-long-name-of-a-directory"] * 6)
    with Transport(cluster.settings, keep_s=60, keep_in=deep) as transport:
        first = connection(transport, node)
    with Transport(cluster.settings, keep_s=60, keep_in=deep) as transport:
        assert connection(transport, node) == first
    assert len(end_helpers(deep)) == 1


def test_errors_of_a_server_are_those_of_a_direct_connection(kept: Kept, cluster: Cluster) -> None:
    from support.openssh import free_port

    node = TestNode("node7", free_port())
    with Transport(cluster.settings) as transport, pytest.raises(UnreachableError) as direct:
        transport.run(node, SLOW)
    with kept() as transport, pytest.raises(UnreachableError) as caught:
        transport.run(node, SLOW)
    assert (caught.value.to_json(), caught.value.details) == (direct.value.to_json(), direct.value.details)


def test_a_warm_up_connects_through_the_helper(kept: Kept, keep_in: Path, node: TestNode) -> None:
    with kept() as transport:
        transport.warm_up([node])
        assert wait_until(lambda: len(helpers(keep_in)) == 1)
        connection(transport, node)
        assert transport._made_pool is None
        assert isinstance(transport._made_keeper, Keeper)
