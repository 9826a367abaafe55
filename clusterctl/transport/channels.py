"""The end of a channel, in an order that servers accept."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from clusterctl.transport import paramiko_loader


@contextlib.contextmanager
def speaking(channel: Any) -> Iterator[None]:
    """While in it, our side of a channel is not closed. Servers end the connection for what comes after a close.

    paramiko sends data, ends of input and closes from several threads, each when it comes to it.
    """
    with channel.lock:
        channel.speakers = getattr(channel, "speakers", 0) + 1
    try:
        yield
    finally:
        with channel.lock:
            channel.speakers -= 1
            last_words, channel.last_words = getattr(channel, "last_words", ()), ()
            if channel.speakers:
                last_words, channel.last_words = (), last_words
        _say(channel, last_words)


def close_channel(channel: Any) -> None:
    """Closes our side; the server hears of it when nobody is `speaking` any more."""
    with channel.lock:
        last_words = channel._close_internal()
        if getattr(channel, "speakers", 0):
            channel.last_words, last_words = (*getattr(channel, "last_words", ()), *last_words), ()
    _say(channel, last_words)


def _say(channel: Any, messages: Iterable[Any]) -> None:
    for message in messages:
        if message is not None:
            with contextlib.suppress(*paramiko_loader.errors()):  # the connection is gone
                channel.transport._send_user_message(message)
