"""`start --adopt`: record a directory that was deployed by hand as a job on all nodes, and compare its files."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from clusterctl.cluster import Cluster, NodeOutcome, raise_failures
from clusterctl.common.paths import is_job_id, is_job_name
from clusterctl.common.requests import AdoptRequest
from clusterctl.documents.jobs import AdoptedDocument
from clusterctl.errors import ClusterctlError, NodeError, RefusedError
from clusterctl.inventory import Node

HASH_S = 600.0  # until the next sign of life, on a slow disk
MOST_ROWS = 10_000_000  # of a node, also if they are those of others
FEWEST_ROWS = 100  # as which a message counts; agents send 1,000, and what is left
MOST_BYTES = 128 << 20  # of memory, for all nodes
ROW_BYTES = 200  # of a path's entries in dictionaries


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

    def to_json(self) -> AdoptedDocument:
        return {
            "job": self.job,
            "files": self.files,
            "bytes": self.bytes,
            "differ": len(self.differ),
            "missing": len(self.missing),
        }


class AdoptedFiles:
    """The files of several nodes. Each path is kept once, with a digest of its contents. Thread-safe."""

    def __init__(self) -> None:
        self._bytes = 0
        self._nodes = self._whole = 0  # a bit for each node, as below
        self._first: dict[str, bytes] = {}
        self._like_first: dict[str, int] = {}
        self._others: dict[tuple[str, bytes], int] = {}
        self._lock = threading.Lock()

    def begin(self) -> int:
        """Return a new node."""
        with self._lock:
            self._nodes += 1
            return 1 << self._nodes

    def put(self, node: int, files: Iterable[tuple[str, str]]) -> None:
        """Add files of a node. Raises NodeError if those of all nodes take too much memory."""
        with self._lock:
            for path, contents in files:
                digest = blake2b(contents.encode(errors="surrogatepass"), digest_size=16).digest()
                if self._first.setdefault(path, digest) == digest:
                    known = self._like_first.get(path, 0)
                    self._like_first[path] = known | node
                else:
                    known = self._others.get((path, digest), 0)
                    self._others[path, digest] = known | node
                self._bytes += 0 if known else sys.getsizeof(path) + ROW_BYTES
                if self._bytes > MOST_BYTES:
                    raise NodeError(
                        f"its list of files and those of other nodes take over {MOST_BYTES >> 20} MB of memory",
                        hint="move data and outputs out of the directory, and adopt it without them",
                    )

    def end(self, node: int) -> None:
        """Count a node: all its files have been added. One that fails earlier does not count."""
        with self._lock:
            self._whole |= node

    def add(self, files: Iterable[tuple[str, str]]) -> None:
        """Add all files of one node."""
        node = self.begin()
        self.put(node, files)
        self.end(node)

    @property
    def differ(self) -> tuple[str, ...]:
        others = Counter(path for (path, _), nodes in self._others.items() if nodes & self._whole)
        return tuple(
            sorted(path for path, count in others.items() if count > 1 or self._like_first[path] & self._whole)
        )

    @property
    def missing(self) -> tuple[str, ...]:
        nodes = dict(self._like_first)
        for (path, _), others in self._others.items():
            nodes[path] |= others
        return tuple(sorted(path for path, on in nodes.items() if 0 < on & self._whole < self._whole))


def adopt(cluster: Cluster, ref: str, *, allow_partial: bool = False) -> Adopted:
    """Record the directory `ref`, the name of one directly below ROOT_DIR, on all nodes.

    Raises RefusedError if it can be no job, and the nodes' errors. With `allow_partial` the errors of nodes that cannot
    be reached or fail are in `failed`.
    """
    _check_name(ref, cluster.settings.root_dir)
    comparison = AdoptedFiles()

    def one(node: Node) -> dict[str, int]:
        request: AdoptRequest = {"op": "adopt", "job": ref, "node": node.id, "nodes": len(cluster.inventory.nodes)}
        number = comparison.begin()
        with cluster.call(node, request, answer_s=HASH_S) as call:
            rows = 0
            while "rows" in (message := call.receive(HASH_S)):
                comparison.put(number, ((str(path), str(contents)) for path, contents in message["rows"]))
                rows += max(FEWEST_ROWS, len(message["rows"]))
                if rows > MOST_ROWS:
                    raise NodeError(f"it lists more than {MOST_ROWS:,} files")
        comparison.end(number)
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
