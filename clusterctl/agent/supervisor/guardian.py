"""The lifeline: ends every process of a run when its supervisor dies, even by kill -9.

Each supervisor has one guardian, in a separate session. It waits on a pipe whose other end only the supervisor holds,
as a shell, which needs a tenth of the memory of Python. A supervisor that exits normally writes one line first. End of
file without it means that it died; then the shell becomes a Python that ends the run and reports to the lead. Where
processes move if the node is lost, the guardian is a Python from the start: it also holds the node's lease.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from clusterctl.agent.lead.connection import GONE
from clusterctl.agent.node.checkpoint_files import remove_half_written
from clusterctl.agent.node.job_processes import of_run
from clusterctl.agent.node.pieces import remove_unfinished
from clusterctl.common.files import read_json
from clusterctl.common.paths import ENTRY, JobPaths, RunPaths
from clusterctl.common.procfs import end_all, send_signal
from clusterctl.common.run_spec import RunSpec
from clusterctl.transfer.tls import peer_node, run_context

WAIT = 'read -r word || exec "$0" "$@"'
REPORT_S = 5.0


def spawn(
    job_dir: Path, run: str, grace_s: float, lock_fd: int, *, leased: bool
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a guardian. Return its process and the supervisor's end of the lifeline.

    It holds the job's lock, too, so that a new run cannot start before the old one's processes are gone.
    """
    read_end, write_end = os.pipe()
    act = [sys.executable, "-I", "-S", ENTRY, "guardian", str(job_dir), run, str(grace_s)]
    argv = [*act, "leased"] if leased else ["/bin/sh", "-c", WAIT, *act]
    try:
        process = subprocess.Popen(argv, stdin=read_end, pass_fds=(lock_fd,), cwd="/", start_new_session=True)
    finally:
        os.close(read_end)
    return process, write_end


def end_run(job_dir: str, run: str, grace_s: str) -> None:
    """Send TERM to every process of the run, and KILL after the grace; report to the lead meanwhile.

    Then remove the files that they were writing.
    """
    paths = JobPaths(Path(job_dir)).run(run)
    reporting = threading.Thread(target=report_death, args=(paths,))
    reporting.start()
    end_all(lambda: of_run(paths), float(grace_s))
    remove_half_written(paths)
    remove_unfinished(paths)
    reporting.join()


def kill_run(job_dir: str, run: str) -> None:
    """Kill every process of the run: the lease has expired, and they may be started elsewhere soon."""
    paths = JobPaths(Path(job_dir)).run(run)
    for process in of_run(paths):
        send_signal(process, signal.SIGKILL)


def report_death(run: RunPaths) -> None:
    """Report to the lead, with the supervisor's key, that this node's supervisor is dead, so that it need not wait.

    A lead that cannot be reached detects it on its own.
    """
    try:
        spec = RunSpec.from_json(read_json(run.spec))
        if spec.lead is not None:
            address = (spec.lead.host, spec.lead.port)
            with (
                socket.create_connection(address, REPORT_S) as sock,
                run_context(run, server=False).wrap_socket(sock) as tls,
            ):
                if peer_node(tls) == spec.lead_node:
                    tls.sendall(json.dumps(GONE).encode() + b"\n")
                    while tls.recv(1 << 16):  # the lead closes the connection; closing it first could reset it
                        pass
    except (OSError, ValueError, KeyError):  # its files or keys may be gone, too
        return
