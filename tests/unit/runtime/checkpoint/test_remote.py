"""Pieces on several nodes: a pserver reads only what it owns, from any node that has it."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.common.file_transfer import TransferError
from clusterctl.common.manifest import build_manifest, piece_name, write_manifest
from clusterctl.common.paths import JobPaths
from clusterctl.common.run_spec import PieceSource, PieceSources, Recovery, ResumePoint, RunSpec
from clusterctl.runtime.checkpoint import remote
from clusterctl.runtime.checkpoint.model import checksum
from clusterctl.runtime.checkpoint.reader import SavedCheckpoint
from clusterctl.runtime.checkpoint.remote import (
    READ_BYTES,
    Peers,
    RemoteContent,
    open_pieces,
    open_saved_checkpoint,
    open_saved_model,
)
from clusterctl.runtime.checkpoint.safetensors import TensorFile
from clusterctl.runtime.environment import Environment
from clusterctl.runtime.errors import ModelError
from clusterctl.runtime.table.sharding import owned_elements, slots_of
from clusterctl.transfer.protocol import PieceFile
from unit.runtime.checkpoint.test_checkpoints import BOUND, DENSE, SMALL, TAG, WORDS, World
from unit.runtime.cluster import RUN

JOB = "JOB20261121-081530"


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "RETRY_S", 0.0)


class Nodes:
    """The disks of several nodes, and readers that count the bytes that they are asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: Counter[int] = Counter()
        self.ranges: list[tuple[str, int, int]] = []
        self.down: set[int] = set()
        self.connections = 0

    def job(self, node: int) -> JobPaths:
        return JobPaths(self.root / f"node{node}" / JOB)

    def place(self, node: int) -> Path:
        return self.job(node).run(RUN).checkpoints / TAG

    def peers(self) -> Peers:
        return Peers(self._connect)

    def _connect(self, node: int) -> Any:
        if node in self.down:
            raise TransferError(f"node{node}: connection refused")
        self.connections += 1
        return Reader(self, node)

    def env(self, node: int, rank: int = 0, **spec: Any) -> Environment:
        full = RunSpec.from_json({"job": JOB, "run": RUN, "node": node, **spec})
        job = self.job(node)
        return Environment("pserver", rank, 1, JOB, RUN, job.dir, job.output, 7, full)


class Reader:
    def __init__(self, nodes: Nodes, node: int) -> None:
        self._nodes, self._node = nodes, node

    def read(self, piece: PieceFile, start: int, stop: int, *, verify: bool = True) -> bytes:
        if self._node in self._nodes.down:
            raise TransferError(f"node{self._node}: the connection broke")
        self._nodes.asked[self._node] += stop - start
        self._nodes.ranges.append((piece.file, start, stop))
        with (self._nodes.place(self._node) / piece.file).open("rb") as file:
            file.seek(start)
            return file.read(stop - start)

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def written(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint by three pservers with two lanes of each kind."""
    root = tmp_path_factory.mktemp("all")
    world.write(root, 3, (2, 2))
    return root / TAG


@pytest.fixture
def nodes(written: Path, tmp_path: Path) -> Nodes:
    """Three nodes: the piece of pserver p is on node p."""
    nodes = Nodes(tmp_path)
    for p in range(3):
        nodes.place(p).mkdir(parents=True)
        shutil.copy(written / piece_name(p), nodes.place(p))
    return nodes


def sources(nodes: Nodes, **holders: tuple[int, ...]) -> PieceSources:
    pieces = []
    for p in range(3):
        size, digest = checksum(nodes.place(p) / piece_name(p))
        pieces.append(PieceSource(file=piece_name(p), bytes=size, sha256=digest, nodes=holders.get(f"p{p}", (p,))))
    return PieceSources(job=JOB, run=RUN, tag=TAG, pieces=tuple(pieces))


def header_bytes(path: Path) -> int:
    return 8 + int.from_bytes(path.read_bytes()[:8], "little")


def test_a_pserver_asks_for_headers_and_for_its_own_blocks_and_slots_only(world: World, nodes: Nodes) -> None:
    places = 2
    headers = sum(header_bytes(nodes.place(p) / piece_name(p)) for p in range(3))
    for place in range(places):
        nodes.asked.clear()
        checkpoint = SavedCheckpoint(Path("x"), open_pieces(nodes.env(9, place), sources(nodes), nodes.peers()))
        assert nodes.asked.total() == headers
        nodes.asked.clear()
        own = 0
        for spec in (DENSE, SMALL):
            start, stop = owned_elements(spec.elements, spec.key, place, places)
            world.assert_dense(checkpoint, spec, start, stop)
            own += 4 * (stop - start) * (1 + spec.rule.states)
        assert nodes.asked.total() == own
        for name in ("word", "hour"):
            world.assert_rows(checkpoint, name, place, places)
            rows = world.rows[name]
            count = np.count_nonzero(slots_of(rows.ids, rows.spec.rows) % places == place)
            width = sum(array[0].nbytes for array in rows.columns.values())
            waiting = np.count_nonzero(slots_of(rows.candidates, rows.spec.rows) % places == place)
            own += count * (8 + width) + waiting * 16
        assert nodes.asked.total() == own


def test_each_table_is_read_when_it_is_declared(nodes: Nodes) -> None:
    checkpoint = SavedCheckpoint(Path("x"), open_pieces(nodes.env(9), sources(nodes), nodes.peers()))
    nodes.ranges.clear()
    checkpoint.dense(SMALL, 0, 3)
    assert [stop - start for _, start, stop in nodes.ranges] == [12, 12]


@pytest.mark.parametrize("rows", [None, 2**62])
def test_a_model_is_read_in_the_same_way_and_rebuilt_where_ids_have_other_slots(
    world: World, nodes: Nodes, rows: int | None
) -> None:
    """A bounded table has other slots than an unbounded one: then all slots are read, and only own rows kept."""
    whole = world.rows["hour"]
    spec = replace(BOUND, rows=rows)
    seen = {}
    for rank in range(2):
        env = nodes.env(9, rank, load="it", sources=sources(nodes).to_json())
        model = open_saved_model(env, "it", nodes.peers())
        nodes.asked.clear()
        loaded = model.sparse(spec, rank, 2)
        assert loaded is not None
        seen.update(dict(zip(loaded[0].tolist(), loaded[1].tolist(), strict=True)))
        assert nodes.asked.total() == 16 * (len(whole.ids) if rows is None else len(loaded[0]))
        values = model.dense(DENSE, *owned_elements(DENSE.elements, DENSE.key, rank, 2))
        assert values is not None
        start, stop = owned_elements(DENSE.elements, DENSE.key, rank, 2)
        assert values.tobytes() == world.dense["net/wide"][0][start:stop].tobytes()
    assert seen == dict(zip(whole.ids.tolist(), whole.columns["rows"].tolist(), strict=True))


def test_pieces_of_this_node_are_read_from_its_disk_and_verified(world: World, nodes: Nodes) -> None:
    checkpoint = SavedCheckpoint(Path("x"), open_pieces(nodes.env(1), sources(nodes), nodes.peers()))
    world.assert_dense(checkpoint, DENSE, 0, DENSE.elements)
    assert nodes.asked[1] == 0
    assert nodes.asked[0] > 0
    path = nodes.place(1) / piece_name(1)
    known = sources(nodes)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    damaged = SavedCheckpoint(Path("x"), open_pieces(nodes.env(1), known, nodes.peers()))
    with pytest.raises(ModelError, match=r"pserver-00001\.safetensors is damaged"):
        damaged.sparse(WORDS, 0, 1)
    with pytest.raises(ModelError, match=r"pserver-00001\.safetensors is damaged"):
        open_saved_model(nodes.env(1, load="it", sources=known.to_json()), "it", nodes.peers())


def test_pservers_ask_different_holders_first_and_the_next_one_if_it_fails(world: World, nodes: Nodes) -> None:
    for node in (3, 4):
        nodes.place(node).mkdir(parents=True)
        (nodes.place(node) / piece_name(2)).write_bytes((nodes.place(2) / piece_name(2)).read_bytes())
    three = sources(nodes, p2=(2, 3, 4))
    for rank, node in enumerate((2, 3, 4)):
        nodes.asked.clear()
        open_pieces(nodes.env(9, rank), three, nodes.peers())
        assert nodes.asked[node] == header_bytes(nodes.place(2) / piece_name(2))
    checkpoint = SavedCheckpoint(Path("x"), open_pieces(nodes.env(9), three, nodes.peers()))
    nodes.down = {2, 3}
    world.assert_rows(checkpoint, "word", 4, 6)
    nodes.down = {2, 3, 4}
    with pytest.raises(ModelError) as raised:
        checkpoint.sparse(WORDS, 4, 6)
    message = str(raised.value)
    assert message.startswith(f"pserver-00002.safetensors of {TAG} of {JOB} cannot be read (")
    assert "node2: connection refused" in message
    assert "node4: connection refused" in message


def test_a_connection_that_was_closed_while_idle_is_made_again(nodes: Nodes) -> None:
    peers = nodes.peers()
    [piece] = [one for one in sources(nodes).pieces if one.file == piece_name(0)]
    content = RemoteContent(PieceFile(JOB, RUN, TAG, piece.file, piece.bytes, piece.sha256), [0], peers)
    first = bytes(content.read(0, 100))
    reader = peers._idle[0]
    reader.read = lambda *_, **__: (_ for _ in ()).throw(TransferError("node0: the connection broke"))  # type: ignore[method-assign]
    assert bytes(content.read(0, 100)) == first
    assert nodes.connections == 2
    peers.close()
    assert bytes(content.read(50, 100)) == first[50:]


def test_a_long_tensor_is_read_in_several_requests(nodes: Nodes) -> None:
    class Long:
        def read(self, piece: PieceFile, start: int, stop: int, *, verify: bool = True) -> bytes:
            nodes.ranges.append((piece.file, start, stop))
            return bytes([start % 251]) * (stop - start)

        def close(self) -> None:
            pass

    piece = PieceFile(JOB, RUN, TAG, piece_name(0), 3 * READ_BYTES, "0" * 64)
    data = RemoteContent(piece, [0], Peers(lambda node: Long())).read(10, 2 * READ_BYTES + 5)
    assert len(data) == 2 * READ_BYTES - 5
    assert max(stop - start for _, start, stop in nodes.ranges) == READ_BYTES


def test_a_header_of_another_node_is_bounded_by_the_size_of_its_file() -> None:
    class Huge:
        size = 64

        def read(self, start: int, stop: int) -> bytes:
            assert stop <= 64
            return b"\xff" * (stop - start)

    with pytest.raises(ModelError, match="not a whole safetensors file"):
        TensorFile(Path("x"), Huge())


def test_after_a_roll_back_to_the_resumed_checkpoint_its_pieces_are_read_again_in_the_same_way(
    world: World, nodes: Nodes
) -> None:
    resume = ResumePoint(run="0001", tag=TAG, step=500, pass_=2, dir="x").to_json()
    again = Recovery(tag=TAG, step=500).to_json()
    for more in ({}, {"recover": again}):
        env = nodes.env(0, resume=resume, sources=sources(nodes).to_json(), **more)
        checkpoint = open_saved_checkpoint(env, nodes.peers())
        assert checkpoint is not None
        world.assert_dense(checkpoint, DENSE, 0, DENSE.elements)
    without = open_saved_checkpoint(nodes.env(0, resume=resume, recover=again), nodes.peers())
    assert without is not None
    with pytest.raises(ModelError, match="missing: pserver-00001"):
        without.dense(DENSE, 0, DENSE.elements)
    assert open_saved_checkpoint(nodes.env(0, recover=Recovery(tag=None, step=0).to_json()), nodes.peers()) is None


def save_model(world: World, nodes: Nodes, run: str = RUN) -> dict[str, Any]:
    """Put the model `pass-00000` of three pservers into output/ of nodes 0, 1, 2; return its manifest."""
    receipts = world.write(nodes.root / run, 3, (2, 2))
    manifest = build_manifest(JOB, run, [{**r, "tag": "pass-00000", "node": r["pserver"]} for r in receipts])
    assert manifest is not None
    for p in range(3):
        place = nodes.job(p).output / "pass-00000"
        place.mkdir(parents=True)
        (nodes.root / run / TAG / piece_name(p)).rename(place / piece_name(p))
    return manifest


def test_a_model_in_output_is_found_by_its_manifest_on_the_lead_and_among_copies(world: World, nodes: Nodes) -> None:
    manifest = save_model(world, nodes)
    load = "output/pass-00000"
    with pytest.raises(ModelError, match=r"missing: pserver-00000.*start --load JOB"):
        open_saved_model(nodes.env(1), load, nodes.peers())
    write_manifest(nodes.job(0).output / "pass-00000", manifest)
    for node in (1, 2, 3):  # the last one has no piece
        copies = nodes.job(node).run(RUN).copies / "pass-00000"
        copies.mkdir(parents=True)
        nodes.job(node).run("0002").dir.mkdir()
        write_manifest(copies, manifest)
    for node in range(4):
        model = open_saved_model(nodes.env(node), load, nodes.peers())
        values = model.dense(DENSE, 0, DENSE.elements)
        assert values is not None
        assert values.tobytes() == world.dense["net/wide"][0].tobytes()
    with pytest.raises(ModelError, match="does not exist"):
        open_saved_model(nodes.env(0), "output/pass-00009", nodes.peers())


def test_a_node_does_not_take_the_manifest_of_another_run_than_that_of_its_piece(world: World, nodes: Nodes) -> None:
    manifest = save_model(world, nodes)
    copies = nodes.job(1).run("0007").copies / "pass-00000"
    copies.mkdir(parents=True)
    write_manifest(copies, {**manifest, "run": "0007"})
    with pytest.raises(ModelError, match="missing: pserver-00000"):
        open_saved_model(nodes.env(1), "output/pass-00000", nodes.peers())


def test_of_two_runs_with_one_tag_the_pieces_of_the_right_one_are_read(world: World, nodes: Nodes) -> None:
    """Their pieces have the same names and sizes; the newer run's stand where pieces are looked for first."""
    known = sources(nodes)
    newer = nodes.place(1).parents[3] / "runs" / "0002" / "output" / TAG
    path = nodes.place(1) / piece_name(1)
    newer.mkdir(parents=True)
    data = path.read_bytes()
    (newer / path.name).write_bytes(data[:-4] + b"new!")
    pieces = open_pieces(nodes.env(1), known, nodes.peers())
    assert data[-4:] != b"new!"
    assert pieces[1].file.path == path
