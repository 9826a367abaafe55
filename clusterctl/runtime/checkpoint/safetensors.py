"""The safetensors file format, written and read with numpy alone.

Eight bytes of header length, a JSON header (`name -> dtype, shape, data_offsets`, and `__metadata__` of strings),
padded with spaces to a multiple of 8, then the arrays without gaps, little-endian
(https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Callable, NamedTuple, Protocol, Union

import numpy as np

from clusterctl.common.files import sync_directory
from clusterctl.common.safe_json import parse
from clusterctl.runtime.arrays import Array
from clusterctl.runtime.errors import ModelError

#: The array types of the tensor types. numpy has no bfloat16 and no float8: their arrays are the bits, as integers.
DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(code)
    for name, code in {
        **{"BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8"},
        **{"I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8"},
        **{"BF16": "<u2", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1"},
    }.items()
}
_MAX_HEADER_BYTES = 256 * 2**20

Buffer = Union[bytes, bytearray, memoryview]


class TensorEntry(NamedTuple):
    """A tensor to write, of a type in `DTYPES`. `read()` is called once, when it is written, so that a file needs no
    second copy of all.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Array]


def write_tensors(
    path: Path, entries: Sequence[TensorEntry], metadata: Mapping[str, str], *, durable: bool = True
) -> tuple[int, str]:
    """Write a file atomically; return its size and sha256. Unless `durable`, a power cut may lose it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            digest = write_to(file, entries, metadata)
            size = file.tell()
            file.flush()
            if durable:
                os.fsync(file.fileno())
        Path(beside).chmod(0o644 & ~_umask())
        Path(beside).replace(path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)
    return size, digest


def write_to(file: BinaryIO, entries: Sequence[TensorEntry], metadata: Mapping[str, str]) -> str:
    """Write the contents of a file; return their sha256. Raises ModelError if two tensors have the same name."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for entry in entries:
        if entry.name in header:
            raise ModelError(f"two tensors have the name {entry.name!r}", remedy="rename one of them")
        size = int(np.prod(entry.shape, dtype=np.int64)) * DTYPES[entry.dtype].itemsize
        span = [offset, offset + size]
        header[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": span}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    for piece in _pieces(len(text).to_bytes(8, "little") + text, entries):
        digest.update(piece)
        file.write(piece)
    return digest.hexdigest()


def _pieces(head: bytes, entries: Sequence[TensorEntry]) -> Any:
    yield head
    for entry in entries:
        array = np.asarray(entry.read(), DTYPES[entry.dtype], order="C")
        if array.shape != entry.shape:
            raise ModelError(f"tensor {entry.name!r} has shape {array.shape}, not {entry.shape}")
        if array.size:
            yield array.reshape(-1).view(np.uint8).data


def aligned(entries: Iterable[TensorEntry]) -> list[TensorEntry]:
    """Return the entries in an order that keeps every array aligned: those with long items first."""
    return sorted(entries, key=lambda entry: DTYPES[entry.dtype].itemsize, reverse=True)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


class Content(Protocol):
    """The bytes of a file, read by ranges."""

    @property
    def size(self) -> int: ...
    def read(self, start: int, stop: int) -> Buffer:
        """Return the bytes from `start` to `stop`, which are within the file. Raises ModelError."""
        ...


class MappedFile:
    """A file of this machine. Reading copies nothing."""

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                self._view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as exc:
            raise ModelError(f"{path} cannot be read ({exc})") from exc
        self.size = len(self._view)

    def read(self, start: int, stop: int) -> Buffer:
        return self._view[start:stop]


class TensorFile:
    """A safetensors file, of which only the header and the requested tensors are read.

    `content` is that of the file at `path` of this machine unless it is given. Raises ModelError unless the file is
    whole and well-formed.
    """

    def __init__(self, path: Path, content: Content | None = None) -> None:
        self.path = path
        self._content = MappedFile(path) if content is None else content
        self._header = self._read_header()
        metadata = self._header.pop("__metadata__", {})
        self.metadata: dict[str, str] = metadata if isinstance(metadata, dict) else {}

    @property
    def names(self) -> list[str]:
        return list(self._header)

    def __contains__(self, name: str) -> bool:
        return name in self._header

    def require_whole(self) -> None:
        """Raise ModelError if the file is shorter or longer than its header declares, or tensors share bytes.

        If tensors could share bytes, a small file could become a huge model.
        """
        try:
            spans = [(int(info["data_offsets"][0]), int(info["data_offsets"][1])) for info in self._header.values()]
        except (KeyError, IndexError, OverflowError, TypeError, ValueError) as exc:
            raise ModelError(f"{self.path}: the header is damaged ({exc!r})") from exc
        data = max((last for _, last in spans), default=0)
        if any(not 0 <= first <= last for first, last in spans) or sum(last - first for first, last in spans) != data:
            raise ModelError(f"{self.path} is damaged: its tensors overlap or leave gaps")
        if self._data + data != self._content.size:
            raise ModelError(f"{self.path} is damaged: it has {self._content.size} of {self._data + data} bytes")

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(int(n) for n in self._header[name]["shape"])

    def dtype(self, name: str) -> str:
        """Return the type of a tensor in the file, such as "F32"."""
        return str(self._header[name].get("dtype"))

    def tensor(self, name: str) -> Array:
        """Return the tensor, read-only; a view of the file if it is of this machine."""
        info = self._header.get(name)
        if info is None:
            raise ModelError(f"{self.path} lacks tensor {name!r}")
        try:
            dtype, shape, (first, last) = DTYPES[info["dtype"]], self.shape(name), info["data_offsets"]
            if not 0 <= first <= last <= self._content.size - self._data:
                raise ValueError("outside the file")
            if any(size < 0 for size in shape):
                raise ValueError("a negative size")
            count = (last - first) // dtype.itemsize
            data = self._content.read(self._data + first, self._data + last)
            return np.frombuffer(data, dtype, count).reshape(shape)
        except (KeyError, OverflowError, TypeError, ValueError) as exc:
            raise ModelError(f"{self.path}: tensor {name!r} is damaged ({exc})") from exc

    def _read_header(self) -> dict[str, Any]:
        size = self._content.size
        length = int.from_bytes(self._content.read(0, min(8, size)), "little")
        if size < 8 or length > min(_MAX_HEADER_BYTES, size - 8):
            raise ModelError(f"{self.path} is not a whole safetensors file")
        self._data = 8 + length
        try:
            header = parse(bytes(self._content.read(8, self._data)), _MAX_HEADER_BYTES)
        except ValueError as exc:
            raise ModelError(f"{self.path}: the header does not parse") from exc
        if not isinstance(header, dict):
            raise ModelError(f"{self.path}: the header is not an object")
        return header
