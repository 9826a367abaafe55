"""An SSH server that ignores the limits of the protocol takes neither memory nor a screen."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
import pytest

from clusterctl.errors import UnreachableError
from clusterctl.transport import Transport, command
from clusterctl.transport.connection import MOST_UNREAD_BYTES
from support.nodes import TestNode, TestSettings
from support.openssh import make_key
from support.processes import wait_until

PIECE = bytes(32_000)
FLOOD_BYTES = 20 * MOST_UNREAD_BYTES


@contextlib.contextmanager
def serving(serve: Callable[[socket.socket], None]) -> Iterator[TestNode]:
    """A node whose port gives its first connection to `serve`, in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def take() -> None:
            sock, _ = server.accept()
            with sock, contextlib.suppress(OSError):
                serve(sock)

        thread = threading.Thread(target=take)
        thread.start()
        try:
            yield TestNode("node0", server.getsockname()[1], ssh_user="ann")
        finally:
            thread.join(180)


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[Transport]:
    config = tmp_path / "ssh_config"
    config.write_text("")
    settings = TestSettings(config, make_key(tmp_path / "key"), None, strict_host_keys=False)
    with Transport(settings) as made:
        yield made


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        (b"SSH-2.0-x\r\n" + struct.pack(">I", 0x7FFFFFFC) + bytes(64), "the server announced a packet of 2,147,483,"),
        (b"x\n" * 99 + b"a" * 100_000 + b"\n", "Indecipherable protocol version"),
    ],
)
def test_a_long_packet_or_greeting_is_a_short_error(transport: Transport, greeting: bytes, reason: str) -> None:
    def serve(sock: socket.socket) -> None:
        sock.sendall(greeting)
        while sock.recv(4096):
            pass

    with serving(serve) as node, pytest.raises(UnreachableError, match=reason) as caught:
        transport.run(node, command("true"))
    assert len(str(caught.value)) < 500


class Flooding(paramiko.ServerInterface):
    """Accepts everybody, and sends more output than the client's window has room for."""

    def __init__(self) -> None:
        self.sent = 0
        self.ended = threading.Event()

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        channel.out_window_size = 1 << 40
        threading.Thread(target=self._flood, args=(channel,), daemon=True).start()
        return True

    def _flood(self, channel: paramiko.Channel) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            while self.sent < FLOOD_BYTES:
                self.sent += channel.send(PIECE)
        self.ended.set()


def test_output_beyond_the_window_of_a_channel_ends_the_connection(transport: Transport) -> None:
    flooding = Flooding()

    def serve(sock: socket.socket) -> None:
        server = paramiko.Transport(sock)
        server.add_server_key(paramiko.ECDSAKey.generate())
        server.start_server(server=flooding)
        flooding.ended.wait(180)
        server.close()

    with serving(serve) as node:
        process = transport.open(node, command("cat"))
        assert wait_until(flooding.ended.is_set)
        assert MOST_UNREAD_BYTES < flooding.sent < FLOOD_BYTES // 2
        with pytest.raises(UnreachableError, match="lost the connection"):
            process.finish(b"", 180)
        process.close()
