"""Saving a model, merging it, loading it onto another number of pservers, and every way in which it can be invalid."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from clusterctl.common.manifest import build_manifest, piece_name, read_manifest, write_manifest
from clusterctl.runtime import SGD, Adagrad, connect, load_model, merge_model, normal, save_model, uniform
from clusterctl.runtime.checkpoint.buffers import Buffers
from clusterctl.runtime.checkpoint.model import open_model
from clusterctl.runtime.errors import ModelError, UseError
from clusterctl.runtime.table.sharding import BLOCK_ELEMENTS
from clusterctl.runtime.table.spec import TableSpec
from clusterctl.runtime.trainer.session import Session
from unit.runtime.cluster import thread_cluster

IDS = np.array([-(2**63), -3, -2, 5, 6, 7, 900, 2**63 - 1])


def tables(ps: Session) -> tuple[Any, ...]:
    wide = ps.dense("net/wide", (3, BLOCK_ELEMENTS), Adagrad(0.1), uniform(0.1))
    single = ps.dense("one", (), SGD(0.1), normal(1.0))
    free = ps.embedding("free", 3, Adagrad(0.1))
    empty = ps.embedding("untouched", 4, SGD(0.1), rows=10)
    return wide, single, free, empty


def file_of(header: bytes, data: bytes = b"") -> bytes:
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data


@pytest.mark.parametrize(
    "data",
    [
        file_of(b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,16]}}', bytes(16)),
        file_of(b'{"a":{"dtype":"F32","shape":[Infinity],"data_offsets":[0,16]}}', bytes(16)),
        file_of(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    ],
    ids=["negative", "infinite", "deep"],
)
def test_buffers_of_a_hostile_trainer_are_a_model_error(data: bytes) -> None:
    with pytest.raises(ModelError):
        Buffers(data, "the buffers of trainer 1")


def train(ps: Session) -> dict[str, Any]:
    wide, single, free, empty = tables(ps)
    for _ in ps.steps(lambda pass_, rng: range(2), passes=1):
        ps.push({wide: wide.value, single: single.value, free: (IDS, free.pull(IDS) + 1)}, samples=3)
    ps.save("extra")
    return values(wide, single, free, empty)


def values(wide: Any, single: Any, free: Any, empty: Any) -> dict[str, Any]:
    return {
        "net/wide": wide.value.copy(),
        "one": single.value.copy(),
        "free": free.pull(IDS),
        "none": empty.pull([1]),
    }


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A pass saved by three pservers, each in its own directory as on three nodes, and the values that trainers saw."""
    root = tmp_path_factory.mktemp("saved")
    with thread_cluster(root, 3, 2) as cluster:
        seen = cluster.train(train)[0]
        receipts = [r for r in cluster.receipts if r["tag"] == "pass-00000"]
        assert {r["tag"] for r in cluster.receipts} == {"pass-00000", "extra"}
        assert len(cluster.receipts) == 6
    for rank in range(3):
        node = root / f"node-{rank}"
        node.mkdir()
        shutil.copy(root / "output" / "pass-00000" / piece_name(rank), node)
    manifest = build_manifest("JOB", "0001", receipts)
    assert manifest is not None
    write_manifest(root / "node-0", manifest)
    return root, seen


def assert_same(model: dict[str, Any], seen: dict[str, Any]) -> None:
    np.testing.assert_array_equal(model["net/wide"], seen["net/wide"])
    np.testing.assert_array_equal(model["one"], seen["one"])
    np.testing.assert_array_equal(model["free"][0], IDS)
    np.testing.assert_array_equal(model["free"][1], seen["free"])
    assert (model["untouched"][0].shape, model["untouched"][1].shape) == ((0,), (0, 4))


def test_pieces_load_as_plain_arrays(saved: tuple[Path, dict[str, Any]]) -> None:
    root, seen = saved
    assert_same(load_model(root / "output" / "pass-00000"), seen)


def test_pieces_of_several_nodes_merge_into_a_file_that_the_safetensors_library_reads(
    saved: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    root, seen = saved
    out = tmp_path / "model" / "model.safetensors"
    merge_model([root / f"node-{rank}" for rank in range(3)], out)
    reference = load_file(out)
    assert sorted(reference) == ["free/ids", "free/rows", "net/wide", "one", "untouched/ids", "untouched/rows"]
    np.testing.assert_array_equal(reference["net/wide"], seen["net/wide"])
    np.testing.assert_array_equal(reference["free/ids"], IDS)
    assert_same(load_model(out.parent), seen)
    assert_same(load_model(out), seen)
    assert_same(load_model(tmp_path), seen)  # as `collect` leaves it
    assert [p.name for p in out.parent.iterdir()] == ["model.safetensors"]


def test_the_safetensors_library_reads_pieces(saved: tuple[Path, dict[str, Any]]) -> None:
    root, seen = saved
    pieces = [load_file(root / "output" / "pass-00000" / piece_name(rank)) for rank in range(3)]
    blocks = {name: array for piece in pieces for name, array in piece.items() if "/block/" in name}
    assert sorted(blocks) == ["net/wide/block/0", "net/wide/block/1", "net/wide/block/2", "one/block/0"]
    np.testing.assert_array_equal(blocks["net/wide/block/1"], seen["net/wide"][1])


@pytest.mark.parametrize(("pservers", "merged"), [(2, True), (5, False)])
def test_a_saved_model_loads_onto_any_number_of_pservers_bit_for_bit(
    saved: tuple[Path, dict[str, Any]], tmp_path: Path, pservers: int, merged: bool
) -> None:
    root, seen = saved
    (tmp_path / "start").mkdir()
    for rank in range(3):
        shutil.copy(root / f"node-{rank}" / piece_name(rank), tmp_path / "start")
    if merged:
        merge_model([tmp_path / "start"], tmp_path / "model.safetensors")
    with thread_cluster(tmp_path, pservers, 1) as cluster:
        load = "model.safetensors" if merged else "start"
        [loaded] = cluster.train(lambda ps: values(*tables(ps)), load=load)
    for name, array in seen.items():
        np.testing.assert_array_equal(loaded[name], array)


def test_a_table_that_the_model_lacks_starts_fresh_and_this_is_reported(
    saved: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    root, _ = saved
    monkeypatch.chdir(tmp_path)
    with connect(load=str(root / "output" / "pass-00000")) as ps:
        ps.dense("head", 3, SGD(0.1))
        ps.embedding("untouched", 4, SGD(0.1), rows=10)
        with pytest.raises(ModelError, match=r"'one' is dense \(2,\), but in .* it is dense \(\)"):
            ps.dense("one", 2, SGD(0.1))
    assert "lacks table head, declared by the program: it starts from initial values" in capsys.readouterr().out


def copied(saved: tuple[Path, dict[str, Any]], tmp_path: Path) -> list[Path]:
    root, _ = saved
    return [Path(shutil.copytree(root / f"node-{rank}", tmp_path / f"node-{rank}")) for rank in range(3)]


def test_a_missing_piece_is_named_with_and_without_a_manifest(
    saved: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    nodes = copied(saved, tmp_path)
    with pytest.raises(ModelError, match=r"pserver-00002\.safetensors is in the manifest but missing"):
        merge_model(nodes[:2], tmp_path / "m")
    (nodes[0] / "manifest.json").unlink()
    with pytest.raises(ModelError, match=r"missing: pserver-00002\.safetensors"):
        merge_model(nodes[:2], tmp_path / "m")
    with pytest.raises(ModelError, match="no pieces"):
        merge_model([tmp_path], tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_pieces_of_different_moments_are_not_mixed(saved: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    nodes = copied(saved, tmp_path)
    (nodes[0] / "manifest.json").unlink()
    shutil.copy(saved[0] / "output" / "extra" / piece_name(1), nodes[1])
    with pytest.raises(ModelError, match=r"is of another cut than .* \(tag differ\)"):
        merge_model(nodes, tmp_path / "m")
    with pytest.raises(ModelError, match="differ; give the pieces of one run"):
        merge_model([*nodes, saved[0] / "node-1"], tmp_path / "m")


def test_a_manifest_waits_for_all_receipts_and_refuses_mixed_ones() -> None:
    receipt = {"tag": "t", "pass": 0, "step": 4, "mode": "sync", "seed": 0, "pserver": 0, "pservers": 2}
    receipt.update(file=piece_name(0), bytes=1, sha256="x", tables={})
    assert build_manifest("J", "1", []) is None
    assert build_manifest("J", "1", [receipt]) is None
    other = {**receipt, "pserver": 1, "file": piece_name(1)}
    assert len(build_manifest("J", "1", [other, receipt])["files"]) == 2  # type: ignore[index]
    with pytest.raises(ValueError, match="not of one cut"):
        build_manifest("J", "1", [receipt, {**other, "step": 5}])
    with pytest.raises(ValueError, match="not of one cut"):
        build_manifest("J", "1", [{**r, "mode": "async", "checkpoint": True} for r in (receipt, {**other, "step": 5})])


def test_a_manifest_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"v": 1, "files": [{"file": "../../etc/passwd"}]}))
    with pytest.raises(ValueError, match="not a piece"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("tag", ["", ".", "../up", "a/b", "pass-00001", "x" * 101])
def test_tags_that_are_not_directory_names_are_refused(
    tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with connect() as ps, pytest.raises(UseError, match="tag"):
        ps.save(tag)


def test_a_model_made_elsewhere_is_loaded_by_any_number_of_pservers(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    wide = rng.standard_normal((3, BLOCK_ELEMENTS))
    ids, rows = IDS[::-1], rng.standard_normal((len(IDS), 3))
    file = save_model(tmp_path / "made", {"net/wide": wide, "one": 2, "free": (ids, rows)})
    assert file == tmp_path / "made/model.safetensors"
    loaded = load_model(tmp_path / "made")
    assert loaded["one"].tobytes() == np.float32(2).tobytes()  # type: ignore[union-attr]
    assert (loaded["free"][0] == IDS).all()
    assert load_file(file)["free/rows"].shape == (len(IDS), 3)
    with thread_cluster(tmp_path, 3, 1) as cluster:
        [seen] = cluster.train(lambda ps: values(*tables(ps)), load=str(tmp_path / "made"))
    assert seen["net/wide"].tobytes() == wide.astype(np.float32).tobytes()
    assert seen["free"].tobytes() == rows[::-1].astype(np.float32).tobytes()
    assert seen["one"] == 2


@pytest.mark.parametrize(("ids", "fits"), [([0, 9], True), ([], True), ([-1, 3], False), ([3, 10], False)])
def test_a_model_with_ids_outside_the_rows_of_a_table_is_not_loaded(tmp_path: Path, ids: list[int], fits: bool) -> None:
    save_model(tmp_path / "made", {"t": (np.array(ids, np.int64), np.ones((len(ids), 2)))})
    view, spec = open_model(tmp_path / "made"), TableSpec("t", "sparse", (2,), SGD(0.1), uniform(0.1), rows=10)
    if fits:
        found = view.sparse(spec, 0, 1)
        assert found is not None
        assert found[0].tolist() == ids
        return
    with pytest.raises(ModelError, match=r"table 't' in .* has ids outside 0\.\.9"):
        view.sparse(spec, 0, 1)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ((np.array([1, 2]), np.zeros((3, 2))), "has the shapes"),
        ((np.array([1, 2]),), "has the shapes"),
        ((np.array([1.5, 2]), np.zeros((2, 2))), "its ids are float64"),
        ((np.array([7, 7]), np.zeros((2, 2))), "1 ids occur more than once"),
        (np.array([1, np.nan]), "not finite"),
        (np.array([1e300]), "not finite"),
        (np.array(["a"]), "is of dtype"),
    ],
)
def test_a_model_of_another_form_is_not_written(tmp_path: Path, table: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        save_model(tmp_path / "made", {"good": np.zeros(3), "bad": table})
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("names", [("user", "user/rows"), ("user/ids", "user")])
def test_a_model_whose_tables_would_have_the_same_tensor_is_not_written(tmp_path: Path, names: tuple[str, str]) -> None:
    tables = {name: (np.arange(3), np.zeros((3, 2))) if name == "user" else np.zeros(3) for name in names}
    with pytest.raises(ModelError, match=r"table .* and table .* would both be saved as 'user/\w+'; rename"):
        save_model(tmp_path / "made", tables)
    with pytest.raises(ModelError, match="the name of a table is 1"):
        save_model(tmp_path / "made", {1: np.zeros(3)})  # type: ignore[dict-item]
    assert not (tmp_path / "made").exists()
