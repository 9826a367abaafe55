"""`start --adopt`: record a directory that was deployed by hand as a job on all nodes, and compare its files."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterctl.cluster import Cluster, NodeOutcome, raise_failures
from clusterctl.common.paths import is_job_id, is_job_name
from clusterctl.errors import ClusterctlError, NodeError, RefusedError
from clusterctl.inventory import Node

HASH_S = 600.0  # until the next sign of life, on a slow disk
MOST_ROWS = 10_000_000


@dataclass(frozen=True)
class Adopted:
    """A directory on the nodes. `files` and `bytes` are those of the node that has most.

    `differ` are the files whose contents are not the same on all nodes, `missing` those that some nodes lack.
    `unrecorded` is the number of sockets, pipes and devices on all nodes. `failed` are the errors of nodes.
    """

    job: str
    files: int
    bytes: int
    unrecorded: int
    differ: tuple[str, ...]
    missing: tuple[str, ...]
    failed: Mapping[int, ClusterctlError]

    def to_json(self) -> dict[str, Any]:
        counts = {"files": self.files, "bytes": self.bytes, "differ": len(self.differ), "missing": len(self.missing)}
        return {"job": self.job, **counts}


class Comparison:
    """The files of several nodes: their contents on the first node that has them. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._nodes: dict[str, int] = {}
        self._differ: set[str] = set()
        self._count = 0
        self._lock = threading.Lock()

    def add(self, files: Iterable[tuple[str, str]]) -> None:
        """Add all files of one node."""
        with self._lock:
            self._count += 1
            for path, contents in files:
                if self._known.setdefault(path, contents) != contents:
                    self._differ.add(path)
                self._nodes[path] = self._nodes.get(path, 0) + 1

    @property
    def differ(self) -> tuple[str, ...]:
        return tuple(sorted(self._differ))

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(sorted(path for path, nodes in self._nodes.items() if nodes < self._count))


def adopt(cluster: Cluster, ref: str, *, allow_partial: bool = False) -> Adopted:
    """Record the directory `ref`, the name of one directly below ROOT_DIR, on all nodes.

    Raises RefusedError if it can be no job, and the nodes' errors. With `allow_partial` the errors of nodes that cannot
    be reached or fail are in `failed`.
    """
    _check_name(ref, cluster.settings.root_dir)
    comparison = Comparison()

    def one(node: Node) -> dict[str, int]:
        request = {"op": "adopt", "job": ref, "node": node.id, "nodes": len(cluster.inventory.nodes)}
        files: list[tuple[str, str]] = []
        with cluster.call(node, request, answer_s=HASH_S) as call:
            message = call.receive(HASH_S)
            while "rows" in message and len(files) < MOST_ROWS:
                files += [(str(path), str(contents)) for path, contents in message["rows"]]
                message = call.receive(HASH_S)
        comparison.add(files)
        return {name: int(message["done"][name]) for name in ("files", "bytes", "unrecorded")}

    outcomes = cluster.map(one)
    failed = {outcome.node.id: outcome.error for outcome in outcomes if outcome.error}
    if failed and not (allow_partial and _may_go_on(outcomes)):
        raise_failures(outcomes, "adopt")
    done = [outcome.get() for outcome in outcomes if outcome.ok]
    sizes = {name: max(one[name] for one in done) for name in ("files", "bytes")}
    unrecorded = sum(one["unrecorded"] for one in done)
    return Adopted(ref, sizes["files"], sizes["bytes"], unrecorded, comparison.differ, comparison.missing, failed)


def _may_go_on(outcomes: Sequence[NodeOutcome[Any]]) -> bool:
    """Return True if some node has the directory, and none refused it for safety."""
    none_refused = all(outcome.error is None or isinstance(outcome.error, NodeError) for outcome in outcomes)
    return none_refused and any(outcome.ok for outcome in outcomes)


def _check_name(ref: str, root_dir: str) -> None:
    if "/" in ref or ref.startswith("~"):
        parent, _, name = ref.rpartition("/")
        raise RefusedError(
            f"{ref} is not directly below ROOT_DIR, which is {root_dir}",
            hint=f"move it to {root_dir.rstrip('/')}/{name} on all nodes, or set ROOT_DIR = {parent!r} in conf.py",
        )
    if is_job_id(ref):
        raise RefusedError(
            f"{ref} is named like a job of clusterctl dispatch",
            hint="start it without --adopt; if it was deployed by hand, rename it on all nodes",
        )
    if not is_job_name(ref):
        raise RefusedError(
            f"{ref!r} cannot be the name of a job",
            hint="rename the directory on all nodes: up to 100 letters, digits and ._- , and first a letter or digit",
        )
