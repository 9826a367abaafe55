"""The lifeline: ends every process of a run when its supervisor dies, even by kill -9.

One guardian per supervisor, in a session of its own. It waits on a pipe whose other end only the supervisor holds: as a
shell, which takes a tenth of what Python would. A supervisor that ends by itself says so first (one line); end of file
without it means that it died, and the shell becomes a Python that ends the run, and tells the lead.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from clusterctl.agent.lead.connection import GONE, peer_node, tls_context
from clusterctl.agent.node.job_processes import of_run
from clusterctl.common.files import read_json
from clusterctl.common.paths import ENTRY, JobPaths, RunPaths
from clusterctl.common.procfs import end_all
from clusterctl.common.run_spec import RunSpec

WAIT = 'read -r word || exec "$0" "$@"'
GOODBYE = b"bye\n"
REPORT_S = 5.0


def spawn(job_dir: Path, run: str, grace_s: float, lock_fd: int) -> tuple[subprocess.Popen[bytes], int]:
    """Starts a guardian: (its process, the supervisor's end of the lifeline).

    It holds the job's lock too, so that a new run cannot begin before the old one's processes are gone.
    """
    read_end, write_end = os.pipe()
    act = [sys.executable, "-I", "-S", ENTRY, "guardian", str(job_dir), run, str(grace_s)]
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", WAIT, *act], stdin=read_end, pass_fds=(lock_fd,), cwd="/", start_new_session=True
        )
    finally:
        os.close(read_end)
    return process, write_end


def end_run(job_dir: str, run: str, grace_s: str) -> None:
    """TERM, the grace, KILL for every process of the run; the lead is told meanwhile."""
    place = JobPaths(Path(job_dir)).run(run)
    reporting = threading.Thread(target=report_death, args=(place,))
    reporting.start()
    end_all(lambda: of_run(place), float(grace_s))
    reporting.join()


def report_death(run: RunPaths) -> None:
    """Bears witness that this node's supervisor is dead, by the supervisor's own key: nobody need wait whether it is.

    A lead that cannot be reached finds out by itself.
    """
    try:
        spec = RunSpec.from_json(read_json(run.spec))
        if spec.lead is not None:
            place = (spec.lead.host, spec.lead.port)
            with (
                socket.create_connection(place, REPORT_S) as sock,
                tls_context(run, server=False).wrap_socket(sock) as tls,
            ):
                if peer_node(tls) == spec.lead_node:
                    tls.sendall(json.dumps(GONE).encode() + b"\n")
                    while tls.recv(1 << 16):  # it hangs up when it has heard; before that, an end would be a reset
                        pass
    except (OSError, ValueError, KeyError):  # its files or its keys may be gone with it
        return
