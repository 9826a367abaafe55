"""Checkpoints on disk: saved and loaded with any number of pservers and lanes, bit for bit, and damage to them."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from clusterctl.common.manifest import build_manifest, piece_name, write_manifest
from clusterctl.runtime import Adagrad, Adam, load_model, torch_state_dict, uniform, zeros
from clusterctl.runtime.checkpoint import reader
from clusterctl.runtime.checkpoint.reader import SavedCheckpoint, open_checkpoint
from clusterctl.runtime.checkpoint.writer import Cut, write_piece
from clusterctl.runtime.errors import ModelError, UseError
from clusterctl.runtime.store.sparse import SparseGrad, SparseTable
from clusterctl.runtime.table.retention import Retention, after_sightings, score_below
from clusterctl.runtime.table.sharding import BLOCK_ELEMENTS, owned_elements, slots_of
from clusterctl.runtime.table.spec import Column, TableSpec

STEP, TAG = 500, "step-000000500"
DENSE = TableSpec("net/wide", "dense", (5, BLOCK_ELEMENTS // 2 + 7), Adam(0.1), uniform(0.1))
SMALL = TableSpec("bias", "dense", (3,), Adagrad(0.1), zeros())
WORDS = TableSpec("word", "sparse", (3,), Adagrad(0.1), uniform(0.1))
BOUND = TableSpec("hour", "sparse", (2,), Adam(0.1), uniform(0.1), rows=24)
CURSORS = [{"rank": r, "step": STEP, "pass": 2, "batch": 7 + r, "passes": 2, "left": 0} for r in range(3)]


class Run:
    """A run of blocks of a dense table, as held by one lane of a pserver."""

    base = None

    def __init__(self, spec: TableSpec, values: np.ndarray, state: Sequence[np.ndarray], start: int, stop: int) -> None:
        self.spec, self.start, self.count = spec, start, stop - start
        self.current = values[start:stop]
        self.state = [array[start:stop] for array in state]


class Lane:
    """The rows of an embedding in the slots of one lane; every second place is free, as if rows had been evicted."""

    def __init__(self, table: Rows, lane: int, lanes: int) -> None:
        self.spec, self.lane, self.lanes = table.spec, lane, lanes
        self._own = np.flatnonzero(slots_of(table.ids, table.spec.rows) % lanes == lane)
        self._table = table

    def live(self) -> np.ndarray:
        return np.arange(len(self._own))[::-1] * 2

    def ids_at(self, positions: np.ndarray) -> np.ndarray:
        return self._table.ids[self._own[positions // 2]]

    def columns(self) -> list[Column]:
        return [
            Column(name, "I64" if array.dtype == np.int64 else "F32", array.shape[1] if array.ndim == 2 else None)
            for name, array in self._table.columns.items()
        ]

    def read(self, name: str, positions: np.ndarray) -> np.ndarray:
        return self._table.columns[name][self._own[positions // 2]]

    def candidates(self) -> tuple[np.ndarray, np.ndarray]:
        own = np.flatnonzero(slots_of(self._table.candidates, self.spec.rows) % self.lanes == self.lane)
        return self._table.candidates[own], self._table.counts[own]


class Rows:
    """A whole embedding, with ids in no particular order."""

    def __init__(self, spec: TableSpec, ids: np.ndarray, candidates: np.ndarray, rng: np.random.Generator) -> None:
        self.spec, self.ids, self.candidates = spec, ids, candidates
        self.counts = rng.integers(1, 9, len(candidates))
        names = ["rows", *(f"state/{s}" for s in range(spec.rule.states))]
        self.columns: dict[str, np.ndarray] = {
            name: rng.standard_normal((len(ids), spec.dim)).astype(np.float32) for name in names
        }
        self.columns["seen"] = rng.integers(0, 500, len(ids))
        self.columns["score"] = rng.random(len(ids)).astype(np.float32)


class World:
    """All tables of a job; `write` saves them as a run with that many pservers and lanes would."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        self.dense: dict[str, list[np.ndarray]] = {
            spec.name: [rng.standard_normal(spec.elements).astype(np.float32) for _ in range(1 + spec.rule.states)]
            for spec in (DENSE, SMALL)
        }
        ids = rng.permutation(np.unique(rng.integers(-(2**62), 2**62, 4000)))
        self.rows = {
            "word": Rows(WORDS, ids[:-50], ids[-50:], rng),
            "hour": Rows(BOUND, rng.permutation(24)[:20].astype(np.int64), np.empty(0, np.int64), rng),
        }

    def write(self, directory: Path, pservers: int, lanes: tuple[int, int] = (1, 1)) -> list[dict[str, Any]]:
        """Pserver p has the lanes p*n to p*n+n-1 of each kind; return the receipts."""
        receipts = []
        for p in range(pservers):
            tables: list[Any] = []
            for spec in (DENSE, SMALL):
                values, *state = self.dense[spec.name]
                for place in range(p * lanes[0], (p + 1) * lanes[0]):
                    bounds = owned_elements(spec.elements, spec.key, place, pservers * lanes[0])
                    tables.append(Run(spec, values, state, *bounds))
            for rows in self.rows.values():
                places = range(p * lanes[1], (p + 1) * lanes[1])
                tables += [Lane(rows, place, pservers * lanes[1]) for place in places]
            cut = Cut("JOB", "0001", TAG, 2, STEP, "sync", 7, p, pservers)
            receipts.append(write_piece(directory, cut, reversed(tables), cursors=CURSORS, lanes=lanes))
        return receipts

    def assert_dense(self, checkpoint: SavedCheckpoint, spec: TableSpec, start: int, stop: int) -> None:
        loaded = checkpoint.dense(spec, start, stop)
        assert loaded is not None
        values, state = loaded
        for got, expected in zip([values, *state], self.dense[spec.name], strict=True):
            np.testing.assert_array_equal(got.view(np.uint32), expected[start:stop].view(np.uint32))

    def assert_rows(self, checkpoint: SavedCheckpoint, name: str, lane: int, lanes: int) -> int:
        saved = self.rows[name]
        loaded = checkpoint.sparse(saved.spec, lane, lanes)
        assert loaded is not None
        own = np.flatnonzero(slots_of(saved.ids, saved.spec.rows) % lanes == lane)
        own = own[np.argsort(saved.ids[own])]
        np.testing.assert_array_equal(loaded.ids, saved.ids[own])
        if len(own):
            assert sorted(loaded.columns) == sorted(saved.columns)
        for column in loaded.columns:
            assert loaded.columns[column].tobytes() == saved.columns[column][own].tobytes()
        waiting = dict(zip(saved.candidates.tolist(), saved.counts.tolist(), strict=True))
        received = dict(zip(loaded.candidate_ids.tolist(), loaded.counts.tolist(), strict=True))
        assert received == {
            i: n for i, n in waiting.items() if slots_of(np.array([i]), saved.spec.rows)[0] % lanes == lane
        }
        return len(loaded.ids) + len(loaded.counts)


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def written(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("saved")
    receipts = world.write(root, 3, (2, 2))
    manifest = build_manifest("JOB", "0001", [{**r, "node": r["pserver"]} for r in receipts])
    assert manifest is not None
    write_manifest(root / TAG, manifest)
    return root / TAG


@pytest.fixture
def saved(written: Path, tmp_path: Path) -> Path:
    """A checkpoint by three pservers with two lanes of each kind."""
    return Path(shutil.copytree(written, tmp_path / TAG))


@pytest.mark.parametrize(("pservers", "lanes"), [(3, (2, 2)), (2, (1, 3))])
def test_a_checkpoint_loads_onto_any_number_of_pservers_and_lanes_bit_for_bit(
    world: World, tmp_path: Path, pservers: int, lanes: tuple[int, int]
) -> None:
    world.write(tmp_path, pservers, lanes)
    checkpoint = open_checkpoint(tmp_path / TAG)
    assert (checkpoint.step, checkpoint.pass_, checkpoint.mode, checkpoint.seed) == (STEP, 2, "sync", 7)
    assert checkpoint.cursors == CURSORS
    for places in (1, 5):
        for spec in (DENSE, SMALL):
            for place in range(places):
                world.assert_dense(checkpoint, spec, *owned_elements(spec.elements, spec.key, place, places))
        counts = {
            name: sum(world.assert_rows(checkpoint, name, k, places) for k in range(places)) for name in world.rows
        }
        assert counts == {"word": len(world.rows["word"].ids) + 50, "hour": 20}


def test_a_pserver_needs_only_its_own_piece_when_nothing_moved(world: World, saved: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(saved / piece_name(1), alone)
    checkpoint = open_checkpoint(alone)
    for lane in (2, 3):
        for spec in (DENSE, SMALL):
            world.assert_dense(checkpoint, spec, *owned_elements(spec.elements, spec.key, lane, 6))
        assert world.assert_rows(checkpoint, "word", lane, 6)
    with pytest.raises(ModelError, match=r"pserver-00000\.safetensors, pserver-00002\.safetensors .* is missing"):
        checkpoint.sparse(WORDS, 1, 6)
    with pytest.raises(ModelError, match=r"missing: pserver-00000\.safetensors"):
        checkpoint.dense(DENSE, 0, DENSE.elements)


def test_lanes_read_a_checkpoint_from_their_own_threads(
    world: World, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All threads start at once, while the checksum of each file is computed for the first time."""
    lanes = 4
    first = threading.Barrier(lanes)
    hashing = reader.checksum

    def slowly(path: Path) -> tuple[int, str]:
        with contextlib.suppress(threading.BrokenBarrierError):
            first.wait(0.2)  # only threads that compute it twice meet here
        return hashing(path)

    monkeypatch.setattr(reader, "checksum", slowly)
    checkpoint = open_checkpoint(saved)
    with ThreadPoolExecutor(lanes) as pool:
        results = list(pool.map(lambda lane: world.assert_rows(checkpoint, "word", lane, lanes), range(lanes)))
    assert sum(results) == len(world.rows["word"].ids) + 50


def test_a_new_table_is_not_in_the_checkpoint(saved: Path) -> None:
    checkpoint = open_checkpoint(saved)
    assert checkpoint.dense(TableSpec("new", "dense", (3,), Adagrad(0.1), zeros()), 0, 3) is None
    assert checkpoint.sparse(TableSpec("new", "sparse", (3,), Adagrad(0.1), zeros()), 0, 1) is None


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (TableSpec("bias", "dense", (4,), Adagrad(0.1), zeros()), r"'bias' differs .*shape \[4\], saved \[3\]"),
        (TableSpec("bias", "dense", (3,), Adam(0.1), zeros()), "rule .*Adam.*, saved .*Adagrad"),
    ],
)
def test_a_table_that_is_declared_differently_is_refused(saved: Path, spec: TableSpec, expected: str) -> None:
    with pytest.raises(ModelError, match=expected):
        open_checkpoint(saved).dense(spec, 0, 3)


def test_a_different_learning_rate_is_allowed(world: World, saved: Path) -> None:
    world.assert_dense(open_checkpoint(saved), TableSpec("bias", "dense", (3,), Adagrad(0.01), zeros()), 0, 3)


@pytest.mark.parametrize("position", [-1, 9])
def test_a_flipped_byte_is_found_by_the_manifest(saved: Path, position: int) -> None:
    path = saved / piece_name(2)
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"pserver-00002\.safetensors"):
        open_checkpoint(saved).sparse(WORDS, 0, 1)


@pytest.mark.parametrize("left", [0, 4, 100, 20_000, -1])
def test_a_truncated_piece_is_named_even_without_a_manifest(saved: Path, left: int) -> None:
    (saved / "manifest.json").unlink()
    path = saved / piece_name(0)
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(ModelError, match=r"pserver-00000\.safetensors"):
        open_checkpoint(saved)


def test_pieces_of_different_moments_are_not_mixed(world: World, saved: Path, tmp_path: Path) -> None:
    tables = [Run(SMALL, world.dense["bias"][0], world.dense["bias"][1:], 0, 3)]
    later = Cut("JOB", "0001", TAG, 2, STEP + 1, "sync", 7, 1, 3)
    write_piece(tmp_path, later, tables, cursors=CURSORS)
    with pytest.raises(ModelError, match=r"is of another cut than .*step"):
        open_checkpoint(saved)


def test_without_sync_a_pserver_may_lack_pushes_of_a_trainer_that_has_not_rejoined_it(tmp_path: Path) -> None:
    """It was restarted, and the other one was not: the checkpoint has the newest cursor of each trainer."""
    ended = {"rank": 0, "step": 9, "pass": 2, "batch": 1, "passes": 2, "left": False}
    behind = {"rank": 1, "step": 4, "pass": 1, "batch": 0, "passes": 1, "left": False}
    ahead = {**behind, "step": 8, "pass": 2, "passes": 2, "position": "here"}
    values = np.zeros(2 * BLOCK_ELEMENTS, np.float32)
    spec, receipts = TableSpec("w", "dense", values.shape, Adagrad(0.1), zeros()), []
    for pserver, of_second in enumerate((behind, ahead)):
        cut = Cut("JOB", "0001", TAG, 2, 17, "async", 7, pserver, 2)
        tables = [Run(spec, values, [values], pserver * BLOCK_ELEMENTS, (pserver + 1) * BLOCK_ELEMENTS)]
        receipts.append(write_piece(tmp_path, cut, tables, cursors=[ended, of_second]))
    manifest = build_manifest("JOB", "0001", receipts)
    assert manifest is not None
    assert (manifest["pass"], manifest["step"], manifest["steps"]) == (2, 17, [9, 8])
    write_manifest(tmp_path / TAG, manifest)
    assert open_checkpoint(tmp_path / TAG).cursors == [ended, ahead]
    assert load_model(tmp_path / TAG)["w"].shape == values.shape


def test_a_saved_model_is_not_a_checkpoint(world: World, tmp_path: Path) -> None:
    tables = [Run(SMALL, world.dense["bias"][0], world.dense["bias"][1:], 0, 3)]
    receipt = write_piece(tmp_path, Cut("JOB", "0001", TAG, 2, STEP, "sync", 7, 0, 1), tables)
    assert "checkpoint" not in receipt
    assert list(load_file(tmp_path / TAG / piece_name(0))) == ["bias/block/0"]
    with pytest.raises(ModelError, match="is not a piece of a checkpoint"):
        open_checkpoint(tmp_path / TAG)
    with pytest.raises(ModelError, match="no pieces of a checkpoint"):
        open_checkpoint(tmp_path)


def test_without_sync_a_receipt_records_the_step_of_each_trainer(world: World, tmp_path: Path) -> None:
    cut = Cut("JOB", "0001", TAG, 2, STEP, "async", 7, 0, 1)
    steps = [{**cursor, "step": 100 + cursor["rank"]} for cursor in reversed(CURSORS)]
    assert write_piece(tmp_path, cut, [], cursors=steps)["steps"] == [100, 101, 102]
    assert "steps" not in write_piece(tmp_path, cut._replace(mode="sync"), [], cursors=CURSORS)


def test_a_checkpoint_is_also_a_model(world: World, saved: Path) -> None:
    model = load_model(saved)
    assert sorted(model) == ["bias", "hour", "net/wide", "word"]
    np.testing.assert_array_equal(model["net/wide"], world.dense["net/wide"][0].reshape(DENSE.shape))
    ids, rows = model["word"]
    whole = world.rows["word"]
    order = np.argsort(whole.ids)
    np.testing.assert_array_equal(ids, whole.ids[order])
    np.testing.assert_array_equal(rows, whole.columns["rows"][order])


def test_a_full_disk_leaves_the_previous_checkpoint_as_it_was(
    world: World, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> Any:
        raise OSError(28, "No space left on device")

    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    monkeypatch.setattr("clusterctl.runtime.checkpoint.safetensors.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        world.write(saved.parent, 3)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before


def test_without_torch_the_export_says_what_to_install(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(UseError, match="pip install torch"):
        torch_state_dict(saved)


def restored(checkpoint: SavedCheckpoint, spec: TableSpec, lane: int, lanes: int) -> SparseTable:
    table = SparseTable(spec, 7, lane, lanes)
    loaded = checkpoint.sparse(spec, lane, lanes)
    assert loaded is not None
    table.restore(loaded.ids, loaded.columns)
    table.restore_candidates(loaded.candidate_ids, loaded.counts)
    return table


def contents(tables: Sequence[SparseTable]) -> dict[int, tuple[bytes, ...]]:
    """Return the stored values of each id."""
    out = {}
    for table in tables:
        at = table.live()
        arrays = [table.read(column.name, at) for column in table.columns()]
        out.update({i: tuple(a[n].tobytes() for a in arrays) for n, i in enumerate(table.ids_at(at).tolist())})
    return out


def test_an_embedding_with_eviction_continues_as_if_uninterrupted(tmp_path: Path) -> None:
    """Load from one lane onto three: admission, expiry and the cap continue where they were."""
    retention = Retention(after_sightings(2), score_below(0.6, 0.8), max_rows=1_500, sweep_every=3)
    spec = TableSpec("word", "sparse", (2,), Adagrad(0.1), uniform(0.1), retention=retention)
    whole = SparseTable(spec, 7)
    rng = np.random.default_rng(1)
    steps = [np.unique(rng.integers(0, 4_000, 700)) for _ in range(24)]
    for step, ids in enumerate(steps[:12]):
        whole.apply([SparseGrad(np.float32(1), ids, np.ones((len(ids), 2), np.float32))], np.float32(1), step)
    cut = Cut("JOB", "0001", TAG, 0, 12, "sync", 7, 0, 1)
    write_piece(tmp_path, cut, [whole.frozen()], cursors=CURSORS)
    lanes = [restored(open_checkpoint(tmp_path / TAG), spec, lane, 3) for lane in range(3)]
    assert sum(len(lane.candidates()[0]) for lane in lanes) == len(whole.candidates()[0]) > 0
    for step, ids in enumerate(steps[12:], 12):
        for lane, table in enumerate([whole, *lanes]):
            own = ids if table is whole else ids[slots_of(ids, None) % 3 == lane - 1]
            table.apply([SparseGrad(np.float32(1), own, np.ones((len(own), 2), np.float32))], np.float32(1), step)
    assert contents(lanes) == contents([whole])
    assert len(whole) > 100
    assert all(sum(lane.counters()[name] for lane in lanes) for name in ("admitted", "refused", "expired"))
