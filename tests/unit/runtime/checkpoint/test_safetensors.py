"""The file format with all its types, read back by the safetensors library."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from clusterctl.runtime.checkpoint import safetensors
from clusterctl.runtime.checkpoint.safetensors import DTYPES, TensorEntry, TensorFile, write_tensors
from clusterctl.runtime.errors import ModelError

NO_NUMPY_TYPE = ("BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0")


def entry(name: str, dtype: str, array: Any) -> TensorEntry:
    return TensorEntry(name, dtype, array.shape, lambda: array)


def some(dtype: str) -> Any:
    return (np.arange(12) % 2 if dtype == "BOOL" else np.arange(12)).astype(DTYPES[dtype]).reshape(3, 4)


@pytest.fixture
def of_each_type(tmp_path: Path) -> Path:
    """A file with a tensor of each type, which has its name."""
    path = tmp_path / "a.safetensors"
    write_tensors(path, [entry(name, name, some(name)) for name in DTYPES], {})
    return path


def test_a_tensor_of_each_type_comes_back(of_each_type: Path) -> None:
    file = TensorFile(of_each_type)
    file.require_whole()
    for name, dtype in DTYPES.items():
        assert (file.dtype(name), file.shape(name), file.tensor(name).dtype) == (name, (3, 4), dtype)
        np.testing.assert_array_equal(file.tensor(name), some(name), name)


def test_the_library_reads_what_numpy_has_and_accepts_the_other_types(of_each_type: Path) -> None:
    with safe_open(of_each_type, "np") as file:
        for name, dtype in DTYPES.items():
            assert file.get_slice(name).get_dtype() == name
            if name not in (*NO_NUMPY_TYPE, "C64"):
                np.testing.assert_array_equal(file.get_tensor(name), some(name), name)
                assert file.get_tensor(name).dtype == dtype


def test_bits_of_bfloat16_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    bits = np.array([0x3F80, 0x7FC1, 0x8000], np.uint16)  # 1, a NaN with a payload, -0
    write_tensors(path, [entry("t", "BF16", bits)], {})
    assert TensorFile(path).tensor("t").tobytes() == bits.tobytes()


def test_scalars_and_empty_tensors_come_back(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, [entry("n", "I64", np.array(7)), entry("none", "F16", np.zeros((0, 3), np.float16))], {})
    file = TensorFile(path)
    file.require_whole()
    assert (file.tensor("n").shape, int(file.tensor("n"))) == ((), 7)
    assert file.tensor("none").shape == (0, 3)


def test_a_type_that_is_unknown_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    header = json.dumps({"t": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    with pytest.raises(ModelError, match=r"tensor 't' is damaged .*F4"):
        TensorFile(path).tensor("t")


@pytest.mark.parametrize("durable", [True, False])
def test_only_a_durable_file_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool) -> None:
    synced: list[object] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.setattr(safetensors, "sync_directory", synced.append)
    path = tmp_path / "a.safetensors"
    write_tensors(path, [entry("t", "U8", some("U8"))], {}, durable=durable)
    assert (len(synced), list(tmp_path.iterdir())) == (2 if durable else 0, [path])


@pytest.mark.parametrize("name", ["t", "__metadata__"])
def test_two_tensors_of_one_name_are_not_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(ModelError, match=f"two tensors have the name '{name}'"):
        write_tensors(path, [entry(one, "F32", some("F32")) for one in ("t", name)], {"a": "b"})
    assert not list(tmp_path.iterdir())


def made(path: Path, data: bytes, **tensors: tuple[list[int], list[int]]) -> TensorFile:
    """Write a file of float32 tensors with these shapes and places in the data, as no honest program writes it."""
    about = {name: {"dtype": "F32", "shape": shape, "data_offsets": at} for name, (shape, at) in tensors.items()}
    header = json.dumps(about).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return TensorFile(path)


@pytest.mark.parametrize(
    ("size", "tensors", "words"),
    [
        (16, {"a": ([2], [0, 8]), "b": ([2], [4, 12])}, "overlap or leave gaps"),
        (16, {"a": ([2], [0, 8]), "b": ([1], [12, 16])}, "overlap or leave gaps"),
        (16, {"a": ([2], [8, 0])}, "overlap or leave gaps"),
        (16, {"a": ([2], [-8, 0]), "b": ([2], [0, 8])}, "overlap or leave gaps"),
        (12, {"a": ([4], [0, 16])}, "it has .* bytes"),
        (20, {"a": ([4], [0, 16])}, "it has .* bytes"),
    ],
)
def test_tensors_that_overlap_leave_gaps_or_do_not_end_with_the_file_are_damage(
    tmp_path: Path, size: int, tensors: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        made(tmp_path / "a", bytes(size), **tensors).require_whole()


@pytest.mark.parametrize(
    ("shape", "at"), [([-1, 2], [0, 16]), ([-2, -2], [0, 16]), ([2], [0, 16]), ([4], [-16, 0]), ([5], [0, 20])]
)
def test_a_tensor_of_another_size_or_outside_the_file_is_not_read(
    tmp_path: Path, shape: list[int], at: list[int]
) -> None:
    file = made(tmp_path / "a", bytes(16), t=(shape, at))
    with pytest.raises(ModelError, match="tensor 't' is damaged"):
        file.tensor("t")
