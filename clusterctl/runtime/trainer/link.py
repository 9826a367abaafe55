"""How a trainer reaches the lanes: the interface of links. `zmq_link` reaches processes, `local` is in this one."""

from __future__ import annotations

from typing import Callable, Protocol

from clusterctl.runtime.errors import BY_NAME, RuntimeFailure
from clusterctl.runtime.table.sharding import Layout
from clusterctl.runtime.wire import messages as wire

OnReply = Callable[[wire.Message], None]


class Link(Protocol):
    """Carries requests to lanes, many at a time, and brings each one's reply. Not thread-safe.

    Arrays of a request must not change before its reply; arrays of a reply hold only while `on_reply` runs.
    """

    layout: Layout

    def open(self, lane: int, port: int) -> None:
        """Makes a lane reachable, on the host of its pserver; the first lane of each pserver already is."""
        ...

    def post(self, lane: int, message: wire.Message, on_reply: OnReply, full: wire.Message | None = None) -> None:
        """Sends a request. `full` is sent instead when the lane has forgotten a list of ids that `message` names."""
        ...

    def wait(self, done: Callable[[], bool], reply_bytes: int = 0) -> None:
        """Takes replies in until `done()`. Raises the error that a pserver answers with.

        `reply_bytes` is about how long replies may be, so that a slow network gets time for them.
        """
        ...

    def share(self, lane: int, find: wire.Shared) -> None:
        """How to read what a lane's replies say is in shared memory."""
        ...

    def close(self) -> None: ...


def raise_for_error(reply: wire.Message) -> None:
    """Raises what a pserver answered with, if that is an error."""
    if reply.kind == wire.ERROR:
        said = reply.json()
        raise BY_NAME.get(str(said.get("error")), RuntimeFailure)(str(said.get("message")))
