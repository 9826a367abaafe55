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
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterctl.cluster import AgentCall, Cluster, NodeOutcome
from clusterctl.errors import ClusterctlError, NodeError, RefusedError
from clusterctl.inventory import Node

CHUNK_BYTES = 1 << 20
TOPS = ("log", "output")
MARK = "job"


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
        name, size = _checked_name(call.node, message["file"]), int(message["bytes"])
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = _receive_file(call, path, size)
        files.append(Collected(f"node-{call.node.id}/{name}", call.node.id, size, digest))
        on_file(files[-1])


def _checked_name(node: Node, name: str) -> str:
    """A node decides what its files are called, not where they go."""
    parts = name.split("/")
    if parts[0] not in TOPS or len(parts) < 2 or any(p in ("", ".", "..") or "\0" in p for p in parts):
        raise NodeError(f"the node offers a file called {name!r}", node=node.label, hint="is this machine still yours?")
    return posixpath.join(*parts)


def _receive_file(call: AgentCall, path: Path, size: int) -> str:
    digest = hashlib.sha256()
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    left = size
    try:
        with beside.open("wb") as f:
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
    except (RuntimeFailure, ValueError, KeyError, TypeError) as exc:
        raise NodeError(f"cannot merge the model of {tag}: {exc}", hint="its files are here, in output/") from exc
    return model


def newest_complete_tag(target: Path, lead: Node) -> str | None:
    """The tag with the highest step among those whose manifest the lead has written."""
    from clusterctl.runtime.manifest import read_manifest

    found: list[tuple[int, str]] = []
    for path in (target / f"node-{lead.id}" / "output").glob("*/manifest.json"):
        with contextlib.suppress(ValueError, TypeError):
            manifest = read_manifest(path.parent) or {}
            found.append((int(manifest.get("step") or 0), path.parent.name))
    return max(found)[1] if found else None
