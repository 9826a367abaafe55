"""Pieces of a save that are partly on this node and partly on others, of which only the requested ranges are read.

Files of this node are read from disk and verified like all others here. Other nodes verify theirs before they send the
first range. If one of them fails, the next one that has the piece is asked.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from clusterctl.common.file_transfer import TransferError
from clusterctl.common.manifest import NAME, is_piece_name, is_tag, read_manifest, state_name
from clusterctl.common.paths import JobPaths, saved_places
from clusterctl.common.run_spec import PieceSource, PieceSources
from clusterctl.common.safe_json import parse
from clusterctl.runtime.checkpoint.model import PIECES, ModelView, PieceSet, checksum, open_model
from clusterctl.runtime.checkpoint.reader import OpenPiece, SavedCheckpoint, checksums, open_checkpoint
from clusterctl.runtime.checkpoint.safetensors import Buffer, TensorFile
from clusterctl.runtime.environment import Environment
from clusterctl.runtime.errors import ModelError
from clusterctl.transfer.client import PieceClient
from clusterctl.transfer.protocol import PieceFile, PieceGoneError
from clusterctl.transfer.tls import run_context

READ_BYTES = 8 << 20  # of one request
ATTEMPTS, RETRY_S = 10, 1.0
MOST_IDLE = 16  # connections: a piece server serves a limited number at once


class PieceReader(Protocol):
    """A connection to the piece server of a node."""

    def read(self, piece: PieceFile, start: int, stop: int, *, verify: bool = True) -> bytes: ...
    def close(self) -> None: ...


class Peers:
    """The piece servers of other nodes, each connected when it is first needed. Thread-safe."""

    def __init__(self, connect: Callable[[int], PieceReader]) -> None:
        self._connect = connect
        self._idle: dict[int, PieceReader] = {}
        self._lock = threading.Lock()

    def read(self, node: int, piece: PieceFile, start: int, stop: int, *, verify: bool = True) -> bytes:
        """Return bytes of a piece. Raises OSError. A connection that broke while it was idle is made again."""
        with self._lock:
            idle = self._idle.pop(node, None)
        if idle is not None:
            with contextlib.suppress(OSError):
                return self._read(node, idle, piece, start, stop, verify)
        return self._read(node, self._connect(node), piece, start, stop, verify)

    def _read(self, node: int, reader: PieceReader, piece: PieceFile, start: int, stop: int, verify: bool) -> bytes:
        try:
            data = reader.read(piece, start, stop, verify=verify)
        except OSError:
            reader.close()
            raise
        with self._lock:
            surplus = [self._idle.pop(node)] if node in self._idle else []  # of another thread
            self._idle[node] = reader
            surplus += [self._idle.pop(next(iter(self._idle)))] if len(self._idle) > MOST_IDLE else []
        for other in surplus:
            other.close()
        return data

    def close(self) -> None:
        """End all connections; the next `read` makes new ones."""
        with self._lock:
            readers, self._idle = list(self._idle.values()), {}
        for reader in readers:
            reader.close()


class RemoteContent:
    """The bytes of a piece that `nodes` have. The node that answered last is asked first.

    If `verify` is set, that node compares the whole piece with its checksum, which takes a while if it is large: it is
    not set while headers are read.
    """

    def __init__(self, piece: PieceFile, nodes: Sequence[int], peers: Peers) -> None:
        self.size = piece.bytes
        self.verify = False
        self._piece = piece
        self._nodes = list(nodes)
        self._peers = peers

    def read(self, start: int, stop: int) -> Buffer:
        out = bytearray(stop - start)
        for at in range(start, stop, READ_BYTES):
            end = min(at + READ_BYTES, stop)
            out[at - start : end - start] = self._read(at, end)
        return out

    def _read(self, start: int, stop: int) -> bytes:
        """Ask each node in turn, and those that could not be reached again: a network may be away for a moment."""
        failures: dict[int, OSError] = {}
        for attempt in range(ATTEMPTS):
            nodes = [node for node in self._nodes if not isinstance(failures.get(node), PieceGoneError)]
            if not nodes:
                break
            if attempt:
                time.sleep(RETRY_S)
            for node in nodes:
                try:
                    data = self._peers.read(node, self._piece, start, stop, verify=self.verify)
                except OSError as exc:
                    failures[node] = exc
                    continue
                self._nodes = [node, *(other for other in self._nodes if other != node)]
                return data
        reasons = "; ".join(map(str, failures.values())) or "no node has it"
        raise ModelError(f"{self._piece.file} of {self._piece.tag} of {self._piece.job} cannot be read ({reasons})")


def run_peers(env: Environment) -> Peers:
    """Return the piece servers of the nodes of this run, as the supervisor has listed them."""
    run = env.run_paths

    def connect(node: int) -> PieceReader:
        try:
            endpoint = parse(run.peers.read_bytes()).get(str(node))
        except (OSError, ValueError, AttributeError) as exc:
            raise TransferError(f"node{node}: this run lists no piece servers ({exc})") from exc
        if not isinstance(endpoint, str):
            raise TransferError(f"node{node}: it is not in this run")
        return PieceClient(node, endpoint, run_context(run, server=False))

    return Peers(connect)


def open_pieces(env: Environment, sources: PieceSources, peers: Peers, *, verify: bool = False) -> list[OpenPiece]:
    """Open all pieces of a save, and with `verify` compare those of this node with their checksums. Raises ModelError.

    Pservers with different ranks ask different nodes first, and in another order.
    """
    here = _places(env, sources)
    first = env.rank % max(1, len(sources.pieces))
    pieces = [source for source in sources.pieces if is_piece_name(source.file)]  # not the states of trainers
    in_turn = [*pieces[first:], *pieces[:first]]
    opened = {source.file: _open(env, sources, source, here, peers, verify) for source in in_turn}
    return [opened[source.file] for source in pieces]


def _places(env: Environment, sources: PieceSources) -> list[Path]:
    """Return the directories of this node that may have files of a save."""
    run = JobPaths(env.job_dir.parent / sources.job).run(sources.run)
    return list(saved_places(run.job, run.run, sources.tag)) if run.job.is_own() else []


def _open(
    env: Environment, of: PieceSources, source: PieceSource, here: Sequence[Path], peers: Peers, verify: bool
) -> OpenPiece:
    paths = [place / source.file for place in here]
    paths = [path for path in paths if not path.is_symlink() and path.is_file() and path.stat().st_size == source.bytes]
    if len(paths) == 1 and not verify:  # it is compared when it is first read
        return OpenPiece(TensorFile(paths[0]), (source.bytes, source.sha256))
    sound = next((path for path in paths if checksum(path) == (source.bytes, source.sha256)), None)
    if sound is not None:  # the others are damaged, or of other runs with this tag
        return OpenPiece(TensorFile(sound), None)
    others = [node for node in source.nodes if node != env.spec.node]
    if paths and not others:
        raise ModelError(f"{paths[0]} is damaged: it differs from the manifest")
    turn = env.rank % max(1, len(others))
    piece = PieceFile(of.job, of.run, of.tag, source.file, source.bytes, source.sha256)
    content = RemoteContent(piece, [*others[turn:], *others[:turn]], peers)
    file = TensorFile(Path(of.job, of.tag, source.file), content)
    content.verify = True
    return OpenPiece(file, None)


def open_saved_model(env: Environment, path: str, peers: Peers) -> ModelView:
    """Open the model of `start --load`, or the one at `path` in the job directory, for a pserver. Raises ModelError.

    Of a model in `output/`, this node need not have all pieces.
    """
    saving = env.spec.saving
    if saving.sources is not None and path == saving.load:
        return _view(env, saving.sources, peers)
    try:
        return open_model(env.job_dir / path)
    except ModelError as exc:
        sources = _find_sources(env, path)
        if sources is None:
            raise ModelError(str(exc), remedy="start --load JOB finds the pieces of a model on all nodes") from exc
    return _view(env, sources, peers)


def _view(env: Environment, sources: PieceSources, peers: Peers) -> ModelView:
    pieces = open_pieces(env, sources, peers, verify=True)
    return ModelView(PieceSet([piece.file for piece in pieces]), Path(sources.name))


def _find_sources(env: Environment, path: str) -> PieceSources | None:
    """Return the sources of `output/TAG`: its manifest is beside the pieces on the lead's node, and among all copies.

    A node with a piece of it takes the manifest of the same run, so that nodes do not load different models.
    """
    above, _, tag = path.rstrip("/").rpartition("/")
    job = JobPaths(env.job_dir)
    if above != "output" or not is_tag(tag) or not job.runs.is_dir():
        return None
    runs = sorted((run.name for run in job.runs.iterdir() if run.name.isdigit()), key=int, reverse=True)
    outputs = (job.output / tag, *(job.run(run).dir / "output" / tag for run in runs))
    newest = next((place for place in outputs if any(place.glob(PIECES))), None)
    if newest is not None:
        runs = [TensorFile(next(newest.glob(PIECES))).metadata.get("run", "")]
    for place in (*outputs[:1], *([newest] if newest else []), *(job.run(run).copies / tag for run in runs)):
        manifest = _manifest(place)
        if manifest is not None and manifest.get("run") in runs:
            return _sources(manifest, place)
    return None


def _manifest(place: Path) -> dict[str, Any] | None:
    try:
        return read_manifest(place)
    except (OSError, ValueError) as exc:
        raise ModelError(f"{place / NAME} cannot be read ({exc})") from exc


def _sources(manifest: Mapping[str, Any], place: Path) -> PieceSources:
    """Return the sources that a manifest lists: the nodes that wrote the pieces."""
    try:
        files = [
            {**{key: f[key] for key in ("file", "bytes", "sha256")}, "nodes": [f["node"]]} for f in manifest["files"]
        ]
        return PieceSources.from_json({**{key: manifest[key] for key in ("job", "run", "tag")}, "pieces": files})
    except (KeyError, TypeError, ValueError) as exc:
        raise ModelError(f"{place / NAME} does not say which nodes have the pieces ({exc})") from exc


def open_saved_checkpoint(env: Environment, peers: Peers) -> SavedCheckpoint | None:
    """Open the checkpoint that a pserver continues from; None if it starts with initial values. Raises ModelError."""
    tag, sources = _checkpoint(env)
    if tag is None:
        return None
    if sources is None:
        return open_checkpoint(env.checkpoint_dir / tag)
    return SavedCheckpoint(Path(sources.name), open_pieces(env, sources, peers))


def open_saved_state(env: Environment, peers: Peers) -> TensorFile | None:
    """Open this trainer's state in the checkpoint it continues from, or return None. Raises ModelError."""
    tag, sources = _checkpoint(env)
    if tag is None:
        return None
    path = env.checkpoint_dir / tag / state_name(env.rank)
    own = [source for source in sources.pieces if source.file == path.name] if sources is not None else []
    if sources is not None and own:
        return _open(env, sources, own[0], _places(env, sources), peers, verify=True).file
    if not path.is_file():
        return None
    expected = checksums(path.parent).get(path.name)
    if expected is not None and checksum(path) != expected:
        raise ModelError(f"{path} is damaged: it differs from the manifest")
    return TensorFile(path)


def _checkpoint(env: Environment) -> tuple[str | None, PieceSources | None]:
    """Return the tag of the checkpoint that a process continues from, and its sources if it need not be here."""
    resume, recover, sources = env.spec.saving.resume, env.spec.recover, env.spec.saving.sources
    tag = recover.tag if recover else resume.tag if resume else None
    if recover is not None and recover.sources is not None:
        return tag, recover.sources
    return tag, sources if resume is not None and tag == resume.tag else None
