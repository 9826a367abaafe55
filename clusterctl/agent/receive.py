"""Dispatch, the node's side: a job directory appears whole and verified, or not at all.

The id is reserved by making `incoming/JOB`, which only one agent can do; the tree is built in there and renamed into
place when every hash is right. A lock that dies with its agent tells a reservation under way from a leftover.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clusterctl.agent.files import write_json
from clusterctl.agent.paths import JobPaths, incoming_dir
from clusterctl.agent.processes import wait_until
from clusterctl.agent.protocol import AgentError, Peer
from clusterctl.agent.tree import Entry, build, decode


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
        proposal = peer.receive()
        if "job" not in proposal:
            raise AgentError("the dispatch was given up")
        with _reserved(root, proposal["job"], request) as (staging, taken_by):
            peer.send({"reserved": staging is not None, "taken_by": taken_by})
            if staging is None:
                continue
            answer = peer.receive()
            if answer.get("go"):
                job_dir = _stage(root, staging, proposal["job"], answer, request, peer)
                return {"dir": str(job_dir), "seconds": time.monotonic() - started}


@contextmanager
def _reserved(root: Path, job: str, request: dict[str, Any]) -> Iterator[tuple[Path | None, Any]]:
    """Holds the id: (staging directory, None), or (None, who holds it)."""
    place = incoming_dir(root) / job
    try:
        place.mkdir(0o700)
    except FileExistsError:
        yield None, _holder(place)
        return
    with (place / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            json.dump({"nonce": request["nonce"], "node": request["node"]}, lock)
            lock.flush()
            if (root / job).exists():
                yield None, {}
            else:
                yield place, None
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _holder(place: Path) -> Any:
    """Who reserved `place`; it writes its name right after the directory, so there may be an instant to wait."""
    found: Any = {}

    def named() -> bool:
        nonlocal found
        try:
            found = json.loads((place / "lock").read_text())
        except (FileNotFoundError, ValueError):
            return not place.exists()
        return True

    wait_until(named, 1.0)
    return found


def _sweep(incoming: Path) -> None:
    """Removes what dispatches left whose agents died."""
    for place in incoming.iterdir():
        try:
            with (place / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(place, ignore_errors=True)
        except FileNotFoundError:
            if time.time() - place.stat().st_mtime > 60:
                shutil.rmtree(place, ignore_errors=True)
        except OSError:
            pass  # locked: a dispatch under way


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
