"""The TLS handshake in an event loop."""

from __future__ import annotations

import ssl
from typing import Callable

from clusterctl.agent.event_loop import READ, WRITE, EventLoop


def shake_hands(loop: EventLoop, sock: ssl.SSLSocket, limit_s: float, done: Callable[[OSError | None], None]) -> None:
    """Do the handshake of a connected, non-blocking socket, and call `done(error)` once. `done` closes the socket.

    A socket that is closed earlier must be unwatched before; `done` is called all the same, when the limit is over.
    """

    def settle(error: OSError | None) -> None:
        timer.cancel()
        loop.unwatch(sock)
        done(error)

    def advance() -> None:
        try:
            sock.do_handshake()
        except ssl.SSLWantReadError:
            loop.watch(sock, advance, READ)
        except ssl.SSLWantWriteError:
            loop.watch(sock, advance, WRITE)
        except OSError as error:
            settle(error)
        except ValueError as exc:  # the socket was closed, or the other side speaks something else
            settle(OSError(str(exc)))
        else:
            settle(None)

    timer = loop.after(limit_s, lambda: settle(TimeoutError("no TLS handshake")))
    loop.watch(sock, advance, READ | WRITE)
