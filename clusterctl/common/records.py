"""Frozen values with conversion from and to JSON objects.

A `Record` is a frozen dataclass with keyword arguments, without importing `dataclasses` (15 ms) and `typing` (7 ms): a
whole `status` on a node takes 9 ms, This module and run_spec.py take 1 ms. Type checkers see
dataclasses, and the classes of `typing`.
"""

from __future__ import annotations

import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from dataclasses import dataclass
    from typing import Any, Callable, ClassVar, NamedTuple, TypedDict, TypeVar

    Reader = Callable[[Any], Any]
    R = TypeVar("R", bound="Record")
    T = TypeVar("T")
else:

    def dataclass(**_):
        """Complete a subclass of `Record`. All are frozen and take keywords; the arguments are ignored."""
        return _complete

    class TypedDict(dict):
        """A dict whose declaration is kept for `declared_readers`; made without the imports of `typing`."""

        def __init_subclass__(cls, total=True):
            above = [base for base in cls.__bases__ if base is not TypedDict]
            cls._kinds = {name: kind for base in (*above, cls) for name, kind in _kinds_of(base, cls).items()}
            own = cls.__annotations__ if total else ()
            cls._needed = frozenset().union(own, *(base._needed for base in above))

    class _Fields(type):
        """Make a tuple with named fields of a class that declares them."""

        def __new__(mcs, name, bases, declared):
            if not bases:
                return type.__new__(mcs, name, bases, declared)
            made = type.__new__(type, name, (tuple,), {**declared, "__slots__": ()})
            fields = tuple(made.__annotations__)
            words = ", ".join(f"{field}=_defaults[{field!r}]" if field in declared else field for field in fields)
            values = {"_new": tuple.__new__, "_defaults": {field: declared.get(field) for field in fields}}
            made.__new__ = eval(f"lambda _class, {words}: _new(_class, ({', '.join(fields)},))", values)
            made._replace = lambda self, **changes: made(**{**dict(zip(fields, self)), **changes})
            for index, field in enumerate(fields):
                setattr(made, field, _getter(index, None))
            return made

    class NamedTuple(metaclass=_Fields):
        """`typing.NamedTuple`, of which only fields, defaults, methods and `_replace` are here."""

    def _getter(index, _):
        return property(lambda self: self[index])

    with suppress(ImportError):
        from _collections import _tuplegetter as _getter  # in C, so three times as fast

    def _kinds_of(base, cls):
        module = sys.modules[cls.__module__]
        own = {name: (kind, module) for name, kind in cls.__annotations__.items()}
        return own if base is cls else base._kinds


__all__ = [
    "Group",
    "NamedTuple",
    "Record",
    "RecordError",
    "TypedDict",
    "dataclass",
    "declared_readers",
    "required_keys",
    "typed",
]

SHOWN_CHARS = 60
SCALARS = {
    "str": ((str,), "a string"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
}


class RecordError(ValueError):
    """JSON that does not fit a record. The message names the key and the expected type."""

    def __init__(self, problem: str) -> None:
        self._path = ""
        self._problem = problem

    def below(self, key: str) -> RecordError:
        """Prefix the path with a key of the enclosing object, or an `[index]` of the enclosing array. Return self."""
        dot = "." if self._path and not self._path.startswith("[") else ""
        self._path = f"{key}{dot}{self._path}"
        return self

    def __str__(self) -> str:
        return f"`{self._path}` {self._problem}" if self._path else f"it {self._problem}"


class Record:
    """A frozen value. Subclasses declare fields as dataclasses do. A field without a default is required.

    Types are str, int, float (an integer stays one), bool, other records, `tuple[T, ...]` for an array and
    `Mapping[str, T]` for an object, each also as `T | None`. The key of a field is its name, without the underscore of
    names such as `pass_`. A field named in `OMITTED` is not written while it is None. Undeclared keys are kept and
    written again. Fields are not inherited.
    """

    OMITTED: ClassVar[tuple[str, ...]] = ()
    _readers: ClassVar[dict[str, tuple[str, Reader]]]  # key and reader, by field
    _groups: ClassVar[dict[str, type[Group]]]
    _required: ClassVar[frozenset[str]]
    _keys: ClassVar[frozenset[str]]  # also those of groups
    _undeclared: Mapping[str, Any] = {}

    def __init__(self, **values: Any) -> None:
        if missing := self._required - values.keys():
            raise TypeError(f"{type(self).__name__} lacks {', '.join(sorted(missing))}")
        self._set(values)

    def _set(self, values: Mapping[str, Any]) -> None:
        if unknown := values.keys() - self._readers.keys() - self._groups.keys():
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        vars(self).update(values)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, Record) and other.to_json() == self.to_json()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = (*self._readers, *self._groups)
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in fields)})"

    def replace(self: R, **changes: Any) -> R:
        """Return a copy in which these fields have other values."""
        copy = object.__new__(type(self))
        vars(copy).update(vars(self))
        copy._set(changes)
        return copy

    @classmethod
    def from_json(cls: type[R], value: object) -> R:
        """Return a record. Raises RecordError if a required key is missing or a value is not of the declared type."""
        if not isinstance(value, dict):
            raise _expected("an object", value)
        record = object.__new__(cls)
        fields = vars(record)
        for name, (key, read) in cls._readers.items():
            if key in value:
                try:
                    fields[name] = read(value[key])
                except RecordError as exc:
                    raise exc.below(key) from None
            elif name in cls._required:
                raise RecordError("is missing").below(key)
        for name, group in cls._groups.items():
            fields[name] = group.from_json(value)
        if not cls._keys.issuperset(value) and not issubclass(cls, Group):
            fields["_undeclared"] = {key: item for key, item in value.items() if key not in cls._keys}
        return record

    def to_json(self) -> dict[str, Any]:
        value_by_key: dict[str, Any] = {}
        for name, (key, _) in self._readers.items():
            value = getattr(self, name)
            if value is not None or name not in self.OMITTED:
                value_by_key[key] = _plain(value)
        for name in self._groups:
            value_by_key.update(getattr(self, name).to_json())
        return {**value_by_key, **self._undeclared}


def _complete(cls: type[R]) -> type[R]:
    kinds = cls.__annotations__
    module = vars(sys.modules[cls.__module__])
    cls._groups = {name: module[kind] for name, kind in kinds.items() if _is_group(module.get(kind))}
    cls._readers = {
        name: (name.rstrip("_"), _reader(kind, module)) for name, kind in kinds.items() if name not in cls._groups
    }
    cls._required = frozenset(name for name in kinds if not hasattr(cls, name))
    own = frozenset(key for key, _ in cls._readers.values())
    cls._keys = own.union(*(group._keys for group in cls._groups.values()))
    return cls


def declared_readers(kind: Callable[..., object]) -> dict[str, Reader]:
    """The function that checks the value of each key of a TypedDict and raises RecordError.

    Keys of type Any and Literal have none: any value will do, or the caller checks it.
    """
    kinds: dict[str, tuple[str, Any]] = vars(kind)["_kinds"]
    checked = {key: pair for key, pair in kinds.items() if not pair[0].startswith(("Any", "Literal["))}
    return {key: _reader(declared, vars(module)) for key, (declared, module) in checked.items()}


def typed(kind: Callable[..., T], value: Mapping[str, Any]) -> T:
    """Return JSON as the TypedDict that it is known to match."""
    return kind(value)


def required_keys(kind: Callable[..., object]) -> frozenset[str]:
    """The keys that a TypedDict must have."""
    keys: frozenset[str] = vars(kind)["_needed"]
    return keys


def _expected(kind: str, value: object) -> RecordError:
    shown = repr(value)
    shown = shown if len(shown) <= SHOWN_CHARS else f"{shown[:SHOWN_CHARS]}..."
    return RecordError(f"must be {kind}, not {shown}")


def _is_group(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Group)


def _reader(kind: str, module: Mapping[str, Any]) -> Reader:
    """Return the function that checks and converts JSON for a field declared as `kind` in `module`."""
    if kind.endswith(" | None"):
        read = _reader(kind[: -len(" | None")], module)
        return lambda value: None if value is None else read(value)
    if kind.startswith("tuple["):
        return _array_of(_reader(kind[len("tuple[") : -len(", ...]")], module))
    if kind.startswith("Sequence["):
        return _array_of(_reader(kind[len("Sequence[") : -1], module))
    if kind.startswith("Mapping[str, "):
        return _mapping_of(_reader(kind[len("Mapping[str, ") : -1], module))
    if kind in SCALARS:
        return _scalar(*SCALARS[kind])
    record: type[Record] = module[kind]
    return record.from_json


def _scalar(types: tuple[type, ...], expected: str) -> Reader:
    def read(value: Any) -> Any:
        if type(value) not in types:  # isinstance would accept True as a number
            raise _expected(expected, value)
        return value

    return read


def _array_of(read_item: Reader) -> Reader:
    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _expected("an array", value)
        items = []
        for index, item in enumerate(value):
            try:
                items.append(read_item(item))
            except RecordError as exc:
                raise exc.below(f"[{index}]") from None
        return tuple(items)

    return read


def _mapping_of(read_item: Reader) -> Reader:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _expected("an object", value)
        items = {}
        for key, item in value.items():
            try:
                items[key] = read_item(item)
            except RecordError as exc:
                raise exc.below(key) from None
        return items

    return read


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, dict) else value


class Group(Record):
    """Fields of another record under one name; in JSON their keys are among those of the other fields."""
