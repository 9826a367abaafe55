"""Copies the pieces of other nodes into runs/RUN/copies/TAG/, with the manifest of their save."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from clusterctl.common.file_transfer import Arrival, TransferError
from clusterctl.common.files import digest_of, write_atomic
from clusterctl.common.manifest import NAME, all_files, read_manifest
from clusterctl.common.paths import RunPaths
from clusterctl.transfer.client import PieceClient
from clusterctl.transfer.protocol import PieceFile, PieceGoneError, is_sound
from clusterctl.transfer.tls import run_context

SPARE_TIMES = 10  # the size of what is written, but within these bounds
LEAST_SPARE_BYTES, MOST_SPARE_BYTES = 64_000_000, 1_000_000_000
ATTEMPTS = 5  # without a byte in between
RETRY_S = 1.0
MAX_MANIFEST_BYTES = 256 << 20


class CopyOrder(NamedTuple):
    """Copy the pieces of `tag` that the nodes `sources` wrote. These and the lead's are endpoints of piece servers.

    `size` and `sha256` are those of the manifest, which the lead's node has; `lead` is None on that node. What a node
    wrote that is lost comes from the one in `held_by`.
    """

    tag: str
    checkpoint: bool
    size: int
    sha256: str
    lead: tuple[int, str] | None
    sources: Mapping[int, str]
    held_by: Mapping[int, int] = MappingProxyType({})

    @classmethod
    def from_json(cls, order: Mapping[str, Any]) -> CopyOrder:
        lead = (int(order["lead"][0]), str(order["lead"][1])) if order["lead"] else None
        sources = {int(node): str(endpoint) for node, endpoint in order["sources"].items()}
        about = order["manifest"]
        held_by = {int(writer): int(node) for writer, node in order.get("held_by", {}).items()}
        size, digest = int(about["bytes"]), str(about["sha256"])
        return cls(order["tag"], bool(order["checkpoint"]), size, digest, lead, sources, held_by)


def copy_save(run: RunPaths, order: CopyOrder) -> int:
    """Carry out an order. Return the number of bytes of the pieces. Raises OSError or ValueError.

    The manifest comes first, so that every node knows what is complete, even if a piece cannot be copied.
    """
    directory = run.copies / order.tag
    directory.mkdir(0o700, parents=True, exist_ok=True)
    known = read_manifest(directory)
    if known is not None and bool(known.get("checkpoint")) != order.checkpoint:
        raise ValueError("a model and a checkpoint have this tag")
    try:
        _fetch_manifest(directory, run, order)
        return _fetch_pieces(directory, run, order)
    except (PieceGoneError, FileNotFoundError):
        with contextlib.suppress(TransferError):
            if _is_removed(run, order):
                shutil.rmtree(directory, ignore_errors=True)
        raise


def _is_removed(run: RunPaths, order: CopyOrder) -> bool:
    """Return True if the lead's node has no manifest of the save any more. Raises TransferError."""
    if order.lead is None:
        return not (_original(run, order) / NAME).exists()
    client = PieceClient(*order.lead, run_context(run, server=False))
    try:
        client.read(_manifest_file(run, order), 0, 0)
    except PieceGoneError:
        return True
    finally:
        client.close()
    return False


def _manifest_file(run: RunPaths, order: CopyOrder) -> PieceFile:
    return PieceFile(run.job.dir.name, run.run, order.tag, NAME, order.size, order.sha256)


def _original(run: RunPaths, order: CopyOrder) -> Path:
    return (run.checkpoints if order.checkpoint else run.job.output) / order.tag


def _fetch_manifest(directory: Path, run: RunPaths, order: CopyOrder) -> None:
    if order.lead is not None:
        if order.size > MAX_MANIFEST_BYTES:
            raise ValueError(f"the manifest of {order.tag} has {order.size} bytes")
        Fetcher(run, dict([order.lead])).fetch(_manifest_file(run, order), order.lead[0], directory)
    elif order.sources:
        write_atomic(directory / NAME, (_original(run, order) / NAME).read_bytes())


def _fetch_pieces(directory: Path, run: RunPaths, order: CopyOrder) -> int:
    """Fetch what can be fetched, and raise the first error after that."""
    manifest = read_manifest(directory) if order.sources else None
    files = [file for file in all_files(manifest or {"files": []}) if file.get("node") in order.sources]
    need_room(directory, sum(file["bytes"] for file in files))
    fetcher, errors = Fetcher(run, order.sources, order.held_by), []
    for file in files:
        try:
            fetcher.fetch(piece_of(run, order.tag, file), file["node"], directory)
        except OSError as exc:
            errors.append(exc)
    if errors:
        raise errors[0]
    return sum(file["bytes"] for file in files)


def piece_of(run: RunPaths, tag: str, file: Mapping[str, Any]) -> PieceFile:
    """Return the piece that an entry of a manifest names. Raises ValueError if it names none."""
    piece = PieceFile(run.job.dir.name, run.run, tag, file["file"], file["bytes"], file["sha256"])
    if not is_sound(piece):
        raise ValueError(f"the manifest of {tag} names {piece.file!r:.60}")
    return piece


def need_room(directory: Path, needed: int) -> None:
    """Raise OSError unless the disk has room for so many bytes, and ten times as many to spare: 64 MB to 1 GB."""
    status = os.statvfs(directory)
    free = status.f_bavail * status.f_frsize
    spare = min(max(LEAST_SPARE_BYTES, SPARE_TIMES * needed), MOST_SPARE_BYTES)
    if needed and free < needed + spare:
        mb = f"{needed / 1e6:,.0f} MB are needed and {spare / 1e6:,.0f} MB to spare"
        raise OSError(f"no room: {mb}, but {directory} has {free / 1e6:,.0f} MB free")


class Fetcher:
    """Fetches whole pieces from the piece servers `endpoints` of the nodes that wrote them, or of those in `held_by`.

    Each is verified before it gets its name.
    """

    def __init__(
        self, run: RunPaths, endpoints: Mapping[int, str], held_by: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        self._endpoints = endpoints
        self._held_by = held_by
        self._run = run
        self._context: ssl.SSLContext | None = None

    def fetch(self, piece: PieceFile, node: int, directory: Path) -> None:
        """Fetch a piece into a directory, unless it is there. What an earlier attempt has left is used."""
        target = directory / piece.file
        if _is_whole(target, piece):
            return
        with Arrival(target, directory / f".{piece.file}-part", piece.bytes) as arrival:
            for _ in range(2):
                self._fill(arrival, piece, node)
                if arrival.finish(piece.sha256):
                    return
        raise TransferError(f"node{node}: {piece.file} arrived damaged")

    def _fill(self, arrival: Arrival, piece: PieceFile, node: int) -> None:
        """Append what is missing from a file, in several attempts as long as each of them brings something."""
        failures = 0
        while arrival.have < piece.bytes:
            before = arrival.have
            try:
                self._append(arrival, piece, node)
            except PieceGoneError:
                raise
            except TransferError:
                failures = failures + 1 if arrival.have == before else 0
                if failures == ATTEMPTS:
                    raise
                time.sleep(RETRY_S * random.uniform(0.5, 1.5))  # others may have to wait as well

    def _append(self, arrival: Arrival, piece: PieceFile, node: int) -> None:
        if self._context is None:
            self._context = run_context(self._run, server=False)
        if node not in self._endpoints:
            raise TransferError(f"node{node} is not there")
        client = PieceClient(self._held_by.get(node, node), self._endpoints[node], self._context)
        try:
            arrival.append(client.stream(piece, arrival.have, piece.bytes))
        finally:
            client.close()


def _is_whole(path: Path, piece: PieceFile) -> bool:
    try:
        return path.stat().st_size == piece.bytes and digest_of(path) == piece.sha256
    except FileNotFoundError:
        return False
