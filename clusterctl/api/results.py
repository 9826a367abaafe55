"""The values that calls return which look after nodes, or look at runs that are over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.api.operations.check import document
from clusterctl.api.operations.diff import Differences
from clusterctl.api.operations.prune import PruneProposal
from clusterctl.api.operations.setup import SetUp
from clusterctl.check import Finding, Report
from clusterctl.cluster import Cluster
from clusterctl.errors import ClusterctlError
from clusterctl.export import Export


@dataclass(frozen=True)
class Checked:
    """The result of a check. `document` is that of `clusterctl check --json`."""

    findings: tuple[Finding, ...]
    document: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """True if nothing blocks a start."""
        return not any(finding.blocks for finding in self.findings)

    @classmethod
    def of(cls, cluster: Cluster, report: Report) -> Checked:
        return cls(tuple(report.findings), document(cluster, report).to_json())


@dataclass(frozen=True)
class Prepared:
    """Nodes that are ready: the name of the environment of each, by id, and the ids of those where it was `built` now.

    `document` is that of `clusterctl setup --json`.
    """

    environments: Mapping[int, str]
    built: tuple[int, ...]
    document: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def of(cls, found: SetUp) -> Prepared:
        ready = {outcome.node.id: outcome.get() for outcome in found.done.outcomes if outcome.ok}
        built = tuple(node for node, one in ready.items() if one.built)
        return cls({node: one.environment for node, one in ready.items()}, built, found.to_json())


@dataclass(frozen=True)
class Pruned:
    """The ids of `jobs` that can go, the number of pieces of `content` that nothing needs, and the `bytes` of both.

    They are gone if they were `removed`. `document` is that of `clusterctl prune --json`.
    """

    jobs: tuple[str, ...]
    content: int
    bytes: int
    removed: bool
    document: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def of(cls, found: PruneProposal, *, removed: bool) -> Pruned:
        plan = found.plan
        jobs = tuple(job.job for job in plan.going)
        return cls(jobs, len(plan.content), plan.bytes, removed, found.document(removed=removed).to_json())


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that is complete: its `tag`, and the `step` after which it was made."""

    tag: str
    step: int


@dataclass(frozen=True)
class Exported:
    """The `files` of an export, and the `count` of points or events in them. `errors` are those of nodes left out."""

    directory: Path
    files: tuple[Path, ...]
    count: int
    errors: tuple[ClusterctlError, ...]

    @classmethod
    def of(cls, written: Export) -> Exported:
        files = tuple(written.directory / name for name in written.files)
        return cls(written.directory, files, written.count, written.errors)


@dataclass(frozen=True)
class Difference:
    """A value that differs between two runs; None where it is missing. `section` is that of `clusterctl diff`."""

    section: str
    name: str
    a: Any
    b: Any


@dataclass(frozen=True)
class Comparison:
    """The `differences` of two runs. `errors` are those of nodes whose part is missing.

    `document` is that of `clusterctl diff --json`.
    """

    differences: tuple[Difference, ...]
    errors: tuple[ClusterctlError, ...]
    document: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def of(cls, found: Differences) -> Comparison:
        document: Mapping[str, Any] = found.to_json()
        rows = [(name, row) for name, rows in document.items() if name not in NO_SECTIONS for row in rows]
        unequal = [Difference(name, row["name"], row["a"], row["b"]) for name, row in rows if not row["same"]]
        return cls(tuple(unequal), tuple(found.errors.values()), document)


NO_SECTIONS = ("a", "b", "changed_since")
