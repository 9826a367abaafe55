"""Which id a dispatch gets, and what each node is told: a pure function of what the nodes say that they have."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from clusterctl.cluster.cluster import Message
from clusterctl.common.tree import owned_name
from clusterctl.errors import RefusedError


@dataclass(frozen=True)
class Wanted:
    """The trees that the nodes are to have, by node id; where they come from; and the job that is only completed."""

    trees: Mapping[int, str]
    source: str
    nodes: int
    completing: str | None

    def name(self, id_: int) -> str:
        """The owned name of a node's tree."""
        return owned_name(self.trees[id_], self.source, id_, self.nodes)

    def is_ours(self, id_: int, newest: Message | None) -> bool:
        """Whether a node's newest job came from the same place, to the same node of as many."""
        return newest is not None and owned_name("", newest["source"], newest["node"], newest["nodes"]) == owned_name(
            "", self.source, id_, self.nodes
        )

    def is_same(self, id_: int, newest: Message | None) -> bool:
        """Whether it is the wanted tree, never started, and nobody touched it."""
        return (
            newest is not None and self.is_ours(id_, newest) and newest["exact"] and newest["tree"] == self.trees[id_]
        )


def decide(job: str, answers: Mapping[int, Message], wanted: Wanted) -> tuple[str, dict[int, Message]]:
    """The id for all nodes, and the word for each: keep what it has under that id, or go.

    `job` is the id of a new job, or gets a suffix. Raises RefusedError when a job that is to be completed is another
    one somewhere.
    """
    if wanted.completing:
        target = wanted.completing
        kept = {id_ for id_, answer in answers.items() if answer["holds"]}
        strange = [id_ for id_, answer in answers.items() if target in answer["jobs"] and id_ not in kept]
        if strange:
            raise RefusedError(f"has another {target}", node=f"node{strange[0]}", hint="dispatch to all nodes")
    else:
        same = {id_: a["newest"]["job"] for id_, a in answers.items() if wanted.is_same(id_, a["newest"])}
        target = max(same.values(), default="")
        kept = {id_ for id_, found in same.items() if found == target}
        if not target or any(target in answer["jobs"] for id_, answer in answers.items() if id_ not in kept):
            target, kept = _free_id(job, answers.values()), set()
    words: dict[int, Message] = {}
    for id_, answer in answers.items():
        go = {"go": target, "supersede": _replaceable(id_, answer, answers, wanted)}
        words[id_] = {"keep": target} if id_ in kept else go
    return target, words


def _replaceable(id_: int, answer: Message, answers: Mapping[int, Message], wanted: Wanted) -> str | None:
    """The job of this node that the new one may take the place of: never started, here or elsewhere."""
    newest = answer["newest"]
    if wanted.completing or not wanted.is_ours(id_, newest) or not newest["exact"]:
        return None  # when completing, the nodes that are not asked may have started it
    old: str = newest["job"]
    for other in answers.values():
        its = other["newest"]
        if old in other["jobs"] and (its["job"] != old or its["started"]):
            return None
    return old


def _free_id(job: str, answers: Collection[Message]) -> str:
    taken = {name for answer in answers for name in answer["jobs"]}
    number = 1
    name = job
    while name in taken:
        number += 1
        name = f"{job}-{number}"
    return name
