"""The nodes of a conf.py, and calls to their agents."""

from __future__ import annotations

import math
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from clusterctl.cluster import answers
from clusterctl.cluster.agent_call import AGENT_ENDED, ANSWER_S, STOP_SHELL, AgentCall, Bundle, Plan, is_hurried
from clusterctl.cluster.answers import NONSENSE, senseless
from clusterctl.cluster.heartbeats import AgentInput, Heartbeats
from clusterctl.cluster.kept_agents import KeptAgents
from clusterctl.cluster.outcomes import NodeOutcome
from clusterctl.common.requests import AgentRequest
from clusterctl.config import Settings
from clusterctl.errors import ClusterctlError
from clusterctl.inventory import Inventory, Node
from clusterctl.transport import Ask, RemoteCommand, RemotePath, Transport
from clusterctl.transport.ssh_config import local_user

T = TypeVar("T")
# The alarm ends an agent to which nothing arrives.
FIRST_LINE = (
    f"import sys,signal;signal.alarm(30);i=sys.stdin.buffer;exec(i.read(int(i.readline()[{len(STOP_SHELL)}:])))"
)
AT_ONCE = 64
LOGIN_S = 2.0
SILENCE_S = 30.0  # an agent to which nothing has arrived for so long ends
HEARTBEATS = 6  # in this time
ONCE = ("exec", "start", "rejoin")


def who_asks() -> str:
    """Return USER@HOST of this user and machine, shown to other users while this one holds a lock."""
    return f"{local_user()}@{socket.gethostname()}"


def may_repeat(request: AgentRequest, error: ClusterctlError, answer_s: float = ANSWER_S) -> bool:
    """Return True if a request that an idle agent did not greet within `answer_s` can be sent to another one.

    If the connection broke, the agent may have begun. What must not be done twice is repeated only if it had ended. A
    caller that is in a hurry has waited long enough for a node that is silent.
    """
    reason = error.details.get("reason")
    is_late = reason == "deadline" and is_hurried(answer_s)
    return not is_late and (request["op"] not in ONCE or reason == AGENT_ENDED)


@contextmanager
def unwatched(nodes: Sequence[Node]) -> Iterator[Callable[[Node], None]]:
    yield lambda node: None


class Cluster:
    """The nodes that a command works on, and a transport to them. A context manager.

    `asked` becomes True when a node is first asked; a plan asks no node. `watch(nodes)` is entered while nodes are
    asked, and yields a function that is called with each node that is done. `ask` prompts the user for a secret.
    An agent that has answered serves the next request of the same node, until the cluster is closed. Agents end when
    they get nothing for `silence_s`, even if the connection seems to be alive.
    `is_over()` is True once a scheduler has taken back the machines of the job: then what the job has left in ROOT_DIR,
    which this machine shares with them, is read here.
    """

    def __init__(
        self,
        settings: Settings,
        inventory: Inventory,
        nodes: Sequence[Node],
        ask: Ask | None = None,
        *,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.settings = settings
        self.inventory = inventory
        self.nodes = tuple(nodes)
        self.asked = False
        self.is_over: Callable[[], bool] = lambda: False
        self.watch: Callable[[Sequence[Node]], AbstractContextManager[Callable[[Node], None]]] = unwatched
        self.transport = Transport(settings, ask=ask)
        self._made_bundle: Bundle | None = None
        self._lock = threading.Lock()
        self._silence_s = silence_s
        self._beats = Heartbeats(silence_s / HEARTBEATS)
        self._kept: KeptAgents | None = None

    @property
    def _bundle(self) -> Bundle:
        """The code that the nodes need. It is read on first use, since some commands need none."""
        with self._lock:
            if self._made_bundle is None:
                self._made_bundle = Bundle()
            return self._made_bundle

    def warm_up(self) -> None:
        """Start to connect to all nodes in the background, for a caller that has to prepare before it asks them.

        Raises nothing: the call that needs a connection retries it or meets the error. Pending connections end with
        this cluster.
        """
        self.transport.warm_up(self.nodes)

    def call(
        self,
        node: Node,
        request: AgentRequest,
        expected: tuple[str, str] | None = None,
        *,
        answer_s: float = ANSWER_S,
        data: bytes = b"",
    ) -> AgentCall:
        """Send a request, and the bulk data that it announces, to the agent on a node. The caller closes the call.

        An agent is started unless one is idle there. It ends at once if the `expected` job, as (id, owned name of its
        tree), is the newest and unchanged.
        """
        kept = self._kept
        message: dict[str, Any] = {**request, "silence_s": self._silence_s}
        if kept is not None:
            message["stay"] = True
        python = self.settings.python
        if self.is_over():
            node = replace(node, via="local")
            message["over"] = True
            python = sys.executable  # the other one may be on the nodes alone
        if node.leaves_nothing:
            message["hold"] = True
        agent = kept.take(node.id) if kept is not None else None
        if agent is not None:
            try:
                return self._begun(node, agent, lambda call: call.begin_again(message, answer_s, data))
            except ClusterctlError as exc:
                if not may_repeat(request, exc, answer_s):
                    raise
        command = self._agent_command(node, python, expected or ())
        agent = AgentInput(self.transport.open(node, command))
        return self._begun(node, agent, lambda call: call.begin(message, answer_s, data))

    def _begun(self, node: Node, agent: AgentInput, begin: Callable[[AgentCall], None]) -> AgentCall:
        call = AgentCall(node, agent, self._bundle, partial(self._on_close, node), self.transport.need_login_shell)
        try:
            begin(call)
        except BaseException:
            call.close()
            raise
        self._beats.add(agent)
        return call

    def _on_close(self, node: Node, agent: AgentInput, plan: Plan) -> None:
        kept = self._kept
        if plan == "stays" and kept is not None:
            kept.put(node.id, agent)
            return
        self._beats.remove(agent)
        if plan == "holds":
            agent.process.leave()
        else:
            agent.process.close()

    def _agent_command(self, node: Node, python: str, words: Sequence[str]) -> RemoteCommand:
        program = RemotePath(python) if "/" in python else python
        argv = (program, "-I", "-S", "-c", FIRST_LINE, self._bundle.digest, node.root_dir, *words)
        return RemoteCommand(argv, title="clusterctl's agent")

    def ask(
        self,
        request: AgentRequest | Callable[[Node], AgentRequest],
        nodes: Sequence[Node] | None = None,
        *,
        answer_s: float = ANSWER_S,
    ) -> list[NodeOutcome[Any]]:
        """Send a request to every node, and return the outcomes in node order: answers of the shape in `answers.py`.

        A node that has not answered after `answer_s` has an error. If that is less than ANSWER_S, it includes the login
        but for LOGIN_S.
        """

        def one(node: Node) -> Any:
            with self.call(node, request(node) if callable(request) else request, answer_s=answer_s) as call:
                return answers.check(str(call.op), call.result(answer_s))

        return self.map(one, nodes, limit_s=answer_s + LOGIN_S if is_hurried(answer_s) else math.inf)

    def map(
        self,
        work: Callable[[Node], T],
        nodes: Sequence[Node] | None = None,
        *,
        at_once: int = AT_ONCE,
        limit_s: float = math.inf,
    ) -> list[NodeOutcome[T]]:
        """Run `work` for every node, at most `at_once` at a time, and return the outcomes in node order.

        A node whose work takes longer than `limit_s` has an error; the work goes on until it ends by itself.
        """
        self.asked = True
        chosen = self.nodes if nodes is None else nodes

        def guarded(node: Node) -> T:
            try:
                return work(node)
            except NONSENSE as exc:
                raise senseless(node, exc) from exc
            finally:
                is_done(node)

        with self.watch(chosen) as is_done:
            return self.transport.map(chosen, guarded, max_workers=at_once, limit_s=limit_s)

    def __enter__(self) -> Cluster:
        self._kept = KeptAgents(self._beats, len(self.nodes))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()
        self.transport.close()
