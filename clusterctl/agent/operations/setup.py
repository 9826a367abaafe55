"""The node's side of setup, in one SSH command: send facts, receive wheels, build an environment.

After `{"facts": ...}` the control machine sends orders: `resolve` (pip on this node chooses and fetches wheels),
`offer` (a lock; the answer lists the missing wheels), `give` and `take` (a wheel's bytes), `listen` and `relay` (the
same through other nodes, as in a dispatch), and last `build` or `keep`.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable

from clusterctl.agent.node.locks import EnvironmentsLock
from clusterctl.agent.packages import uv
from clusterctl.agent.packages.venvs import Built, Venvs
from clusterctl.agent.peer import Peer
from clusterctl.agent.relay.relay import Relay
from clusterctl.agent.relay.take import be_ready, take_relayed
from clusterctl.common.errors import AgentError
from clusterctl.common.paths import META
from clusterctl.common.pip import fetch_all, find_pip
from clusterctl.common.requests import SetupRequest
from clusterctl.common.tree import COPY_BYTES
from clusterctl.common.wheels import Wheel, WheelStore, decode_lock

LOCK_S = 0.5


def setup(root: Path, request: SetupRequest, peer: Peer) -> dict[str, Any]:
    venvs = Venvs(root)
    store = WheelStore(root / META / "wheels")
    with _alone(root):
        venvs.sweep()
        store.sweep()
        uv.sweep(root)
        name = venvs.find(request["requirements"])
        worker = _Worker(root, store, peer)
        peer.send({"facts": {**facts(), **worker.facts(), **_about(venvs, name)}})
        while True:
            order = peer.receive()
            if order["do"] == "keep":
                return {"environment": name, "built": False}
            if order["do"] == "build":
                made = worker.build(venvs, order)
                venvs.point(request["requirements"], made.name)
                report = {"builder": made.builder, "problem": made.problem}
                return {"environment": made.name, "built": made.builder is not None, **report}
            worker.serve(order)


def _about(venvs: Venvs, name: str | None) -> dict[str, Any]:
    return {"environment": name, "lock": venvs.read_lock(name) if name else None}


class _Worker:
    """Carries out the orders about wheels."""

    def __init__(self, root: Path, store: WheelStore, peer: Peer) -> None:
        self._root = root
        self._store = store
        self._pip = find_pip()
        self._uv = uv.find(root)
        self._peer = peer
        self._relay: Relay | None = None

    def facts(self) -> dict[str, Any]:
        return {"pip": self._pip.tool if self._pip else None, "uv": self._uv.version if self._uv else None}

    def build(self, venvs: Venvs, order: dict[str, Any]) -> Built:
        """Build with uv, if it is wanted and here or was sent, else without it."""
        lock = decode_lock(order["lock"])
        sent = decode_lock([order["uv"]] if order.get("uv") else [])
        problem = None
        if sent and self._uv is None:
            try:
                self._uv = uv.adopt(self._root, sent[0], self._store)
            except (AgentError, OSError) as exc:
                problem = str(exc)
        made = venvs.build(lock, self._store, self._looks("install"), self._uv if order.get("with_uv") else None)
        return made._replace(problem=made.problem or problem)

    def serve(self, order: dict[str, Any]) -> None:
        orders = {
            "resolve": self._resolve,
            "offer": self._offer,
            "listen": self._listen,
            "relay": self._take_relayed,
            "give": self._give,
            "take": self._take,
        }
        if order["do"] not in orders:
            raise AgentError(f"setup does not know {order['do']!r}", kind="usage")
        orders[order["do"]](order)

    def _looks(self, step: str) -> Callable[[str], bool]:
        """Return a function that reports a step and its package, and returns True if the control machine left."""

        def look(package: str) -> bool:
            self._peer.heartbeat(step=step, package=package)
            return self._peer.is_gone()

        return look

    def _resolve(self, order: dict[str, Any]) -> None:
        assert self._pip is not None, "only a node with pip gets this order"
        look, exact = self._looks("choose"), bool(order.get("exact"))
        resolved = self._pip.resolve(order["requirements"], self._store, look, exact=exact)
        self._peer.send({"failed": resolved} if isinstance(resolved, str) else {"lock": resolved})

    def _offer(self, order: dict[str, Any]) -> None:
        lock = decode_lock(order["lock"])
        missing = [wheel for wheel in lock if not self._store.has(wheel)]
        if order["online"] and missing and order.get("urls"):
            fetch_all(missing, order["urls"], self._store, self._looks("fetch"))
            missing = [wheel for wheel in missing if not self._store.has(wheel)]
        if order["online"] and self._pip and missing:
            self._pip.download(missing, order["options"], self._store, self._looks("fetch"))
        sent = decode_lock([order["uv"]] if order.get("uv") else [])  # only from the control machine
        self._peer.send({"missing": self._missing([*lock, *sent])})

    def _missing(self, lock: Sequence[Wheel]) -> list[int]:
        return [number for number, wheel in enumerate(lock) if not self._store.has(wheel)]

    def _listen(self, order: dict[str, Any]) -> None:
        self._relay, where = be_ready(order["address"], order["nic"])
        self._peer.send(where)

    def _take_relayed(self, order: dict[str, Any]) -> None:
        """Take wheels from the relay, then report those still missing: the stream may have broken or been damaged."""
        assert self._relay is not None, "only a node that listens gets this order"
        lock = decode_lock(order["lock"])
        take_relayed(self._relay, order["relay"], self._peer, lambda stream: self._store.take_blobs(lock, stream))
        self._peer.send({"missing": self._missing(lock)})

    def _give(self, order: dict[str, Any]) -> None:
        for wheel in decode_lock(order["lock"]):
            with self._store.path(wheel).open("rb") as f:
                while data := f.read(COPY_BYTES):
                    self._peer.send_bytes(data)

    def _take(self, order: dict[str, Any]) -> None:
        for wheel in decode_lock(order["lock"]):
            self._store.take(wheel, self._peer.read_some)


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Hold the lock on this node's environments. Raises AgentError if another setup or a prune is running."""
    with EnvironmentsLock(root, "setup", LOCK_S) as holder:
        if holder:
            hint = "wait until it has finished; give hosts that share a ROOT_DIR one each: Host(root_dir=...)"
            pid = "" if holder.pid is None else f" (pid {holder.pid})"
            raise AgentError(f"a {holder.operation}{pid} is running on this node", kind="refused", hint=hint)
        yield


def facts() -> dict[str, Any]:
    """Return the facts of this interpreter and machine on which wheels depend."""
    return {
        "implementation": {"cpython": "cp", "pypy": "pp"}.get(sys.implementation.name, sys.implementation.name),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "glibc": _glibc(),
    }


def _glibc() -> list[int] | None:
    """[2, 36]; None for another C library."""
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
        return [int(part) for part in text.split()[1].split(".")[:2]]
    except (ValueError, OSError, IndexError):
        return None
