"""Nodes relay dispatched bytes to each other, so that the control machine sends each byte about once.

One opaque stream of known length goes through all nodes of a dispatch. A node receives it from its upstream node (the
first one from the control machine), hands it to its receiver, and forwards it to its downstream nodes while it
arrives. A node that fails or is too slow is dropped: the nodes behind it detect that, and get missing bytes directly.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Callable

from clusterctl.agent.event_loop import EventLoop
from clusterctl.agent.relay.links import CUT_S, PIECE, DownstreamNode, Keys, RelayBroken, Source

if TYPE_CHECKING:  # ssl takes 15 ms to import, and is needed only for relays
    from clusterctl.agent.relay.downstream import Downstream
    from clusterctl.agent.relay.upstream import Upstream


class Relay:
    """One node's part in relaying one stream. One thread at a time may use it."""

    def __init__(self, address: str) -> None:
        """Listen on a free port of `address`. Raises OSError, also if this python has no TLS."""
        try:
            import_module("ssl")
        except ImportError:
            raise OSError("this python has no ssl module") from None
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._listener.bind((address, 0))
            self._listener.listen(64)
        except OSError:
            self._listener.close()
            raise
        self.port: int = self._listener.getsockname()[1]
        self._upstream: Upstream | None = None
        self._downstream: list[Downstream] = []
        self._end_connecting: Callable[[], None] | None = None
        self._source: Source | None = None
        self._left = 0
        self._rest = memoryview(b"")

    def start(
        self,
        keys: Keys,
        upstream: str | None,
        downstream: Sequence[DownstreamNode],
        length: int,
        source: Source | None = None,
    ) -> None:
        """Connect to the downstream nodes, and accept `upstream`; without one, `source(n)` returns up to n bytes.

        Return immediately. The caller must soon call `read`: the stream waits for it.
        """
        from clusterctl.agent.relay.downstream import Downstream
        from clusterctl.agent.relay.upstream import Upstream
        from clusterctl.transfer.tls import relay_context

        self._left, self._source = length, source
        loop = EventLoop()
        self._end_connecting = loop.close
        if upstream is None:
            self._listener.close()
        else:
            self._upstream = Upstream(loop, self._listener, relay_context(*keys, server=True), upstream)
        if downstream:
            context = relay_context(*keys, server=False)
            for branch in downstream:
                self._downstream.append(Downstream(loop, context, DownstreamNode(*branch)))
        self._end_connecting = loop.run_in_thread("relay")

    def read(self, count: int) -> memoryview:
        """Return the next bytes of the stream, at most `count`, none at its end. Raises `RelayBroken`.

        They have been forwarded, and the caller may keep them. Waits for lagging downstream nodes, for a bounded time.
        """
        if not self._rest:
            self._rest = self._next_piece()
        part, self._rest = self._rest[:count], self._rest[count:]
        return part

    def finish(self) -> list[str]:
        """Forward the unread rest, wait until the downstream nodes have received it, and close.

        Return the names of the downstream nodes that were lost; they and the nodes behind them get the rest directly.
        """
        with contextlib.suppress(RelayBroken):
            while self._left:
                self._next_piece()
        self._drain(None)
        self.close()
        return [downstream.name for downstream in self._downstream if downstream.lost]

    def close(self) -> None:
        """End the relay at any time. Leaves no thread and no socket."""
        self._left, self._rest = 0, memoryview(b"")
        if self._end_connecting is not None:
            self._end_connecting()
            self._end_connecting = None
        for downstream in self._downstream:
            downstream.close()
        if self._upstream is not None:
            self._upstream.close()
        self._listener.close()

    def pass_on(self, piece: memoryview) -> memoryview:
        """Return the bytes that downstream nodes get for `piece`; tests override it to send wrong bytes."""
        return piece

    def _next_piece(self) -> memoryview:
        if not self._left:
            return memoryview(b"")
        try:
            piece = self._receive(min(PIECE, self._left))
        except OSError as exc:
            self._left = 0
            self._drain(CUT_S)  # they must see the end soon
            raise RelayBroken(f"the relay broke: {exc}") from exc
        self._left -= len(piece)
        passed = self.pass_on(piece)
        for downstream in self._downstream:
            downstream.put(passed)
        return piece

    def _receive(self, count: int) -> memoryview:
        if self._upstream is not None:
            piece = self._upstream.receive(count, self._downstream)
        elif self._source is not None:
            piece = memoryview(self._source(count))
        else:
            raise ConnectionError("it was not started")
        if not piece:
            raise ConnectionError("the stream ended too early")
        return piece

    def _drain(self, stall_s: float | None) -> None:
        if self._downstream:
            from clusterctl.agent.relay.downstream import drain

            drain(self._downstream, stall_s)
