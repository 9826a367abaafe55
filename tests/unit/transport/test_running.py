from __future__ import annotations

import hashlib
import os
import threading
import time

import pytest

from clusterctl.errors import NodeError, UnreachableError
from clusterctl.transport import Raw, RemoteCommand, RemotePath, Transport, command
from clusterctl.transport.channels import speaking
from support.nodes import TestNode
from support.processes import wait_until

MB = 1024 * 1024


def sh(script: str) -> RemoteCommand:
    return command("sh", "-c", script)


@pytest.mark.parametrize("code", [0, 127, 255])
def test_the_exit_code_of_a_command_is_returned(transport: Transport, node: TestNode, code: int) -> None:
    assert transport.run(node, sh(f"exit {code}")).exit_code == code


@pytest.mark.parametrize(("signal", "code"), [("KILL", 137)])
def test_a_signalled_command_exits_with_128_and_the_signal(
    transport: Transport, node: TestNode, signal: str, code: int
) -> None:
    assert transport.run(node, sh(f"kill -{signal} $$")).exit_code == code


def test_output_and_errors_arrive_separately_and_byte_for_byte(transport: Transport, node: TestNode) -> None:
    done = transport.run(node, sh(r"printf 'a\0\377\r\n'; printf 'b\0\376' >&2"))
    assert (done.stdout, done.stderr) == (b"a\0\xff\r\n", b"b\0\xfe")


def test_nasty_arguments_arrive_unchanged(transport: Transport, node: TestNode) -> None:
    nasty = [
        "",
        " ",
        "a'b\"c",
        "$HOME `id`",
        "a\nb\r\n",
        "-n",
        "*?[a]",
        "~",
        "!!",
        "ü 🦉",
        "\\n\\\\",
        "\udcff",
    ]
    expected = b"".join(argument.encode("utf-8", "surrogateescape") + b"\0" for argument in nasty)
    assert transport.run(node, command("printf", "%s\\0", *nasty)).stdout == expected


def test_the_tilde_of_a_remote_path_is_the_home_of_the_node(transport: Transport, node: TestNode) -> None:
    done = transport.run(node, command("printf", "%s\\n", RemotePath("~/x y"), Raw('"$HOME"')))
    path, home = done.stdout.decode().splitlines()
    assert path == f"{home}/x y"


def test_a_command_that_ignores_its_input_does_not_block_us(transport: Transport, node: TestNode) -> None:
    began = time.monotonic()
    assert transport.run(node, sh("exit 4"), bytes(8 * MB)).exit_code == 4
    assert time.monotonic() - began < 30


def test_a_flood_of_errors_blocks_neither_side(transport: Transport, node: TestNode) -> None:
    script = "head -c 5000000 /dev/zero >&2; echo last >&2; echo out"
    with transport.open(node, sh(script)) as process:
        assert process.readline(deadline_s=180) == b"out\n"
        assert process.wait(180) == 0
        assert wait_until(lambda: process.stderr_tail().endswith(b"last\n"))
        assert len(process.stderr_tail()) == 64 * 1024


def test_lines_and_blocks_can_be_read_in_turn(transport: Transport, node: TestNode) -> None:
    with transport.open(node, sh(r"printf 'head\nbody-body\n\ntail'")) as process:
        assert process.readline() == b"head\n"
        assert process.read(4) == b"body"
        assert process.readline() == b"-body\n"
        assert process.readline() == b"\n"
        assert process.readline() == b"tail"
        assert process.readline() == b""
        assert process.read() == b""
        assert process.wait(180) == 0


def test_a_line_is_cut_at_its_limit(transport: Transport, node: TestNode) -> None:
    with transport.open(node, sh("printf 0123456789")) as process:
        assert [process.readline(4) for _ in range(4)] == [b"0123", b"4567", b"89", b""]


def test_one_thread_reads_while_another_writes(transport: Transport, node: TestNode) -> None:
    block = os.urandom(MB)
    with transport.open(node, command("cat")) as process:

        def write() -> None:
            for _ in range(5):
                process.write(memoryview(block))
            process.close_stdin()

        writer = threading.Thread(target=write)
        writer.start()
        total, digest = 0, hashlib.sha256()
        while piece := process.read(deadline_s=180):
            total += len(piece)
            digest.update(piece)
        writer.join(180)
    assert total == 5 * MB
    assert digest.digest() == hashlib.sha256(block * 5).digest()


def test_a_deadline_ends_a_run_and_names_the_node(transport: Transport, node: TestNode) -> None:
    began = time.monotonic()
    with pytest.raises(NodeError, match=r"timed out after 0\.5 s") as caught:
        transport.run(node, command("sleep", "60"), deadline_s=0.5)
    assert time.monotonic() - began < 30
    assert caught.value.node == node.label
    assert not isinstance(caught.value, UnreachableError)
    assert transport.run(node, command("true")).exit_code == 0


def test_writing_to_a_command_that_has_ended_is_an_error(transport: Transport, node: TestNode) -> None:
    with transport.open(node, command("true")) as process:
        process.wait(180)
        assert process.read() == b""
        with pytest.raises(NodeError) as caught:
            process.write(bytes(50 * MB), deadline_s=180)
        assert caught.value.details["reason"] == "input_closed"


def test_a_daemon_that_closes_its_streams_does_not_block_us(transport: Transport, node: TestNode) -> None:
    script = "setsid sleep 30 </dev/null >/dev/null 2>&1 & echo $!"
    began = time.monotonic()
    pid = transport.run(node, sh(script)).stdout.strip().decode()
    assert time.monotonic() - began < 25
    assert transport.run(node, sh(f"kill {pid}")).exit_code == 0


def test_a_daemon_that_keeps_its_streams_keeps_the_command_open(transport: Transport, node: TestNode) -> None:
    with transport.open(node, sh("until test -e $HOME/end; do sleep 0.01; done & echo started")) as process:
        assert process.readline(deadline_s=180) == b"started\n"
        with pytest.raises(NodeError, match="timed out after"):
            process.read(deadline_s=0.3)
        transport.run(node, command("touch", RemotePath("~/end")))
        assert process.read(deadline_s=180) == b""
        assert process.wait(180) == 0
    transport.run(node, command("rm", RemotePath("~/end")))


def test_commands_of_several_threads_share_one_connection(transport: Transport, node: TestNode) -> None:
    ports: list[bytes] = []

    def ask() -> None:
        ports.append(transport.run(node, command("sh", "-c", "echo $SSH_CONNECTION")).stdout.split()[1])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
    assert len(ports) == 8
    assert len(set(ports)) == 1


@pytest.mark.parametrize("transport", ["direct"], indirect=True)
def test_closing_the_input_as_the_command_ends_does_not_end_the_connection(
    transport: Transport, node: TestNode
) -> None:
    """After a channel's close, sshd drops any connection that uses the channel, along with all other commands."""

    def connection() -> bytes:
        return transport.run(node, command("sh", "-c", "echo $SSH_CONNECTION")).stdout

    before = connection()
    process = transport.open(node, sh("until test -e $HOME/go; do sleep 0.01; done"))
    channel = process._channel
    with speaking(channel):
        with channel.lock:
            late = channel._send_eof()
        transport.run(node, command("touch", RemotePath("~/go")))
        assert wait_until(lambda: channel.closed)
        channel.transport._send_user_message(late)
    assert process.wait(180) == 0
    assert connection() == before
