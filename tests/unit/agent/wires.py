"""Keys of runs, TLS sockets and event loops for tests: real ones, on loopback."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from clusterctl.agent.event_loop import EventLoop
from clusterctl.agent.lead.actions import WriteManifest
from clusterctl.agent.lead.client import LeadClient
from clusterctl.agent.lead.connection import LeadConnection
from clusterctl.agent.lead.server import LeadServer
from clusterctl.agent.node.ports import listen
from clusterctl.common.paths import JobPaths, RunPaths
from clusterctl.common.run_spec import LeadAddress
from clusterctl.config import from_values
from clusterctl.inventory import build
from clusterctl.launch import plan
from clusterctl.launch.keys import make_keys
from clusterctl.transfer.tls import run_context
from unit.agent.specs import make_spec

LIMIT_S = 180.0


class Keys:
    """The keys of one run, on disk for each of its nodes as a start leaves them."""

    def __init__(self, directory: Path, nodes: int = 3) -> None:
        hosts = [f"127.0.0.{node + 1}" for node in range(nodes)]
        settings = from_values({"HOSTS": hosts, "PS_SECURITY": "none"})
        for node, files in make_keys(plan(settings, build(settings))).items():
            run = self._run(directory, node)
            run.keys.mkdir(parents=True)
            for name, text in files.items():
                (run.keys / name).write_text(text)
        self._directory = directory

    @staticmethod
    def _run(directory: Path, node: int) -> RunPaths:
        return JobPaths(directory / f"node{node}").run("0001")

    def of(self, node: int) -> RunPaths:
        return self._run(self._directory, node)


def run_until(loop: EventLoop, condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Turn the loop until the condition holds; fail if it does not in time."""
    deadline = time.monotonic() + limit_s
    loop._stopped = False

    def look() -> None:
        if condition() or time.monotonic() > deadline:
            loop.stop()
        else:
            loop.after(0.005, look)

    look()
    loop.run()
    assert condition(), "the condition did not hold in time"


class Ends:
    """Two TLS connections to each other: the messages that arrive, in order, and why the connections closed."""

    def __init__(self, loop: EventLoop, server: RunPaths, client: RunPaths) -> None:
        self.opened: dict[str, int] = {}
        self.frames: dict[str, list[dict[str, Any]]] = {"server": [], "client": []}
        self.closed: dict[str, list[OSError | None]] = {"server": [], "client": []}
        ours, theirs = socket.socketpair()
        self.connections = {
            "server": self._connection(loop, "server", ours, server),
            "client": self._connection(loop, "client", theirs, client),
        }

    def _connection(self, loop: EventLoop, name: str, sock: socket.socket, run: RunPaths) -> LeadConnection:
        sock.setblocking(False)
        is_server = name == "server"
        context = run_context(run, server=is_server)
        tls = context.wrap_socket(sock, server_side=is_server, do_handshake_on_connect=False)
        return LeadConnection(
            loop,
            tls,
            lambda connection, node: self.opened.__setitem__(name, node),
            self.frames[name].append,
            self.closed[name].append,
        )

    def close(self) -> None:
        for connection in self.connections.values():
            connection.close()


class Lead:
    """A `LeadServer` on a free port: its recorded events, its local orders, and the files it asked to write."""

    def __init__(
        self, loop: EventLoop, keys: Keys, *, members: Sequence[int] = (0, 1), heartbeat_s: float = 0.05, **spec: Any
    ) -> None:
        self.notes: list[dict[str, Any]] = []
        self.orders: list[dict[str, Any]] = []
        self.manifests: list[str] = []
        self.listener = listen("127.0.0.1", free_ports())
        self.port = self.listener.getsockname()[1]
        everyone = [{"role": "trainer", "rank": rank, "node": node} for rank, node in enumerate(members)]
        values = {
            "node": members[0],
            "engine": "clusterctl",
            "members": list(members),
            "all_processes": everyone,
            "node_grace_s": 30,
            "grace_s": 1,
            "port": self.port,
            **spec,
        }
        self.lead = LeadServer(
            loop,
            keys.of(members[0]),
            make_spec(**{**values, "heartbeat_s": heartbeat_s}),
            self.listener,
            self.orders.append,
            self.notes.append,
            lambda action: self.manifests.extend([action.tag] if isinstance(action, WriteManifest) else []),
        )

    def noted(self, event: str) -> list[dict[str, Any]]:
        return [note for note in self.notes if note["event"] == event]


class Follower:
    """A `LeadClient`: the orders it received, and why it gave the lead up."""

    def __init__(
        self,
        loop: EventLoop,
        run: RunPaths,
        port: int,
        *,
        members: Sequence[int] = (0, 1),
        heartbeat_s: float = 0.05,
        node_grace_s: float = 30,
        **values: Any,
    ) -> None:
        self.orders: list[dict[str, Any]] = []
        self.lost: list[str] = []
        self.away: list[str] = []
        self.moved = 0
        self.silent_s: float | None = None
        self.closed_s: float | None = None
        limits = {"node_grace_s": node_grace_s, "heartbeat_s": heartbeat_s}
        lead = LeadAddress(host="127.0.0.1", port=port)
        spec = make_spec(members=list(members), **limits, **values)
        on = (self.orders.append, self._on_lost, self.away.append, lambda sent: None, self._on_moved)
        self.lead = LeadClient(loop, run, spec, lead, *on)

    def _on_moved(self) -> None:
        self.moved += 1

    def _on_lost(self, why: str, silent_s: float | None, closed_s: float | None) -> None:
        self.lost.append(why)
        self.silent_s, self.closed_s = silent_s, closed_s

    def ordered(self) -> list[str]:
        return [str(order["do"]) for order in self.orders]


def free_ports() -> range:
    """Return ports that are free now, and that the system does not choose for connections of other tests."""
    while True:
        first = random.randrange(10_000, 32_000)
        ports = range(first, first + 50)
        if all(map(_is_free, ports)):
            return ports


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind(("", port))
        except OSError:
            return False
    return True


def in_order(frames: Iterable[dict[str, Any]]) -> list[int]:
    return [frame["n"] for frame in frames if "n" in frame]
