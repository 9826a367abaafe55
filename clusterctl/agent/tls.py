"""TLS between nodes: both sides prove a name with a certificate of the same authority."""

from __future__ import annotations

import ssl
from typing import Callable

from clusterctl.agent.event_loop import READ, WRITE, EventLoop


def mutual_context(authority: bytes, chain: str, *, server: bool) -> ssl.SSLContext:
    """Return a context for TLS 1.2 and later that accepts every certificate of `authority`, and no other.

    `authority` is a certificate as PEM, `chain` the path of a PEM file with this side's private key and certificate.
    Raises OSError if they cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False  # nodes have names of their own: see `peer_name`
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(cadata=authority.decode("ascii"))
    except ValueError as exc:
        raise OSError(f"not a certificate: {exc}") from exc
    context.load_cert_chain(chain)
    return context


def peer_name(sock: ssl.SSLSocket) -> str:
    """Return the common name in the other side's verified certificate, or an empty string."""
    subject = (sock.getpeercert() or {}).get("subject", ())
    return next((str(value) for part in subject for key, value in part if key == "commonName"), "")  # type: ignore[str-unpack]


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
