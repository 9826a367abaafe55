"""The server process of a fake cluster: one asyncssh server per node, all in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import os
import resource
import signal
import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import asyncssh

from clusterctl.common.procfs import Identity, end_all, identify
from clusterctl.errors import ClusterctlError
from clusterctl.fake import layout as control
from clusterctl.fake.backend import BECOMES
from clusterctl.fake.command_session import Children, CommandSession
from clusterctl.fake.layout import ADDRESS, FakeNode, FakePaths, FakeState, write, write_files
from clusterctl.fake.processes import NODES_GRACE_S, cut_power, freeze, marks, on_cluster, on_node, thaw
from clusterctl.fake.sftp import ExecOrSftp, HomeSftp

DESCRIPTORS_PER_NODE = 6
WINDOW_BYTES = 4 * 1024 * 1024
PACKET_BYTES = 64 * 1024
LOGIN_TIMEOUT_S = 30
BACKLOG = 256


@dataclass(frozen=True)
class UpRequest:
    """The request of `fake.up` to the server process. With `lifeline`, standard input ends when the caller ends."""

    directory: Path
    count: int
    lifeline: bool
    remove: bool

    @classmethod
    def parse(cls, text: str) -> UpRequest:
        document = json.loads(text)
        return cls(Path(document["directory"]), document["count"], document["lifeline"], document["remove"])


class EmbeddedNode:
    """One node: its port, key, connections and state."""

    def __init__(self, layout: FakePaths, index: int, client_key: bytes, children: Children) -> None:
        self.layout = layout
        self.index = index
        self.home = layout.home(index)
        self.client_key = client_key
        self.children = children
        self.connections: set[asyncssh.SSHServerConnection] = set()
        self.state = "up"
        self._key = asyncssh.generate_private_key("ssh-ed25519", comment=f"node{index}")
        self._port = 0
        self._acceptor: asyncssh.SSHAcceptor | None = None
        # While paused, clients queue here, as with a stopped sshd. While killed, it keeps the port, without listening.
        self._waiting: socket.socket | None = None

    async def begin(self) -> FakeNode:
        self.home.mkdir(mode=0o700, parents=True)
        write(self.layout.keys / f"node{self.index}.pub", self.public_key, 0o644)
        await self._listen(self._bind())
        return FakeNode(self.index, self._port, self.home, " ".join(self.public_key.split()[:2]))

    @property
    def public_key(self) -> str:
        return self._key.export_public_key().decode()

    def processes(self) -> list[Identity]:
        return on_node(self.layout.directory, self.index)

    def kill(self) -> None:
        """Kill the node. Nothing here awaits, so that no process or client sees a node that is half dead."""
        self._stop_listening()
        with contextlib.suppress(OSError):
            self._waiting = self._bind()
        cut_power(self.processes)
        for connection in list(self.connections):
            connection.abort()
        self.state = BECOMES["kill"]

    def pause(self) -> None:
        """Freeze the node. Connections stay open, but no command on them, old or new, makes progress."""
        self._waiting = self._sock.dup()
        self._stop_listening()
        freeze(self.processes)
        self.state = BECOMES["pause"]

    async def heal(self) -> None:
        await self._listen(self._waiting or self._bind())
        self._waiting = None
        thaw(self.processes)
        self.state = "up"

    def _bind(self) -> socket.socket:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((ADDRESS, self._port))
        except OSError:
            sock.close()
            raise
        self._port = sock.getsockname()[1]
        return sock

    async def _listen(self, sock: socket.socket) -> None:
        self._sock = sock
        self._acceptor = await asyncssh.create_server(
            lambda: NodeServer(self),
            sock=sock,
            backlog=BACKLOG,
            server_host_keys=[self._key],
            password_auth=False,
            kbdint_auth=False,
            gss_host=None,
            agent_forwarding=False,
            compression_algs=None,
            encoding=None,
            line_editor=False,
            window=WINDOW_BYTES,
            max_pktsize=PACKET_BYTES,
            login_timeout=LOGIN_TIMEOUT_S,
        )

    def _stop_listening(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None


SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


class NodeServer(asyncssh.SSHServer):
    """One connection to one node."""

    def __init__(self, node: EmbeddedNode) -> None:
        self._node = node
        self._connection: asyncssh.SSHServerConnection | None = None
        self._peer = ""

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._node.connections.add(conn)
        client, server = conn.get_extra_info("peername"), conn.get_extra_info("sockname")
        self._peer = f"{client[0]} {client[1]} {server[0]} {server[1]}"

    def connection_lost(self, exc: Exception | None) -> None:
        self._node.connections.discard(self._connection)

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == getpass.getuser() and key.public_data == self._node.client_key

    def session_requested(self) -> ExecOrSftp:
        node = self._node
        command = CommandSession(
            node.home, self._environment(), node.children, paused=lambda: node.state == BECOMES["pause"]
        )
        return ExecOrSftp(command, lambda chan: HomeSftp(chan, node.home))

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return dest_host in (ADDRESS, "localhost")

    def _environment(self) -> dict[str, str]:
        user = getpass.getuser()
        client_host, client_port, server_host, server_port = self._peer.split()
        return {
            "HOME": str(self._node.home),
            "USER": user,
            "LOGNAME": user,
            "SHELL": "/bin/sh",
            "PATH": f"{self._node.home}/bin:{Path(sys.executable).parent}:{SYSTEM_PATH}",
            "SSH_CLIENT": f"{client_host} {client_port} {server_port}",
            "SSH_CONNECTION": f"{client_host} {client_port} {server_host} {server_port}",
            **marks(self._node.layout.directory, self._node.index),
        }


class EmbeddedCluster:
    """All nodes, and the control socket through which they are changed."""

    def __init__(self, layout: FakePaths) -> None:
        self._layout = layout
        self._nodes: list[EmbeddedNode] = []
        self._state = FakeState("embedded", identify(os.getpid()))

    async def begin(self, count: int, children: Children) -> None:
        layout = self._layout
        layout.keys.mkdir(mode=0o700)
        client = asyncssh.generate_private_key("ssh-ed25519", comment="clusterctl fake cluster")
        write(layout.identity, client.export_private_key().decode())
        write(layout.identity.with_suffix(".pub"), client.export_public_key().decode(), 0o644)
        self._nodes = [EmbeddedNode(layout, index, client.public_data, children) for index in range(count)]
        nodes = tuple([await node.begin() for node in self._nodes])
        write_files(layout, nodes)
        self._state = replace(self._state, nodes=nodes)
        layout.write_state(self._state)
        await asyncio.start_unix_server(self._handle_request, sock=control.listen(layout))

    async def _handle_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(await reader.readline())
            await self._do(self._nodes[request["node"]], request["do"])
            answer: dict[str, object] = {"done": True}
        except (OSError, ClusterctlError) as exc:
            answer = {"done": False, "error": str(exc)}
        writer.write(json.dumps(answer).encode() + b"\n")
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()

    async def _do(self, node: EmbeddedNode, action: str) -> None:
        if action == "kill":
            node.kill()
        elif action == "pause":
            node.pause()
        else:
            await node.heal()
        faults = {node.index: node.state for node in self._nodes if node.state != "up"}
        self._state = replace(self._state, faults=faults)
        self._layout.write_state(self._state)


async def serve(request: UpRequest) -> None:
    """Bring the nodes up, report that on standard output, and run until a signal or the end of the lifeline."""
    loop = asyncio.get_running_loop()
    end = asyncio.Event()
    layout = FakePaths(request.directory)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    orphaned = _follow_lifeline(loop, end) if request.lifeline else asyncio.Event()
    _allow_descriptors(request.count)
    await EmbeddedCluster(layout).begin(request.count, Children(loop))
    print(json.dumps({"ready": True}), flush=True)  # the answer that `up` waits for
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    await end.wait()
    await loop.run_in_executor(None, _clean_up, layout, request.remove or not orphaned.is_set())


def _follow_lifeline(loop: asyncio.AbstractEventLoop, end: asyncio.Event) -> asyncio.Event:
    """End when the pipe from the caller of `up` closes. The returned event is set if that was the reason."""
    orphaned = asyncio.Event()

    def lost() -> None:
        loop.remove_reader(sys.stdin)
        orphaned.set()
        end.set()

    loop.add_reader(sys.stdin, lost)
    return orphaned


def _clean_up(layout: FakePaths, remove: bool) -> None:
    end_all(lambda: on_cluster(layout.directory), NODES_GRACE_S)
    if remove:
        layout.remove()


def _allow_descriptors(count: int) -> None:
    wanted = 64 + DESCRIPTORS_PER_NODE * count
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and wanted > hard:
        raise OSError(f"{count} nodes need {wanted} open files, but the limit is {hard} (ulimit -Hn)")
    if soft != resource.RLIM_INFINITY and wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main() -> None:
    """Run the process that `fake.up` starts. The request comes on standard input."""
    asyncssh.set_log_level("ERROR")
    request = UpRequest.parse(sys.stdin.readline())
    try:
        asyncio.run(serve(request))
    except OSError as exc:
        with contextlib.suppress(OSError):
            print(json.dumps({"ready": False, "error": str(exc)}), flush=True)  # the answer that `up` waits for
        raise SystemExit(1) from exc
