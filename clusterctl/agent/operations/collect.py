"""Send a run's logs and outputs to the control machine: for each file a line, its bytes, and its hash.

First comes a list of the complete models that this node knows of; the answer names the scheduled ones to bring, and the
bytes that are there already. Then comes the total size of the files, for people only, since files may still grow. Empty
directories are sent as `{"dir": path}`. What we merged is not sent: it is merged again at home. The answer lists what
is `left` here as [path, kind]: a "link" or a "special" file could lead anywhere, and a "name" could harm a terminal.
`common/transfer_messages.py` declares the messages.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from clusterctl.agent.node.checkpoint_files import PIECES, is_merged_by_us, piece_header
from clusterctl.agent.node.jobs import find_job, pick_run, read_state, warnings_of
from clusterctl.agent.node.outputs import ModelDirectory, copied_models, is_part_of_model, models_in, output_places
from clusterctl.agent.peer import Peer
from clusterctl.common.file_transfer import KnownBytes, OpenedFile, key_of
from clusterctl.common.manifest import MERGED_NAME, is_tag, read_manifest
from clusterctl.common.paths import RunPaths
from clusterctl.common.requests import CollectRequest, CopiesWanted, MergedModel
from clusterctl.common.schema import reader
from clusterctl.common.transfer_messages import (
    BringOrder,
    CollectEnd,
    FileAttributes,
    HeldModel,
    ListedModel,
    ModelsNews,
    ResendOrder,
)
from clusterctl.common.tree import ODD_CHARACTERS

#: The beginnings of names under which we write files before they are whole.
HALF_WRITTEN = (".pserver-", ".manifest.json", ".model.safetensors")
MOST_LEFT = 100  # that are listed
# Rotated in the meantime, and found again by its new name; or a link, a socket, a device without a driver.
NOT_THERE = (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENODEV)


def collect(root: Path, request: CollectRequest, peer: Peer) -> CollectEnd:
    """Send `{"models": [{"tag", "run", "step", "files"}, ...], "held": [{"tag", "step", "files"}, ...]}`: the files of
    each complete model, and those that this node has of any; and `"merged": [{"tag", "run", "step"}, ...]`, the models
    that we merged here. Wait for `{"bring": tags}`, or None for all.

    Then send `{"total": bytes}`, and for each file its `FileAttributes`, the bytes that are not there yet, and
    `{"sha256": ...}`; `{"sent": count}`, and once more what has arrived damaged.
    """
    job = find_job(root, request["ref"])
    run = pick_run(job, request.get("run"))
    if "copies" in request:
        return _send_copies(request["copies"], run, peer)
    places = output_places(job, run)
    models, others = _models(places, run)
    complete = [model for model in models if model.complete]
    known = {model.directory.name for model in complete}
    copied = list(copied_models(run)) if run else []
    complete += [model for model in copied if model.directory.name not in known]
    news: ModelsNews = {
        "models": list(map(_row, complete)),
        "held": _held([*models, *copied]),
        "merged": _merged(places),
    }
    peer.send({**news})
    order: BringOrder = reader(BringOrder)(peer.receive())
    bring, have = order["bring"], _by_key(order.get("have", ()))
    passes = [one.directory for one in models if one.is_scheduled]
    staying = others | {place for place in passes if bring is not None and place.name not in bring}
    sent: dict[str, Path] = {}
    left: list[tuple[str, Literal["link", "special", "name"]]] = []
    log = run.log if run is not None else job.log
    peer.send({"total": sum(_size(path) for _, path in _paths(log, places, staying))})
    for name, path in _paths(log, places, staying):
        kind = _kind(path)
        if re.search(ODD_CHARACTERS, name):
            left.append((name, "name"))
        elif kind == stat.S_IFDIR:
            peer.send({"dir": name})
        elif kind == stat.S_IFREG:
            if _send_file(peer, path, name, have.get(key_of(name), ())):
                sent[name] = path
        elif kind:
            left.append((name, "link" if kind == stat.S_IFLNK else "special"))
    _send_again(peer, sent)
    end: CollectEnd = {
        "job": job.dir.name,
        "dir": str(job.dir),
        "run": run.run if run is not None else None,
        "files": len(sent),
        "left": left[:MOST_LEFT],
        "more": max(0, len(left) - MOST_LEFT),
    }
    if run is not None and (warnings := warnings_of(read_state(run))):
        end["warnings"] = warnings
    return end


def _send_again(peer: Peer, sent: Mapping[str, Path]) -> None:
    """Send once more, from their start, the files that have arrived damaged."""
    peer.send({"sent": len(sent)})
    again: ResendOrder = reader(ResendOrder)(peer.receive())
    for name in again.get("again", ()):
        if name in sent:
            _send_file(peer, sent[name], name)


def _row(model: ModelDirectory) -> ListedModel:
    """Describe a complete model, with the files that its manifest names."""
    files: list[str] = []
    with contextlib.suppress(OSError, ValueError):
        files = [file["file"] for file in (read_manifest(model.directory) or {"files": []})["files"]]
    return {"tag": model.directory.name, "run": model.run, "step": model.step, "files": files}


def _held(models: list[ModelDirectory]) -> list[HeldModel]:
    """Return the pieces that this node has of each model, by tag."""
    rows: dict[str, HeldModel] = {}
    for model in models:
        row = rows.setdefault(model.directory.name, {"tag": model.directory.name, "step": model.step, "files": []})
        row["files"] += sorted({path.name for path in model.directory.glob(PIECES)} - {*row["files"]})
    return list(rows.values())


def _merged(places: list[Path]) -> list[ListedModel]:
    """Return the models that we merged here, each like a complete model."""
    paths = [path for place in places for path in sorted(place.glob(f"*/{MERGED_NAME}")) if is_merged_by_us(path)]
    known = [(path.parent.name, piece_header(path)) for path in paths]
    return [
        {"tag": tag, "run": about["run"], "step": int(about["step"])}
        for tag, about in known
        if is_tag(tag) and "run" in about and str(about.get("step")).isdigit()
    ]


def _send_copies(wanted: CopiesWanted, run: RunPaths | None, peer: Peer) -> CollectEnd:
    """Send the copies of other nodes' pieces of the model `tag`, and its manifest, but no file that is in `have`.

    With `originals` also send the pieces that this node has written; with `merged` its merged model instead.
    """
    tag, have, sent, parts = wanted["tag"], set(wanted["have"]), {}, _by_key(wanted.get("parts", ()))
    merged = wanted.get("merged")
    places = [place / tag / MERGED_NAME for place in output_places(run.job, run)] if run is not None and merged else []
    paths = [path for path in places if merged and is_merged_by_us(path) and _is_of(path, merged)][:1]
    if run is not None and not merged:
        own = _models(output_places(run.job, run), run)[0] if wanted.get("originals") else []
        held = [next((model for model in copied_models(run) if model.directory.name == tag), None)]
        found = [model.directory for model in (*own, *held) if model is not None and model.directory.name == tag]
        paths = [path for directory in found for path in sorted(directory.iterdir()) if is_part_of_model(path.name)]
    for path in paths:
        if path.name not in have:
            have.add(path.name)
            name = f"output/{tag}/{path.name}"
            if _send_file(peer, path, name, parts.get(key_of(name), ())):
                sent[name] = path
    _send_again(peer, sent)
    return {"files": len(sent)}


def _is_of(merged: Path, wanted: MergedModel) -> bool:
    about = piece_header(merged)
    return (about.get("run"), about.get("step")) == (wanted["run"], str(wanted["step"]))


def _kind(path: Path) -> int:
    """Return the type of a file, as in its mode; 0 if it is gone."""
    try:
        return stat.S_IFMT(path.lstat().st_mode)
    except FileNotFoundError:
        return 0


def _size(path: Path) -> int:
    """Return the bytes of a regular file; 0 for everything else."""
    try:
        status = path.lstat()
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _models(places: list[Path], run: RunPaths | None) -> tuple[list[ModelDirectory], set[Path]]:
    """Return the run's models, and the directories of models that later runs have put into places they share."""
    own, others = list(models_in(places[0])), set()
    for model in (model for place in places[1:] for model in models_in(place)):
        if run is not None and model.run == run.run:
            own.append(model)
        else:
            others.add(model.directory)
    return own, others


def _paths(log: Path, outputs: list[Path], staying: set[Path]) -> Iterator[tuple[str, Path]]:
    """Yield all files, links and empty directories with their names, except the models in the directories `staying`."""
    seen: set[str] = set()
    for top, place in [("log", log), *(("output", output) for output in outputs)]:
        for directory, directories, names in os.walk(place):  # does not follow links, nor list all files first
            directories.sort()
            links = [name for name in directories if Path(directory, name).is_symlink()]
            models = Path(directory) in staying
            kept = [name for name in names if not _is_ours(top, name) and not (models and is_part_of_model(name))]
            if Path(directory).parent == place:
                kept = [name for name in kept if name != MERGED_NAME or not is_merged_by_us(Path(directory, name))]
            found = [Path(directory, name) for name in sorted((*kept, *links))]
            if not names and not directories and directory != str(place):
                found.append(Path(directory))
            for path in found:
                name = f"{top}/{path.relative_to(place).as_posix()}"
                if name not in seen:
                    seen.add(name)
                    yield name, path


def _is_ours(top: str, name: str) -> bool:
    """Return True for the indexes of logs, and for files that are not whole yet."""
    return name.startswith("." if top == "log" else HALF_WRITTEN)


def _send_file(peer: Peer, path: Path, name: str, known: Sequence[KnownBytes] = ()) -> bool:
    """Send what the control machine lacks of a file: it has the `known` bytes. Never follow a link.

    Return False if the file is gone, or not a regular one any more.
    """
    try:
        file = OpenedFile(path)
    except ValueError:
        return False
    except OSError as exc:
        if exc.errno not in NOT_THERE:
            raise
        return False
    with file:  # bytes appended from now on are left for the next collect
        start, digest = file.resume(known, peer.heartbeat)
        attributes: FileAttributes = {
            "file": name,
            "bytes": file.size,
            "start": start,
            "mode": stat.S_IMODE(file.status.st_mode),
            "mtime_ns": file.status.st_mtime_ns,
        }
        peer.send({**attributes})
        for data in file.read(start, file.size):
            peer.send_bytes(data)
            digest.update(data)
        peer.send({"sha256": digest.hexdigest()})
    return True


def _by_key(known: Iterable[KnownBytes]) -> dict[str, list[KnownBytes]]:
    rows: dict[str, list[KnownBytes]] = {}
    for one in known:
        rows.setdefault(one.key, []).append(one)
    return rows
