"""Values as JSON and named tensors, and back: what `ps.keep` saves. Never a pickle.

Strings, numbers, booleans, None, lists and dicts with strings as keys are themselves in JSON. All else is an object
with one key: `$tensor` and `$array` have the name of a tensor in the file, `$scalar` that of a number of numpy,
`$tuple` a list, and `$dict`, `$ordered` and `$counter` a list of pairs.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any, Callable

import numpy as np
import torch

from clusterctl.runtime.arrays import Array
from clusterctl.runtime.checkpoint.safetensors import DTYPES, TensorEntry
from clusterctl.runtime.errors import ModelError, UseError
from clusterctl.runtime.state.files import Loadable, entry_of

_TENSORS = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
_DTYPES = {name: dtype for dtype, name in _TENSORS.items()}
#: torch's types that numpy lacks, as the integers of their bits.
_BITS = {"BF16": torch.int16, "F8_E4M3": torch.uint8, "F8_E5M2": torch.uint8}
_ARRAYS = {DTYPES[name]: name for name in _DTYPES if name not in _BITS}
_PAIRS: dict[type, str] = {dict: "$dict", OrderedDict: "$ordered", Counter: "$counter"}
_REMEDY = "keep tensors, arrays, numbers, strings, None, and lists, tuples and dicts of these"


def is_plain(tensor: Any) -> bool:
    """Return True for a tensor that can be saved."""
    return tensor.dtype in _TENSORS and tensor.layout == torch.strided and not tensor.is_meta


def array_of(tensor: Any) -> tuple[str, Array]:
    """Return the type of a plain tensor in files, and its values as an array."""
    dtype, plain = _TENSORS[tensor.dtype], tensor.detach().cpu().contiguous()
    return dtype, plain.view(_BITS[dtype]).numpy().view(DTYPES[dtype]) if dtype in _BITS else plain.numpy()


class ValuePacker:
    """Packs one value; its tensors become `entries`, whose names are `name`/PATH."""

    def __init__(self, name: str) -> None:
        self.entries: list[TensorEntry] = []
        self._name = name
        self._used: set[str] = set()

    def pack(self, value: Any, path: str = "") -> Any:
        """Return a value as JSON. Raises UseError, which names the path, for one that cannot be packed."""
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if isinstance(value, torch.Tensor):
            return {"$tensor": self._tensor(value, path)}
        if isinstance(value, (np.ndarray, np.generic)):
            return {"$array" if kind is np.ndarray else "$scalar": self._array(value, path)}
        if kind is list or (isinstance(value, (tuple, torch.Size)) and kind in (tuple, torch.Size)):
            items = [self.pack(item, f"{path}[{number}]") for number, item in enumerate(value)]
            return items if kind is list else {"$tuple": items}
        if kind is dict and all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self.pack(item, f"{path}.{key}") for key, item in value.items()}
        if kind in _PAIRS:
            return {_PAIRS[kind]: [self._pair(key, item, path) for key, item in value.items()]}
        raise self._error(path, f"is a {kind.__module__}.{kind.__qualname__}")

    def _pair(self, key: Any, item: Any, path: str) -> list[Any]:
        inner = f"{path}.{key}" if type(key) is str else f"{path}[{key!r:.40}]"
        if not _is_key(key):
            raise self._error(inner, f"has a key that is a {type(key).__name__}")
        return [self.pack(key), self.pack(item, inner)]

    def _tensor(self, value: Any, path: str) -> str:
        if not is_plain(value):
            raise self._error(path, f"is a {value.layout} tensor of {value.dtype} on {value.device}")
        return self._add(path, *array_of(value))

    def _array(self, value: Any, path: str) -> str:
        array = np.asarray(value)
        dtype = _ARRAYS.get(array.dtype.newbyteorder("<"))
        if dtype is None:
            raise self._error(path, f"is an array of {array.dtype}")
        return self._add(path, dtype, array)

    def _add(self, path: str, dtype: str, array: Array) -> str:
        first = name = f"{self._name}/{path.lstrip('.')}" if path else self._name
        while name in self._used:  # as a dict may have both "a.b" and "a": {"b"}
            name = f"{first}#{len(self._used)}"
        self._used.add(name)
        self.entries.append(entry_of(name, dtype, array))
        return name

    def _error(self, path: str, what: str) -> UseError:
        return UseError(f"ps.keep({self._name!r}): {self._name}{path} {what}, which is not saved", remedy=_REMEDY)


def _is_key(key: Any) -> bool:
    return key is None or type(key) in (bool, int, float, str) or (type(key) is tuple and all(map(_is_key, key)))


def unpack(tree: Any, saved: Loadable) -> Any:
    """Return the value of which `tree` is the JSON; its tensors are new. Raises ModelError if the file is damaged."""
    if isinstance(tree, list):
        return [unpack(item, saved) for item in tree]
    if not isinstance(tree, dict):
        return tree
    kind = next(iter(tree), "")
    if not kind.startswith("$"):
        return {key: unpack(item, saved) for key, item in tree.items()}
    if kind not in _UNPACKED:
        raise ModelError(f"{saved.path} has a value of kind {kind!r}, which this version does not know")
    return _UNPACKED[kind](tree[kind], saved)


def _unpack_tensor(name: str, saved: Loadable) -> Any:
    dtype, array = saved.tensor(name)
    if dtype not in _BITS:
        return torch.from_numpy(array.copy())
    return torch.from_numpy(array.view(np.int16 if dtype == "BF16" else np.uint8).copy()).view(_DTYPES[dtype])


def _pairs(items: Any, saved: Loadable) -> dict[Any, Any]:
    return {unpack(key, saved): unpack(item, saved) for key, item in items}


_UNPACKED: dict[str, Callable[[Any, Loadable], Any]] = {
    "$tensor": _unpack_tensor,
    "$array": lambda name, saved: saved.tensor(name)[1].copy(),
    "$scalar": lambda name, saved: saved.tensor(name)[1][()],
    "$tuple": lambda items, saved: tuple(unpack(item, saved) for item in items),
    "$dict": _pairs,
    "$ordered": lambda items, saved: OrderedDict(_pairs(items, saved)),
    "$counter": lambda items, saved: Counter(_pairs(items, saved)),
}
