"""The node's side of setup, in one SSH command: send facts, receive wheels, build an environment.

After `{"facts": ...}` the control machine sends orders: `resolve` (pip on this node chooses and fetches wheels),
`offer` (a lock; the answer lists the missing wheels), `give` and `take` (a wheel's bytes), `listen` and `relay` (the
same through other nodes, as in a dispatch), and last `build` or `keep`. `common/transfer_messages.py` declares them.
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
from clusterctl.agent.packages.venv_build import Built, build
from clusterctl.agent.packages.venvs import Venvs
from clusterctl.agent.peer import Peer
from clusterctl.agent.relay.relay import Relay
from clusterctl.agent.relay.take import be_ready, take_relayed
from clusterctl.common.errors import AgentError
from clusterctl.common.file_transfer import OpenedFile
from clusterctl.common.paths import META
from clusterctl.common.pip import fetch_all, find_pip
from clusterctl.common.requests import SetupRequest
from clusterctl.common.schema import SchemaError, reader
from clusterctl.common.transfer_messages import (
    SETUP_ORDERS,
    BuildOrder,
    GiveOrder,
    ListenOrder,
    MissingWheels,
    OfferOrder,
    RelayOrder,
    ResolvedWheels,
    ResolveOrder,
    SetupEnd,
    SetupFacts,
    TakeOrder,
)
from clusterctl.common.wheels import Wheel, WheelStore, WrongContentsError

LOCK_S = 0.5


def setup(root: Path, request: SetupRequest, peer: Peer) -> SetupEnd:
    venvs = Venvs(root)
    store = WheelStore(root / META / "wheels", keeps_parts=True)
    with _alone(root):
        venvs.sweep()
        store.sweep()
        uv.sweep(root)
        name = venvs.find(request["requirements"])
        worker = _Worker(root, store, peer)
        peer.send({"facts": worker.facts(name, venvs.read_lock(name) if name else None)})
        while True:
            order = _read_order(peer.receive())
            if order["do"] in ("build", "keep"):
                store.sweep(parts=True)
            if order["do"] == "keep":
                return {"environment": name or "", "built": False}
            if order["do"] == "build":
                made = worker.build(venvs, order)
                venvs.point(request["requirements"], made.name)
                built = made.builder is not None
                return {"environment": made.name, "built": built, "builder": made.builder, "problem": made.problem}
            worker.serve(order)


def _read_order(message: dict[str, Any]) -> Any:
    """Return an order as it is declared. Raises AgentError that names the first malformed field."""
    if message.get("do") not in SETUP_ORDERS:
        raise AgentError(f"setup does not know {message.get('do')!r}", kind="usage")
    try:
        return reader(SETUP_ORDERS[message["do"]])(message)
    except SchemaError as exc:
        raise AgentError(f"the order {message['do']} is malformed: {exc}", kind="refused") from exc


class _Worker:
    """Carries out the orders about wheels."""

    def __init__(self, root: Path, store: WheelStore, peer: Peer) -> None:
        self._root = root
        self._store = store
        self._pip = find_pip()
        self._uv = uv.find(root)
        self._peer = peer
        self._relay: Relay | None = None

    def facts(self, environment: str | None, lock: list[Wheel] | None) -> SetupFacts:
        return {
            **facts(),
            "pip": self._pip.tool if self._pip else None,
            "uv": self._uv.version if self._uv else None,
            "environment": environment,
            "lock": lock,
        }

    def build(self, venvs: Venvs, order: BuildOrder) -> Built:
        """Build with uv, if it is wanted and here or was sent, else without it."""
        sent = order.get("uv")
        problem = None
        if sent and self._uv is None:
            try:
                self._uv = uv.adopt(self._root, sent, self._store)
            except (AgentError, OSError) as exc:
                problem = str(exc)
        chosen = self._uv if order.get("with_uv") else None
        made = build(venvs, list(order["lock"]), self._store, self._looks("install"), chosen)
        return made._replace(problem=made.problem or problem)

    def serve(self, order: Any) -> None:
        orders: dict[str, Callable[[Any], None]] = {
            "resolve": self._resolve,
            "offer": self._offer,
            "listen": self._listen,
            "relay": self._take_relayed,
            "give": self._give,
            "take": self._take,
        }
        orders[order["do"]](order)

    def _looks(self, step: str) -> Callable[[str], bool]:
        """Return a function that reports a step and its package, and returns True if the control machine left."""

        def look(package: str) -> bool:
            self._peer.heartbeat(step=step, package=package)
            return self._peer.is_gone()

        return look

    def _resolve(self, order: ResolveOrder) -> None:
        assert self._pip is not None, "only a node with pip gets this order"
        look, exact = self._looks("choose"), bool(order.get("exact"))
        resolved = self._pip.resolve(order["requirements"], self._store, look, exact=exact)
        answer: ResolvedWheels = {"failed": resolved} if isinstance(resolved, str) else {"lock": resolved}
        self._peer.send({**answer})

    def _offer(self, order: OfferOrder) -> None:
        missing = [wheel for wheel in order["lock"] if not self._store.has(wheel)]
        urls = order.get("urls")
        if order["online"] and missing and urls:
            fetch_all(missing, urls, self._store, self._looks("fetch"))
            missing = [wheel for wheel in missing if not self._store.has(wheel)]
        if order["online"] and self._pip and missing:
            self._pip.download(missing, order["options"], self._store, self._looks("fetch"))
        sent = order.get("uv")  # only from the control machine
        self._report_missing([*order["lock"], *([sent] if sent else [])])

    def _report_missing(self, lock: Sequence[Wheel]) -> None:
        missing = [number for number, wheel in enumerate(lock) if not self._store.has(wheel)]
        answer: MissingWheels = {"missing": missing}
        if have := self._store.begun(lock[number] for number in missing):
            answer["have"] = have
        self._peer.send({**answer})

    def _listen(self, order: ListenOrder) -> None:
        self._relay, where = be_ready(order["address"], order["nic"])
        self._peer.send(where)

    def _take_relayed(self, order: RelayOrder) -> None:
        """Take wheels from the relay, then report those still missing: the stream may have broken or been damaged."""
        assert self._relay is not None, "only a node that listens gets this order"
        lock = order["lock"]
        take_relayed(self._relay, order["relay"], self._peer, lambda stream: self._store.take_blobs(lock, stream))
        self._report_missing(lock)

    def _give(self, order: GiveOrder) -> None:
        for wheel in order["lock"]:
            with OpenedFile(self._store.path(wheel)) as file:
                for data in file.read(0, wheel.size):
                    self._peer.send_bytes(data)

    def _take(self, order: TakeOrder) -> None:
        """Take wheels, then report those whose first bytes, which were here, were not those of the wheel."""
        wrong = []
        starts = order.get("starts") or [0] * len(order["lock"])
        for number, (wheel, start) in enumerate(zip(order["lock"], starts)):
            try:
                self._store.take(wheel, self._peer.read_some, start)
            except WrongContentsError:
                if not start:
                    raise
                wrong.append(number)
        self._peer.send({"missing": wrong})


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Hold the lock on this node's environments. Raises AgentError if another setup or a prune is running."""
    with EnvironmentsLock(root, "setup", LOCK_S) as holder:
        if holder:
            hint = "wait until it has finished; give hosts that share a ROOT_DIR one each: Host(root_dir=...)"
            pid = "" if holder.pid is None else f" (pid {holder.pid})"
            raise AgentError(f"a {holder.operation}{pid} is running on this node", kind="refused", hint=hint)
        yield


def facts() -> SetupFacts:
    """Return the facts of this interpreter and machine on which wheels depend."""
    return {
        "pip": None,
        "lock": None,
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
