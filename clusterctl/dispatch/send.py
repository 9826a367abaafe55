"""Sends a workspace to all nodes at once: first the id is reserved everywhere, then every node gets its stream."""

from __future__ import annotations

import json
import secrets
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clusterctl.agent.tree import COPY_BYTES, FILE, Entry, encode
from clusterctl.cluster import AgentCall, Cluster, Message, NodeOutcome, raise_failures
from clusterctl.dispatch.workspace import Workspace, for_node
from clusterctl.errors import NodeError, RefusedError
from clusterctl.inventory import Node

ID_TRIES = 50
STAGE_S = 600.0
ReadFile = Callable[[Path], bytes]


@dataclass
class Progress:
    """How far a node's stream is, in bytes of the workspace; `report` is called from several threads."""

    report: Callable[[Node, int, int], None] = field(default=lambda node, sent, total: None)


@dataclass(frozen=True)
class NodeDispatch:
    """What one node got: `bytes_sent` went over the wire, compressed."""

    dir: str
    files_sent: int
    bytes_sent: int
    seconds: float


@dataclass(frozen=True)
class Dispatched:
    job: str
    outcomes: list[NodeOutcome[NodeDispatch]]


def dispatch(cluster: Cluster, workspace: Workspace, progress: Progress, job: str) -> Dispatched:
    """Makes the job directory on every node; `job` gets a suffix when a node has that id.

    Raises when the id cannot be reserved on every node, and then no node has anything. A node that fails later is
    among the outcomes, and has no job directory; the others keep theirs.
    """
    plans = {node.id: _node_entries(cluster, workspace, node) for node in cluster.nodes}
    request = {
        "op": "dispatch",
        "nonce": secrets.token_hex(8),
        "nodes": len(cluster.inventory.nodes),
        "workspace": workspace.directory.resolve().name,
        "content": workspace.content(),
    }
    opened = cluster.map(lambda node: cluster.call(node, {**request, "node": node.id}))
    calls = {outcome.node.id: outcome.get() for outcome in opened if outcome.ok}
    try:
        raise_failures(opened, "dispatch")
        name = _reserve(cluster, calls, request, job)

        def send(node: Node) -> NodeDispatch:
            return _send(calls[node.id], workspace, plans[node.id], progress)

        return Dispatched(name, cluster.map(send))
    finally:
        for call in calls.values():
            call.close()


def _node_entries(cluster: Cluster, workspace: Workspace, node: Node) -> list[Entry]:
    return for_node(workspace.entries, cluster.settings.shards, node, cluster.inventory.trainer_count)


def _reserve(cluster: Cluster, calls: dict[int, AgentCall], request: Message, job: str) -> str:
    """The id that every node holds for us."""
    for attempt in range(1, ID_TRIES):
        name = job if attempt == 1 else f"{job}-{attempt}"

        def propose(node: Node, name: str = name) -> Message:
            calls[node.id].send({"job": name})
            return calls[node.id].receive()

        outcomes = cluster.map(propose)
        answers = raise_failures(outcomes, "dispatch")
        _refuse_shared(cluster, answers, request)
        if all(answer["reserved"] for answer in answers):
            return name
        for node, answer in zip(cluster.nodes, answers, strict=True):
            if answer["reserved"]:
                calls[node.id].send({"go": False})
    raise NodeError(f"no free job id like {job} after {ID_TRIES} tries")


def _refuse_shared(cluster: Cluster, answers: Sequence[Message], request: Message) -> None:
    for node, answer in zip(cluster.nodes, answers, strict=True):
        holder = answer["taken_by"] or {}
        if holder.get("nonce") == request["nonce"]:
            raise RefusedError(
                f"has the same ROOT_DIR {node.root_dir} as node{holder['node']}",
                node=node.label,
                hint="give each node a directory of its own: Host(..., root_dir=...) in conf.py",
            )


def _send(call: AgentCall, workspace: Workspace, entries: list[Entry], progress: Progress) -> NodeDispatch:
    started = time.monotonic()
    manifest = json.dumps(encode(entries), separators=(",", ":")).encode()
    total = sum(entry.size for entry in entries)
    call.send({"go": True, "manifest_bytes": len(manifest)})
    compressor = zlib.compressobj(1)
    sent = done = 0

    def push(data: bytes) -> None:
        nonlocal sent
        if data:
            call.write(data)
            sent += len(data)

    push(compressor.compress(manifest))
    progress.report(call.node, 0, total)
    for data in _contents(workspace.directory, entries):
        push(compressor.compress(data))
        done += len(data)
        progress.report(call.node, done, total)
    push(compressor.flush())
    answer = call.result(STAGE_S)
    files = sum(entry.kind == FILE for entry in entries)
    return NodeDispatch(answer["dir"], files, sent, time.monotonic() - started)


def _contents(top: Path, entries: list[Entry]) -> Iterator[bytes]:
    """The bytes of all files, exactly as many as their entries say."""
    for entry in entries:
        if entry.kind != FILE:
            continue
        left = entry.size
        with (top / entry.path).open("rb") as f:
            while left:
                data = f.read(min(left, COPY_BYTES))
                if not data:
                    raise NodeError(f"{entry.path!r} became shorter while it was sent", hint="dispatch again")
                yield data
                left -= len(data)
