"""A supervisor's side of the channel to the lead on another node: reconnects until the run is over."""

from __future__ import annotations

import errno
import math
import os
import socket
import ssl
from typing import Callable

from clusterctl.agent.event_loop import EventLoop
from clusterctl.agent.lead.channel import Channel, LeadFrame
from clusterctl.agent.lead.connection import DIAL_S, RETRY_S, LeadConnection
from clusterctl.agent.lead.failure_detector import suspect_s
from clusterctl.agent.lead.lease import since_boot
from clusterctl.agent.lead.messages import Order, Report, order_of
from clusterctl.common.paths import RunPaths
from clusterctl.common.run_spec import LeadAddress, RunSpec
from clusterctl.transfer.tls import run_context

RETURN_GRACES = 10  # times NODE_GRACE_S: how long a lost node tries to come back
REFUSALS = 4  # in a row: the node responds, but the lead is not listening there


class LeadClient:
    """`on_order` gets the lead's orders. `on_lost(why, silent_s, closed_s)` is called if the lead stays away, with the
    seconds of silence if that is the reason, and those since the connection ended, if it did.

    If the run waits for lost nodes, or moves their processes, `on_away(why, silent_s)` is called instead, and it keeps
    dialling: in the second case for 10 x NODE_GRACE_S. `on_moved` is called if the processes have moved meanwhile, and
    `join_anew` comes after that. `on_answer(t)` is called for each answer to what was sent at that time since boot. A
    silent connection is not trusted: after a network cut the kernel may not retry it for as long as the cut lasted. The
    client then opens another one beside it, but not at once: the lead may be busy with a thousand nodes.
    """

    def __init__(
        self,
        loop: EventLoop,
        run: RunPaths,
        spec: RunSpec,
        lead: LeadAddress,
        on_order: Callable[[Order], None],
        on_lost: Callable[[str, float | None, float | None], None],
        on_away: Callable[[str, float], None],
        on_answer: Callable[[float], None] = lambda sent: None,
        on_moved: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = loop
        self._address = (lead.host, lead.port)
        self._node = spec.lead_node
        self._node_grace_s = spec.timing.node_grace_s
        self._seek_s = max(suspect_s(spec.timing.heartbeat_s), self._node_grace_s / 3)
        self._context = run_context(run, server=False)
        self._on_order = on_order
        self._on_lost = on_lost
        self._on_away = on_away
        self._on_answer = on_answer
        self._on_moved = on_moved
        self._channel = Channel(os.urandom(8).hex())
        self._patient_s = {"wait": math.inf, "move": RETURN_GRACES * self._node_grace_s}.get(
            spec.failures.node_loss, 0.0
        )
        self._away = False
        self._connection: LeadConnection | None = None
        self._seeking = False
        self._heard = loop.now()
        self._closed_at: float | None = None  # the time at which the connection to the lead ended
        self._refusals = 0
        self._over = False
        loop.every(spec.timing.heartbeat_s, self._heartbeat)
        self._seek()

    def send(self, message: Report) -> None:
        frame = self._channel.wrap(message)
        if self._connection is not None:
            self._connection.send(frame)

    @property
    def is_away(self) -> bool:
        """True if the lead has been silent for longer than NODE_GRACE_S."""
        return self._away

    def join_anew(self, hello: Report) -> None:
        """Join the run as another supervisor would: what was said before is void."""
        self._channel = Channel(os.urandom(8).hex())
        self._channel.wrap(hello)
        self._over = self._seeking = False
        self._heard = self._loop.now()
        self._seek()

    def let_go(self) -> None:
        """Stop reporting problems of the connection: the run is over."""
        self._over = True

    def _heartbeat(self) -> None:
        if self._connection is not None:
            self._connection.send(self._channel.heartbeat(since_boot()))
        if self._over:
            return
        silent_s = self._loop.now() - self._heard
        if silent_s > self._seek_s:
            self._seek()
        if silent_s > self._node_grace_s:
            why = f"no message from the lead for {silent_s:.0f} s"
            if silent_s > self._patient_s:
                self._lose(why, round(silent_s, 1))
            elif not self._away:
                self._away = True
                self._on_away(why, round(silent_s, 1))

    def _lose(self, why: str, silent_s: float | None = None) -> None:
        if not self._over:
            self._over = True
            closed_s = None if self._closed_at is None else round(self._loop.now() - self._closed_at, 3)
            self._on_lost(why, silent_s, closed_s)

    def _seek(self) -> None:
        if not self._seeking:
            self._seeking = True
            self._dial()

    def _dial(self) -> None:
        if self._over:
            return
        try:
            self._loop.connect(self._address, DIAL_S, self._dialled)
        except OSError:
            self._loop.after(RETRY_S, self._dial)

    def _dialled(self, sock: socket.socket, error: int) -> None:
        try:
            tls = None if error else self._context.wrap_socket(sock, do_handshake_on_connect=False)
        except OSError:
            tls = None
        if tls is not None and tls.fileno() >= 0:
            connection = LeadConnection(self._loop, tls, self._opened, self._frame)
            connection.on_closed = lambda error: self._closed(connection, error)
            return
        sock.close()
        self._not_reached("connection refused" if error == errno.ECONNREFUSED else None)

    def _not_reached(self, refusal: str | None) -> None:
        """Retry soon. `refusal` is the node's response, if any, that shows that the lead is not listening."""
        self._refusals = self._refusals + 1 if refusal else 0
        if self._refusals >= REFUSALS:
            self._lose(f"its supervisor is gone ({refusal})")
        self._loop.after(RETRY_S, self._dial)

    def _opened(self, connection: LeadConnection, node: int) -> None:
        if node != self._node:
            connection.close(OSError(f"node{node} answered instead of the lead"))
            return
        old, self._connection = self._connection, connection
        if old is not None:
            old.on_closed = lambda error: None
            old.close()
        self._seeking, self._refusals, self._heard, self._away = False, 0, self._loop.now(), False
        self._closed_at = None
        for frame in [*self._channel.repeat(), self._channel.heartbeat()]:  # the first one may be that of `join_anew`
            connection.send(frame)

    def _frame(self, frame: LeadFrame) -> None:
        self._heard = self._loop.now()
        if frame.get("moved"):
            self._retire()
            return
        if (sent := frame.get("e")) is not None:
            self._on_answer(sent)
        message = self._channel.accept(frame)
        order = order_of(message) if message is not None else None
        if order is not None:
            self._on_order(order)

    def _retire(self) -> None:
        """Leave the run until `join_anew`."""
        connection, self._connection = self._connection, None
        self._over = True
        if connection is not None:
            connection.on_closed = lambda error: None
            connection.close()
        self._on_moved()

    def _closed(self, connection: LeadConnection, error: OSError | None) -> None:
        if connection is self._connection:
            self._connection, self._closed_at = None, self._loop.now()
            if self._seeking:
                return
            self._seeking = True
        stranger = isinstance(
            error, ssl.SSLCertVerificationError
        )  # such as the lead of a run that started in the meantime
        self._not_reached("another program has its port" if stranger else None)
