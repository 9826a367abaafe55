"""The unix socket over which trainers and pservers of one host exchange messages is closed to other accounts."""

from __future__ import annotations

import os
import socket
import threading

from clusterctl.runtime.stream.client import open_stream
from clusterctl.runtime.stream.server import StreamServer
from clusterctl.runtime.stream.tokens import greeting
from contract.security.strangers import in_stranger, is_told_stranger, needs_root

LIMIT_S = 180


def is_let_in(name: str, token: str) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(LIMIT_S)
        try:
            sock.connect(f"\0{name}")
            sock.sendall(greeting(0, bytes.fromhex(token)))
            return bool(sock.recv(1))
        except OSError:
            return False


@needs_root
def test_a_lane_turns_another_user_away_even_with_the_token() -> None:
    server, over = StreamServer(0, 1, local=True, tcp=None), threading.Event()
    offers = [server.offer(0) for _ in range(2)]

    def serve() -> None:
        while not over.is_set():
            list(server.receive(wait=False))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        first, second = (offer for offer in offers if offer is not None)
        assert not in_stranger(lambda: is_let_in(first["name"], first["token"]))
        assert is_let_in(second["name"], second["token"])
    finally:
        over.set()
        thread.join(LIMIT_S)
        server.close()


@needs_root
def test_a_trainer_does_not_show_the_token_of_a_stream_to_another_user_who_has_taken_the_name() -> None:
    """The name is free on every other host."""
    name = f"clusterctl-stream-{os.getpid()}-0123456789abcdef"
    offer, opened = {"name": name, "token": "00" * 32}, []
    assert not is_told_stranger(name, lambda: opened.append(open_stream(offer, "127.0.0.1", 0, 0, 0.0)))
    assert opened == [None]
