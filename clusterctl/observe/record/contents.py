"""Ask nodes for the files and the packages of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

from clusterctl.cluster import Cluster, NodeOutcome
from clusterctl.cluster.answers import ContentsAnswer, read
from clusterctl.common.schema import Count
from clusterctl.errors import ClusterctlError
from clusterctl.inventory import Node
from clusterctl.observe.record.model import RunRecord

CONTENTS_S = 120.0
MOST_FILES = 200_000  # of a job on one node; agents send no more
MOST_BYTES = 128 << 20  # of their names and checksums


class File(NamedTuple):
    """A file of a job: its size, and its sha256 or, for a link, `-> TARGET`."""

    bytes: int
    contents: str


Tree = Mapping[str, File]


class FilesAnswer(TypedDict):
    """A message with files of a job: the path, the size and the contents of each, as in `File`."""

    files: list[tuple[str, Count, str]]


@dataclass(frozen=True)
class Contents:
    """What a run ran, by node: the name of the job's tree as dispatched, and the versions of packages.

    `changed` counts files that were changed there since the dispatch. `errors` are those of nodes that did not answer.
    """

    trees: Mapping[int, str]
    packages: Mapping[int, Mapping[str, str]]
    changed: Mapping[int, int]
    errors: tuple[ClusterctlError, ...] = ()


def read_contents(runs: Sequence[tuple[Cluster, RunRecord]]) -> tuple[list[Contents], dict[str, Tree]]:
    """Return what each run ran on its nodes, and the trees by name: none if all runs have the same ones."""
    asked = [_ask(cluster, record) for cluster, record in runs]
    named = [{outcome.get()["digest"] for outcome in outcomes if outcome.ok} for outcomes in asked]
    if all(names == named[0] for names in named):
        return [_contents(outcomes) for outcomes in asked], {}
    trees: dict[str, Tree] = {}
    found = []
    for (cluster, record), outcomes in zip(runs, asked, strict=True):
        new = {outcome.get()["digest"]: outcome.node for outcome in outcomes if outcome.ok}
        sent = _read_trees(cluster, record.job, {name: node for name, node in new.items() if name not in trees})
        trees |= {name: outcome.get() for name, outcome in sent.items() if outcome.ok}
        found.append(_contents([one for one in outcomes if not one.ok or one.get()["digest"] in trees], sent))
    return found, trees


def _ask(cluster: Cluster, record: RunRecord) -> list[NodeOutcome[ContentsAnswer]]:
    nodes = [known.node for known in record.nodes if known.problem is None]
    return cluster.ask({"op": "contents", "ref": record.job, "run": record.run}, nodes, answer_s=CONTENTS_S)


def _read_trees(cluster: Cluster, job: str, having: Mapping[str, Node]) -> dict[str, NodeOutcome[Tree]]:
    """Return each tree by name, each read from the node that has it."""
    outcomes = cluster.map(lambda node: _read_tree(cluster, node, job), list(having.values()))
    return dict(zip(having, outcomes, strict=True))


def _read_tree(cluster: Cluster, node: Node, job: str) -> Tree:
    files: dict[str, File] = {}
    with cluster.call(node, {"op": "contents", "ref": job, "list": True}, answer_s=CONTENTS_S) as call:
        call.limit(MOST_BYTES)
        while "done" not in (message := call.receive(CONTENTS_S)):
            files |= files_in(message)
            if len(files) > MOST_FILES:
                raise ValueError("too many files")
    return files


def files_in(message: Any) -> dict[str, File]:
    """Return the files in a message. Raises ValueError if one is malformed."""
    checked: FilesAnswer = read(FilesAnswer, message, "contents")
    return {path: File(size, contents) for path, size, contents in checked["files"]}


def _contents(
    outcomes: Sequence[NodeOutcome[ContentsAnswer]], sent: Mapping[str, NodeOutcome[Tree]] | None = None
) -> Contents:
    answers = {outcome.node.id: outcome.get() for outcome in outcomes if outcome.ok}
    errors = [outcome.error for outcome in outcomes] + [outcome.error for outcome in (sent or {}).values()]
    return Contents(
        trees={node: answer["digest"] for node, answer in answers.items()},
        packages={node: answer["packages"] for node, answer in answers.items()},
        changed={node: answer["changed"] for node, answer in answers.items() if answer["changed"]},
        errors=tuple(error for error in errors if error),
    )
