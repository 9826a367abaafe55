"""A breakable network between `clusterctl` and the nodes: all bytes go through a relay on loopback."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

LINGER_0 = struct.pack("ii", 1, 0)  # a close is a reset


class Wire:
    """Forwards connections from `port` to a node's port; `cut` resets the open ones, and new ones work again."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    near.close()
                    continue
                self._open |= {near, far}
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    @staticmethod
    def _pass_on(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        while self._open:
            sock = self._open.pop()
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_0)
                sock.shutdown(socket.SHUT_RDWR)  # wakes the threads that wait on it
            sock.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()


@contextlib.contextmanager
def wires_to(ports: list[int]) -> Iterator[list[Wire]]:
    """Yield a wire to each of these ports."""
    wires: list[Wire] = []
    try:
        for port in ports:
            wires.append(Wire(port))
        yield wires
    finally:
        for wire in wires:
            wire.close()
