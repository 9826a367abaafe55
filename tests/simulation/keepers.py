"""Keepers, and what a start needs of a cluster: real ones, over simulated connections to the nodes' agents."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from clusterctl.api.keep import Keeper
from clusterctl.api.start import OriginOptions, PlannedStart
from clusterctl.cluster import Cluster, NodeOutcome
from clusterctl.cluster.agent_call import ERROR_KINDS
from clusterctl.common.requests import AgentRequest
from clusterctl.config import Settings
from clusterctl.errors import ClusterctlError, NodeError
from clusterctl.inventory import Node, build
from clusterctl.launch import Launch, plan
from clusterctl.observe.record.status import LIVE, status
from simulation.agents import BEAT, SILENCE_S, SSH_PORT
from simulation.blocking import Blocking
from simulation.machine import Machine, Process
from simulation.network import END, Socket

T = TypeVar("T")
CONNECT_S = 10.0
BEAT_S = SILENCE_S / 6
ANSWER_S = 60.0


class KeeperProcess(Process):
    """`clusterctl keep` of the first run, on a machine of the cluster or elsewhere."""

    def __init__(self, machine: Machine, settings: Settings) -> None:
        super().__init__(machine)
        self.has_ended = False
        self._cluster = SimulatedCluster(self, settings)
        Blocking(self, self._keep)

    def _keep(self) -> None:
        run = Launch(self.machine.world.job, min(self.machine.world.runs), self._cluster.nodes, {})
        keeper = Keeper(
            self._cluster,
            run.job,
            self._prepare,
            self._say,
            on_origin=lambda origin: None,
            on_wait=lambda node, words: None,
        )
        try:
            keeper.keep(run)
        except ClusterctlError as exc:
            self._say(f"gave up: {exc}")
        self.has_ended = True
        self.end()

    @contextlib.contextmanager
    def _prepare(self, chosen: Mapping[str, str]) -> Iterator[PlannedStart]:
        launch = plan(self._cluster.settings, self._cluster.inventory, None)
        yield PlannedStart(self._cluster, launch, self.machine.world.job, None, OriginOptions())

    def _say(self, text: str) -> None:
        self.machine.world.tell(self.machine, {"event": "keeper", "says": text})


def await_end(cluster: Cluster, run: Launch) -> None:
    """Stands in for `keep.await_end`: look at a run now and then, until it seems to be over."""
    process = cast("SimulatedCluster", cluster).process
    times, most_s = process.machine.world.lot.choice(((1, 0.5), (2, 2.0)))
    over = 0
    while over < times:
        _thread(process).sleep(process.machine.world.lot.uniform(0.1, most_s))
        with contextlib.suppress(ClusterctlError):
            state = status(cluster, run.job, run=run.run, answer_s=ANSWER_S / 6).state
            over = 0 if state in LIVE else over + 1


def _thread(process: Process) -> Blocking:
    """Return the thread that runs now."""
    thread = process.machine.world.thread
    assert thread is not None
    return thread


class SimulatedCluster(Cluster):
    """The nodes of a run as `process` reaches them."""

    def __init__(self, process: Process, settings: Settings) -> None:
        self.process = process
        self.settings = settings
        self.inventory = build(settings)
        self.nodes = tuple(self.inventory.nodes)
        self.is_over = lambda: False

    def call(self, node: Node, request: AgentRequest, *_: Any, answer_s: float = ANSWER_S, **__: Any) -> Any:
        return Call(self.process, node, request, answer_s)

    def map(
        self,
        work: Callable[[Node], T],
        nodes: Sequence[Node] | None = None,
        *,
        at_once: int = 0,
        limit_s: float = math.inf,
    ) -> list[NodeOutcome[T]]:
        chosen = self.nodes if nodes is None else tuple(nodes)
        done: dict[int, NodeOutcome[T]] = {}
        wakes: list[Callable[[], None]] = []

        def one(node: Node) -> None:
            try:
                done[node.id] = NodeOutcome(node, work(node), None, 0.0)
            except ClusterctlError as exc:
                done[node.id] = NodeOutcome(node, None, exc, 0.0)
            if len(done) == len(chosen):
                for wake in wakes:
                    wake()

        def begin(wake: Callable[[], None]) -> None:
            wakes.append(wake)
            if limit_s < math.inf:
                self.process.after(limit_s, wake)
            for node in chosen:
                Blocking(self.process, lambda node=node: one(node))  # type: ignore[misc]

        if chosen:
            _thread(self.process).wait(begin)
        late = NodeError("it does not answer")
        return [done.get(node.id, NodeOutcome(node, None, _at(node, late), 0.0)) for node in chosen]


def _at(node: Node, error: NodeError) -> NodeError:
    return NodeError(error.message, node=node.label)


class Call:
    """Stands in for `AgentCall`."""

    def __init__(self, process: Process, node: Node, request: Mapping[str, Any], answer_s: float) -> None:
        self.node = node
        self.op = request["op"]
        self.on_alive: Callable[[Mapping[str, Any]], None] = lambda message: None
        self._process = process
        self._inbox: deque[Any] = deque()
        self._gone = False
        self._wake: Callable[[], None] = lambda: None
        self._sock = self._connected(min(answer_s, CONNECT_S))
        self._sock.read(self._read)
        self.send(request)
        process.after(BEAT_S, self._beat)

    def _connected(self, limit_s: float) -> Socket:
        found: list[tuple[Socket, int]] = []

        def begin(wake: Callable[[], None]) -> None:
            def done(sock: Socket, error: int) -> None:
                found.append((sock, error))
                wake()

            address = (f"host{self.node.id}", SSH_PORT)
            self._process.machine.world.network.connect(self._process, address, limit_s, done)

        _thread(self._process).wait(begin)
        sock, error = found[0]
        if error:
            raise NodeError("cannot connect", node=self.node.label)
        return sock

    def _beat(self) -> None:
        if not self._sock.closed and not self._gone:
            self._sock.send(BEAT)
            self._process.after(BEAT_S, self._beat)

    def _read(self, item: Any) -> None:
        self._inbox.append(item)
        self._wake()

    def send(self, message: Mapping[str, Any]) -> None:
        self._sock.send({**message})

    def receive(self, deadline_s: float | None = ANSWER_S) -> Any:
        """Return the next message. Raises the error that the agent reports, or NodeError if it is gone or silent."""
        if not self._inbox and not self._gone:

            def begin(wake: Callable[[], None]) -> None:
                self._wake = wake
                self._process.after(deadline_s or ANSWER_S, wake)

            _thread(self._process).wait(begin)
        if not self._inbox:
            raise NodeError("no answer", node=self.node.label, details={"reason": "deadline"})
        message = self._inbox[0]
        if message == END:
            self._gone = True
            raise NodeError("the agent ended", node=self.node.label, details={"reason": "agent_ended"})
        self._inbox.popleft()
        if "error" in message:
            error = message["error"]
            kind = ERROR_KINDS.get(error["kind"], NodeError)
            details = {**error["details"], "reason": error["kind"]}
            raise kind(error["message"], node=self.node.label, hint=error["hint"], details=details)
        return message

    def result(self, deadline_s: float | None = ANSWER_S) -> Any:
        while "done" not in (message := self.receive(deadline_s)):
            pass
        return dict(message["done"])

    def close(self) -> None:
        if not self._sock.closed:
            self._sock.close()

    def __enter__(self) -> Call:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
