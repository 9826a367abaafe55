"""The job's ports on this node: which are free, and who has the others."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from clusterctl.common.port_claims import claim, is_claimed
from clusterctl.common.procfs import PROC, environment_of

PORTS_TRIED = 1_000
MOST_TAKEN = 64
MOST_NAMED = 8
LISTENING = "0A"


def take(address: str, first: int, count: int) -> tuple[list[socket.socket], list[int]]:
    """Listens on the first `count` (at most 64) free ports from `first`, as pservers will: (sockets, busy ports).

    Those that a job has chosen are left to it. Raises OSError when PORT..PORT+999 has not as many.
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
    """Sockets on the first and the last port of pservers here, and on the lead's; and the ports that others have."""
    taken, busy = take(address, first, count)
    kept = taken[:1] + taken[1:][-1:]
    for sock in taken:
        if sock not in kept:
            sock.close()
    if lead:
        kept.append(take_top(address, first))
    return kept, busy


def take_top(address: str, first: int) -> socket.socket:
    """Listens where the lead will: on the last free port of PORT..PORT+999."""
    return listen(address, range(min(first + PORTS_TRIED, 65_536) - 1, first - 1, -1))


class ReservedPorts:
    """Ports kept free for processes that will listen on them: one each, the first free ones from `first`.

    Each is bound and does not listen, so that nobody is given it by chance. When `shared`, it is bound with
    SO_REUSEADDR: a program that sets it too, as servers do, can listen on the port all the same. Otherwise it is one
    that a program can bind without it (no connection of an earlier job lingers there), after `release`. Raises OSError
    when PORT..PORT+999 has not as many.
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
        claimed = claim(port)
        if claimed is None:
            return False
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, self._shared)
        try:
            sock.bind((address, port))
        except OSError:
            claimed.close()
            sock.close()
            return False
        self.ports[name], self._bound[name] = port, sock
        self._claims.append(claimed)
        return True

    def release(self, name: str) -> None:
        """Anybody can bind the port now; no other job is given it."""
        if name in self._bound:
            self._bound.pop(name).close()

    def close(self) -> None:
        for sock in (*self._bound.values(), *self._claims):
            sock.close()


def is_listening(port: int, user: int | None = None) -> bool:
    """Whether anybody on this node, or that `user`, listens on a port."""
    return any(found == port and user in (None, owner) for found, owner, _ in _listening())


def holders(ports: Collection[int]) -> list[dict[str, Any]]:
    """Who listens on each of the first few `ports`: `port`, `uid`, and where we may see them `pid` and `name`.

    Other probes on this machine are left out: it has more than one node, and each takes its own ports.
    """
    wanted = sorted(ports)[:MOST_NAMED]
    sockets = {inode: (port, uid) for port, uid, inode in _listening() if port in wanted}
    owners = _owners(set(sockets)) if sockets else {}
    found = []
    for inode, (port, uid) in sorted(sockets.items(), key=lambda item: item[1]):
        pid = owners.get(inode)
        if pid is None or not _is_probe(pid):
            found.append({"port": port, "uid": uid, "pid": pid, "name": _name(pid) if pid else None})
    return [holder for i, holder in enumerate(found) if holder["port"] not in {h["port"] for h in found[:i]}]


def _listening() -> Iterator[tuple[int, int, str]]:
    """(port, uid, inode) of every listening TCP socket."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING:
                    yield int(fields[1].rpartition(":")[2], 16), int(fields[7]), fields[9]


def _owners(inodes: set[str]) -> dict[str, int]:
    """The process of each of these sockets, as far as this account may see."""
    found: dict[str, int] = {}
    for entry in os.scandir(PROC):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for fd in os.scandir(f"{entry.path}/fd"):
                with contextlib.suppress(OSError):
                    inode = os.readlink(fd.path)[8:-1]  # noqa: PTH115 - of socket:[123]; there are many
                    if inode in inodes:
                        found.setdefault(inode, int(entry.name))
        if len(found) == len(inodes):
            break
    return found


def _arguments(pid: int | str) -> list[bytes]:
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    return []


def _is_probe(pid: int) -> bool:
    """Whether it is an agent, as we are: it runs the same `-c` program."""
    ours = _arguments("self")
    program = ours[ours.index(b"-c") + 1] if b"-c" in ours else None
    return program is not None and program in _arguments(pid)


def _name(pid: int) -> str | None:
    """The job that it belongs to, else its program's name."""
    for entry in environment_of(pid):
        if entry.startswith(b"CLUSTERCTL_JOB="):
            return entry.partition(b"=")[2].decode(errors="replace")
    with contextlib.suppress(OSError):
        return Path(PROC / str(pid) / "comm").read_text(errors="replace").strip()
    return None


class NoFreePortError(OSError):
    """All ports of a range are taken."""

    def __init__(self, ports: range) -> None:
        super().__init__(f"no free port in {ports.start}..{ports[-1]}")


def listen(address: str, ports: range) -> socket.socket:
    """A listening socket on the first free port; raises OSError when there is none."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in ports:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", port))
            sock.listen(1024)
        except OSError:
            sock.close()
            continue
        sock.setblocking(False)
        return sock
    raise NoFreePortError(ports)
