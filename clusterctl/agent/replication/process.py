"""The piece server: serves pieces in threads, and carries out the supervisor's orders, one after the other.

Orders come as JSON lines: `{"do": "copy", ...}`, see `copier.CopyOrder`, and `{"do": "merge", ...}`, see
`merger.MergeOrder`. Each is answered with `{"did": ..., "tag": ..., "error": null or a message, ...}`. It ends when the
supervisor does, which closes the socket.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
from pathlib import Path
from typing import Any

from clusterctl.agent.node.pieces import find_piece, is_named
from clusterctl.agent.node.runs import read_summary
from clusterctl.agent.replication.copier import CopyOrder, copy_save
from clusterctl.agent.replication.merger import MergeOrder, merge
from clusterctl.common.paths import JobPaths, RunPaths
from clusterctl.common.safe_json import parse
from clusterctl.transfer.server import PieceServer
from clusterctl.transfer.tls import run_context

NICENESS = 10  # training comes first
READ_BYTES = 1 << 16


def main(job_dir: str, run_name: str, listener_fd: str, control_fd: str) -> None:
    """Run until the supervisor ends. `listener_fd` is -1 if the run has no other node."""
    run = JobPaths(Path(job_dir)).run(run_name)
    control = socket.socket(fileno=int(control_fd))
    os.nice(NICENESS)
    if int(listener_fd) >= 0:
        listener = socket.socket(fileno=int(listener_fd))
        root = run.job.dir.parent
        summary = read_summary(run)
        members = len(summary.members) if summary is not None else 2
        server = PieceServer(
            listener,
            run_context(run, server=True),
            lambda piece: find_piece(root, piece),
            lambda piece: is_named(root, piece),
            members,
        )
        threading.Thread(target=server.serve_forever, daemon=True).start()
    orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_carry_out, args=(run, control, orders), daemon=True).start()
    buffer = b""
    while data := control.recv(READ_BYTES):
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            orders.put(parse(line))
    os._exit(0)  # with all threads, whatever they wait for


def _carry_out(run: RunPaths, control: socket.socket, orders: queue.SimpleQueue[dict[str, Any]]) -> None:
    while True:
        order = orders.get()
        error, count = None, 0
        try:
            if order["do"] == "copy":
                count = copy_save(run, CopyOrder.from_json(order))
            else:
                merge(run, MergeOrder.from_json(order))
        except Exception as exc:  # noqa: BLE001 - the next order is not to wait for ever
            error = str(exc) or repr(exc)
        about = {"did": order["do"], "tag": order["tag"], "error": error, "bytes": count}
        control.sendall(json.dumps(about).encode() + b"\n")
