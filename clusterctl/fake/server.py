"""The process behind a fake cluster: one asyncssh server per node, all in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import os
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncssh

from clusterctl.agent.processes import end_all, find_by_environment, identify
from clusterctl.fake.layout import (
    ADDRESS,
    ENVIRONMENT_NAME,
    NODE_ENVIRONMENT_NAME,
    NODES_GRACE_S,
    FakeNode,
    Layout,
    State,
    conf_text,
    ssh_config_text,
    write,
)
from clusterctl.fake.session import Children, CommandSession
from clusterctl.fake.sftp import ExecOrSftp, HomeSftp

DESCRIPTORS_PER_NODE = 6
WINDOW_BYTES = 4 * 1024 * 1024
PACKET_BYTES = 64 * 1024
LOGIN_TIMEOUT_S = 30
BACKLOG = 256


@dataclass(frozen=True)
class Request:
    """What `fake.up` asks of the server process."""

    directory: Path
    count: int
    lifeline_fd: int | None
    remove: bool

    @classmethod
    def parse(cls, text: str) -> Request:
        document = json.loads(text)
        return cls(Path(document["directory"]), document["count"], document["lifeline_fd"], document["remove"])


class NodeServer(asyncssh.SSHServer):
    """One connection to one node."""

    def __init__(self, layout: Layout, index: int, client_key: bytes, children: Children) -> None:
        self._home = layout.home(index)
        self._index = index
        self._layout = layout
        self._client_key = client_key
        self._children = children
        self._peer = ""

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        client, server = conn.get_extra_info("peername"), conn.get_extra_info("sockname")
        self._peer = f"{client[0]} {client[1]} {server[0]} {server[1]}"

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == getpass.getuser() and key.public_data == self._client_key

    def session_requested(self) -> ExecOrSftp:
        command = CommandSession(self._home, self._environment(), self._children)
        return ExecOrSftp(command, lambda chan: HomeSftp(chan, self._home))

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return dest_host in (ADDRESS, "localhost")

    def _environment(self) -> dict[str, str]:
        user = getpass.getuser()
        client_host, client_port, server_host, server_port = self._peer.split()
        return {
            "HOME": str(self._home),
            "USER": user,
            "LOGNAME": user,
            "SHELL": "/bin/sh",
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
            "SSH_CLIENT": f"{client_host} {client_port} {server_port}",
            "SSH_CONNECTION": f"{client_host} {client_port} {server_host} {server_port}",
            ENVIRONMENT_NAME: str(self._layout.directory),
            NODE_ENVIRONMENT_NAME: str(self._index),
        }


async def serve(request: Request) -> None:
    """Bring the nodes up, say so on standard output, and live until told to end."""
    loop = asyncio.get_running_loop()
    end = asyncio.Event()
    layout = Layout(request.directory)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    bereft = _follow_lifeline(request.lifeline_fd, loop, end)
    _allow_descriptors(request.count)
    nodes = await _listen(layout, request.count, Children(loop))
    _write_files(layout, nodes)
    print(json.dumps({"ready": True}), flush=True)  # noqa: T201 - the answer that `up` waits for
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    await end.wait()
    await loop.run_in_executor(None, _clean_up, layout, request.remove or not bereft.is_set())


def _follow_lifeline(fd: int | None, loop: asyncio.AbstractEventLoop, end: asyncio.Event) -> asyncio.Event:
    """When the pipe from our maker ends, so do we; the event returned tells that it was for this."""
    bereft = asyncio.Event()

    def lost() -> None:
        assert fd is not None
        loop.remove_reader(fd)
        bereft.set()
        end.set()

    if fd is not None:
        os.set_inheritable(fd, False)
        loop.add_reader(fd, lost)
    return bereft


def _clean_up(layout: Layout, remove: bool) -> None:
    end_all(lambda: find_by_environment({ENVIRONMENT_NAME: str(layout.directory)}), NODES_GRACE_S)
    if remove:
        layout.remove()


async def _listen(layout: Layout, count: int, children: Children) -> list[FakeNode]:
    layout.keys.mkdir(mode=0o700)
    client = asyncssh.generate_private_key("ssh-ed25519", comment="clusterctl fake cluster")
    write(layout.identity, client.export_private_key().decode())
    write(layout.identity.with_suffix(".pub"), client.export_public_key().decode(), 0o644)
    return [await _listen_one(layout, index, client.public_data, children) for index in range(count)]


async def _listen_one(layout: Layout, index: int, client_key: bytes, children: Children) -> FakeNode:
    home = layout.home(index)
    home.mkdir(mode=0o700, parents=True)
    key = asyncssh.generate_private_key("ssh-ed25519", comment=f"node{index}")
    write(layout.keys / f"node{index}.pub", key.export_public_key().decode(), 0o644)
    listener = await asyncssh.create_server(
        lambda: NodeServer(layout, index, client_key, children),
        ADDRESS,
        0,
        backlog=BACKLOG,
        server_host_keys=[key],
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
    return FakeNode(index, listener.get_port(), home, key.get_fingerprint())


def _write_files(layout: Layout, nodes: Sequence[FakeNode]) -> None:
    lines = [
        f"[{ADDRESS}]:{node.port} {' '.join((layout.keys / f'node{node.index}.pub').read_text().split()[:2])}\n"
        for node in nodes
    ]
    write(layout.known_hosts, "".join(lines))
    write(layout.ssh_config, ssh_config_text(layout, nodes))
    write(layout.conf, conf_text(layout, nodes), 0o644)
    layout.write_state(State(identify(os.getpid()), tuple(nodes)))


def _allow_descriptors(count: int) -> None:
    wanted = 64 + DESCRIPTORS_PER_NODE * count
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and wanted > hard:
        raise OSError(f"{count} nodes need {wanted} open files, and the limit is {hard} (ulimit -Hn)")
    if soft != resource.RLIM_INFINITY and wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main() -> None:
    """Entry point of the process that `fake.up` starts; the request comes on standard input."""
    asyncssh.set_log_level("ERROR")
    request = Request.parse(sys.stdin.readline())
    try:
        asyncio.run(serve(request))
    except OSError as exc:
        with contextlib.suppress(OSError):
            print(json.dumps({"ready": False, "error": str(exc)}), flush=True)  # noqa: T201 - see above
        raise SystemExit(1) from exc
