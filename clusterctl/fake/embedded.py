"""The embedded backend: our own SSH servers, all in one process. Needs neither root nor sshd."""

from __future__ import annotations

import importlib.util
import json
import signal
from collections.abc import Sequence

from clusterctl.common.procfs import is_alive, send_signal, wait_until
from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.fake import layout as control
from clusterctl.fake.backend import NodeStatus, UpOptions, answers
from clusterctl.fake.layout import FakeNode, FakePaths, FakeState
from clusterctl.fake.processes import commands_on, counts_by_node
from clusterctl.fake.programs import await_ready, end_everything, hold, stay

START_DEADLINE_S = 30.0
START_DEADLINE_PER_NODE_S = 0.1
END_S = 10.0


class Embedded:
    name = "embedded"
    faults = frozenset({"kill", "pause"})

    def check(self, n: int) -> None:
        if importlib.util.find_spec("asyncssh") is None:
            raise UsageError("the fake cluster needs asyncssh", hint="pip install asyncssh")  # an old installation

    def start(self, layout: FakePaths, n: int, terms: UpOptions) -> FakeState:
        request = {"directory": str(layout.directory), "count": n, "lifeline": terms.lifeline, "remove": terms.remove}
        server = stay("clusterctl.fake.server", layout, request, lifeline=terms.lifeline)
        hold(layout, server)
        try:
            await_ready(server, layout, START_DEADLINE_S + n * START_DEADLINE_PER_NODE_S)
        except BaseException:
            server.kill()
            raise
        return _read_state(layout)

    def stop(self, layout: FakePaths, state: FakeState | None) -> int:
        server = state.server if state is not None else None
        if server is not None and is_alive(server):
            # KILL, not TERM: it has nothing to save, and must not start another command while we count.
            send_signal(server, signal.SIGKILL)
            wait_until(lambda: not is_alive(server), END_S)
        return end_everything(layout)

    def is_up(self, layout: FakePaths, state: FakeState) -> bool:
        return is_alive(state.server)

    def look(self, layout: FakePaths, state: FakeState) -> Sequence[NodeStatus]:
        counts = counts_by_node(layout.directory)
        return [_look(node, _state_of(node, state), counts[node.index]) for node in state.nodes]

    def commands(self, layout: FakePaths, state: FakeState) -> Sequence[str]:
        return commands_on(layout.directory)

    def harm(self, layout: FakePaths, state: FakeState, node: FakeNode, fault: str) -> FakeState:
        return _request(layout, node, fault)

    def heal(self, layout: FakePaths, state: FakeState, node: FakeNode, node_state: str) -> FakeState:
        return _request(layout, node, "heal")


BACKEND = Embedded()


def _state_of(node: FakeNode, state: FakeState) -> str:
    """Return the state of a node. While the server is alive, it records every fault that it was asked for."""
    return state.faults.get(node.index, "up") if is_alive(state.server) else "down"


def _look(node: FakeNode, state: str, processes: int) -> NodeStatus:
    return NodeStatus(node, state, state == "up" and answers(node.port), processes)


def _request(layout: FakePaths, node: FakeNode, action: str) -> FakeState:
    """Have the server perform an action on a node, wait until it is done, and return the new state."""
    try:
        with control.connect(layout) as sock, sock.makefile("rw", encoding="utf-8") as lines:
            lines.write(json.dumps({"node": node.index, "do": action}) + "\n")
            lines.flush()
            answer = json.loads(lines.readline() or "{}")
    except OSError as exc:
        raise ClusterctlError(f"the server of the fake cluster in {layout.directory} does not answer: {exc}") from exc
    if not answer.get("done"):
        raise ClusterctlError(answer.get("error", "the server of the fake cluster has ended"), node=node.label)
    return _read_state(layout)


def _read_state(layout: FakePaths) -> FakeState:
    """Return the state that the server has just written."""
    state = layout.read_state()
    if state is None:
        raise ClusterctlError(f"the fake cluster in {layout.directory} has been removed")
    return state
