"""How long a server may take to open a channel, and closing channels in an order that servers accept."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from clusterctl.transport import paramiko_loader

OPEN_CHANNEL_S = 15.0


@contextlib.contextmanager
def speaking(channel: Any) -> Iterator[None]:
    """Keep our side of a channel open while in this context.

    Servers drop the whole connection if anything follows a close, and paramiko sends data, EOF and close messages from
    several threads in no particular order.
    """
    with channel.lock:
        channel.senders = getattr(channel, "senders", 0) + 1
    try:
        yield
    finally:
        with channel.lock:
            channel.senders -= 1
            deferred, channel.deferred = getattr(channel, "deferred", ()), ()
            if channel.senders:
                deferred, channel.deferred = (), deferred
        _send(channel, deferred)


def close_channel(channel: Any) -> None:
    """Close our side. The close is sent to the server once no thread is `speaking`."""
    with channel.lock:
        messages = channel._close_internal()
        if getattr(channel, "senders", 0):
            channel.deferred, messages = (*getattr(channel, "deferred", ()), *messages), ()
    _send(channel, messages)


def _send(channel: Any, messages: Iterable[Any]) -> None:
    for message in messages:
        if message is not None:
            with contextlib.suppress(*paramiko_loader.errors()):  # the connection is gone
                channel.transport._send_user_message(message)
