"""Measure the unavoidable CPU cost of a dispatch: logins and Python starts; per megabyte hashing, writing, encrypting.

From these follows a lower bound on the time for the same hashed and encrypted work on this machine.
"""

from __future__ import annotations

import hashlib
import os
import resource
import shlex
import shutil
import socket
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from clusterctl.agent.relay.downstream import tls_context
from clusterctl.agent.relay.links import Keys
from clusterctl.dispatch.relay_plan import make_keys
from farm import Farm, farm, options, scratch, show

PIECE = 1 << 16
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def of_commands(argv: list[str], rounds: int) -> float:
    """Return the median CPU seconds of a command."""
    times = []
    for _ in range(rounds):
        before = cpu_s(resource.RUSAGE_CHILDREN)
        subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
        times.append(cpu_s(resource.RUSAGE_CHILDREN) - before)
    return statistics.median(times)


def of_login(nodes: Farm, rounds: int) -> tuple[float, float]:
    """Return OpenSSH's CPU seconds per login that runs `true`: of the client, and of sshd with its children."""
    client = 0.0
    before = _of_daemons(nodes)
    for _ in range(rounds):
        for node in range(nodes.count):
            client += of_commands([*shlex.split(nodes.ssh()), f"node{node}", "true"], 1)
    time.sleep(0.5)  # the daemons reap their children a moment later
    logins = rounds * nodes.count
    return client / logins, (_of_daemons(nodes) - before) / logins


def _of_daemons(nodes: Farm) -> float:
    total = 0
    for daemon in nodes.sshd.daemons:
        fields = Path(f"/proc/{daemon.process.pid}/stat").read_text().rpartition(")")[2].split()
        total += sum(int(field) for field in fields[11:15])  # utime, stime, and both for reaped children
    return total / TICKS


def of_tls(megabytes: int) -> float:
    """Return CPU seconds per MB to send and receive over a connection like the relay's."""
    keys = make_keys([0, 1])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pid = os.fork()
        if not pid:
            sock, _ = listener.accept()
            stream = tls_context(Keys(*keys[1]), server=True).wrap_socket(sock, server_side=True)
            buffer = bytearray(PIECE)
            while stream.recv_into(buffer):
                pass
            os._exit(0)
        sock = socket.create_connection(listener.getsockname())
    before, before_child = cpu_s(resource.RUSAGE_SELF), cpu_s(resource.RUSAGE_CHILDREN)
    with tls_context(Keys(*keys[0]), server=False).wrap_socket(sock) as stream:
        piece = bytes(PIECE)
        for _ in range(megabytes * 1_000_000 // PIECE):
            stream.sendall(piece)
    os.waitpid(pid, 0)
    spent = cpu_s(resource.RUSAGE_SELF) - before + cpu_s(resource.RUSAGE_CHILDREN) - before_child
    return spent / megabytes


def of_hash(megabytes: int) -> float:
    digest, piece = hashlib.sha256(), os.urandom(PIECE)
    return _per_megabyte(lambda: digest.update(piece), megabytes)


def of_write(path: Path, megabytes: int) -> float:
    piece = os.urandom(PIECE)
    with path.open("wb", buffering=0) as f:
        spent = _per_megabyte(lambda: f.write(piece), megabytes)
    path.unlink()
    return spent


def _per_megabyte(work: Callable[[], object], megabytes: int) -> float:
    before = cpu_s(resource.RUSAGE_SELF)
    for _ in range(megabytes * 1_000_000 // PIECE):
        work()
    return (cpu_s(resource.RUSAGE_SELF) - before) / megabytes


def main() -> None:
    given = options(__doc__, nodes=16, rounds=3, megabytes=400).parse_args()
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or "python3"
    cores = len(os.sched_getaffinity(0))
    with scratch(given.dir) as top:
        tls, sha = of_tls(given.megabytes), of_hash(given.megabytes)
        write = of_write(top / "data", given.megabytes)
        with farm(given.nodes, top) as nodes:
            client, sshd = of_login(nodes, given.rounds)
    bare = of_commands([python, "-I", "-S", "-c", ""], 21)
    rows = [
        ["per MB", "received and sent by TLS", tls],
        ["per MB", "sha256", sha],
        ["per MB", "written to a file", write],
        ["per node", "OpenSSH's client", client],
        ["per node", "sshd, a login and `true`", sshd],
        ["per node", "a Python that only starts", bare],
    ]
    show(["", "work", "CPU ms"], [[where, what, f"{1000 * spent:.2f}"] for where, what, spent in rows])
    logins = given.nodes * (sshd + bare) / cores
    bytes_ = given.nodes * 100 * (tls + sha + write) / cores
    print(f"minimum time on {cores} cores for {given.nodes} nodes, if no core were idle and the client were free:")
    print(f"  nothing changed {logins:.2f} s; first dispatch of 100 MB {logins + bytes_:.2f} s")


if __name__ == "__main__":
    main()
