"""The supervisor's two ways to the lead: it is the lead itself (the first member), or it reaches it over TLS."""

from __future__ import annotations

import errno
import secrets
import socket
import ssl
from typing import Any, Callable

from clusterctl.agent.decisions import Action, DropManifests, Finish, Note, Policy, Tell, WriteManifest
from clusterctl.agent.engines import ENGINES
from clusterctl.agent.lead import Lead
from clusterctl.agent.link import Channel, Link, dial, tls_context
from clusterctl.agent.paths import RunPaths
from clusterctl.agent.reactor import WRITE, Reactor
from clusterctl.agent.upkeep import Best, Known, Upkeep

RETRY_S = 0.5
DIAL_S = 5.0
REFUSALS = 4  # in a row: the node answers, and the lead is not behind its port
REPLY_S = 8.0  # longer than a dial: a supervisor that lives comes back by then
Message = dict[str, Any]


def lead_node(spec: dict[str, Any]) -> int:
    """The node that leads the run of a spec."""
    return int(spec["members"][0])


def upkeep_of(spec: dict[str, Any]) -> Upkeep:
    """Which checkpoints a run keeps, by its spec."""
    best, resume = spec.get("keep_best"), spec.get("resume")
    first = Known(resume["tag"], resume["step"]) if resume else None
    return Upkeep(spec.get("keep", 3), Best(best["name"], best["direction"]) if best else None, first)


def policy_of(spec: dict[str, Any]) -> Policy:
    """What a run does about failures, by its spec."""
    return Policy(
        restarts=spec.get("restarts", {}),
        on_trainer_loss=spec.get("on_trainer_loss", "fail"),
        together=spec.get("mode", "sync") == "sync",
        whole=spec.get("whole", False),
        time_limit_s=spec.get("time_limit_s"),
    )


class RemoteLead:
    """The lead is on another node. `on_order` gets its orders; `on_lost(why)` is called when it stays away.

    Where the run waits for lost nodes, this may be one: then `on_away(why)` is called, and it goes on dialling.
    """

    def __init__(
        self,
        reactor: Reactor,
        run: RunPaths,
        spec: dict[str, Any],
        on_order: Callable[[Message], None],
        on_lost: Callable[[str], None],
        on_away: Callable[[str], None],
    ) -> None:
        self._reactor = reactor
        self._address = (spec["lead"]["host"], int(spec["lead"]["port"]))
        self._node = lead_node(spec)
        self._node_grace_s = float(spec["node_grace_s"])
        self._context = tls_context(run, server=False)
        self._on_order = on_order
        self._on_lost = on_lost
        self._on_away = on_away
        self._channel = Channel(secrets.token_hex(8))
        self._patient = spec.get("on_trainer_loss") == "wait"
        self._away = False
        self._link: Link | None = None
        self._heard = reactor.now()
        self._refusals = 0
        self._over = False
        reactor.every(float(spec["heartbeat_s"]), self._beat)
        self._dial()

    def say(self, message: Message) -> None:
        frame = self._channel.wrap(message)
        if self._link is not None:
            self._link.send(frame)

    def let_go(self) -> None:
        """The run is over: what happens to the connection from here on is of no interest."""
        self._over = True

    def _beat(self) -> None:
        if self._link is not None:
            self._link.send(self._channel.heartbeat())
        silent_s = self._reactor.now() - self._heard
        if silent_s > self._node_grace_s:
            why = f"nothing heard of the lead for {silent_s:.0f} s"
            if not self._patient:
                self._lose(why)
            elif not self._away:
                self._away = True
                self._on_away(why)

    def _lose(self, why: str) -> None:
        if not self._over:
            self._over = True
            self._on_lost(why)

    def _dial(self) -> None:
        if self._over:
            return
        try:
            sock = dial(self._address)
        except OSError:
            self._reactor.after(RETRY_S, self._dial)
            return

        def connected() -> None:
            timer.cancel()
            self._reactor.unwatch(sock)
            self._dialled(sock, sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

        timer = self._reactor.after(DIAL_S, connected)
        self._reactor.watch(sock, connected, WRITE)

    def _dialled(self, sock: socket.socket, error: int) -> None:
        try:
            tls = None if error else self._context.wrap_socket(sock, do_handshake_on_connect=False)
        except OSError:
            tls = None
        if tls is not None and tls.fileno() >= 0:
            Link(self._reactor, tls, self._opened, self._frame, self._closed)
            return
        sock.close()
        self._not_reached("connection refused" if error == errno.ECONNREFUSED else None)

    def _not_reached(self, refusal: str | None) -> None:
        """Tries again soon; `refusal` tells in which way the node says that the lead is not there."""
        self._refusals = self._refusals + 1 if refusal else 0
        if self._refusals >= REFUSALS:
            self._lose(f"its supervisor is gone ({refusal})")
        self._reactor.after(RETRY_S, self._dial)

    def _opened(self, link: Link, node: int) -> None:
        if node != self._node:
            link.close(OSError(f"node{node} answers in the lead's place"))
            return
        self._link, self._refusals, self._heard, self._away = link, 0, self._reactor.now(), False
        link.send(self._channel.heartbeat())
        for frame in self._channel.repeat():
            link.send(frame)

    def _frame(self, frame: Message) -> None:
        self._heard = self._reactor.now()
        message = self._channel.accept(frame)
        if message is not None:
            self._on_order(message)

    def _closed(self, error: OSError | None) -> None:
        self._link = None
        stranger = isinstance(error, ssl.SSLCertVerificationError)  # such as the lead of a run that began meanwhile
        self._not_reached("another program has its port" if stranger else None)


class LocalLead:
    """This node leads. Carries out what the `Lead` decides."""

    def __init__(
        self,
        reactor: Reactor,
        run: RunPaths,
        spec: dict[str, Any],
        listener: socket.socket,
        on_order: Callable[[Message], None],
        note: Callable[[Message], None],
        write_manifest: Callable[[WriteManifest], None],
        drop_manifests: Callable[[DropManifests], None],
    ) -> None:
        self._reactor = reactor
        self._on_order = on_order
        self._note = note
        self._write_manifest = write_manifest
        self._drop_manifests = drop_manifests
        self._listener = listener
        self._context = tls_context(run, server=True)
        self._node = spec["node"]
        self._channels = {node: Channel() for node in spec["members"] if node != self._node}
        self._names: dict[int, str] = {}  # of the supervisors that we know
        self._links: dict[int, Link] = {}
        self._broken_at: dict[int, float] = {}
        self._lead = Lead(
            [(p["role"], p["rank"], p["node"]) for p in spec["all_processes"]],
            spec["members"],
            now=reactor.now(),
            node_grace_s=float(spec["node_grace_s"]),
            grace_s=float(spec["grace_s"]),
            heartbeat_s=float(spec["heartbeat_s"]),
            pservers_leave=ENGINES[spec["engine"]].leaves,
            upkeep=upkeep_of(spec),
            policy=policy_of(spec),
        )
        reactor.watch(listener, self._accept)
        reactor.every(float(spec["heartbeat_s"]), self._beat)

    def say(self, message: Message) -> None:
        """This node's own supervisor says something; answered in a later turn of the loop."""
        self._reactor.after(0, lambda: self._do(self._lead.handle(self._node, message, self._reactor.now())))

    def let_go(self) -> None:
        """Nothing to do: the lead ends the run itself."""

    def quiet(self) -> bool:
        """Whether every supervisor has what it was told."""
        return all(not channel.repeat() for node, channel in self._channels.items() if node in self._links)

    def _beat(self) -> None:
        now = self._reactor.now()
        self._do(self._lead.alive(self._node, now))
        for node, link in list(self._links.items()):
            link.send(self._channels[node].heartbeat())
        for node, since in list(self._broken_at.items()):
            if now - since > REPLY_S:
                self._lose(node)
        self._do(self._lead.tick(now))

    def _lose(self, node: int) -> None:
        self._broken_at.pop(node, None)
        self._do(self._lead.lose(node, "its supervisor is gone", self._reactor.now()))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Tell):
                self._tell(action)
            elif isinstance(action, Note):
                self._note(action.event)
            elif isinstance(action, WriteManifest):
                self._write_manifest(action)
            elif isinstance(action, DropManifests):
                self._drop_manifests(action)
            else:
                assert isinstance(action, Finish)

    def _tell(self, action: Tell) -> None:
        targets = [action.node] if action.node is not None else [self._node, *self._channels]
        for node in targets:
            if node == self._node:
                self._reactor.after(0, lambda: self._on_order(action.message))
                continue
            frame = self._channels[node].wrap(action.message)
            if node in self._links:
                self._links[node].send(frame)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            tls = self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        except (OSError, ssl.SSLError):
            sock.close()
            return
        Link(self._reactor, tls, self._opened, lambda frame: None, lambda error: None)

    def _opened(self, link: Link, node: int) -> None:
        if node not in self._channels:
            link.close(OSError(f"node{node} is not of this run"))
            return
        old = self._links.pop(node, None)
        if old is not None:
            old.close()
        self._links[node] = link
        self._broken_at.pop(node, None)
        link.on_frame = lambda frame: self._first_frame(node, link, frame)
        link.on_closed = lambda error: self._closed(node, link)

    def _first_frame(self, node: int, link: Link, frame: Message) -> None:
        """Of a connection: another supervisor than the one before knows nothing of what was said to that."""
        if frame.get("gone"):  # it is the guardian's
            link.close()
            self._lose(node)
            return
        name = str(frame.get("i"))
        if self._names.setdefault(node, name) != name:
            self._names[node], self._channels[node] = name, Channel()
        link.on_frame = lambda frame: self._frame(node, frame)
        for waiting in self._channels[node].repeat():
            link.send(waiting)
        self._frame(node, frame)

    def _frame(self, node: int, frame: Message) -> None:
        now = self._reactor.now()
        self._do(self._lead.alive(node, now))
        message = self._channels[node].accept(frame)
        if message is not None:
            self._do(self._lead.handle(node, message, now))

    def _closed(self, node: int, link: Link) -> None:
        if self._links.get(node) is link:
            del self._links[node]
            self._broken_at[node] = self._reactor.now()
