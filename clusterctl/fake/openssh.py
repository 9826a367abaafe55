"""The ssh backend: real OpenSSH daemons of the current user on free loopback ports, one per node."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from clusterctl.common.procfs import Identity, identify, is_alive, wait_until
from clusterctl.errors import ClusterctlError
from clusterctl.fake.backend import NodeStatus, UpOptions, answers
from clusterctl.fake.layout import ADDRESS, FakeNode, FakePaths, FakeState, read_public_key, write, write_files
from clusterctl.fake.processes import (
    commands_on,
    counts_by_node,
    cut_power,
    freeze,
    is_frozen,
    marks,
    on_node,
    thaw,
)
from clusterctl.fake.programs import call, end_everything, end_keeper, hold, make_key, start_keeper
from clusterctl.fake.sshd import config_text, find_by_log, find_sshd

BEGIN_S = 30.0
FREED_S = 70.0  # the port of a connection is free a minute after its end
TRIES = 5
SEPARATION = Path("/run/sshd")  # an sshd started by root needs it for privilege separation


class OpenSsh:
    name = "ssh"
    faults = frozenset({"kill", "pause"})

    def check(self, n: int) -> None:
        find_sshd()

    def start(self, layout: FakePaths, n: int, terms: UpOptions) -> FakeState:
        state = FakeState(self.name)
        if terms.lifeline:
            state = replace(state, server=start_keeper(layout, remove=terms.remove))
        layout.keys.mkdir(mode=0o700)
        layout.daemons.mkdir(mode=0o700)
        make_key(layout.identity, "clusterctl fake cluster")
        nodes, daemons = [], []
        for index in range(n):
            layout.home(index).mkdir(mode=0o700, parents=True)
            make_key(layout.keys / f"node{index}", f"node{index}")
            node, daemon = _start_on_free_port(layout, index)
            nodes.append(node)
            daemons.append(daemon)
        write_files(layout, nodes)
        _prove_login(layout)
        return replace(state, nodes=tuple(nodes), daemons=tuple(daemons))

    def stop(self, layout: FakePaths, state: FakeState | None) -> int:
        cut_power(lambda: find_by_log(layout.daemons))
        end_keeper(state)
        return end_everything(layout)

    def is_up(self, layout: FakePaths, state: FakeState) -> bool:
        return any(map(is_alive, state.daemons))

    def look(self, layout: FakePaths, state: FakeState) -> Sequence[NodeStatus]:
        counts = counts_by_node(layout.directory)
        daemons = zip(state.nodes, state.daemons, strict=True)
        return [_look(node, daemon, counts[node.index]) for node, daemon in daemons]

    def commands(self, layout: FakePaths, state: FakeState) -> Sequence[str]:
        return commands_on(layout.directory)

    def harm(self, layout: FakePaths, state: FakeState, node: FakeNode, fault: str) -> FakeState:
        act = cut_power if fault == "kill" else freeze
        act(lambda: _processes(layout, node.index))
        return state

    def heal(self, layout: FakePaths, state: FakeState, node: FakeNode, node_state: str) -> FakeState:
        if node_state == "paused":
            thaw(lambda: _processes(layout, node.index))
            return state
        daemon = _start_daemon(layout, node.index, node.port)
        if daemon is None and wait_until(lambda: _is_free(node.port), FREED_S):  # the system gave it to another program
            daemon = _start_daemon(layout, node.index, node.port)
        if daemon is None:
            raise ClusterctlError(f"sshd did not start: {_last_log_line(layout, node.index)}", node=node.label)
        daemons = [daemon if index == node.index else old for index, old in enumerate(state.daemons)]
        return replace(state, daemons=tuple(daemons))


BACKEND = OpenSsh()


def _processes(layout: FakePaths, index: int) -> list[Identity]:
    """Return all processes of a node: its daemon, the sessions, and the processes in them."""
    return [*find_by_log(_log(layout, index)), *on_node(layout.directory, index)]


def _look(node: FakeNode, daemon: Identity, processes: int) -> NodeStatus:
    state = "killed" if not is_alive(daemon) else "paused" if is_frozen(daemon) else "up"
    return NodeStatus(node, state, state == "up" and answers(node.port), processes)


def _start_on_free_port(layout: FakePaths, index: int) -> tuple[FakeNode, Identity]:
    """Start a node's daemon on a free port. If another process takes the port first, retry with a different one."""
    for _ in range(TRIES):
        port = _free_port()
        daemon = _start_daemon(layout, index, port)
        if daemon is not None:
            key = read_public_key(layout.keys / f"node{index}.pub")
            return FakeNode(index, port, layout.home(index), key), daemon
    raise ClusterctlError(f"sshd did not start: {_last_log_line(layout, index)}", node=f"node{index}")


def _start_daemon(layout: FakePaths, index: int, port: int) -> Identity | None:
    """Start the daemon of a node and wait until it answers. Return None if it exits instead."""
    if os.getuid() == 0:
        SEPARATION.mkdir(mode=0o755, exist_ok=True)
    config = layout.daemons / f"node{index}.config"
    variables = {"HOME": str(layout.home(index)), **marks(layout.directory, index)}
    identity = layout.identity.with_suffix(".pub")
    write(config, config_text(port, layout.keys / f"node{index}", identity, variables))
    with _log(layout, index).open("ab") as log:
        daemon = subprocess.Popen(
            [find_sshd(), "-D", "-e", "-f", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
    hold(layout, daemon)
    process = identify(daemon.pid)
    wait_until(lambda: daemon.poll() is not None or answers(port), BEGIN_S)
    return process if daemon.poll() is None else None


def _prove_login(layout: FakePaths) -> None:
    """Log in once. A daemon that answers may still refuse every login: the account is locked, or has no shell."""
    done = call(["ssh", "-F", str(layout.ssh_config), "-o", "BatchMode=yes", "node0", "true"])
    if done.returncode:
        log = _log(layout, 0).read_text(errors="replace").splitlines()
        reasons = [line for line in log if "not allowed" in line] or [*log, *done.stderr.strip().splitlines()]
        raise ClusterctlError(f"sshd does not let {getpass.getuser()} run commands: {reasons[-1]}", node="node0")


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind((ADDRESS, 0))
        port: int = sock.getsockname()[1]
        return port


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((ADDRESS, port))
        except OSError:
            return False
    return True


def _log(layout: FakePaths, index: int) -> Path:
    return layout.daemons / f"node{index}.log"


def _last_log_line(layout: FakePaths, index: int) -> str:
    with contextlib.suppress(OSError):
        lines = _log(layout, index).read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "its log is empty"
    return "it has no log"
