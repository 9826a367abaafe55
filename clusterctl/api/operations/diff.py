"""Compare two runs: their records and what they ran on the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clusterctl.api.operations.references import job_ref, run_of
from clusterctl.cluster import Cluster
from clusterctl.config import Settings
from clusterctl.documents.jobs import ChangedFiles, DiffDocument, DiffRow, DiffSide, DiffValue
from clusterctl.errors import ClusterctlError, NodeError
from clusterctl.observe.record.compare import Pair, Range, RunDiff, compare
from clusterctl.observe.record.contents import Contents, File, read_contents
from clusterctl.observe.record.history import read_history
from clusterctl.observe.record.model import RunRecord
from clusterctl.observe.record.references import Reference
from clusterctl.observe.record.status import unheard

BUCKETS = 200


@dataclass(frozen=True)
class Differences:
    """The comparison of two runs, and what it was made from: their `records`, and the `contents` of their jobs.

    `problem` is the error to report if nodes did not answer.
    """

    compared: RunDiff
    records: tuple[RunRecord, RunRecord]
    contents: tuple[Contents, Contents]
    errors: dict[str | None, ClusterctlError]
    problem: ClusterctlError | None

    @property
    def changed(self) -> dict[str, dict[int, int]]:
        """By job and node, how many files were changed there since the dispatch; they are compared as dispatched."""
        return {record.job: dict(one.changed) for record, one in zip(self.records, self.contents, strict=True)}

    def to_json(self) -> DiffDocument:
        """The document of `diff --json`."""
        sides = zip(("a", "b"), self.contents, strict=True)
        changed: list[ChangedFiles] = [
            {"side": side, "node": node, "files": count} for side, one in sides for node, count in one.changed.items()
        ]
        document = document_of(self.compared)
        if changed:
            document["changed_since"] = changed
        return document


def document_of(found: RunDiff) -> DiffDocument:
    """Return the document of `diff --json` without the files that were changed since the dispatch."""
    return {
        "a": _side(found.a, found.cause.a),
        "b": _side(found.b, found.cause.b),
        "facts": _rows(found.facts),
        "figures": _rows(found.figures),
        "settings": _rows(found.settings),
        "arguments": _rows(found.arguments),
        "env": _rows(found.env),
        "packages": _rows(found.packages),
        "files": _rows(found.files),
        "metrics": _rows(found.metrics),
    }


def _side(record: RunRecord, cause: str | None) -> DiffSide:
    members = record.members.to_json()
    return {"job": record.job, "run": record.run, "state": record.state, **members, "cause": cause}


def _rows(pairs: Sequence[Pair[Any]]) -> list[DiffRow]:
    return [{"name": pair.name, "a": _value(pair.a), "b": _value(pair.b), "same": pair.same} for pair in pairs]


def _value(value: Any) -> DiffValue:
    if isinstance(value, Range):
        return {"final": value.final, "lowest": value.lowest, "highest": value.highest}
    if isinstance(value, tuple):
        files: Sequence[File] = value
        return [{"bytes": one.bytes, "contents": one.contents} for one in files]
    found: str | float | None = value
    return found


def diff(sides: Sequence[tuple[Cluster, Reference]]) -> Differences:
    """Compare two runs, each on its nodes, which may be those of the same cluster."""
    clusters = [cluster for cluster, _ in sides]
    a, b = (read_history(cluster, one.job, run=one.run, buckets=BUCKETS, tail=0) for cluster, one in sides)
    contents, trees = read_contents(list(zip(clusters, (a, b), strict=True)))
    errors = _errors((a, b), contents)
    problem = unheard(list(errors.values()), max(len(cluster.nodes) for cluster in clusters))
    return Differences(compare((a, b), contents, trees), (a, b), (contents[0], contents[1]), errors, problem)


def _errors(records: Sequence[RunRecord], contents: Sequence[Contents]) -> dict[str | None, ClusterctlError]:
    """Return, by node, the reason why a part of the comparison is missing."""
    silent = [NodeError(one.problem or "", node=one.node.label) for record in records for one in record.silent]
    errors = [*silent, *(error for one in contents for error in one.errors)]
    return {error.node: error for error in reversed(errors)}


def run_to_compare(cluster: Cluster, text: str) -> Reference:
    """Return the run that a user named as `run_of` does, without asking the nodes where a text is clear."""
    return Reference(*run_ref(cluster.settings, text)) if "/" in text else run_of(cluster, text)


def run_ref(settings: Settings, text: str) -> tuple[str | None, str | None]:
    """Return the job and the run (None: the newest) of JOB or JOB/RUN. A directory in ROOT_DIR is a job, too."""
    job, _, number = text.rstrip("/").rpartition("/")
    whole = job_ref(settings, text)
    if job and number.isascii() and number.isdigit() and len(number) < 10 and "/" in (whole or ""):
        return job_ref(settings, job), f"{int(number):04d}"
    return whole, None
