"""A trainer's link to pserver processes: requests in flight on each lane, retries of lost ones, notices of long waits.

Every request may be repeated safely. A lane with unanswered requests is sent a small probe each second: its reply lists
the requests that it holds (and the trainers it waits for); the others are sent again, in order. So a slow step never
resends megabytes. A silent lane gets a new connection, and well after the node's grace an error: the lead, which knows
whether the node is lost, decides first. If the stream of a lane breaks, or the lane is silent, all of its unanswered
requests are sent again over ZeroMQ.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable

from clusterctl.runtime.environment import Environment
from clusterctl.runtime.errors import ForgottenError, ProcessError, UnreachableError, WireError
from clusterctl.runtime.stream.carrier import Carrier, LaneCarriers
from clusterctl.runtime.supervisor_socket import print_line
from clusterctl.runtime.table.sharding import Layout, layout_of
from clusterctl.runtime.trainer.link import OnReply, raise_for_error
from clusterctl.runtime.wire import messages as wire

_SLOWEST_BYTES_PER_S = 1e6
_NOTICES_S = (10.0, 60.0)
_GRACES = 1.5
_MORE_S = 1.0  # the lead checks its nodes about once a second
_FIRST_PROBE = 2**63


@dataclass
class PendingRequest:
    """A request in flight. `bytes` is the length of its frames."""

    message: wire.Message
    frames: list[Any]
    on_reply: OnReply
    full: wire.Message | None
    bytes: int


@dataclass
class LaneConnection:
    """The connection to one lane: its carrier, the requests in flight, and when the lane last answered.

    `probes` are unanswered: their numbers, each with that of the newest request before it. `saving` is True if the last
    answer said that it copies its tables.
    """

    lane: int
    requests: OrderedDict[int, PendingRequest] = field(default_factory=OrderedDict)
    bytes: int = 0
    heard_s: float = 0.0
    opened_s: float = 0.0
    probed_s: float = 0.0
    probes: dict[int, int] = field(default_factory=dict)
    newest: int = 0
    waiting: list[int] = field(default_factory=list)
    saving: bool = False
    find: wire.Shared | None = None
    carrier: Carrier = field(init=False)


class RemoteLink:
    """The link over sockets. Raises UnreachableError for a pserver that stays silent for well over the node's grace.

    `on_wait(facts)` is called about once a second during a wait: `trainers` that are waited for, the `pserver` that was
    silent for longest, and `for_s`, the seconds since the wait began or a reply came.
    `on_unanswered(pserver)` is called before UnreachableError, and `on_difference(message)` before the TableError that
    says that trainers have declared different tables.
    """

    def __init__(
        self,
        env: Environment,
        clock: Callable[[], float] = time.monotonic,
        probe_every_s: float = 1.0,
        on_wait: Callable[[dict[str, Any]], None] = lambda facts: None,
        on_unanswered: Callable[[int], None] = lambda pserver: None,
        on_difference: Callable[[str], None] = lambda message: None,
    ) -> None:
        if not env.pservers:
            raise ProcessError("this run has no pservers (PSERVERS = 0 in conf.py, or CLUSTERCTL_PSERVERS is empty)")
        self.layout: Layout = layout_of(env.spec.ports, len(env.pservers))
        self._clock = clock
        self._probe_every_s = probe_every_s
        self._patience_s = _GRACES * env.spec.timing.node_grace_s + _MORE_S
        self._carriers = LaneCarriers(env.keys() if env.secure else None, probe_every_s)
        self._addresses = env.pservers
        self._connections: dict[int, LaneConnection] = {}
        self._notices = 0
        self._on_wait = on_wait
        self._on_unanswered = on_unanswered
        self._on_difference = on_difference
        self._notified_s = self._answered_s = clock()
        self._probes = _FIRST_PROBE
        for pserver, address in enumerate(env.pservers):
            self._add(pserver * self.layout.per_pserver, address)

    def open(self, lane: int, port: int) -> None:
        host = self._addresses[lane // self.layout.per_pserver].rpartition(":")[0]
        self._add(lane, f"{host}:{port}")

    def post(self, lane: int, message: wire.Message, on_reply: OnReply, full: wire.Message | None = None) -> None:
        connection = self._connections[lane]
        frames = wire.encode(message)
        size = sum([len(frame) for frame in frames])
        is_first = not connection.requests
        if is_first:
            connection.heard_s = connection.opened_s = connection.probed_s = self._clock()
        connection.requests[message.request] = PendingRequest(message, frames, on_reply, full, size)
        connection.bytes += size
        connection.newest = max(connection.newest, message.request)  # a request in full may follow later ones
        connection.carrier.send(frames, is_first=is_first)

    def share(self, lane: int, find: wire.Shared) -> None:
        self._connections[lane].find = find

    def wait(self, done: Callable[[], bool], reply_bytes: int = 0) -> None:
        began = self._clock()
        self._notices = 0
        while not done():
            busy = [connection.carrier for connection in self._connections.values() if connection.requests]
            received, now = self._carriers.receive(busy), self._clock()
            if now - max(began, self._notified_s) >= self._probe_every_s:
                self._notified_s = now
                self._on_wait({**self._waited_for(), "for_s": round(now - max(began, self._answered_s), 3)})
            if received:
                continue
            for connection in self._connections.values():
                if connection.requests:
                    self._probe_or_reopen(connection, now, reply_bytes)
            self._print_notice(now - began, now)

    def close(self) -> None:
        self._carriers.close()

    def _add(self, lane: int, address: str) -> None:
        connection = self._connections[lane] = LaneConnection(lane)
        deliver, send_again = partial(self._deliver, connection), partial(self._send_again, connection)
        connection.carrier = self._carriers.add(lane, address, lane // self.layout.per_pserver, deliver, send_again)

    def _reopen(self, connection: LaneConnection) -> None:
        connection.carrier.reopen()
        self._send_again(connection)

    def _send_again(self, connection: LaneConnection) -> None:
        for request in list(connection.requests.values()):
            connection.carrier.send(request.frames)

    def _deliver(self, connection: LaneConnection, frames: Sequence[wire.Buffer]) -> None:
        try:
            reply = wire.decode(frames, connection.find)
        except WireError:
            return
        if reply.request in connection.probes:
            self._handle_probe_reply(connection, reply)
            return
        request = connection.requests.pop(reply.request, None)
        if request is not None:
            connection.heard_s = self._answered_s = self._clock()
            connection.bytes -= request.bytes
            self._handle_reply(connection, request, reply)

    def _handle_reply(self, connection: LaneConnection, request: PendingRequest, reply: wire.Message) -> None:
        self._look_for_difference(reply)
        try:
            raise_for_error(reply)
        except ForgottenError:
            if request.full is None:
                raise
            self.post(connection.lane, request.full, request.on_reply)
            return
        if request.message.kind == wire.HELLO:
            with contextlib.suppress(WireError):
                connection.carrier.begin_stream(reply.json().get("stream"), reply.rank)
        request.on_reply(reply)

    def _handle_probe_reply(self, connection: LaneConnection, reply: wire.Message) -> None:
        """Send again the requests that the lane did not have when the probe came: they were lost.

        The reply of a busy lane may come after later probes were sent; it is as good.
        """
        self._look_for_difference(reply)
        raise_for_error(reply)
        state = reply.json()
        connection.heard_s, newest = self._clock(), connection.probes[reply.request]
        connection.probes.clear()
        connection.saving = state.get("saving") is True
        held = set(state.get("held", []))
        connection.waiting = [int(rank) for rank in state.get("waiting", [])] if held else []
        for number, request in connection.requests.items():
            if number <= newest and number not in held:
                connection.carrier.send(request.frames)

    def _look_for_difference(self, reply: wire.Message) -> None:
        if reply.kind == wire.ERROR and (error := reply.json()).get("differ") is True:
            self._on_difference(str(error.get("message")))

    def _probe_or_reopen(self, connection: LaneConnection, now: float, reply_bytes: int) -> None:
        silent_s = now - connection.heard_s
        patience_s = self._patience_s + (connection.bytes + reply_bytes) / _SLOWEST_BYTES_PER_S
        if silent_s >= patience_s:
            pserver = connection.lane // self.layout.per_pserver
            self._on_unanswered(pserver)
            raise UnreachableError(
                f"pserver {pserver} ({connection.carrier.address}) has not answered for {silent_s:.0f} s",
                remedy="see its server.log, and check that the network lets this node reach that port",
            )
        if now - max(connection.heard_s, connection.opened_s) >= patience_s / 3:
            connection.opened_s = now
            self._reopen(connection)
        connection.carrier.give_up_late(now)
        if now - connection.probed_s >= self._probe_every_s and not connection.carrier.is_queued:
            connection.probed_s = now
            self._probes += 1
            connection.probes[self._probes] = connection.newest
            oldest = next(iter(connection.requests.values())).message
            probe = wire.Message(wire.PROBE, oldest.rank, self._probes, oldest.epoch, oldest.attempt)
            connection.carrier.send(wire.encode(probe))

    def _waited_for(self) -> dict[str, Any]:
        """Return the `trainers` that pservers wait for, and the `pserver` that was silent for longest."""
        busy = [(connection.heard_s, lane) for lane, connection in self._connections.items() if connection.requests]
        ranks = {rank for _, lane in busy for rank in self._connections[lane].waiting}
        return {"trainers": sorted(ranks), "pserver": min(busy)[1] // self.layout.per_pserver if busy else None}

    def _print_notice(self, waited_s: float, now: float) -> None:
        """Print the cause of this trainer's wait after 10 s, 60 s, and every further minute."""
        due_s = _NOTICES_S[self._notices] if self._notices < 2 else 60.0 * self._notices
        busy = [(lane, connection) for lane, connection in self._connections.items() if connection.requests]
        if not busy or waited_s < due_s:
            return
        self._notices += 1
        lane, connection = min(busy, key=lambda item: item[1].heard_s)
        pserver = lane // self.layout.per_pserver
        ranks = sorted({rank for _, other in busy for rank in other.waiting})
        if now - connection.heard_s > 3 * self._probe_every_s:
            silent_s = now - connection.heard_s
            print_line(f"waiting for pserver {pserver} ({connection.carrier.address}), silent for {silent_s:.0f} s")
        elif ranks:
            step = next(iter(connection.requests.values())).message.step
            print_line(f"waiting for trainers {ranks} at step {step} for {waited_s:.0f} s")
        else:
            doing = "busy saving" if connection.saving else "busy"
            print_line(f"waiting for pserver {pserver} ({connection.carrier.address}), {doing}, for {waited_s:.0f} s")
