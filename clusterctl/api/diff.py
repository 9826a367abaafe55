"""Compare two runs: their records and what they ran on the nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterctl.api.opening import CallResult
from clusterctl.cluster import Cluster
from clusterctl.documents.jobs import ChangedFiles, DiffDocument, DiffRow, DiffSide, DiffValue
from clusterctl.errors import ClusterctlError, NodeError
from clusterctl.observe.record.compare import Pair, Range, RunDiff, compare
from clusterctl.observe.record.contents import Contents, File, read_contents
from clusterctl.observe.record.history import read_history
from clusterctl.observe.record.model import RunRecord
from clusterctl.observe.record.references import Reference, job_ref, run_of
from clusterctl.observe.record.status import unheard

BUCKETS = 200
NO_SECTIONS = ("a", "b", "changed_since")


@dataclass(frozen=True)
class Difference:
    """A value that differs between two runs; None where it is missing. `section` is that of `clusterctl diff`."""

    section: str
    name: str
    a: Any
    b: Any


@dataclass(frozen=True)
class Comparison(CallResult):
    """The `differences` of two runs. `errors` are those of nodes whose part is missing.

    `changed` is how many files of a job were changed on a node since the dispatch; they are compared as dispatched.
    """

    differences: tuple[Difference, ...]
    errors: tuple[ClusterctlError, ...]
    compared: RunDiff = field(repr=False, compare=False)
    changed: Mapping[str, Mapping[int, int]] = field(repr=False, compare=False)


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


def diff(sides: Sequence[tuple[Cluster, Reference]]) -> Comparison:
    """Compare two runs, each on its nodes, which may be those of the same cluster."""
    clusters = [cluster for cluster, _ in sides]
    a, b = (read_history(cluster, one.job, run=one.run, buckets=BUCKETS, tail=0) for cluster, one in sides)
    contents, trees = read_contents(list(zip(clusters, (a, b), strict=True)))
    errors = _errors((a, b), contents)
    compared = compare((a, b), contents, trees)
    document = document_of(compared)
    of_sides = list(zip(("a", "b"), (a, b), contents, strict=True))
    changed: list[ChangedFiles] = [
        {"side": side, "node": node, "files": count} for side, _, one in of_sides for node, count in one.changed.items()
    ]
    if changed:
        document["changed_since"] = changed
    return Comparison(
        tuple(_differences(document)),
        tuple(errors),
        compared,
        {record.job: dict(one.changed) for _, record, one in of_sides},
        document=document,
        problem=unheard(errors, max(len(cluster.nodes) for cluster in clusters)),
    )


def _differences(document: Mapping[str, Any]) -> Iterator[Difference]:
    for section, rows in document.items():
        for row in rows if section not in NO_SECTIONS else ():
            if not row["same"]:
                yield Difference(section, row["name"], row["a"], row["b"])


def _errors(records: Sequence[RunRecord], contents: Sequence[Contents]) -> list[ClusterctlError]:
    """Return, for each node, the reason why a part of the comparison is missing."""
    silent = [NodeError(one.problem or "", node=one.node.label) for record in records for one in record.silent]
    errors = [*silent, *(error for one in contents for error in one.errors)]
    return list({error.node: error for error in reversed(errors)}.values())


def run_to_compare(cluster: Cluster, text: str) -> Reference:
    """Return the run that a user named as `run_of` does, without asking the nodes where a text is clear."""
    return Reference(*run_ref(cluster.settings.root_dir, text)) if "/" in text else run_of(cluster, text)


def run_ref(root_dir: str, text: str) -> tuple[str | None, str | None]:
    """Return the job and the run (None: the newest) of JOB or JOB/RUN. A directory in ROOT_DIR is a job, too."""
    job, _, number = text.rstrip("/").rpartition("/")
    whole = job_ref(root_dir, text)
    if job and number.isascii() and number.isdigit() and len(number) < 10 and "/" in (whole or ""):
        return job_ref(root_dir, job), f"{int(number):04d}"
    return whole, None
