"""Downloads a run's logs, outputs and newest complete model, verifies them, and merges the model.

DIR/job                      the id of the job that the files belong to
DIR/node-K/log/..., DIR/node-K/output/...
DIR/model/model.safetensors
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from clusterctl import runtime
from clusterctl.cluster import NONSENSE, Cluster, NodeOutcome
from clusterctl.collect.choice import Choice, ModelSelection, listed_by
from clusterctl.collect.copies import Pieces, download_merged
from clusterctl.collect.receive import PARTS, EarlierFiles, Left, Received, Receiver, Report
from clusterctl.common.errors import first_of
from clusterctl.common.events import RunWarning
from clusterctl.common.manifest import NAME, is_scheduled_tag, read_manifest
from clusterctl.common.requests import CollectRequest
from clusterctl.common.transfer_messages import TOPS, BringOrder
from clusterctl.documents.jobs import CollectedFile, Skipped
from clusterctl.errors import ClusterctlError, NodeError, RefusedError
from clusterctl.inventory import Node

MARK = "job"
ANOTHER = "choose another directory: collect -o DIR"
SHOWN = 3
MOST_TRIED = 100  # models


@dataclass(frozen=True)
class Collection:
    """`tag` is that of the merged `model`, or else of the one that was chosen; `skipped` are newer ones that cannot be
    completed, and `more_models` is the number of complete scheduled ones that stayed on the nodes.
    """

    files: list[CollectedFile]
    left: list[Left]
    outcomes: list[NodeOutcome[Received]]
    model: Path | None
    tag: str | None
    more_models: int = 0
    warnings: Sequence[RunWarning] = ()
    skipped: Sequence[Skipped] = ()


def collect(
    cluster: Cluster,
    members: Sequence[Node],
    job: str,
    target: Path,
    report: Report,
    selection: ModelSelection,
) -> Collection:
    """Collect from the `members` of the run, the lead first; nodes that fail are among the outcomes.

    `report` gets the bytes of each node done so far and in total, from several threads. What an earlier collection has
    brought, in part or whole, is not sent again. Removes files of an earlier one that this one did not bring, since
    they belong to another run; models of the same run stay. Raises RefusedError if `target` holds anything else, or
    another collection is writing to it; UsageError if the selected model is unknown.
    """
    with _claimed(target, job):
        return _collect(cluster, members, job, target, report, selection)


def _collect(
    cluster: Cluster,
    members: Sequence[Node],
    job: str,
    target: Path,
    report: Report,
    selection: ModelSelection,
) -> Collection:
    choice = Choice(selection, job, members)
    lead = members[0]
    ids = {node.id for node in members}
    request: CollectRequest = {"op": "collect", "ref": job, "run": selection.run}

    def one(node: Node) -> Received:
        try:
            with cluster.call(node, request) as call:
                choice.offer(node, listed_by(node, call.receive()))
                earlier = EarlierFiles(target, node, whole=True)
                choice.wait()
                order: BringOrder = {"bring": choice.bring, "have": earlier.known()}
                call.send(order)
                return Receiver(call, target, report, earlier).receive()
        finally:
            choice.offer(node, None)

    outcomes = cluster.map(one, members)
    received = [outcome.get() for outcome in outcomes if outcome.ok]
    files = [file for one_node in received for file in one_node.files]
    left = [path for one_node in received for path in one_node.left]
    answered = [outcome.node for outcome in outcomes if outcome.ok]
    shutil.rmtree(target / "model", ignore_errors=True)
    merged, skipped = _complete(cluster, choice, answered, lead, target, request, files, report)
    stay = _models_to_keep(target, lead, selection.run, choice)
    for outcome in outcomes:
        if outcome.ok:
            _remove_others(target, outcome.node, files, stay)
    for node in cluster.inventory.nodes if received else ():
        if node.id not in ids:
            _remove_others(target, node, [], stay)
    if merged is None and choice.tag is not None and len(answered) == len(members):
        merged = choice.tag, _merge(target, Pieces(target, choice.tag, files))  # which says what is missing
    if len(answered) == len(members):
        shutil.rmtree(target / PARTS, ignore_errors=True)
    for place in (*(target / PARTS).glob("*"), target / PARTS):
        with contextlib.suppress(OSError):  # it has parts
            place.rmdir()
    tag, path = merged or (choice.tag, None)
    gone = {choice.tag, tag, *(one.tag for one in skipped)}
    more = sum(is_scheduled_tag(model.tag) and model.tag not in gone for model in choice.models or ())
    warnings = [warning for one_node in received for warning in one_node.warnings]
    return Collection(files, left, outcomes, path, tag, more if choice.bring else 0, warnings, skipped)


def _complete(
    cluster: Cluster,
    choice: Choice,
    answered: Sequence[Node],
    lead: Node,
    target: Path,
    request: CollectRequest,
    files: list[CollectedFile],
    report: Report,
) -> tuple[tuple[str, Path] | None, list[Skipped]]:
    """Merge the newest model that can be completed. Return its tag and path, and the newer ones.

    Adds to `files` what it brings.
    """
    skipped = []
    if lead not in answered:
        skipped = [
            Skipped(tag, "its manifest is on none of the nodes that answered") for tag in choice.unknown(answered)
        ]
    for model in itertools.islice(choice.candidates(), MOST_TRIED):
        lacking = choice.lacks(model, answered)
        pieces = Pieces(target, model.tag, files)
        if not lacking or model.tag == choice.tag:
            files += pieces.complete(cluster, answered, request, report, originals=model.tag != choice.tag)
        path = _merge(target, pieces) if pieces.are_whole else None
        if path is None and lead in answered and choice.was_merged(model):
            path = download_merged(cluster, lead, request, model, target, report)
        if path is not None:
            return (model.tag, path), skipped
        skipped.append(Skipped(model.tag, _why_not(lacking, pieces)))
    return None, skipped


def _why_not(lacking: Sequence[str], pieces: Pieces) -> str:
    names = first_of(lacking or pieces.missing, SHOWN)
    if lacking:
        return f"{names} {'is' if len(lacking) == 1 else 'are'} on none of the nodes that answered"
    return f"no node sent an undamaged {names}" if names else "its manifest is on none of the nodes that answered"


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


def _remove_others(target: Path, node: Node, files: Sequence[CollectedFile], stay: set[str] | None) -> None:
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


@contextlib.contextmanager
def _claimed(target: Path, job: str) -> Iterator[None]:
    """Hold the lock of a new or empty directory, or of an earlier collection of the same job."""
    mark = target / MARK
    if target.exists() and not target.is_dir():
        raise RefusedError(f"{target} is a file", hint=ANOTHER)
    try:
        if target.is_dir() and any(target.iterdir()) and not mark.is_file():
            raise RefusedError(f"{target} contains other files", hint=ANOTHER)
        target.mkdir(parents=True, exist_ok=True)
        file = mark.open("a+")
    except OSError as exc:
        raise ClusterctlError(f"cannot write to {target}: {exc.strerror}") from exc
    with file:
        _lock(file, target)
        file.seek(0)
        owner = file.read().strip()
        if owner != job and any(path != mark for path in target.iterdir()):
            files = f"files of {owner}" if owner else "other files"
            raise RefusedError(f"{target} contains {files}", hint=ANOTHER)
        if owner != job:
            file.truncate(0)
            file.write(f"{job}\n")
            file.flush()
        yield


def _lock(file: TextIO, target: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        hint = f"wait until it has finished, or {ANOTHER}"
        raise RefusedError(f"another collect is writing to {target}", hint=hint) from None
    except OSError:  # a file system without locks
        return


def _merge(target: Path, pieces: Pieces) -> Path:
    """Merge a complete model; return its path. Raises NodeError if it cannot be merged."""
    model = target / "model" / "model.safetensors"
    model.parent.mkdir(exist_ok=True)
    try:
        runtime.merge_model(pieces.directories, model)
    except (runtime.RuntimeFailure, MemoryError, *NONSENSE) as exc:
        raise NodeError(
            f"cannot merge the model of {pieces.tag}: {exc}", hint=f"its files are in {target}/node-*/output/"
        ) from exc
    return model
