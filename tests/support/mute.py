"""An SSH server that replies to no command, or refuses every command."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import paramiko


class Mute(paramiko.ServerInterface):
    """Accepts every login, opens channels, and never replies to requests in them, or refuses them."""

    def __init__(self, end: threading.Event, *, refuses: bool) -> None:
        self._end = end
        self._refuses = refuses

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        if not self._refuses:
            self._end.wait(180)
        return False


@contextlib.contextmanager
def mute_server(*, refuses: bool = False) -> Iterator[int]:
    end = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            sock, _ = server.accept()
            transport = paramiko.Transport(sock)
            transport.add_server_key(paramiko.ECDSAKey.generate())
            transport.start_server(server=Mute(end, refuses=refuses))
            end.wait(180)
            transport.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            end.set()
            thread.join()
