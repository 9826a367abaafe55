"""Downloads a run's logs, outputs and newest complete model, verifies them, and merges the model.

DIR/job                      the id of the job that the files belong to
DIR/node-K/log/..., DIR/node-K/output/...
DIR/model/model.safetensors
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.cluster import NONSENSE, Cluster, NodeOutcome
from clusterctl.cluster.run_answers import RunWarning
from clusterctl.collect.copies import Pieces, bring_merged
from clusterctl.collect.receive import MOST_FILES, TOPS, Collected, Left, Received, Report, receive, refuse
from clusterctl.common.manifest import NAME, is_scheduled_tag, is_tag, read_manifest
from clusterctl.errors import ClusterctlError, NodeError, RefusedError, UsageError
from clusterctl.inventory import Node

MARK = "job"


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
    """The models to bring, chosen from the list of the lead's node, or if that fails, from those of all others.

    `tag` is the one to merge, `bring` the scheduled ones to bring (None: all). `models` is None if no node listed any.
    """

    def __init__(self, selection: Selection, job: str, members: Sequence[Node]) -> None:
        self._selection = selection
        self._job = job
        self._lead = members[0].id
        self._missing = {node.id for node in members}
        self._lists: list[Sequence[Model]] = []
        self._changed = threading.Condition()
        self._error: UsageError | None = None
        self.models: tuple[Model, ...] | None = None
        self.tag = selection.tag
        self.bring = None if selection.every or selection.tag is None else [selection.tag]

    def offer(self, node: Node, models: Sequence[Model] | None) -> None:
        """Take the list of a node; None, or nothing before, if the node failed."""
        with self._changed:
            is_new = node.id in self._missing
            self._missing.discard(node.id)
            if is_new and models is not None:
                self._lists.append(models)
                if node.id == self._lead:
                    self._make(models)
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait for the choice. Raises UsageError if there is nothing to choose."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_made() or not self._missing)
            if not self._is_made():
                self._make(self._agreed())
            if self._error is not None:
                raise self._error

    def _is_made(self) -> bool:
        return self.models is not None or self._error is not None

    def _agreed(self) -> list[Model]:
        """Return the models that most nodes list, or if there are none, all of them."""
        counts = Counter(model for models in self._lists for model in set(models))
        most = [model for model, count in counts.items() if 2 * count > len(self._lists)]
        return most or list(counts)

    def _make(self, models: Sequence[Model]) -> None:
        in_order = [model.tag for model in sorted(models, key=lambda model: (model.step, model.tag))]
        if self.tag is not None and self.tag not in in_order:
            hint = f"it has: {', '.join(in_order) or 'none'}"
            self._error = UsageError(f"the run of {self._job} has no complete model {self.tag}", hint=hint)
            return
        if self.tag is None and in_order:
            self.tag = in_order[-1]
            self.bring = None if self._selection.every else [self.tag]
        self.models = tuple(models)

    @property
    def model(self) -> Model | None:
        """The model to merge."""
        return next((model for model in self.models or () if model.tag == self.tag), None)


def collect(
    cluster: Cluster,
    members: Sequence[Node],
    job: str,
    target: Path,
    report: Report,
    selection: Selection,
) -> Collection:
    """Collect from the `members` of the run, the lead first; nodes that fail are among the outcomes.

    `report` gets the bytes of each node done so far and in total, from several threads.
    Removes files of an earlier collection that this one did not bring, since they belong to another run; models of the
    same run stay. Raises RefusedError if `target` holds anything else, UsageError if the selected model is unknown.
    """
    _claim(target, job)
    choice = Choice(selection, job, members)
    lead = members[0]
    ids = {node.id for node in members}
    request = {"op": "collect", "ref": job, "run": selection.run}

    def one(node: Node) -> Received:
        try:
            with cluster.call(node, request) as call:
                choice.offer(node, _listed(node, call.receive()))
                choice.wait()
                call.send({"bring": choice.bring})
                return receive(call, target, report)
        finally:
            choice.offer(node, None)

    outcomes = cluster.map(one, members)
    received = [outcome.get() for outcome in outcomes if outcome.ok]
    files = [file for one_node in received for file in one_node.files]
    left = [path for one_node in received for path in one_node.left]
    answered = [outcome.node for outcome in outcomes if outcome.ok]
    pieces = Pieces(target, choice.model.tag, files) if choice.model else None
    copies = pieces.complete(cluster, answered, request, report) if pieces is not None else []
    files += copies
    stay = _models_to_keep(target, lead, selection.run, choice)
    for outcome in outcomes:
        if outcome.ok:
            _remove_others(target, outcome.node, files, stay)
    for node in cluster.inventory.nodes if received else ():
        if node.id not in ids:
            _remove_others(target, node, [], stay)
    shutil.rmtree(target / "model", ignore_errors=True)
    model = _merge(target, pieces) if pieces is not None and pieces.are_whole else None
    if model is None and pieces is not None and lead in answered:
        model = bring_merged(cluster, lead, {**request, "model": choice.model}, target, pieces.tag, report)
    if model is None and pieces is not None and len(answered) == len(members):
        model = _merge(target, pieces)  # which says what is missing
    more = sum(is_scheduled_tag(model.tag) for model in choice.models or ()) - 1 if choice.bring else 0
    warnings = [warning for one_node in received for warning in one_node.warnings]
    return Collection(files, left, outcomes, model, choice.tag, max(0, more), warnings)


def _listed(node: Node, message: Any) -> list[Model]:
    """Return the models that a node lists."""
    rows = message.get("models")
    sound = isinstance(rows, list) and len(rows) <= MOST_FILES and all(map(_is_model, rows))
    if not sound:
        raise refuse(node, "a malformed list of models")
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


def _merge(target: Path, pieces: Pieces) -> Path:
    """Merge a complete model; return its path."""
    from clusterctl.runtime import merge_model
    from clusterctl.runtime.errors import RuntimeFailure

    model = target / "model" / "model.safetensors"
    model.parent.mkdir()
    try:
        merge_model(pieces.directories, model)
    except (RuntimeFailure, MemoryError, *NONSENSE) as exc:
        raise NodeError(
            f"cannot merge the model of {pieces.tag}: {exc}", hint=f"its files are in {target}/node-*/output/"
        ) from exc
    return model
