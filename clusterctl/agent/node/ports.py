"""The job's ports on this node: find free ones, reserve them, and name the holders of the others."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from clusterctl.common.port_claims import PORTS_COMPARED, claim, is_claimed
from clusterctl.common.procfs import PROC, arguments_of, environment_of, read_of, variable

PORTS_TRIED = 1_000
MOST_TAKEN = 64
MOST_NAMED = 8
LISTENING = "0A"


def take(address: str, first: int, count: int) -> tuple[list[socket.socket], list[int]]:
    """Listen on the first `count` (at most 64) free ports from `first`, as pservers will: (sockets, busy ports).

    Ports that a job has claimed are left to it. Raises OSError if PORT..PORT+999 has too few.
    """
    last = min(first + PORTS_TRIED, 65_536)
    wanted = min(count, MOST_TAKEN)
    taken: list[socket.socket] = []
    busy: list[int] = []
    for port in range(first, last):
        if len(taken) == wanted:
            break
        sock = None if is_claimed(port) else _listen_if_free(address, port)
        if sock is None:
            busy.append(port)
        else:
            taken.append(sock)
    if len(taken) < wanted:
        for sock in taken:
            sock.close()
        raise NoFreePortError(range(first, last))
    return taken, busy


def _listen_if_free(address: str, port: int) -> socket.socket | None:
    try:
        return listen(address, range(port, port + 1))
    except OSError:
        return None


def take_as_a_job(address: str, first: int, count: int, *, lead: bool) -> tuple[list[socket.socket], list[int]]:
    """Listen on the first and the last pserver port, and on those of the piece server and the lead, if it is here.

    Return the sockets and the busy ports.
    """
    taken, busy = take(address, first, count)
    kept = taken[:1] + taken[1:][-1:]
    for sock in taken:
        if sock not in kept:
            sock.close()
    kept += [take_top(address, first) for _ in range(2 if lead else 1)]
    return kept, busy


def take_top(address: str, first: int) -> socket.socket:
    """Listen where the lead and piece servers will: on the last free port of PORT..PORT+999."""
    return listen(address, range(min(first + PORTS_TRIED, 65_536) - 1, first - 1, -1))


class ReservedPorts:
    """Ports reserved for processes that will listen on them: one each, the first free ones from `first`.

    Each port is bound without listening, so that the system gives it to no other process. If `shared`, it is bound with
    SO_REUSEADDR: a program that sets it too, as servers do, can listen on the port. Otherwise a program can bind the
    port without SO_REUSEADDR after `release`: no connection of an earlier job lingers there. Raises OSError if
    PORT..PORT+999 has too few.
    """

    def __init__(self, address: str, first: int, names: Iterable[str], *, shared: bool) -> None:
        self._shared = shared
        self.ports: dict[str, int] = {}
        self._claims: list[socket.socket] = []
        self._bound: dict[str, socket.socket] = {}
        last = min(first + PORTS_TRIED, 65_536)
        candidates = iter(range(first, last))
        try:
            for name in names:
                if not any(self._take(name, address, port) for port in candidates):
                    raise NoFreePortError(range(first, last))
        except BaseException:
            self.close()
            raise

    def _take(self, name: str, address: str, port: int) -> bool:
        reserved = _reserve(address, port, shared=self._shared)
        if reserved is None:
            return False
        claimed, sock = reserved
        self.ports[name], self._bound[name] = port, sock
        self._claims.append(claimed)
        return True

    def release(self, name: str) -> None:
        """Let any process bind the port. No other job is given it."""
        if name in self._bound:
            self._bound.pop(name).close()

    def close(self) -> None:
        for sock in (*self._bound.values(), *self._claims):
            sock.close()


def _reserve(address: str, port: int, *, shared: bool) -> tuple[socket.socket, socket.socket] | None:
    """Return the claim of a port and a socket that is bound to it; None if it is taken.

    It is bound at every address, as most servers bind theirs.
    """
    claimed = claim(port)
    if claimed is None:
        return None
    family, everywhere = _everywhere(address)
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, shared)
    try:
        sock.bind((everywhere, port))
    except OSError:
        claimed.close()
        sock.close()
        return None
    return claimed, sock


def find_taken(address: str, first: int) -> list[int]:
    """Return the ports among the first few from `first` that could not be reserved for a program now."""
    taken = []
    for port in range(first, min(first + PORTS_COMPARED, 65_536)):
        reserved = _reserve(address, port, shared=True)
        if reserved is None:
            taken.append(port)
        for sock in reserved or ():
            sock.close()
    return taken


def is_listening(port: int, user: int | None = None) -> bool:
    """Return True if a process of this node, or of that `user`, listens on a port."""
    return any(other == port and user in (None, owner) for other, owner, _ in _listening())


def holders(ports: Collection[int], *, except_of: int | None = None) -> list[dict[str, Any]]:
    """Return the listener on each of the first few `ports`: `port`, `uid`, and if visible `pid` and `name`.

    Other probes are left out: on a machine with more than one node, each probes its own ports. So are those of the user
    `except_of`, for whose sockets the descriptors of all processes need not be searched.
    """
    wanted = sorted(ports)[:MOST_NAMED]
    listening = _listening() if wanted else ()  # to read the kernel's table takes milliseconds
    sockets = {inode: (port, uid) for port, uid, inode in listening if port in wanted and uid != except_of}
    owners = _owners(set(sockets)) if sockets else {}
    listeners = []
    for inode, (port, uid) in sorted(sockets.items(), key=lambda item: item[1]):
        pid = owners.get(inode)
        if pid is None or not _is_probe(pid):
            listeners.append({"port": port, "uid": uid, "pid": pid, "name": _name(pid) if pid else None})
    return [holder for i, holder in enumerate(listeners) if holder["port"] not in {h["port"] for h in listeners[:i]}]


def _listening() -> Iterator[tuple[int, int, str]]:
    """Yield (port, uid, inode) of every listening TCP socket."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING:
                    yield int(fields[1].rpartition(":")[2], 16), int(fields[7]), fields[9]


def _owners(inodes: set[str]) -> dict[str, int]:
    """Return the process of each of these sockets, as far as this account may see."""
    owners: dict[str, int] = {}
    for entry in os.scandir(PROC):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for fd in os.scandir(f"{entry.path}/fd"):
                with contextlib.suppress(OSError):
                    inode = str(Path(fd.path).readlink())[8:-1]  # socket:[123]
                    if inode in inodes:
                        owners.setdefault(inode, int(entry.name))
        if len(owners) == len(inodes):
            break
    return owners


def _is_probe(pid: int) -> bool:
    """Return True if it is another agent: it runs the same `-c` program as this process."""
    ours = arguments_of("self")
    program = ours[ours.index(b"-c") + 1] if b"-c" in ours else None
    return program is not None and program in arguments_of(pid)


def _name(pid: int) -> str | None:
    """Return the job of a process, else the name of its program."""
    job = variable(environment_of(pid), b"CLUSTERCTL_JOB")
    name = read_of(pid, "comm") if job is None else job
    return None if name is None else name.decode(errors="replace").strip()


def _everywhere(address: str) -> tuple[socket.AddressFamily, str]:
    """Return the family of an address, and what stands for all addresses of a node in it."""
    return (socket.AF_INET6, "::") if ":" in address else (socket.AF_INET, "0.0.0.0")


class NoFreePortError(OSError):
    """All ports of a range are taken."""

    def __init__(self, ports: range) -> None:
        super().__init__(f"no free port in {ports.start}..{ports[-1]}")


def kind_of(exc: BaseException) -> str:
    """The kind of AgentError for an error at the start of a supervisor."""
    return "refused" if isinstance(exc, NoFreePortError) else "node"


def listen(address: str, ports: range) -> socket.socket:
    """Return a listening socket on the first free port. Raises OSError if there is none."""
    family, everywhere = _everywhere(address)
    for port in ports:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.bind((everywhere, port))
            sock.listen(1024)
        except OSError:
            sock.close()
            continue
        sock.setblocking(False)
        return sock
    raise NoFreePortError(ports)
