"""Downloads a run's logs, outputs and newest complete model, verifies them, and merges the model.

DIR/job                      the id of the job that the files belong to
DIR/node-K/log/..., DIR/node-K/output/...
DIR/model/model.safetensors
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.cluster import NONSENSE, AgentCall, Cluster, NodeOutcome
from clusterctl.cluster.answers import WARNINGS, RunWarning
from clusterctl.common.manifest import NAME, is_scheduled_tag, is_tag, read_manifest
from clusterctl.common.tree import ODD_CHARACTERS
from clusterctl.errors import ClusterctlError, NodeError, RefusedError, UsageError
from clusterctl.inventory import Node

CHUNK_BYTES = 1 << 20
TOPS = ("log", "output")
MARK = "job"
MOST_FILES = 200_000  # per node
MOST_LEFT = 100  # per node, that are listed
KINDS = ("link", "special", "name")
MOST_LEVELS = 32
LONGEST_NAME = 300  # characters of a name shown in an error
KEPT_FREE_BYTES = 256 << 20  # on the local file system
LATEST_NS = 1 << 62  # as a time of change


@dataclass(frozen=True)
class Collected:
    """One downloaded file: `path` is relative to the target directory."""

    path: str
    node: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Left:
    """A path that was left on a node: a "link", a "special" file, or one with a "name" that could harm a terminal.

    `more`: as many others of this node are not listed.
    """

    node: int
    path: str
    kind: str
    more: int = 0


@dataclass(frozen=True)
class Model:
    """A complete model, as the lead's node lists it."""

    tag: str
    run: str
    step: int


@dataclass(frozen=True)
class Selection:
    """What to collect: a `run` (None: the job never ran), and the model `tag` (None: the newest) or `every` model."""

    run: str | None
    tag: str | None = None
    every: bool = False


@dataclass(frozen=True)
class Received:
    files: list[Collected]
    left: list[Left]
    warnings: list[RunWarning]


@dataclass(frozen=True)
class Collection:
    """`tag` is that of the merged `model`; `more_models`: as many complete scheduled ones stayed on the nodes."""

    files: list[Collected]
    left: list[Left]
    outcomes: list[NodeOutcome[Received]]
    model: Path | None
    tag: str | None
    more_models: int = 0
    warnings: Sequence[RunWarning] = ()


class Choice:
    """The models to bring, chosen from the list of the lead's node; the other nodes wait for it.

    `tag` is the one to merge, `bring` the scheduled ones to bring (None: all). `models` is None if that node failed.
    """

    def __init__(self, selection: Selection, job: str) -> None:
        self._selection = selection
        self._job = job
        self._made = threading.Event()
        self._error: UsageError | None = None
        self.models: tuple[Model, ...] | None = None
        self.tag = selection.tag
        self.bring = None if selection.every or selection.tag is None else [selection.tag]

    def make(self, models: Sequence[Model]) -> None:
        """Choose among the complete models of the run. Raises UsageError if the selected one is not among them."""
        in_order = [model.tag for model in sorted(models, key=lambda model: (model.step, model.tag))]
        if self.tag is not None and self.tag not in in_order:
            hint = f"it has: {', '.join(in_order) or 'none'}"
            self._error = UsageError(f"the run of {self._job} has no complete model {self.tag}", hint=hint)
            raise self._error
        if self.tag is None and in_order:
            self.tag = in_order[-1]
            self.bring = None if self._selection.every else [self.tag]
        self.models = tuple(models)

    def end(self) -> None:
        """Let the others go on: the choice is made, or the node that should list the models failed."""
        self._made.set()

    def wait(self) -> None:
        """Wait for the choice. Raises UsageError if there is nothing to choose."""
        self._made.wait()
        if self._error is not None:
            raise self._error


def collect(
    cluster: Cluster,
    members: Sequence[Node],
    job: str,
    target: Path,
    on_file: Callable[[Collected], None],
    selection: Selection,
) -> Collection:
    """Collect from the `members` of the run, the lead first; nodes that fail are among the outcomes.

    Removes files of an earlier collection that this one did not bring, since they belong to another run; models of the
    same run stay. Raises RefusedError if `target` holds anything else, UsageError if the selected model is unknown.
    """
    _claim(target, job)
    choice = Choice(selection, job)
    lead = members[0]
    ids = {node.id for node in members}

    def one(node: Node) -> Received:
        request = {"op": "collect", "ref": job, "run": selection.run}
        try:
            with cluster.call(node, request) as call:
                models = _listed(node, call.receive())
                if node is lead:
                    choice.make(models)
                    choice.end()
                choice.wait()
                call.send({"bring": choice.bring})
                return _receive(call, target, on_file)
        finally:
            if node is lead:
                choice.end()

    outcomes = cluster.map(one, members)
    received = [outcome.get() for outcome in outcomes if outcome.ok]
    files = [file for one_node in received for file in one_node.files]
    left = [path for one_node in received for path in one_node.left]
    stay = _models_to_keep(target, lead, selection.run, choice)
    for outcome in outcomes:
        if outcome.ok:
            _remove_others(target, outcome.node, outcome.get().files, stay)
    for node in cluster.inventory.nodes if received else ():
        if node.id not in ids:
            _remove_others(target, node, [], stay)
    shutil.rmtree(target / "model", ignore_errors=True)
    whole = choice.models and choice.tag and all(outcome.ok for outcome in outcomes)
    model = _merge(target, choice.tag, members) if whole and choice.tag else None
    more = sum(is_scheduled_tag(model.tag) for model in choice.models or ()) - 1 if choice.bring else 0
    warnings = [warning for one_node in received for warning in one_node.warnings]
    return Collection(files, left, outcomes, model, choice.tag, max(0, more), warnings)


def _listed(node: Node, message: Any) -> list[Model]:
    """Return the models that a node lists."""
    rows = message.get("models")
    sound = isinstance(rows, list) and len(rows) <= MOST_FILES and all(map(_is_model, rows))
    if not sound:
        raise _refuse(node, "a malformed list of models")
    return [Model(row["tag"], row["run"], row["step"]) for row in rows]


def _is_model(row: object) -> bool:
    if not isinstance(row, dict):
        return False
    return is_tag(row.get("tag")) and isinstance(row.get("run"), str) and isinstance(row.get("step"), int)


def _models_to_keep(target: Path, lead: Node, run: str | None, choice: Choice) -> set[str] | None:
    """Return the tags of models that an earlier collection brought and that are of the same run. None: of any.

    A run that was resumed may have made one again since then.
    """
    if choice.models is None:
        return None
    there = {(model.tag, model.run, model.step) for model in choice.models}
    tags = {model.tag for model in choice.models}
    stay = set()
    for path in (target / f"node-{lead.id}" / "output").glob(f"*/{NAME}"):
        with contextlib.suppress(*NONSENSE):
            known = read_manifest(path.parent) or {}
            tag = path.parent.name
            if (tag, known["run"], known["step"]) in there or (tag not in tags and known["run"] == run):
                stay.add(tag)
    return stay


def _remove_others(target: Path, node: Node, files: Sequence[Collected], stay: set[str] | None) -> None:
    """Remove what was not brought, except the models `stay`; None: all scheduled ones."""
    brought = {target / file.path for file in files}
    home = target / f"node-{node.id}"
    for top in TOPS:
        for path in list((home / top).rglob("*")):
            tag = path.relative_to(home).parts[1]
            kept = top == "output" and (is_scheduled_tag(tag) if stay is None else tag in stay)
            if path not in brought and not path.is_dir() and not kept:
                path.unlink()
                with contextlib.suppress(OSError):  # others are in it
                    path.parent.rmdir()


def _claim(target: Path, job: str) -> None:
    """Accept only a new or empty directory, or an earlier collection of the same job."""
    mark = target / MARK
    owner = mark.read_text().strip() if mark.is_file() else None
    if owner != job and target.is_dir() and any(target.iterdir()):
        files = f"files of {owner}" if owner else "other files"
        raise RefusedError(f"{target} contains {files}", hint="choose another directory: collect -o DIR")
    if target.exists() and not target.is_dir():
        raise RefusedError(f"{target} is a file", hint="choose another directory: collect -o DIR")
    try:
        target.mkdir(parents=True, exist_ok=True)
        mark.write_text(f"{job}\n")
    except OSError as exc:
        raise ClusterctlError(f"cannot write to {target}: {exc.strerror}") from exc


def _receive(call: AgentCall, target: Path, on_file: Callable[[Collected], None]) -> Received:
    home = target / f"node-{call.node.id}"
    files: list[Collected] = []
    count = 0
    while True:
        message = call.receive()
        if "done" in message:
            return Received(files, list(_left(call.node, message["done"])), _warnings(call.node, message["done"]))
        count += 1
        if count > MOST_FILES:
            raise _refuse(call.node, f"more than {MOST_FILES:,} files", "have the job pack them, or copy them with scp")
        if "dir" in message:
            _make_directories(call.node, target, home / _checked_name(call.node, message["dir"]))
            continue
        name, size = _checked_name(call.node, message["file"]), _checked_size(call.node, message["bytes"], target)
        path = home / name
        _make_directories(call.node, target, path.parent)
        digest = _receive_file(call, path, size, _attributes(call.node, message))
        files.append(Collected(f"node-{call.node.id}/{name}", call.node.id, size, digest))
        on_file(files[-1])


def _left(node: Node, done: object) -> Iterator[Left]:
    """Yield what the node reports as left there. Agents of older versions report nothing."""
    rows = done.get("left", []) if isinstance(done, dict) else []
    more = done.get("more", 0) if isinstance(done, dict) else 0
    sound = isinstance(rows, list) and isinstance(more, int) and all(map(_is_row, rows[:MOST_LEFT]))
    if not sound:
        raise _refuse(node, "a malformed list of files")
    for path, kind in rows[:MOST_LEFT]:
        yield Left(node.id, path[:LONGEST_NAME], kind, more)


def _warnings(node: Node, done: object) -> list[RunWarning]:
    """Return the doubts about the run that its lead reports."""
    warnings = done.get("warnings") if isinstance(done, dict) else None
    if not WARNINGS(warnings):
        raise _refuse(node, "malformed warnings")
    return warnings or []


def _is_row(row: object) -> bool:
    return isinstance(row, list) and len(row) == 2 and isinstance(row[0], str) and row[1] in KINDS


def _attributes(node: Node, message: Mapping[str, object]) -> tuple[int, int] | None:
    """Return the mode and the time of change (ns) of a file; None if they are unknown."""
    mode, mtime_ns = message.get("mode"), message.get("mtime_ns")
    if mode is None and mtime_ns is None:
        return None
    if not isinstance(mode, int) or not isinstance(mtime_ns, int) or abs(mtime_ns) > LATEST_NS:
        raise _refuse(node, f"a file of mode {mode!r}, changed at {mtime_ns!r}"[:LONGEST_NAME])
    return mode & 0o777, mtime_ns


def _refuse(node: Node, offer: str, hint: str = "check that the node has not been compromised") -> NodeError:
    return NodeError(f"refused {offer}", node=node.label, hint=hint)


def _checked_name(node: Node, name: object) -> str:
    """Return the checked name: a node chooses the names of its files, but not where they are stored."""
    parts = name.split("/") if isinstance(name, str) else []
    odd = any(part in ("", ".", "..") or ODD_CHARACTERS.search(part) for part in parts)
    if len(parts) < 2 or len(parts) > MOST_LEVELS or parts[0] not in TOPS or odd:
        raise _refuse(node, f"a file named {name!r}"[:LONGEST_NAME])
    return posixpath.join(*parts)


def _checked_size(node: Node, size: object, target: Path) -> int:
    """Return the checked size: a node must not fill the disk of this machine."""
    if not isinstance(size, int) or size < 0:
        raise _refuse(node, f"a file of {size!r} bytes"[:LONGEST_NAME])
    free = shutil.disk_usage(target).free - KEPT_FREE_BYTES
    if size > free:
        hint = "choose a directory on another disk: collect -o DIR"
        raise _refuse(node, f"a file of {size:,} bytes: {target} has room for {max(0, free):,}", hint)
    return size


def _make_directories(node: Node, target: Path, directory: Path) -> None:
    """Create the directories below `target`; they must not be links to elsewhere."""
    for level in [*reversed(directory.relative_to(target).parents), directory.relative_to(target)]:
        path = target / level
        path.mkdir(exist_ok=True)
        if path.is_symlink() and path != target:
            raise NodeError(
                f"{path} is a symbolic link", node=node.label, hint="choose another directory: collect -o DIR"
            )


def _receive_file(call: AgentCall, path: Path, size: int, attributes: tuple[int, int] | None) -> str:
    digest = hashlib.sha256()
    part = path.with_name(f".{os.getpid()}.part")
    part.unlink(missing_ok=True)
    left = size
    try:
        with part.open("xb") as f:
            while left:
                data = call.read(min(left, CHUNK_BYTES))
                f.write(data)
                digest.update(data)
                left -= len(data)
        if call.receive()["sha256"] != digest.hexdigest():
            raise NodeError(
                f"{path.name} arrived damaged: its checksum differs", node=call.node.label, hint="collect again"
            )
        if attributes is not None:
            mode, mtime_ns = attributes
            part.chmod(mode & (part.stat().st_mode | 0o111) | 0o600)  # as far as the umask allows
            os.utime(part, ns=(mtime_ns, mtime_ns))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return digest.hexdigest()


def _merge(target: Path, tag: str, nodes: Sequence[Node]) -> Path:
    """Merge the model of a complete tag; return its path."""
    from clusterctl.runtime import merge_model
    from clusterctl.runtime.errors import RuntimeFailure

    sources = [target / f"node-{node.id}" / "output" / tag for node in nodes]
    model = target / "model" / "model.safetensors"
    model.parent.mkdir()
    try:
        merge_model([source for source in sources if source.is_dir()], model)
    except (RuntimeFailure, MemoryError, *NONSENSE) as exc:
        raise NodeError(
            f"cannot merge the model of {tag}: {exc}", hint=f"its files are in {target}/node-*/output/"
        ) from exc
    return model
