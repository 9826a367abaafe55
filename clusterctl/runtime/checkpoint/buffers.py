"""The buffers of a model: tensors that no rule changes, so trainers have them, and send them for saved models.

They travel as the bytes of a safetensors file. In the piece of pserver 0 that of a buffer is `NAME/buffer`, in a merged
model `NAME`; there `buffers` in the metadata is a JSON list of their names.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from clusterctl.common.safe_json import parse
from clusterctl.runtime.arrays import Array
from clusterctl.runtime.checkpoint.safetensors import Buffer, TensorEntry, TensorFile, write_to
from clusterctl.runtime.errors import ModelError

SUFFIX = "/buffer"  # in pieces


def pack(entries: Sequence[TensorEntry]) -> bytes:
    """Return buffers as the bytes of a file."""
    file = io.BytesIO()
    write_to(file, entries, {})
    return file.getvalue()


class Buffers:
    """The buffers of a model. `name` is for messages. Raises ModelError if the bytes are not those of such a file."""

    def __init__(self, data: bytes, name: str) -> None:
        self._file = TensorFile(Path(name), _Bytes(data))
        self._file.require_whole()
        for tensor in self._file.names:
            self._file.tensor(tensor)

    @property
    def names(self) -> list[str]:
        return self._file.names

    def entries(self) -> list[TensorEntry]:
        """Return the tensors of a piece."""
        file = self._file
        return [
            TensorEntry(name + SUFFIX, file.dtype(name), file.shape(name), functools.partial(file.tensor, name))
            for name in file.names
        ]


class _Bytes:
    """The contents of a file in memory."""

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self._data = memoryview(data)

    def read(self, start: int, stop: int) -> Buffer:
        return self._data[start:stop]


class SavedBuffers:
    """The buffers in the files of a saved model, those of pieces with `suffix`."""

    def __init__(self, files: Sequence[TensorFile], suffix: str = "") -> None:
        self._homes = {name: file for file in files for name in _names(file)}
        self._suffix = suffix

    def entries(self) -> list[TensorEntry]:
        """Return the tensors of a merged model. Raises ModelError if one is missing."""
        return [
            TensorEntry(name, file.dtype(tensor), file.shape(tensor), functools.partial(file.tensor, tensor))
            for name, file in self._homes.items()
            for tensor in [name + self._suffix]
        ]

    def values(self) -> dict[str, Array]:
        """Return new arrays by name. numpy has no bfloat16: those are float32. Raises ModelError."""
        return {entry.name: _plain(entry.dtype, entry.read()) for entry in self.entries()}


def _names(file: TensorFile) -> list[str]:
    try:
        names = [str(name) for name in parse(file.metadata.get("buffers", "[]"))]
    except (TypeError, ValueError) as exc:
        raise ModelError(f"{file.path}: the metadata is damaged ({exc})") from exc
    if missing := [name for name in names if name not in file and name + SUFFIX not in file]:
        raise ModelError(f"{file.path} lacks buffer {missing[0]!r}")
    return names


def _plain(dtype: str, array: Array) -> Array:
    if dtype != "BF16":
        return np.array(array)
    wide: Array = array.astype(np.uint32) << np.uint32(16)
    return wide.view(np.float32)
