"""The interface through which a trainer reaches lanes: `zmq_link` over sockets, `runtime.local` in this process."""

from __future__ import annotations

from typing import Callable, Protocol

from clusterctl.runtime.errors import BY_NAME, RuntimeFailure
from clusterctl.runtime.table.sharding import Layout
from clusterctl.runtime.wire import messages as wire

OnReply = Callable[[wire.Message], None]


class Link(Protocol):
    """Carries requests to lanes, many at a time, and delivers their replies. Not thread-safe.

    Arrays of a request must not change before its reply; arrays of a reply are valid only while `on_reply` runs.
    """

    layout: Layout

    def open(self, lane: int, port: int) -> None:
        """Connect to a lane at a port of its pserver's host. The first lane of each pserver is connected already."""
        ...

    def post(self, lane: int, message: wire.Message, on_reply: OnReply, full: wire.Message | None = None) -> None:
        """Send a request. `full` is sent instead if the lane no longer has a list of ids that `message` names."""
        ...

    def wait(self, done: Callable[[], bool], reply_bytes: int = 0) -> None:
        """Handle replies until `done()`. Raises the error that a pserver replies with.

        `reply_bytes` is the approximate size of replies, so that a slow network gets time for them.
        """
        ...

    def share(self, lane: int, find: wire.Shared) -> None:
        """Set the function that finds arrays of a lane's replies in shared memory."""
        ...

    def close(self) -> None: ...


def raise_for_error(reply: wire.Message) -> None:
    """Raise the error in a reply, if it is one."""
    if reply.kind == wire.ERROR:
        error = reply.json()
        raise BY_NAME.get(str(error.get("error")), RuntimeFailure)(str(error.get("message")))
