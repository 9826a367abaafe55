"""Choose the id of a dispatch and the instruction for each node: a pure function of the nodes' reports."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypedDict

from clusterctl.common.paths import is_job_id, job_key
from clusterctl.common.tree import owned_name
from clusterctl.dispatch.relay_plan import RelayPart
from clusterctl.errors import RefusedError


class NewestJob(TypedDict):
    """A node's newest job. `exact`: the job directory is as dispatched, unmodified."""

    job: str
    started: bool
    exact: bool
    tree: str
    source: str
    node: int
    nodes: int


class DiskSpace(TypedDict):
    """The space in a node's ROOT_DIR, in bytes: `free`, and what a `new` directory or a change `in_place` would take.

    Nodes with the same `disk` share the free bytes, of which some file systems do not report the number.
    """

    path: str
    disk: str
    free: int | None
    new: int
    in_place: int | None


class DispatchAnswer(TypedDict, total=False):
    """A node's answer to a dispatch request.

    `holds`: the node has the job to complete. `missing`: ranges of rows of its tree. `gone`: paths that the tree no
    longer has. `torn`: by digest, the bytes of files that a broken dispatch left. `room`: the space on its disk. `dir`:
    the job directory of a node that is unchanged, whose agent has ended.
    """

    jobs: list[str]
    newest: NewestJob | None
    holds: bool
    missing: list[list[int]]
    gone: list[str]
    torn: dict[str, int]
    room: DiskSpace
    dir: str


class Instruction(TypedDict, total=False):
    """The request to keep the newest job under the id `keep`, or to make the job `go`, replacing `supersede`.

    `relay` and `resume` are set if the node takes part in a relay.
    """

    keep: str
    go: str
    supersede: str | None
    relay: RelayPart
    resume: dict[str, int]


@dataclass(frozen=True)
class DesiredTrees:
    """The desired tree of each node, by node id; the source of the trees; and the job to complete, if any.

    Only jobs that `allow` allows are used again or replaced: see `Reservations`.
    """

    trees: Mapping[int, str]
    source: str
    nodes: int
    completing: str | None
    allow: Callable[[str], bool] = lambda job: True

    def name(self, id_: int) -> str:
        """Return the owned name of a node's tree."""
        return owned_name(self.trees[id_], self.source, id_, self.nodes)

    def is_ours(self, id_: int, newest: NewestJob | None) -> bool:
        """Return True if a node's newest job has the same source, node id and number of nodes, and is allowed."""
        if newest is None or not self.allow(newest["job"]):
            return False
        return owned_name("", newest["source"], newest["node"], newest["nodes"]) == owned_name(
            "", self.source, id_, self.nodes
        )

    def is_same(self, id_: int, newest: NewestJob | None) -> bool:
        """Return True if the newest job has the desired tree, was never started and has not been modified."""
        return (
            newest is not None and self.is_ours(id_, newest) and newest["exact"] and newest["tree"] == self.trees[id_]
        )


def decide(job: str, answers: Mapping[int, DispatchAnswer], wanted: DesiredTrees) -> tuple[str, dict[int, Instruction]]:
    """Return the job id for all nodes and an instruction for each node: keep the job it has under that id, or go.

    A new job gets the id `job`, or the next one after the newest job of any node. Raises RefusedError if the job to
    complete is a different one on some node.
    """
    if wanted.completing:
        target = wanted.completing
        kept = {id_ for id_, answer in answers.items() if answer["holds"]}
        different = [id_ for id_, answer in answers.items() if target in answer["jobs"] and id_ not in kept]
        if different:
            raise RefusedError(
                f"{target} is a different job on this node",
                node=f"node{different[0]}",
                hint="dispatch to all nodes, without --only",
            )
    else:
        same = {
            id_: newest["job"]
            for id_, answer in answers.items()
            if (newest := answer["newest"]) and wanted.is_same(id_, newest)
        }
        target = max(same.values(), key=job_key, default="")
        kept = {id_ for id_, name in same.items() if name == target}
        if not target or any(target in answer["jobs"] for id_, answer in answers.items() if id_ not in kept):
            target, kept = _next_id(job, answers.values()), set()
    instructions: dict[int, Instruction] = {}
    for id_, answer in answers.items():
        go = Instruction(go=target, supersede=_replaceable(id_, answer, answers, wanted))
        instructions[id_] = Instruction(keep=target) if id_ in kept else go
    return target, instructions


def _replaceable(
    id_: int, answer: DispatchAnswer, answers: Mapping[int, DispatchAnswer], wanted: DesiredTrees
) -> str | None:
    """Return the job on this node that the new one may replace: one that was never started on any node."""
    newest = answer["newest"]
    if wanted.completing or newest is None or not wanted.is_ours(id_, newest) or not newest["exact"]:
        return None  # when completing a dispatch, a node outside --only may have started the job
    old = newest["job"]
    for other in answers.values():
        its = other["newest"]
        if old in other["jobs"] and (its is None or its["job"] != old or its["started"]):
            return None
    return old


def _next_id(job: str, answers: Collection[DispatchAnswer]) -> str:
    """Return `job`, or the id after the newest one on any node: the clock of this machine may be behind another's."""
    known = (name for answer in answers for name in answer["jobs"] if is_job_id(name))
    newest = max(known, key=job_key, default=None)
    if newest is None or job_key(job) > job_key(newest):
        return job
    moment, number = job_key(newest)
    return f"{moment}-{max(2, number + 1)}"
