"""Find, verify, send and receive the pieces of checkpoints, for `start --resume`."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Any

from clusterctl.agent.node.checkpoint_files import PIECES, checkpoint_dir, checkpoint_dirs
from clusterctl.agent.node.jobs import find_job
from clusterctl.agent.peer import Peer
from clusterctl.common.errors import AgentError, Gone
from clusterctl.common.files import READ_BYTES, digest_of
from clusterctl.common.manifest import read_manifest
from clusterctl.common.paths import RunPaths


def find(root: Path, request: dict[str, Any], peer: Peer) -> dict[str, Any]:
    """Return every checkpoint of the job on this node: `run`, `tag`, `manifest` or None and a `reason`, `pieces`."""
    job = find_job(root, request["ref"])
    return {"job": job.dir.name, "checkpoints": [_describe(run, directory) for run, directory in checkpoint_dirs(job)]}


def _describe(run: RunPaths, directory: Path) -> dict[str, Any]:
    reason = None
    try:
        manifest = read_manifest(directory)
    except (OSError, ValueError) as exc:
        manifest, reason = None, f"its manifest cannot be read: {exc}"
    pieces = sorted(path.name for path in directory.glob(PIECES))
    return {"run": run.run, "tag": directory.name, "manifest": manifest, "reason": reason, "pieces": pieces}


def verify(root: Path, request: dict[str, Any], peer: Peer) -> dict[str, Any]:
    """Return the defect, or None, by name of each of a manifest's `files` that is on this node."""
    directory = checkpoint_dir(find_job(root, request["ref"]), request)
    pieces: dict[str, str | None] = {}
    for file in request["files"]:
        with contextlib.suppress(FileNotFoundError):
            pieces[file["file"]] = _check(directory / file["file"], file, peer)
    return {"pieces": pieces}


def _check(path: Path, file: dict[str, Any], peer: Peer) -> str | None:
    """Return the defect of a piece, or None. Raises FileNotFoundError if it is not on this node."""
    try:
        size = path.stat().st_size
        if size != file["bytes"]:
            return f"has {size} of {file['bytes']} bytes"
        return None if digest_of(path, peer.beat) == file["sha256"] else "is damaged: its checksum differs"
    except FileNotFoundError:
        raise
    except OSError as exc:
        return f"cannot be read: {exc.strerror}"


def send(root: Path, request: dict[str, Any], peer: Peer) -> dict[str, Any]:
    """Send `{"bytes": n}` and the n bytes of one piece. The receiver knows its checksum."""
    path = checkpoint_dir(find_job(root, request["ref"]), request) / Path(request["file"]).name
    with path.open("rb") as file:
        left = path.stat().st_size
        peer.send({"bytes": left})
        while left:
            data = file.read(min(left, READ_BYTES))
            if not data:
                raise AgentError(f"{path.name} became shorter while it was read")
            peer.send_bytes(data)
            left -= len(data)
    return {}


def take(root: Path, request: dict[str, Any], peer: Peer) -> dict[str, Any]:
    """Receive one piece of `bytes` and `sha256`. It is stored whole or not at all."""
    directory = checkpoint_dir(find_job(root, request["ref"]), request)
    name = Path(request["file"]).name
    directory.mkdir(0o700, parents=True, exist_ok=True)
    beside = directory / f".{name}-{os.getpid()}"
    try:
        with beside.open("wb") as file:
            _receive(peer, file, request)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(directory / name)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    return {}


def _receive(peer: Peer, file: Any, request: dict[str, Any]) -> None:
    digest, left = hashlib.sha256(), int(request["bytes"])
    while left:
        data = peer.read_some(min(left, READ_BYTES))
        if not data:
            raise Gone
        file.write(data)
        digest.update(data)
        left -= len(data)
        peer.beat()
    if digest.hexdigest() != request["sha256"]:
        raise AgentError(f"{request['file']} arrived damaged", hint="run start --resume again")
