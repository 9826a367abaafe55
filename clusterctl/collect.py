"""Brings a job's logs and outputs home, checked, and merges the newest complete model.

DIR/job                      whose files these are
DIR/node-K/log/..., DIR/node-K/output/...
DIR/model/model.safetensors
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterctl.cluster import AgentCall, Cluster, NodeOutcome
from clusterctl.cluster.cluster import NONSENSE
from clusterctl.errors import ClusterctlError, NodeError, RefusedError
from clusterctl.inventory import Node

CHUNK_BYTES = 1 << 20
TOPS = ("log", "output")
MARK = "job"
MOST_FILES = 200_000  # of a node
MOST_LEVELS = 32
LONGEST_NAME = 300  # as far as an error shows it
KEPT_FREE_BYTES = 256 << 20  # of the file system here
#: Nobody names files like this, but to play tricks on a terminal: controls, and what turns text around.
ODD = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class Collected:
    """One file that is home: `path` below the target directory."""

    path: str
    node: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Collection:
    files: list[Collected]
    outcomes: list[NodeOutcome[list[Collected]]]
    model: Path | None
    tag: str | None


def collect(
    cluster: Cluster, members: Sequence[Node], job: str, target: Path, on_file: Callable[[Collected], None]
) -> Collection:
    """Collects from the `members` of the newest run, of which the first one led; a node that fails is among the
    outcomes. Raises RefusedError for a foreign `target`.

    What an earlier collection left there and this one did not bring is removed: it is of another run.
    """
    ids = {node.id for node in members}
    _claim(target, job)

    def one(node: Node) -> list[Collected]:
        with cluster.call(node, {"op": "collect", "ref": job}) as call:
            files = _receive(call, target, on_file)
        _remove_others(target, node, files)
        return files

    outcomes = cluster.map(one, [node for node in cluster.nodes if node.id in ids])
    for node in cluster.inventory.nodes:
        if node.id not in ids:
            _remove_others(target, node, [])
    files = [file for outcome in outcomes if outcome.ok for file in outcome.get()]
    shutil.rmtree(target / "model", ignore_errors=True)
    whole = len(outcomes) == len(ids) and all(outcome.ok for outcome in outcomes)
    tag = newest_complete_tag(target, members[0]) if whole else None
    model = _merge(target, tag, [outcome.node for outcome in outcomes]) if tag else None
    return Collection(files, outcomes, model, tag)


def _remove_others(target: Path, node: Node, files: Sequence[Collected]) -> None:
    brought = {target / file.path for file in files}
    for top in TOPS:
        for path in (target / f"node-{node.id}" / top).rglob("*"):
            if path not in brought and not path.is_dir():
                path.unlink()


def _claim(target: Path, job: str) -> None:
    """Only a new or empty directory, or one that holds an earlier collection of the same job."""
    mark = target / MARK
    held = mark.read_text().strip() if mark.is_file() else None
    if held != job and target.is_dir() and any(target.iterdir()):
        whose = f"files of {held}" if held else "other files"
        raise RefusedError(f"{target} holds {whose}", hint="choose another directory: collect -o DIR")
    if target.exists() and not target.is_dir():
        raise RefusedError(f"{target} is a file", hint="choose another directory: collect -o DIR")
    try:
        target.mkdir(parents=True, exist_ok=True)
        mark.write_text(f"{job}\n")
    except OSError as exc:
        raise ClusterctlError(f"cannot write to {target}: {exc.strerror}") from exc


def _receive(call: AgentCall, target: Path, on_file: Callable[[Collected], None]) -> list[Collected]:
    home = target / f"node-{call.node.id}"
    files: list[Collected] = []
    while True:
        message = call.receive()
        if "done" in message:
            return files
        if len(files) == MOST_FILES:
            raise _refuse(call.node, f"more than {MOST_FILES:,} files", "let the job pack them, or take them by scp")
        name, size = _checked_name(call.node, message["file"]), _checked_size(call.node, message["bytes"], target)
        path = home / name
        _make_directories(call.node, target, path.parent)
        digest = _receive_file(call, path, size)
        files.append(Collected(f"node-{call.node.id}/{name}", call.node.id, size, digest))
        on_file(files[-1])


def _refuse(node: Node, what: str, hint: str = "is this machine still yours?") -> NodeError:
    return NodeError(f"the node offers {what}", node=node.label, hint=hint)


def _checked_name(node: Node, name: object) -> str:
    """A node decides what its files are called, not where they go."""
    parts = name.split("/") if isinstance(name, str) else []
    odd = any(part in ("", ".", "..") or ODD.search(part) for part in parts)
    if len(parts) < 2 or len(parts) > MOST_LEVELS or parts[0] not in TOPS or odd:
        raise _refuse(node, f"a file called {name!r}"[:LONGEST_NAME])
    return posixpath.join(*parts)


def _checked_size(node: Node, size: object, target: Path) -> int:
    """One that fits: a node does not fill the disk of this machine."""
    if not isinstance(size, int) or size < 0:
        raise _refuse(node, f"a file of {size!r} bytes"[:LONGEST_NAME])
    free = shutil.disk_usage(target).free - KEPT_FREE_BYTES
    if size > free:
        raise _refuse(node, f"a file of {size:,} bytes, and {target} has room for {max(0, free):,}", "collect -o DIR")
    return size


def _make_directories(node: Node, target: Path, directory: Path) -> None:
    """All below `target`, which are directories, and no links to elsewhere."""
    for level in [*reversed(directory.relative_to(target).parents), directory.relative_to(target)]:
        place = target / level
        place.mkdir(exist_ok=True)
        if place.is_symlink() and place != target:
            raise NodeError(f"{place} is a link", node=node.label, hint="collect -o DIR, into a directory of your own")


def _receive_file(call: AgentCall, path: Path, size: int) -> str:
    digest = hashlib.sha256()
    beside = path.with_name(f".{os.getpid()}.part")
    beside.unlink(missing_ok=True)
    left = size
    try:
        with beside.open("xb") as f:
            while left:
                data = call.read(min(left, CHUNK_BYTES))
                f.write(data)
                digest.update(data)
                left -= len(data)
        if call.receive()["sha256"] != digest.hexdigest():
            raise NodeError(f"{path.name} arrived damaged", node=call.node.label, hint="collect again")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return digest.hexdigest()


def _merge(target: Path, tag: str, nodes: Sequence[Node]) -> Path:
    """The merged model of a tag that is complete."""
    from clusterctl.runtime import merge_model
    from clusterctl.runtime.errors import RuntimeFailure

    sources = [target / f"node-{node.id}" / "output" / tag for node in nodes]
    model = target / "model" / "model.safetensors"
    model.parent.mkdir()
    try:
        merge_model([source for source in sources if source.is_dir()], model)
    except (RuntimeFailure, MemoryError, *NONSENSE) as exc:
        raise NodeError(f"cannot merge the model of {tag}: {exc}", hint="its files are here, in output/") from exc
    return model


def newest_complete_tag(target: Path, lead: Node) -> str | None:
    """The tag with the highest step among those whose manifest the lead has written."""
    from clusterctl.common.manifest import read_manifest

    found: list[tuple[int, str]] = []
    for path in (target / f"node-{lead.id}" / "output").glob("*/manifest.json"):
        with contextlib.suppress(*NONSENSE):
            manifest = read_manifest(path.parent) or {}
            found.append((int(manifest.get("step") or 0), path.parent.name))
    return max(found)[1] if found else None
