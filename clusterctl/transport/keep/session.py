"""One client of a helper: a command on a node, a connection to make, or the wish that the helper ends."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from clusterctl.common.safe_json import parse
from clusterctl.errors import ClusterctlError, InterruptedRun
from clusterctl.transport import failures, paramiko_loader
from clusterctl.transport.channels import close_channel
from clusterctl.transport.keep import frames, place
from clusterctl.transport.keep.connections import Connections, Lease
from clusterctl.transport.keep.frames import Frames
from clusterctl.transport.keep.relay import Relay, failure
from clusterctl.transport.keep.values import target_from_json
from clusterctl.transport.target import Target

TRIES = 3  # an attempt to connect fails if the client for which it was made leaves


class Asking(threading.local):
    """The client on whose behalf a thread works, which is asked for secrets."""

    session: Session | None = None

    def question(self, prompt: str, stop: threading.Event) -> str | None:
        return self.session.question(prompt) if self.session is not None else None


class Session:
    """Serves one client, in a thread of its own."""

    def __init__(self, sock: socket.socket, connections: Connections, asking: Asking, end: Callable[[], None]) -> None:
        self._sock, self._received = sock, Frames(sock)
        self._connections, self._asking, self._end_helper = connections, asking, end

    def run(self) -> None:
        self._asking.session = self
        with self._sock, contextlib.suppress(OSError, EOFError):
            place.check_peer(self._sock)
            self._sock.sendall(frames.frame(frames.HELLO))
            kind, data = self._received.next()
            if kind == frames.END:
                closed = {"closed": self._connections.names(), "pid": os.getpid()}
                self._sock.sendall(frames.json_frame(frames.BEGUN, closed))
                self._end_helper()
                self._received.next()  # the client waits until this process has ended, which closes the socket
            elif kind == frames.LIST:
                targets = map(target_from_json, parse(data)["targets"])
                lacking = self._connections.unconnected(targets)
                self._sock.sendall(frames.json_frame(frames.BEGUN, {"unconnected": lacking}))
            elif kind in (frames.OPEN, frames.DIAL):
                self._serve(kind, parse(data))

    def question(self, prompt: str) -> str | None:
        """Ask the user, through the client. Raises InterruptedRun if the client has left."""
        try:
            self._sock.sendall(frames.frame(frames.QUESTION, prompt.encode()))
            kind, data = self._received.next()
        except (OSError, EOFError) as exc:
            raise InterruptedRun("interrupted") from exc
        secret = parse(data)["secret"] if kind == frames.SECRET else None
        return None if secret is None else str(secret)

    def _serve(self, kind: bytes, request: dict[str, Any]) -> None:
        target = target_from_json(request["target"])
        for tries_left in reversed(range(TRIES)):
            try:
                with self._connections.lease(target, request["keep_s"]) as lease:
                    if kind == frames.OPEN:
                        self._run_command(request, target, lease)
                    else:
                        self._sock.sendall(frames.json_frame(frames.BEGUN))
                return
            except InterruptedRun as exc:
                if not tries_left:
                    self._fail(exc)
            except ClusterctlError as exc:
                self._fail(exc)
                return

    def _fail(self, error: ClusterctlError) -> None:
        self._sock.sendall(failure(error))

    def _run_command(self, request: dict[str, Any], target: Target, lease: Lease) -> None:
        """Run a command, or go on with an idle agent, and relay its streams to the end."""
        agent = request["agent"]
        idle = self._connections.take(target, agent, lease) if agent is not None else None
        channel = idle.channel if idle is not None else self._started(request, target, lease)
        if channel is None:
            return
        about = (request["label"], target.where)
        relay = Relay(
            channel,
            self._sock,
            self._received,
            has_begun=idle is not None,
            lost=failures.lost(*about, request["what"]),
            refused=failures.no_channel(*about, "the request was refused"),
        )
        self._sock.sendall(frames.json_frame(frames.BEGUN, {"resumed": idle is not None}))
        kept = relay.run()
        if kept is not None and agent is not None:
            self._connections.keep(target, agent, lease, channel, kept)

    def _started(self, request: dict[str, Any], target: Target, lease: Lease) -> Any:
        """Return a new channel with the command, None if the client has to connect itself."""
        from paramiko.ssh_exception import ChannelException

        from clusterctl.transport.connection import ask_to_run

        channel = None
        try:
            channel = lease.channel()
            ask_to_run(channel, request["command"].encode("utf-8", "surrogateescape"))
        except ChannelException as exc:  # others may have as many on this connection as the server allows
            self._sock.sendall(frames.frame(frames.DECLINED, str(exc).encode()))
            return None
        except paramiko_loader.errors():
            if channel is not None:
                with contextlib.suppress(*paramiko_loader.errors()):
                    close_channel(channel)
            self._fail(failures.lost(request["label"], target.where, request["what"]))
            return None
        return channel
