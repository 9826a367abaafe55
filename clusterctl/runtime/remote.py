"""A trainer's link to pserver processes: a DEALER socket each, requests that survive loss, waits that are explained.

Every request may be repeated safely. One that stays unanswered is followed by a small probe each second: the pserver
says that it holds the request (and for whom it waits), or that it does not know it; only then is it sent again. So a
slow step never resends megabytes. A silent pserver gets a new connection, and well after the node's grace an error:
the lead, which knows whether its node is lost, has the first word.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

import zmq

from clusterctl.runtime import wire
from clusterctl.runtime.environment import Environment
from clusterctl.runtime.errors import ProcessError, UnreachableError, WireError
from clusterctl.runtime.link import raise_for_error
from clusterctl.runtime.progress import say
from clusterctl.runtime.sockets import open_context, open_dealer

_SLOWEST_BYTES_PER_S = 1e6
_NOTICES_S = (10.0, 60.0)
_GRACES = 1.5
_MORE_S = 1.0  # the lead hears and looks about once a second


@dataclass
class Outstanding:
    """A request on its way, and what is known of it."""

    request: wire.Message
    frames: list[Any]
    patience_s: float
    sent_s: float
    heard_s: float
    opened_s: float
    probed_s: float
    probe: int = 0
    waiting: list[int] = field(default_factory=list)


class RemoteLink:
    """The link over ZeroMQ. Raises UnreachableError for a pserver that stays silent well beyond the node's grace."""

    def __init__(
        self, env: Environment, clock: Callable[[], float] = time.monotonic, probe_every_s: float = 1.0
    ) -> None:
        if not env.pservers:
            raise ProcessError("CLUSTERCTL_PSERVERS names no pserver")
        self.pservers = len(env.pservers)
        self._addresses = env.pservers
        self._clock = clock
        self._probe_every_s = probe_every_s
        self._patience_s = _GRACES * float(env.spec.get("node_grace_s", 30)) + _MORE_S
        self._keys = env.keys() if env.secure else None
        self._context = open_context()
        self._poller = zmq.Poller()
        self._sockets = [self._open(pserver) for pserver in range(self.pservers)]
        self._notices = 0
        self._probes = 0

    def exchange(self, requests: Mapping[int, wire.Message], reply_bytes: int = 0) -> dict[int, wire.Message]:
        began = self._clock()
        waiting = {p: self._outstanding(p, request, reply_bytes) for p, request in requests.items()}
        for pserver, out in waiting.items():
            self._send(pserver, out.frames)
        replies: dict[int, wire.Message] = {}
        self._notices = 0
        while waiting:
            self._receive(waiting, replies)
            now = self._clock()
            for pserver, out in waiting.items():
                self._nudge(pserver, out, now)
            self._explain(waiting, now - began, now)
        for reply in replies.values():
            raise_for_error(reply)
        return replies

    def close(self) -> None:
        for socket in self._sockets:
            socket.close(linger=0)
        self._context.term()

    def _outstanding(self, pserver: int, request: wire.Message, reply_bytes: int) -> Outstanding:
        frames = wire.encode(request)
        size = sum(len(frame) for frame in frames) + reply_bytes
        now = self._clock()
        return Outstanding(request, frames, self._patience_s + size / _SLOWEST_BYTES_PER_S, now, now, now, now)

    def _open(self, pserver: int) -> zmq.Socket[bytes]:
        server_key = str(self._keys["servers"][pserver]) if self._keys else ""
        socket = open_dealer(self._context, self._addresses[pserver], self._keys, server_key)
        self._poller.register(socket, zmq.POLLIN)
        return socket

    def _reopen(self, pserver: int) -> None:
        self._poller.unregister(self._sockets[pserver])
        self._sockets[pserver].close(linger=0)
        self._sockets[pserver] = self._open(pserver)

    def _send(self, pserver: int, frames: list[Any]) -> None:
        try:
            self._sockets[pserver].send_multipart(frames, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return  # the queue to a silent pserver is full: a later probe finds out

    def _receive(self, waiting: dict[int, Outstanding], replies: dict[int, wire.Message]) -> None:
        ready = dict(self._poller.poll(int(self._probe_every_s * 1000)))
        for pserver, socket in enumerate(self._sockets):
            if socket not in ready:
                continue
            reply = _read(socket)
            out = waiting.get(pserver)
            if reply is None or out is None:
                continue
            if reply.request == out.probe:
                self._learn(pserver, out, reply)
            elif reply.request == out.request.request:
                replies[pserver] = reply
                del waiting[pserver]

    def _learn(self, pserver: int, out: Outstanding, reply: wire.Message) -> None:
        raise_for_error(reply)
        state = reply.json()
        out.heard_s = self._clock()
        out.waiting = [int(rank) for rank in state.get("waiting", [])]
        if not state.get("held"):
            out.waiting = []
            self._send(pserver, out.frames)

    def _nudge(self, pserver: int, out: Outstanding, now: float) -> None:
        silent_s = now - out.heard_s
        if silent_s >= out.patience_s:
            raise UnreachableError(
                f"pserver {pserver} ({self._addresses[pserver]}) has not answered for {silent_s:.0f} s",
                remedy="see its server.log, and check that the network lets this node reach that port",
            )
        if now - max(out.heard_s, out.opened_s) >= out.patience_s / 3:
            out.opened_s = now
            self._reopen(pserver)
            self._send(pserver, out.frames)
        if now - out.probed_s >= self._probe_every_s:
            out.probed_s = now
            self._probes += 1
            out.probe = 2**63 + self._probes
            asked = out.request
            probe = wire.Message(wire.PROBE, asked.rank, out.probe, asked.epoch, asked.attempt, version=asked.request)
            self._send(pserver, wire.encode(probe))

    def _explain(self, waiting: Mapping[int, Outstanding], waited_s: float, now: float) -> None:
        """Says what is waited for at 10 s, 60 s, and every minute after."""
        due_s = _NOTICES_S[self._notices] if self._notices < 2 else 60.0 * self._notices
        if not waiting or waited_s < due_s:
            return
        self._notices += 1
        pserver, out = min(waiting.items(), key=lambda item: item[1].heard_s)
        ranks = sorted({rank for o in waiting.values() for rank in o.waiting})
        if now - out.heard_s > 3 * self._probe_every_s:
            say(f"waiting for pserver {pserver} ({self._addresses[pserver]}), silent for {now - out.heard_s:.0f} s")
        elif ranks:
            say(f"waiting for trainers {ranks} at step {out.request.step} for {waited_s:.0f} s")
        else:
            say(f"waiting for pserver {pserver} ({self._addresses[pserver]}), busy, for {waited_s:.0f} s")


def _read(socket: zmq.Socket[bytes]) -> wire.Message | None:
    try:
        frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
        return wire.decode([frame.buffer for frame in frames])
    except (zmq.Again, WireError):
        return None
