"""A piece server of one node and a run of another, over real sockets."""

from __future__ import annotations

import contextlib
import hashlib
import random
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from clusterctl.agent.node.pieces import find_piece, is_named
from clusterctl.certificates import Authority
from clusterctl.common.paths import JobPaths, RunPaths
from clusterctl.transfer.client import PieceClient
from clusterctl.transfer.protocol import PieceFile
from clusterctl.transfer.server import PieceServer
from clusterctl.transfer.tls import run_context

JOB = "JOB20261121-081530"
CONTENT = random.Random(0).randbytes(700_000)  # the same in every process of a test run
DIGEST = hashlib.sha256(CONTENT).hexdigest()
PIECE = PieceFile(JOB, "0001", "pass-00000", "pserver-00000.safetensors", len(CONTENT), DIGEST)


def make_run(root: Path, authority: Authority, name: str) -> RunPaths:
    run = JobPaths(root / JOB).run("0001")
    run.keys.mkdir(0o700, parents=True)
    run.tls_authority.write_text(authority.trusted)
    run.tls.write_text(authority.issue(name))
    return run


class Served(NamedTuple):
    """Node 1 serves pieces to node 2."""

    one: RunPaths
    two: RunPaths
    place: str

    def client(self, timeout_s: float = 30.0) -> PieceClient:
        return PieceClient(1, self.place, run_context(self.two, server=False), timeout_s)

    def connect(self) -> ssl.SSLSocket:
        host, _, port = self.place.rpartition(":")
        sock = socket.create_connection((host, int(port)), 10)
        return run_context(self.two, server=False).wrap_socket(sock)


@contextlib.contextmanager
def serving_on(run: RunPaths) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    root = run.job.dir.parent
    server = PieceServer(
        listener,
        run_context(run, server=True),
        lambda piece: find_piece(root, piece),
        lambda piece: is_named(root, piece),
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.close()
        thread.join()
        listener.close()


@contextlib.contextmanager
def two_nodes(top: Path) -> Iterator[Served]:
    authority = Authority()
    one = make_run(top / "one", authority, "node1")
    two = make_run(top / "two", authority, "node2")
    output = one.job.output / PIECE.tag
    output.mkdir(parents=True)
    (output / PIECE.file).write_bytes(CONTENT)
    with serving_on(one) as place:
        yield Served(one, two, place)
