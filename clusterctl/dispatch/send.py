"""Brings a workspace to all nodes at once: asks what each has, decides for all, sends each what it lacks."""

from __future__ import annotations

import getpass
import hashlib
import json
import random
import secrets
import socket
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.agent.tree import COPY_BYTES, END, FILE, HEADER, Entry, content_of, order
from clusterctl.cluster import AgentCall, Cluster, Message, NodeOutcome, combined
from clusterctl.dispatch import relay, sent
from clusterctl.dispatch.workspace import Workspace, for_node
from clusterctl.errors import ClusterctlError, NodeError, RefusedError, UsageError
from clusterctl.inventory import Node

BUSY_S = 60.0
STALL_S = 600.0  # a node that says nothing for so long is taken for dead; it may have much to copy
WRITE_BYTES = 256 * 1024
SAMPLE_BYTES = 256 * 1024
COMPRESSES = 0.8


@dataclass
class Progress:
    """How far a node's stream is, in bytes of the workspace; `report` is called from several threads."""

    report: Callable[[Node, int, int], None] = field(default=lambda node, done, total: None)
    waiting: Callable[[str], None] = field(default=lambda message: None)


@dataclass(frozen=True)
class NodeDispatch:
    """What became of one node. `kept`: it had all of it already, under this id.

    `files_received` with `bytes_received` were new to it, `bytes_sent` went from here over the wire, `bytes_copied`
    came from other files of the node, in `copy_seconds`.
    """

    dir: str
    kept: bool
    files_received: int
    bytes_received: int
    bytes_sent: int
    bytes_copied: int
    copy_seconds: float
    seconds: float


@dataclass(frozen=True)
class Planned:
    """What a dispatch would do to one node: the paths that would be sent, and those that would disappear."""

    job: str | None
    send: list[Entry]
    delete: list[str]


@dataclass(frozen=True)
class Dispatched:
    job: str
    outcomes: list[NodeOutcome[NodeDispatch]]
    relayed: bool = False


@dataclass(frozen=True)
class _Tree:
    """What some nodes are to have. `packed` is the list of its files, or of its changes against `base`."""

    entries: Sequence[Entry]
    id: str
    base: str | None
    packed: bytes

    def whole(self) -> bytes:
        return _pack(self.entries, [])


def source_of(workspace: Workspace) -> str:
    """Names the place that a workspace comes from: this machine and the directory."""
    place = f"{socket.gethostname()}\0{workspace.directory.resolve()}"
    return hashlib.sha256(place.encode(errors="surrogateescape")).hexdigest()[:16]


def dispatch(
    cluster: Cluster,
    workspace: Workspace,
    progress: Progress,
    job: str,
    *,
    cache: Path | None = None,
    rehash: bool = False,
) -> Dispatched:
    """Makes the job directory on every node that can be reached; `job` is the id of a new one, or gets a suffix.

    Nodes that have the very same tree, never started, keep it under its id. With only a part of the nodes, the last
    dispatch is completed. Raises when no node can be reached, when one refuses, or when another dispatch does not end.
    """
    deadline = time.monotonic() + BUSY_S
    work = _Dispatch(cluster, workspace, progress, cache, rehash)
    while True:
        try:
            return work.run(job)
        except _Busy as busy:
            if time.monotonic() > deadline:
                raise RefusedError(busy.error.message, node=busy.error.node, hint=busy.error.hint) from busy
            progress.waiting(str(busy.error))
            time.sleep(random.uniform(0.2, 1.0))


def plan(
    cluster: Cluster, workspace: Workspace, *, cache: Path | None = None, rehash: bool = False
) -> list[NodeOutcome[Planned]]:
    """What a dispatch would send to each node and delete there; nothing is changed."""
    return _Dispatch(cluster, workspace, Progress(), cache, rehash).plan()


class _Busy(Exception):  # noqa: N818 - a reason to wait, not an error
    def __init__(self, error: ClusterctlError) -> None:
        super().__init__(str(error))
        self.error = error


class _Dispatch:
    def __init__(
        self, cluster: Cluster, workspace: Workspace, progress: Progress, cache: Path | None, rehash: bool
    ) -> None:
        self._cluster = cluster
        self._workspace = workspace
        self._progress = progress
        self._cache = cache
        self._rehash = rehash
        self._source = source_of(workspace)
        self._entries = sorted(workspace.entries, key=lambda entry: order(entry.path))  # as nodes order them
        self._content = content_of(self._entries)
        self._last = sent.load(cache, self._source)
        self._part = len(cluster.nodes) < len(cluster.inventory.nodes)
        if self._part and (self._last is None or self._last.tree != self._content):
            raise UsageError(
                "--only completes the last dispatch, and the workspace is not what was sent then",
                hint="dispatch to all nodes",
            )
        self._trees = self._make_trees()
        self._calls: dict[int, AgentCall] = {}
        self._union: Sequence[Entry] = ()

    def _make_trees(self) -> dict[int, _Tree]:
        """By node id; one for all nodes unless SHARDS make them differ."""
        shards, trainers = self._cluster.settings.shards, self._cluster.inventory.trainer_count
        old = self._last.entries if self._last else None
        if not shards:
            tree = _tree(self._entries, self._content, old, self._last.tree if self._last else None)
            return dict.fromkeys((node.id for node in self._cluster.nodes), tree)
        trees = {}
        for node in self._cluster.nodes:
            entries = for_node(self._entries, shards, node, trainers)
            base = for_node(old, shards, node, trainers) if old else None
            trees[node.id] = _tree(entries, content_of(entries), base, content_of(base) if base else None)
        return trees

    def run(self, job: str) -> Dispatched:
        try:
            asked = self._ask_all()
            answers = {outcome.node.id: outcome.get() for outcome in asked if outcome.ok}
            target, words = self._decide(job, answers)
            relayed = self._relay(answers, words)
            reached = [node for node in self._cluster.nodes if node.id in answers]
            done = self._cluster.map(lambda node: self._bring(node, words[node.id], answers[node.id]), reached)
        finally:
            self._close()
        by_node = {outcome.node.id: outcome for outcome in done}
        outcomes: list[NodeOutcome[Any]] = [by_node.get(outcome.node.id, outcome) for outcome in asked]
        sent.save(self._cache, self._source, sent.Sent(target, self._content, self._entries))
        return Dispatched(target, outcomes, bool(relayed))

    def plan(self) -> list[NodeOutcome[Planned]]:
        try:
            asked = self._ask_all(plan=True)
            answers = {outcome.node.id: outcome.get() for outcome in asked if outcome.ok}
            _, words = self._decide("", answers)
        finally:
            self._close()
        return [
            NodeOutcome[Planned](
                outcome.node,
                self._planned(outcome.node, words[outcome.node.id], answers[outcome.node.id]) if outcome.ok else None,
                outcome.error,
                outcome.seconds,
            )
            for outcome in asked
        ]

    def _planned(self, node: Node, word: Message, answer: Message) -> Planned:
        if "keep" in word:
            return Planned(word["keep"], [], [])
        lacking = _rows(self._trees[node.id].entries, answer["missing"])
        return Planned(None, lacking, answer["gone"] if word["supersede"] else [])

    def _close(self) -> None:
        for call in self._calls.values():
            call.close()
        self._calls.clear()

    def _ask_all(self, *, plan: bool = False) -> list[NodeOutcome[Message]]:
        """Every node's answer; raises when none can be reached, when one refuses, and when one is busy."""
        nonce = secrets.token_hex(8)
        request = {
            "op": "dispatch",
            "nonce": nonce,
            "nodes": len(self._cluster.inventory.nodes),
            "by": f"{getpass.getuser()}@{socket.gethostname()}",
            "workspace": self._workspace.directory.resolve().name,
            "source": self._source,
            "content": self._content,
            "complete": self._last.job if self._part and self._last else None,
            "rehash": self._rehash,
            "plan": plan,
            "relay": not plan and self._may_relay(),
        }
        asked = self._cluster.map(lambda node: self._ask(node, request))
        errors = [outcome.error for outcome in asked if outcome.error]
        for error in errors:
            self._explain_busy(error, nonce)
        refused = [error for error in errors if isinstance(error, RefusedError)]
        if refused or len(errors) == len(asked):
            raise combined(refused or errors, len(asked), "dispatch")
        return asked

    def _ask(self, node: Node, request: Message) -> Message:
        tree = self._trees[node.id]
        about = {
            "node": node.id,
            "address": node.address,
            "nic": self._cluster.settings.nic,
            "tree": tree.id,
            "base": tree.base,
            "manifest_bytes": len(tree.packed),
        }
        call = self._cluster.call(node, {**request, **about})
        self._calls[node.id] = call
        call.write(tree.packed)
        answer = call.receive(STALL_S)
        if answer["missing"] is None:
            whole = tree.whole()
            call.send({"manifest_bytes": len(whole)})
            call.write(whole)
            answer.update(call.receive(STALL_S))
        return answer

    def _explain_busy(self, error: ClusterctlError, nonce: str) -> None:
        if error.details.get("reason") != "busy":
            return
        holder = error.details.get("holder", {})
        if holder.get("nonce") != nonce:
            raise _Busy(error)
        raise RefusedError(
            f"has the same ROOT_DIR as node{holder['node']}",
            node=error.node,
            hint="give each node a directory of its own: Host(..., root_dir=...) in conf.py",
        )

    def _relay(self, answers: Mapping[int, Message], words: dict[int, Message]) -> Sequence[Entry]:
        """The files that go through the relay, told to the nodes that take part; none when it is not worth it."""
        lacking = {
            id_: _rows(self._trees[id_].entries, answer["missing"])
            for id_, answer in answers.items()
            if "go" in words[id_] and answer.get("port") and answer["missing"]
        }
        total = sum(entry.size for rows in lacking.values() for entry in rows)
        if not relay.worth_it(len(lacking), total, self._cluster.settings.relay):
            return []
        union = list({entry.digest: entry for rows in lacking.values() for entry in rows}.values())
        keys = relay.make_keys(list(lacking))
        length = sum(entry.size + HEADER.size for entry in union) + HEADER.size
        for id_, hop in relay.plan(list(lacking)).items():
            own, authority = keys[id_]
            words[id_]["relay"] = {
                "own": own,
                "authority": authority,
                "upstream": None if hop.upstream is None else relay.name_of(hop.upstream),
                "downstream": [
                    (answers[b.node]["address"], answers[b.node]["port"], relay.name_of(b.node), b.nodes)
                    for b in hop.downstream
                ],
                "length": length,
            }
        self._union = union
        return union

    def _may_relay(self) -> bool:
        """Whether nodes should be ready for it: before they are asked, what they lack is a guess."""
        known = {entry.digest for entry in self._last.entries} if self._last and not self._rehash else set()
        total = sum(entry.size for entry in self._entries if entry.digest not in known)
        nodes = len(self._cluster.nodes)
        return relay.worth_it(nodes, total * nodes, self._cluster.settings.relay)

    def _decide(self, job: str, answers: Mapping[int, Message]) -> tuple[str, dict[int, Message]]:
        """The id for all, and the word for each node: keep what it has, or go."""
        same = {id_: answer["newest"]["job"] for id_, answer in answers.items() if self._is_same(id_, answer)}
        if self._part and self._last:
            target = self._last.job
            kept = {id_ for id_, answer in answers.items() if answer["holds"]}
            strange = [id_ for id_, answer in answers.items() if target in answer["jobs"] and id_ not in kept]
            if strange:
                raise RefusedError(f"has another {target}", node=f"node{strange[0]}", hint="dispatch to all nodes")
        else:
            target = max(same.values(), default="")
            kept = {id_ for id_, found in same.items() if found == target}
            if not target or any(target in answer["jobs"] for id_, answer in answers.items() if id_ not in kept):
                target, kept = _free_id(job, answers.values()), set()
        words: dict[int, Message] = {}
        for id_, answer in answers.items():
            go = {"go": target, "supersede": self._replaceable(id_, answer, answers)}
            words[id_] = {"keep": target} if id_ in kept else go
        return target, words

    def _is_ours(self, id_: int, newest: Message | None) -> bool:
        return newest is not None and (newest["source"], newest["node"], newest["nodes"]) == (
            self._source,
            id_,
            len(self._cluster.inventory.nodes),
        )

    def _is_same(self, id_: int, answer: Message) -> bool:
        newest = answer["newest"]
        return self._is_ours(id_, newest) and newest["exact"] and newest["tree"] == self._trees[id_].id

    def _replaceable(self, id_: int, answer: Message, answers: Mapping[int, Message]) -> str | None:
        """The job of this node that the new one may take the place of: never started, here or elsewhere."""
        newest = answer["newest"]
        if not self._is_ours(id_, newest) or not newest["exact"]:
            return None
        old: str = newest["job"]
        for other in answers.values():
            its = other["newest"]
            if old in other["jobs"] and (its["job"] != old or its["started"]):
                return None
        return old

    def _bring(self, node: Node, word: Message, answer: Message) -> NodeDispatch:
        started = time.monotonic()
        call = self._calls[node.id]
        sent_bytes = 0
        if "keep" in word:
            call.send(word)
        elif "relay" in word:
            sent_bytes = self._bring_by_relay(call, word, node)
        else:
            sent_bytes = self._send(call, word, _rows(self._trees[node.id].entries, answer["missing"]))
        done = call.result(STALL_S)
        return NodeDispatch(
            dir=done["dir"],
            kept=done["kept"],
            files_received=done.get("files_received", 0),
            bytes_received=done.get("bytes_received", 0),
            bytes_sent=sent_bytes,
            bytes_copied=done.get("bytes_copied", 0),
            copy_seconds=done.get("copy_seconds", 0.0),
            seconds=time.monotonic() - started,
        )

    def _bring_by_relay(self, call: AgentCall, word: Message, node: Node) -> int:
        """The head's stream comes from here; whoever is left with something missing gets it from here, too."""
        call.send(word)
        count = 0
        if word["relay"]["upstream"] is None:
            total = sum(entry.size for entry in self._union)
            done = 0
            for piece, size in _blobs(self._workspace.directory, self._union):
                call.write(piece)
                count += len(piece)
                done += size
                self._progress.report(node, done, total)
        lacking = call.receive(None)["lacking"]
        return count + self._send(call, {}, _rows(self._trees[node.id].entries, lacking))

    def _send(self, call: AgentCall, word: Message, rows: list[Entry]) -> int:
        """Directly; the bytes that went over the wire."""
        compressed = _is_compressible(self._workspace.directory, rows)
        call.send({**word, "blobs": len(rows), "compressed": compressed})
        total = sum(entry.size for entry in rows)
        self._progress.report(call.node, 0, total)
        if not rows:
            return 0
        compressor = zlib.compressobj(1) if compressed else None
        done = count = 0
        for piece, size in _blobs(self._workspace.directory, rows):
            data = compressor.compress(piece) if compressor else piece
            if data:
                call.write(data)
            count += len(data)
            done += size
            self._progress.report(call.node, done, total)
        if compressor:
            tail = compressor.flush()
            call.write(tail)
            count += len(tail)
        return count


def _tree(entries: Sequence[Entry], id_: str, base: Sequence[Entry] | None, base_id: str | None) -> _Tree:
    if base is None:
        return _Tree(entries, id_, None, _pack(entries, []))
    if id_ == base_id:
        return _Tree(entries, id_, base_id, b"")
    known = {entry.path: entry for entry in base}
    rows = [entry for entry in entries if known.pop(entry.path, None) != entry]
    if 2 * len(rows) > len(entries):
        return _Tree(entries, id_, None, _pack(entries, []))
    return _Tree(entries, id_, base_id, _pack(rows, list(known)))


def _pack(rows: Sequence[Entry], gone: list[str]) -> bytes:
    return zlib.compress(json.dumps({"rows": rows, "gone": gone}, separators=(",", ":")).encode(), 1)


def _rows(entries: Sequence[Entry], runs: list[list[int]]) -> list[Entry]:
    return [entries[number] for first, end in runs for number in range(first, end) if entries[number].kind == FILE]


def _free_id(job: str, answers: Any) -> str:
    taken = {name for answer in answers for name in answer["jobs"]}
    number = 1
    name = job
    while name in taken:
        number += 1
        name = f"{job}-{number}"
    return name


def _is_compressible(top: Path, rows: list[Entry]) -> bool:
    """Whether it is worth it, from the beginning of the largest file."""
    if not rows:
        return False
    largest = max(rows, key=lambda entry: entry.size)
    try:
        with (top / largest.path).open("rb") as f:
            sample = f.read(SAMPLE_BYTES)
    except OSError:
        return False
    return len(zlib.compress(sample, 1)) < COMPRESSES * len(sample)


def _blobs(top: Path, rows: Sequence[Entry]) -> Iterator[tuple[bytes, int]]:
    """The stream of these files, in pieces, each with how many bytes of files are in it."""
    pending: list[bytes] = []
    waiting = 0
    for entry in rows:
        for data in _contents(top, entry):
            pending.append(data)
            waiting += len(data)
            if waiting >= WRITE_BYTES:
                yield b"".join(pending), waiting
                pending, waiting = [], 0
    pending.append(HEADER.pack(bytes(32), END))
    yield b"".join(pending), waiting


def _contents(top: Path, entry: Entry) -> Iterator[bytes]:
    """A header, and as many bytes as it says."""
    yield HEADER.pack(bytes.fromhex(entry.digest), entry.size)
    left = entry.size
    try:
        with open(f"{top}/{entry.path}", "rb", buffering=0) as f:  # noqa: PTH123
            while left:
                data = f.read(min(left, COPY_BYTES))
                if not data:
                    raise NodeError(f"{entry.path!r} became shorter while it was sent", hint="dispatch again")
                yield data
                left -= len(data)
    except OSError as exc:
        raise NodeError(f"{entry.path!r} cannot be read any more: {exc.strerror}", hint="dispatch again") from exc
