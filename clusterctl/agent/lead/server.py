"""The lead's side of the connections: reports go to the state machine, and its actions are carried out."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import socket
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Callable

from clusterctl.agent.event_loop import EventLoop
from clusterctl.agent.lead.actions import Action, AnswerSave, Finish, ManifestAction, Policy, RecordEvent, SendOrder
from clusterctl.agent.lead.channel import Channel, LeadFrame
from clusterctl.agent.lead.connection import DIAL_S, MOVED, RETRY_S, LeadConnection
from clusterctl.agent.lead.lease import since_boot
from clusterctl.agent.lead.message_schema import check
from clusterctl.agent.lead.messages import Order, Report
from clusterctl.agent.lead.save_door import SaveDoor
from clusterctl.agent.lead.saving.checkpoints import CheckpointRetention, CompleteCheckpoint, ModelRetention
from clusterctl.agent.lead.saving.copies import CopyPolicy, MergePolicy, ResumedCheckpoint
from clusterctl.agent.lead.saving.messages import WrittenReport
from clusterctl.agent.lead.state_machine import Lead
from clusterctl.common.engines import ENGINES
from clusterctl.common.events import Event, RunWarning
from clusterctl.common.manifest import all_files, manifest_bytes
from clusterctl.common.paths import RunPaths
from clusterctl.common.run_spec import RunSpec
from clusterctl.common.safe_json import parse
from clusterctl.transfer.tls import run_context

SPARE_CONNECTIONS = 64  # besides two of each node, whose TLS handshake is not complete
COMEBACK_S = 2.5  # more than a live supervisor needs to reconnect once its node is reachable


def retention_of(spec: RunSpec) -> CheckpointRetention:
    """The checkpoint retention set by a spec."""
    resume, sources = spec.saving.resume, spec.saving.sources
    first = CompleteCheckpoint(resume.tag, resume.step) if resume else None
    files = sources.pieces if resume and sources else ()
    return CheckpointRetention(spec.saving.keep, spec.saving.keep_best, first, files)


def resumed_checkpoint(run: RunPaths, spec: RunSpec) -> ResumedCheckpoint | None:
    """The checkpoint from which a run was resumed whose processes may move; the spec says who has its files."""
    resume, sources = spec.saving.resume, spec.saving.sources
    if resume is None or sources is None or spec.failures.node_loss != "move":
        return None
    data = manifest_bytes(run.checkpoints / resume.tag)
    writers = {file["file"]: int(file["node"]) for file in all_files(parse(data)) if "node" in file}
    holders: dict[int, set[int]] = {}
    for piece in sources.pieces:
        if piece.file in writers:
            holders.setdefault(writers[piece.file], {*piece.nodes}).intersection_update(piece.nodes)
    written: WrittenReport = {
        "do": "written",
        "tag": resume.tag,
        "checkpoint": True,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    return ResumedCheckpoint(written, writers, holders)


def copies_of(run: RunPaths, spec: RunSpec) -> CopyPolicy:
    """What is copied and merged, as set by a spec."""
    sources = {int(node): nodes for node, nodes in (spec.saving.copies_from or {}).items()}
    limit_mb = spec.saving.model_on_lead_mb
    programs = [process.argv[0] for process in spec.processes if process.argv]
    python = next((program for program in programs if program.rpartition("/")[2].startswith("python")), "python3")
    merge = MergePolicy(limit_mb, python) if limit_mb and spec.trains_with_ours else None
    return CopyPolicy(sources, merge, resumed_checkpoint(run, spec) if sources else None)


def policy_of(spec: RunSpec) -> Policy:
    """The failure policy set by a spec."""
    return Policy(
        restarts=spec.failures.restarts,
        on_trainer_loss=spec.failures.on_trainer_loss,
        on_node_loss=spec.failures.node_loss,
        members=spec.places or (),
        copies=spec.saving.copies or 1,
        together=spec.training.mode == "sync",
        whole=spec.failures.whole,
        time_limit_s=spec.failures.time_limit_s,
        standstill_fails=spec.failures.on_stall == "fail",
    )


class LeadServer:
    """The lead on this node: carries out the actions of the state machine."""

    def __init__(
        self,
        loop: EventLoop,
        run: RunPaths,
        spec: RunSpec,
        listener: socket.socket,
        on_order: Callable[[Order], None],
        record: Callable[[Event], None],
        change_manifests: Callable[[ManifestAction], None],
        on_answer: Callable[[float], None] = lambda sent: None,
        models: Mapping[str, int] = MappingProxyType({}),
        warnings: Sequence[RunWarning] = (),
    ) -> None:
        self._loop = loop
        self._on_order = on_order
        self._record = record
        self._change_manifests = change_manifests
        self._on_answer = on_answer
        self._listener = listener
        self._context = run_context(run, server=True)
        self._node = spec.node
        self._channels = {node: Channel() for node in spec.members if node != self._node}
        self._names: dict[int, str] = {}  # of the supervisors that have connected
        self._connections: dict[int, LeadConnection] = {}
        self._strangers: deque[LeadConnection] = deque()  # whose handshake is not complete
        self._missed: dict[int, LeadConnection] = {}  # the last connection of each disconnected node
        self._closed_at: dict[int, float] = {}  # the time at which it closed, until the node is back
        self._port = spec.ports.port
        self._lead = Lead(
            [(process.role, process.rank, process.node) for process in spec.all_processes],
            spec.members,
            now=loop.now(),
            node_grace_s=spec.timing.node_grace_s,
            grace_s=spec.timing.grace_s,
            heartbeat_s=spec.timing.heartbeat_s,
            pservers_leave=ENGINES[spec.training.engine].leaves,
            retention=retention_of(spec),
            models=ModelRetention(spec.saving.keep_models, models),
            copies=copies_of(run, spec),
            policy=policy_of(spec),
            warnings=warnings,
        )
        self._door = SaveDoor(loop, run, lambda number: self.send({"do": "save_wanted", "request": number}))
        if spec.resumes is not None:
            record({"event": "resumed_by", "message": spec.resumes, "by": spec.by})
        loop.watch(listener, self._accept)
        loop.every(spec.timing.heartbeat_s, self._heartbeat)

    def send(self, message: Report) -> None:
        """Handle a report of this node's own supervisor, in a later turn of the loop."""
        self._loop.after(0, lambda: self._do(self._lead.handle(self._node, message, self._loop.now())))

    def let_go(self) -> None:
        """Do nothing: the lead ends the run itself."""

    def quiet(self) -> bool:
        """Return True if every connected supervisor has acknowledged all messages."""
        return all(not channel.repeat() for node, channel in self._channels.items() if node in self._connections)

    def _heartbeat(self) -> None:
        now = self._loop.now()
        self._on_answer(since_boot())
        self._do(self._lead.alive(self._node, now))
        for node, connection in list(self._connections.items()):
            if self._lead.is_moved_from(node):  # an answer would extend its lease
                connection.close()
            else:
                connection.send(self._channels[node].heartbeat())
        self._do(self._lead.tick(now))

    def _lose(self, node: int) -> None:
        self._missed.pop(node, None)
        now = self._loop.now()
        self._do(self._lead.lose(node, "its supervisor is gone", now, now - self._closed_at.pop(node, now)))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, SendOrder):
                self._send_to(action)
            elif isinstance(action, RecordEvent):
                self._record(action.event)
            elif isinstance(action, AnswerSave):
                self._door.answer(action.request, action.answer)
            elif not isinstance(action, Finish):
                self._change_manifests(action)

    def _send_to(self, action: SendOrder) -> None:
        targets = [action.node] if action.node is not None else [self._node, *self._channels]
        targets = [node for node in targets if not self._lead.is_moved_from(node)]
        for node in targets:
            if node == self._node:
                self._loop.after(0, lambda: self._on_order(action.message))
                continue
            frame = self._channels[node].wrap(action.message)
            if node in self._connections:
                self._connections[node].send(frame)

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            tls = self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        except (OSError, ssl.SSLError):
            sock.close()
            return
        most = SPARE_CONNECTIONS + 2 * len(self._channels)  # more would use up all descriptors

        def opened(connection: LeadConnection, node: int) -> None:
            self._opened(connection, node, address[0])

        self._strangers.append(LeadConnection(self._loop, tls, opened, lambda frame: None))
        if len(self._strangers) > most:
            self._strangers.popleft().close()

    def _opened(self, connection: LeadConnection, node: int, host: str) -> None:
        with contextlib.suppress(ValueError):
            self._strangers.remove(connection)
        if node not in self._channels:
            connection.close(OSError(f"node{node} is not of this run"))
            return
        if self._lead.is_moving(node):
            connection.close(OSError(f"the processes of node{node} will run elsewhere soon"))
            return
        old = self._connections.pop(node, None)
        if old is not None:
            old.close()
        self._connections[node] = connection
        self._missed.pop(node, None)
        connection.on_frame = lambda frame: self._first_frame(node, connection, frame)
        connection.on_closed = lambda error: self._closed(node, connection, host)

    def _first_frame(self, node: int, connection: LeadConnection, frame: LeadFrame) -> None:
        """Handle the first frame of a connection: it shows if a new supervisor has replaced the last one."""
        if frame.get("gone"):  # from the guardian
            connection.close()
            self._lose(node)
            return
        name = str(frame.get("i"))
        if self._lead.is_moved_from(node) and self._names.get(node) == name:
            connection.on_frame = lambda frame: None
            connection.send(MOVED)
            return
        if self._names.setdefault(node, name) != name:
            del self._connections[node]
            self._lose(node)  # perhaps not detected yet; the resulting actions are not for the new one
            self._connections[node] = connection
            self._names[node], self._channels[node] = name, Channel()
        self._closed_at.pop(node, None)
        connection.on_frame = lambda frame: self._frame(node, frame)
        for waiting in self._channels[node].repeat():
            connection.send(waiting)
        self._frame(node, frame)

    def _frame(self, node: int, frame: LeadFrame) -> None:
        now = self._loop.now()
        self._do(self._lead.alive(node, now))
        message = self._channels[node].accept(frame)
        if message is not None:
            self._do(self._lead.handle(node, self._checked(node, message), now))

    def _checked(self, node: int, message: Mapping[str, Any]) -> Report:
        try:
            return check(message, node, self._lead.processes_on(node))
        except ValueError as exc:
            return {"do": "failed", "message": f"its supervisor sent a malformed message: {exc}", "errno": None}

    def _closed(self, node: int, connection: LeadConnection, host: str) -> None:
        if self._connections.get(node) is connection:
            del self._connections[node]
            self._missed[node] = connection
            self._closed_at.setdefault(node, self._loop.now())
            self._probe(node, connection, host)

    def _probe(self, node: int, connection: LeadConnection, host: str) -> None:
        """Find out if the supervisor or the network is gone. If the node's kernel answers, even with a refusal, the
        node is reachable, and a live supervisor would reconnect at once. Silence proves nothing.
        """

        def is_over() -> bool:
            return self._missed.get(node) is not connection

        def answered(sock: socket.socket, error: int) -> None:
            sock.close()
            if error in (0, errno.ECONNREFUSED):
                self._loop.after(COMEBACK_S, lambda: None if is_over() else self._lose(node))
            else:
                self._loop.after(RETRY_S, lambda: self._probe(node, connection, host))

        if not is_over():
            try:
                self._loop.connect((host, self._port), DIAL_S, answered)
            except OSError:
                self._loop.after(RETRY_S, lambda: self._probe(node, connection, host))
