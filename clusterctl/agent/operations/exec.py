"""Run a command of the user and pass its output on as it arrives.

`{"stdout": N}` or `{"stderr": N}` announces a piece of N bytes, which follow the line. The final answer has the exit
code, 128 + N for signal N.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from clusterctl.agent.peer import Peer
from clusterctl.common.errors import describe_os_error
from clusterctl.common.requests import ExecRequest

PIECE = 1 << 16  # what a pipe holds
TICK_S = 1.0


def exec_(root: Path, request: ExecRequest, peer: Peer) -> dict[str, Any]:
    """Run the `script` with /bin/sh, in the directory, the environment and with the umask that SSH gave this agent.

    The control machine's end ends the output alone, as with `ssh`: the command may get SIGPIPE when it writes.
    """
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", request["script"].encode("utf-8", "surrogateescape")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_own_environment(),
            start_new_session=True,
            umask=request["umask"],
        )
    except OSError as exc:
        raise describe_os_error(exc, "cannot run the command") from exc
    assert process.stdout is not None
    assert process.stderr is not None
    names = {process.stdout.fileno(): "stdout", process.stderr.fileno(): "stderr"}
    while names:
        for fd in peer.readable(list(names), TICK_S):
            piece = os.read(fd, PIECE)
            if piece:
                peer.send({names[fd]: len(piece)})
                peer.send_bytes(piece)
            else:  # the command may have closed it and continue
                del names[fd]
        _look(peer)
    while process.poll() is None:
        _wait(process)
        _look(peer)
    code = process.returncode
    return {"exit_code": code if code >= 0 else 128 - code}


def _look(peer: Peer) -> None:
    peer.arrived()  # drops heartbeats; raises Gone
    peer.heartbeat()


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(TICK_S)
    except subprocess.TimeoutExpired:
        return


def _own_environment() -> dict[bytes, bytes]:
    """Return the environment that this process was given: Python changes LC_CTYPE in the locale C."""
    with Path("/proc/self/environ").open("rb") as f:
        pairs = [pair.partition(b"=") for pair in f.read().split(b"\0") if pair]
    return {name: value for name, _, value in pairs}
