"""The HTTP server of metrics: few connections, each with an end, and no requests under foreign names."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

MOST_CONNECTIONS = 32
SILENCE_S = 10.0  # of a client, in its request or while it gets the answer
EXCHANGE_S = 60.0  # for a request and its answer
BUSY = b"HTTP/1.0 503 Service Unavailable\r\nConnection: close\r\n\r\n"
HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class MetricsServer(socketserver.ThreadingMixIn, WSGIServer):
    """Serves a WSGI application in threads. Connections beyond `MOST_CONNECTIONS` are answered with 503."""

    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, host: str, port: int, app: App) -> None:
        """Listen on an address. Raises OSError."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, place = found[0]
        self._slots = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__((str(place[0]), port), _Handler)
        self.set_app(_only_for_names(host, app) if _is_loopback(str(self.server_address[0])) else app)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            try:
                super().process_request(request, client_address)
            except BaseException:
                self._slots.release()
                raise
            return
        with contextlib.suppress(OSError):
            request.setblocking(False)
            request.send(BUSY)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: a client has left, or was too slow."""


class _Handler(WSGIRequestHandler):
    timeout = SILENCE_S

    def handle(self) -> None:
        limit = threading.Timer(EXCHANGE_S, self._end)
        limit.daemon = True
        limit.start()
        try:
            super().handle()
        finally:
            limit.cancel()

    def _end(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def _only_for_names(host: str, app: App) -> App:
    """Refuse requests under a name that is not this machine's own.

    A page in a browser may come from a name that now resolves to this machine, and then could read the answer.
    """

    def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        match = HOST.fullmatch(environ.get("HTTP_HOST", ""))
        name = (match[1] or match[2]).lower() if match else ""
        is_plain = environ.get("PATH_INFO", "").startswith("/")  # otherwise the path has a host of its own
        if is_plain and (name in ("localhost", host.lower()) or _is_loopback(name)):
            return app(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"the Host of the request is not a name of this machine: use 127.0.0.1 or localhost\n"]

    return guarded


def _is_loopback(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
