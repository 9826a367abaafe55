"""Dispatch, the node's side: a job directory appears whole and verified, or not at all.

The id is reserved by making `incoming/JOB`, which only one agent can do; the tree is built in there and renamed into
place when every hash is right. A lock that dies with its agent tells a reservation under way from a leftover.
"""

from __future__ import annotations

import errno
import fcntl
import json
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clusterctl.agent.files import read_json, write_json
from clusterctl.agent.paths import JobPaths, incoming_dir
from clusterctl.agent.protocol import GO_S, AgentError, Peer
from clusterctl.agent.tree import Entry, build, decode

FRESH_S = 60.0  # a reservation that is only now being made is not a leftover


class Inflater:
    """Reads a zlib stream that ends by itself."""

    def __init__(self, peer: Peer) -> None:
        self._source = peer.incoming
        self._zlib = zlib.decompressobj()
        self._tail = b""

    def read(self, count: int) -> bytes:
        """Exactly `count` bytes, or fewer at the end of the stream."""
        parts = []
        while count and not self._zlib.eof:
            source = self._tail or self._source.read1(1 << 16)  # type: ignore[attr-defined]
            if not source:
                break
            data = self._zlib.decompress(source, count)
            self._tail = self._zlib.unconsumed_tail
            count -= len(data)
            parts.append(data)
        return b"".join(parts)


def receive(root: Path, request: dict[str, Any], peer: Peer) -> dict[str, Any]:
    """Reserves an id that the control machine proposes, receives the tree, puts it in place."""
    started = time.monotonic()
    incoming_dir(root).mkdir(0o700, parents=True, exist_ok=True)
    _sweep(incoming_dir(root))
    while True:
        proposal = peer.receive(GO_S)
        if "job" not in proposal:
            raise AgentError("the dispatch was given up")
        with _reserved(root, proposal["job"], request) as (staging, taken_by):
            peer.send({"reserved": staging is not None, "taken_by": taken_by})
            if staging is None:
                continue
            answer = peer.receive(GO_S)
            if answer.get("go"):
                job_dir = _stage(root, staging, proposal["job"], answer, request, peer)
                return {"dir": str(job_dir), "seconds": time.monotonic() - started}


@contextmanager
def _reserved(root: Path, job: str, request: dict[str, Any]) -> Iterator[tuple[Path | None, Any]]:
    """Holds the id: (staging directory, None), or (None, who holds it).

    The directory appears with its lock taken and its holder named, because it is renamed into place.
    """
    place = incoming_dir(root) / job
    beside = Path(tempfile.mkdtemp(prefix=".", dir=incoming_dir(root)))
    with (beside / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        json.dump({"nonce": request["nonce"], "node": request["node"]}, lock)
        lock.flush()
        try:
            beside.rename(place)
        except OSError as exc:
            shutil.rmtree(beside, ignore_errors=True)
            if exc.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            yield None, read_json(place / "lock") or {}
            return
        try:
            yield (None, {}) if (root / job).exists() else (place, None)
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _sweep(incoming: Path) -> None:
    """Removes what dispatches left whose agents died."""
    for place in incoming.iterdir():
        try:
            fresh = place.name.startswith(".") and time.time() - place.stat().st_mtime < FRESH_S
            with (place / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not fresh:
                    shutil.rmtree(place, ignore_errors=True)
        except OSError:
            pass  # locked: a dispatch under way; or gone already


def _stage(root: Path, staging: Path, job: str, answer: dict[str, Any], request: dict[str, Any], peer: Peer) -> Path:
    stream = Inflater(peer)
    entries = decode(json.loads(_exactly(stream, int(answer["manifest_bytes"]))))
    tree = staging / "tree"
    tree.mkdir(0o700)
    build(tree, entries, stream.read)
    _add_ours(JobPaths(tree), job, request, entries)
    job_dir = root / job
    tree.rename(job_dir)
    return job_dir


def _exactly(stream: Inflater, count: int) -> bytes:
    data = stream.read(count)
    if len(data) != count:
        raise AgentError("the stream ended within the list of files")
    return data


def _add_ours(job: JobPaths, name: str, request: dict[str, Any], entries: list[Entry]) -> None:
    for ours in (job.log, job.output, job.meta, job.runs):
        ours.mkdir(0o700)
    job.nodefile.write_text(f"{request['node']}\n")
    files = [e for e in entries if e.kind == "f"]
    record = {
        "v": 1,
        "job": name,
        "node": request["node"],
        "nodes": request["nodes"],
        "workspace": request["workspace"],
        "content": request["content"],
        "files": len(files),
        "bytes": sum(e.size for e in files),
        "t": time.time(),
    }
    write_json(job.record, record)
