"""Send a workspace to all nodes at once: ask each for its contents, decide for all, send each its missing files."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import random
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from clusterctl.cluster import NONSENSE, AgentCall, Cluster, NodeOutcome, combined, who_asks
from clusterctl.cluster.answers import read
from clusterctl.common.requests import DispatchRequest, DispatchTemplate
from clusterctl.common.shards import original
from clusterctl.common.tree import Entry
from clusterctl.dispatch import node_trees as last_dispatch
from clusterctl.dispatch import relay_plan, room
from clusterctl.dispatch.blobs import BlobCache, Blobs
from clusterctl.dispatch.decision import DesiredTrees, DiskSpace, DispatchAnswer, Instruction, NewestJob, decide
from clusterctl.dispatch.node_trees import make_trees
from clusterctl.dispatch.outcomes import Dispatched, NodeDispatch, Planned, Progress
from clusterctl.dispatch.reservations import Reservations
from clusterctl.dispatch.workspace import Workspace
from clusterctl.errors import ClusterctlError, NodeError, RefusedError, UsageError
from clusterctl.inventory import Node

T = TypeVar("T")
BUSY_S = 60.0
SILENCE_S = 90.0  # a node that sends nothing for so long counts as lost; a busy one sends signs of life


def new_job_id() -> str:
    """Return an id such as `JOB20261121-081530`, in UTC: ids sort by time wherever they are made."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("JOB%Y%m%d-%H%M%S")


def source_of(workspace: Workspace, allocation: str | None = None) -> str:
    """Return a name for the origin of a workspace: this machine and the directory, and a scheduler's job.

    Only a dispatch of the same origin replaces a job that was never started, or uses it.
    """
    origin = "\0".join(
        [socket.gethostname(), str(workspace.directory.resolve()), *([allocation] if allocation else [])]
    )
    return hashlib.sha256(origin.encode(errors="surrogateescape")).hexdigest()[:16]


def dispatch(
    cluster: Cluster,
    workspace: Workspace,
    progress: Progress,
    job: str,
    *,
    cache: Path | None = None,
    rehash: bool = False,
    allow_partial: bool = False,
    to_start: bool = False,
    reservations: Reservations | None = None,
    fresh: bool | None = False,
) -> Dispatched:
    """Create the job directory on every reachable node. A new job gets the id `job`, or the next after the newest one.

    Nodes that already have an identical tree that was never started keep it under its id, unless another program has
    reserved that job, or this one, if `fresh` is None. With `fresh` they do not; then it is reserved too. If `cluster`
    is limited to some of the nodes, complete the last dispatch there. With `to_start`, agents stay for the start that
    follows, also where nothing has changed. Raises if no node is reachable, if a node refuses, if the disk of a node is
    too small (with `allow_partial`: of every node), or if another dispatch stays in progress for too long.
    """
    kept = reservations or Reservations(None)

    def run() -> Dispatched:
        asking = _Dispatch(cluster, workspace, progress, cache, rehash, kept, fresh, to_start)
        return asking.run(job, allow_partial=allow_partial)

    return _retry_while_busy(progress, run)


def plan(
    cluster: Cluster, workspace: Workspace, progress: Progress, *, cache: Path | None = None, rehash: bool = False
) -> list[NodeOutcome[Planned]]:
    """Return the paths that a dispatch would send to each node and delete there. Nothing is changed."""
    others = Reservations(cache)
    return _retry_while_busy(progress, lambda: _Dispatch(cluster, workspace, progress, cache, rehash, others).plan())


def _retry_while_busy(progress: Progress, work: Callable[[], T]) -> T:
    """Retry for up to BUSY_S while another dispatch is in progress."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            return work()
        except _Busy as busy:
            if time.monotonic() > deadline:
                raise RefusedError(busy.error.message, node=busy.error.node, hint=busy.error.hint) from busy
            progress.waiting(str(busy.error))
            time.sleep(random.uniform(0.2, 1.0))


class _Busy(Exception):  # noqa: N818 - a signal to wait, not an error
    def __init__(self, error: ClusterctlError) -> None:
        super().__init__(str(error))
        self.error = error


class _Dispatch:
    def __init__(
        self,
        cluster: Cluster,
        workspace: Workspace,
        progress: Progress,
        cache: Path | None,
        rehash: bool,
        reservations: Reservations,
        fresh: bool | None = False,
        to_start: bool = False,
    ) -> None:
        self._cluster = cluster
        self._workspace = workspace
        self._progress = progress
        self._cache = cache
        self._rehash = rehash
        self._reservations = reservations
        self._own = fresh is False
        self._expect = not rehash and not to_start
        self._source = source_of(workspace)
        self._last = last_dispatch.load(cache, self._source)
        part = len(cluster.nodes) < len(cluster.inventory.nodes)
        if part and (self._last is None or self._last.tree != workspace.content):
            raise UsageError(
                "--only completes the last dispatch, but the workspace has changed since then",
                hint="dispatch to all nodes, without --only",
            )
        hosts_from = cluster.settings.hosts_from
        shards, trainers = cluster.settings.shards, cluster.inventory.trainer_count
        self._trees = make_trees(workspace, self._last, cluster.nodes, shards, trainers)
        self._wanted = DesiredTrees(
            {id_: tree.id for id_, tree in self._trees.items()},
            source_of(workspace, hosts_from.allocation) if hosts_from else self._source,
            len(cluster.inventory.nodes),
            self._last.job if part and self._last else None,
            lambda job: not fresh and reservations.allow(job, own=self._own),
        )
        self._calls: dict[int, AgentCall] = {}
        self._shelf = BlobCache(workspace.directory)
        self._relayed: Blobs | None = None
        self._changed: dict[str, NodeError] = {}

    def run(self, job: str, *, allow_partial: bool) -> Dispatched:
        try:
            asked, answers, target, instructions = self._negotiate(job)
            while not (self._wanted.completing or self._reservations.make(target, own=self._own)):
                self._close()
                asked, answers, target, instructions = self._negotiate(job)
            full = room.check(answers, instructions, len(asked), allow_partial=allow_partial)
            asked = [self._left_out(outcome, full.get(outcome.node.id)) for outcome in asked]
            answers = {id_: answer for id_, answer in answers.items() if id_ not in full}
            self._plan_relay(answers, instructions)
            reached = [node for node in self._cluster.nodes if node.id in answers]
            for node in reached:
                self._announce(node, instructions[node.id], answers[node.id])
            done = self._cluster.map(
                lambda node: self._transfer(node, instructions[node.id], answers[node.id]), reached
            )
        finally:
            self._close()
        by_node = {outcome.node.id: outcome for outcome in done}
        outcomes: list[NodeOutcome[Any]] = [by_node.get(outcome.node.id, outcome) for outcome in asked]
        if self._last is None or (self._last.job, self._last.tree) != (target, self._workspace.content):
            now = last_dispatch.LastDispatch(target, self._workspace.content, self._workspace.tree)
            last_dispatch.save(self._cache, self._source, now)
        return Dispatched(target, outcomes, self._relayed is not None)

    def plan(self) -> list[NodeOutcome[Planned]]:
        try:
            asked, answers, _, instructions = self._negotiate("", plan=True)
        finally:
            self._close()
        planned = {id_: self._planned(id_, instructions[id_], answer) for id_, answer in answers.items()}
        return [NodeOutcome[Planned](o.node, planned.get(o.node.id), o.error, o.seconds) for o in asked]

    def _planned(self, id_: int, instruction: Instruction, answer: DispatchAnswer) -> Planned:
        if "keep" in instruction:
            return Planned(instruction["keep"], [], [])
        lacking = self._trees[id_].rows(answer["missing"])
        return Planned(None, lacking, answer["gone"] if instruction["supersede"] else [])

    def _left_out(self, outcome: NodeOutcome[DispatchAnswer], error: NodeError | None) -> NodeOutcome[DispatchAnswer]:
        """Return the outcome. If there is an error, end the call to the node, and return the error as its outcome."""
        if error is None:
            return outcome
        self._calls.pop(outcome.node.id).close()
        return NodeOutcome[DispatchAnswer](outcome.node, None, error, outcome.seconds)

    def _close(self) -> None:
        for call in self._calls.values():
            call.close()
        self._calls.clear()

    def _negotiate(
        self, job: str, *, plan: bool = False
    ) -> tuple[list[NodeOutcome[DispatchAnswer]], dict[int, DispatchAnswer], str, dict[int, Instruction]]:
        """Ask every node. Return the outcomes, the answers, the id for all, and an instruction per node that answered.

        The agent of an unchanged node has already ended. If the decision changes that node after all, ask it again.
        """
        request = self._request(plan)
        asked = self._ask_all(request, self._cluster.nodes, expect=self._expect)
        answers = {outcome.node.id: outcome.get() for outcome in asked if outcome.ok}
        target, instructions = decide(job, answers, self._wanted)
        ended = [o.node for o in asked if o.ok and "dir" in o.get() and "go" in instructions[o.node.id]]
        if ended:
            again = {o.node.id: o for o in self._ask_all(request, ended, expect=False)}
            asked = [again.get(outcome.node.id, outcome) for outcome in asked]
            answers = {outcome.node.id: outcome.get() for outcome in asked if outcome.ok}
            target, instructions = decide(job, answers, self._wanted)
        return asked, answers, target, instructions

    def _request(self, plan: bool) -> DispatchTemplate:
        return {
            "op": "dispatch",
            "nonce": os.urandom(8).hex(),
            "nodes": self._wanted.nodes,
            "by": who_asks(),
            "workspace": self._workspace.directory.resolve().name,
            "source": self._wanted.source,
            "content": self._workspace.content,
            "complete": self._wanted.completing,
            "rehash": self._rehash,
            "plan": plan,
        }

    def _ask_all(
        self, request: DispatchTemplate, nodes: Sequence[Node], *, expect: bool
    ) -> list[NodeOutcome[DispatchAnswer]]:
        """Return every node's outcome. Raises if no node is reachable, or if one refuses or is busy."""
        asked = self._cluster.map(lambda node: self._ask(node, request, expect), nodes)
        errors = [outcome.error for outcome in asked if outcome.error]
        for error in errors:
            self._explain_busy(error, request["nonce"])
        refused = [error for error in errors if isinstance(error, RefusedError)]
        if refused or len(errors) == len(self._cluster.nodes):
            raise combined(refused or errors, len(asked), "dispatch")
        return asked

    def _ask(self, node: Node, template: DispatchTemplate, expect: bool) -> DispatchAnswer:
        tree = self._trees[node.id]
        request: DispatchRequest = {
            **template,
            "node": node.id,
            "address": node.address,
            "nic": self._cluster.settings.nic,
            "tree": tree.id,
            "base": tree.base,
            "manifest_bytes": len(tree.packed),
        }
        unchanged = expect and self._last is not None and not tree.packed
        expected = (self._last.job, self._wanted.name(node.id)) if unchanged and self._last else None
        call = self._cluster.call(node, request, expected, data=tree.packed)
        self._calls[node.id] = call
        if call.untouched:
            call.close()
            return self._as_expected(node, call.untouched)
        first = call.receive(SILENCE_S)
        if first["missing"] is None:
            whole = tree.whole()
            with call.bulk():
                call.send({"manifest_bytes": len(whole)})
                call.write(whole)
            first.update(call.receive(SILENCE_S))
        read(DiskSpace, first["room"], "dispatch")
        answer: DispatchAnswer = first
        return answer

    def _as_expected(self, node: Node, directory: str) -> DispatchAnswer:
        """Return the answer of a node whose agent ended early because nothing has changed."""
        assert self._last is not None
        newest = NewestJob(
            job=self._last.job,
            started=False,
            exact=True,
            tree=self._trees[node.id].id,
            source=self._wanted.source,
            node=node.id,
            nodes=self._wanted.nodes,
        )
        return {"jobs": [self._last.job], "newest": newest, "holds": True, "missing": [], "gone": [], "dir": directory}

    def _explain_busy(self, error: ClusterctlError, nonce: str) -> None:
        if error.details.get("reason") != "busy":
            return
        holder = error.details.get("holder", {})
        if holder.get("nonce") != nonce:
            raise _Busy(error)
        raise RefusedError(
            f"has the same ROOT_DIR as node{holder['node']}",
            node=error.node,
            hint="give each node its own directory: Host(..., root_dir=...) in conf.py",
        )

    def _plan_relay(self, answers: Mapping[int, DispatchAnswer], instructions: dict[int, Instruction]) -> None:
        """If a relay pays off, send every participating node its neighbours in the relay.

        This happens before any data is sent, because a node waits only a short time for its neighbours.
        """
        lacking = {
            id_: self._trees[id_].rows(answer["missing"])
            for id_, answer in answers.items()
            if "go" in instructions[id_] and answer["missing"]
        }
        lacking = {id_: rows for id_, rows in relay_plan.common(lacking).items() if rows}
        total = sum(entry.size for rows in lacking.values() for entry in rows)
        if not relay_plan.worth_it(len(lacking), total, self._cluster.settings.relay):
            return
        endpoints = self._listen(list(lacking))
        lacking = {id_: rows for id_, rows in lacking.items() if id_ in endpoints}
        if len(lacking) < relay_plan.FEWEST:
            return
        torn = {id_: answers[id_]["torn"] for id_ in lacking}
        rows, resume = relay_plan.shared(lacking, torn)
        self._relayed = Blobs(self._workspace.directory, rows, resume)
        for id_, hop in relay_plan.words(endpoints, self._relayed.length).items():
            instructions[id_]["relay"], instructions[id_]["resume"] = hop, resume
        nodes = [node for node in self._cluster.nodes if node.id in lacking]
        self._cluster.map(lambda node: self._calls[node.id].send(instructions[node.id]), nodes)

    def _listen(self, ids: Collection[int]) -> dict[int, tuple[str, int]]:
        """Make these nodes listen for neighbours. Return their endpoints; a node that cannot listen is left out."""

        def listen(node: Node) -> tuple[str, int] | None:
            call = self._calls[node.id]
            call.send({"listen": True})
            answer = call.receive(SILENCE_S)
            return (answer["address"], answer["port"]) if answer else None

        outcomes = self._cluster.map(listen, [node for node in self._cluster.nodes if node.id in ids])
        return {outcome.node.id: endpoint for outcome in outcomes if outcome.ok and (endpoint := outcome.get())}

    def _announce(self, node: Node, instruction: Instruction, answer: DispatchAnswer) -> None:
        """Report the bytes of files that a node is to get."""
        relayed = self._relayed if "relay" in instruction else None
        if "go" in instruction:
            with contextlib.suppress(*NONSENSE):  # a malformed answer is reported by `_transfer`
                direct = self._trees[node.id].bytes_of(answer["missing"], answer["torn"])
                self._progress.expect(node, max(relayed.total if relayed else 0, direct))

    def _transfer(self, node: Node, instruction: Instruction, answer: DispatchAnswer) -> NodeDispatch:
        started = time.monotonic()
        call = self._calls[node.id]
        sent_bytes = 0
        if "dir" in answer:
            done: dict[str, Any] = {"dir": answer["dir"], "kept": True}
        elif "keep" in instruction:
            call.send(instruction)
            done = call.result(SILENCE_S)
        else:
            sent_bytes, done = self._send(call, instruction, answer)
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

    def _send(self, call: AgentCall, instruction: Instruction, answer: DispatchAnswer) -> tuple[int, dict[str, Any]]:
        """Send a node its missing files. Return the bytes sent over the wire, and the node's final answer.

        If there is a relay, its head gets the stream first. Then send files directly until no file is missing.
        """
        count = 0
        if "relay" in instruction:
            if self._relayed and instruction["relay"]["upstream"] is None:
                count = self._write_to_head(call, self._relayed)
            else:
                call.on_alive = partial(self._progress.relayed, call.node)
            last, instruction = call.receive(SILENCE_S), {}
        else:
            last = answer
        while "missing" in last:
            rows = self._trees[call.node.id].rows(last["missing"])
            self._check_unchanged(rows)
            blobs = self._shelf.blobs(rows, last["torn"])
            with call.bulk():
                call.send({**instruction, "blobs": len(rows), "compressed": blobs.compressed, "resume": last["torn"]})
                count += self._write(call, blobs, self._progress.sent) if rows else 0
            last, instruction = call.receive(SILENCE_S), {}
        done: dict[str, Any] = last["done"]
        return count, done

    def _write(self, call: AgentCall, blobs: Blobs, report: Callable[[Node, int, int], None]) -> int:
        try:
            return blobs.write(call.write, partial(report, call.node))
        except NodeError as exc:
            if "changed" in exc.details:
                self._changed[original(exc.details["changed"])] = exc
            raise

    def _write_to_head(self, call: AgentCall, blobs: Blobs) -> int:
        """Write the stream of the relay. If that fails, end the call at once: the other nodes wait for it."""
        try:
            with call.bulk():
                call.send({"stream": True})
                return self._write(call, blobs, self._progress.sent_to_head)
        except ClusterctlError:
            call.close()
            raise

    def _check_unchanged(self, rows: Sequence[Entry]) -> None:
        """Raise the error of a file among `rows` that could not be sent to another node."""
        changed = next((error for entry in rows if (error := self._changed.get(original(entry.path)))), None)
        if changed is not None:
            raise NodeError(changed.message, hint=changed.hint, details=changed.details)
