"""The one schema of JSON from nodes, processes, files and peers: classes declare it, and readers check it on arrival.

A declaration is a TypedDict, whose values stay JSON objects, or a `Record`. The annotations of its fields are types of
JSON values: str, int, float, bool, `Literal`, `list[T]`, `tuple[T, ...]`, `tuple[A, B]`, `dict[str, T]` (or `Sequence`,
`Mapping`), a NamedTuple for an array of its fields, other declarations, a choice of these such as `T | None`, and `Any`
or `object`, which are not checked. An `Annotated` type adds bounds. An object may lack a key that is `NotRequired`. A
reader returns the value, with tuples where arrays are declared as such, and with Records. Unknown keys of an object are
kept.

It runs on nodes from Python 3.9, where `typing.get_type_hints` does not know `X | None`.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import math
import sys
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Callable,
    ClassVar,
    ForwardRef,
    Generic,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from clusterctl.common.safe_json import is_number, is_whole

Reader = Callable[[Any], Any]
R = TypeVar("R", bound="Record")
T = TypeVar("T")
if TYPE_CHECKING:
    from typing_extensions import NotRequired as NotRequired  # noqa: PLC0414 - the type checker has it, and nodes need no package
else:

    class NotRequired(Generic[T]):
        """The type of a key that a TypedDict may lack; `typing` has it from Python 3.11."""


SHOWN_CHARS = 60
END_OF_TIME = 1e11  # seconds since the epoch; calendars do not reach further


class SchemaError(ValueError):
    """JSON that does not fit its declaration. The message names the key and what its value must be."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self._path = ""
        self._problem = problem

    def below(self, key: str) -> SchemaError:
        """Prefix the path with a key of the enclosing object, or an `[index]` of the enclosing array. Return self."""
        dot = "." if self._path and not self._path.startswith("[") else ""
        self._path = f"{key}{dot}{self._path}"
        return self

    def __str__(self) -> str:
        return f"`{self._path}` {self._problem}" if self._path else f"it {self._problem}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


@dataclass(frozen=True)
class Bound:
    """A constraint on an `Annotated` type: a description that completes "must be ...", and a predicate."""

    words: str
    holds: Callable[[Any], bool]


def at_most(count: int) -> Bound:
    """The bound of texts, arrays and objects that are at most so long."""
    return Bound(f"at most {count} long", lambda value: len(value) <= count)


Count = Annotated[int, Bound("a count", lambda value: value >= 0)]
Finite = Annotated[float, Bound("a finite number", math.isfinite)]
Moment = Annotated[float, Bound("a time in seconds", lambda value: 0 <= value < END_OF_TIME)]


class Record:
    """A frozen dataclass with conversion from and to JSON objects.

    A field without a default is required. Its key is its name, without the underscore of names such as `pass_`. A field
    named in `OMITTED` is not written while it is None. Undeclared keys are kept and written again.
    """

    OMITTED: ClassVar[tuple[str, ...]] = ()
    _undeclared: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def from_json(cls: type[R], value: object) -> R:
        """Return a record. Raises SchemaError if a required key is missing or a value is not of the declared type."""
        kind: Any = cls
        record: R = reader(kind)(value)
        return record

    def to_json(self) -> dict[str, Any]:
        kind: Any = type(self)
        values = {name: getattr(self, name) for name in types_of(kind)}
        groups = [value.to_json() for value in values.values() if isinstance(value, FieldGroup)]
        own = {
            name.rstrip("_"): _plain(value)
            for name, value in values.items()
            if not isinstance(value, FieldGroup) and (value is not None or name not in self.OMITTED)
        }
        return {key: item for part in (own, *groups, self._undeclared) for key, item in part.items()}

    def replace(self: R, **changes: Any) -> R:
        """Return a copy in which these fields have other values."""
        copy = dataclasses.replace(self, **changes)  # type: ignore[type-var]
        vars(copy).update(_undeclared=self._undeclared)
        return copy


class FieldGroup(Record):
    """Fields of another record under one name; in JSON their keys are among those of the other fields."""


def typed(kind: Callable[..., T], value: Mapping[str, Any]) -> T:
    """Return JSON as the TypedDict that it is known to match."""
    return kind(value)


@functools.cache
def types_of(kind: Any) -> Mapping[str, Any]:
    """Return the type of each field of a declaration, those of its bases first."""
    return {
        name: get_args(one)[0] if get_origin(one) is NotRequired else one for name, one in _annotations(kind).items()
    }


def required_keys(kind: Any) -> frozenset[str]:
    """Return the keys that a TypedDict must have."""
    keys: frozenset[str] = kind.__required_keys__  # of classes with `total`; it does not know what is in strings
    return keys - {name for name, one in _annotations(kind).items() if get_origin(one) is NotRequired}


@functools.cache
def _annotations(kind: Any) -> Mapping[str, Any]:
    found = {
        name: _resolved(declared, cls.__module__)
        for cls in reversed(kind.__mro__)
        for name, declared in vars(cls).get("__annotations__", {}).items()
    }
    return {name: one for name, one in found.items() if get_origin(one) is not ClassVar}


def _resolved(declared: Any, module: str) -> Any:
    """Return the type that an annotation names; in a TypedDict it is a ForwardRef, which may know its own module."""
    if isinstance(declared, ForwardRef):
        module = getattr(declared, "__forward_module__", None) or module
        declared = declared.__forward_arg__
    if not isinstance(declared, str):
        return declared
    return _evaluated(ast.parse(declared, mode="eval").body, vars(sys.modules[module]))


def _evaluated(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the value of an annotation. Raises TypeError if it is not made of names, `|` and `[]` alone."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return names[node.id] if node.id in names else getattr(builtins, node.id)
    if isinstance(node, ast.Attribute):
        return getattr(_evaluated(node.value, names), node.attr)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return Union[_evaluated(node.left, names), _evaluated(node.right, names)]
    if isinstance(node, ast.Tuple):
        return tuple(_evaluated(element, names) for element in node.elts)
    if isinstance(node, ast.Subscript):
        return _evaluated(node.value, names)[_evaluated(node.slice, names)]
    raise TypeError(f"not a type: {ast.dump(node)}")


@functools.cache
def readers(kind: Any) -> Mapping[str, Reader]:
    """Return the reader of each field of a declaration."""
    return {name: reader(declared) for name, declared in types_of(kind).items()}


def fits(kind: Any, value: object) -> bool:
    """Return True if a value is of this type."""
    try:
        reader(kind)(value)
    except SchemaError:
        return False
    return True


@functools.cache
def reader(kind: Any) -> Reader:
    """Return the function that reads a value of this type from JSON, or raises SchemaError."""
    if kind in PLAIN:
        return PLAIN[kind]
    origin = get_origin(kind)
    if origin is not None:
        return GENERIC[origin](*get_args(kind))
    if issubclass(kind, tuple):
        return _named_tuple(kind)
    return _record(kind) if issubclass(kind, Record) else _typed_dict(kind)


def _expected(words: str, value: object) -> SchemaError:
    shown = repr(value)
    shown = shown if len(shown) <= SHOWN_CHARS else f"{shown[:SHOWN_CHARS]}..."
    return SchemaError(f"must be {words}, not {shown}")


def _checked(words: str, holds: Callable[[Any], bool]) -> Reader:
    def read(value: Any) -> Any:
        if not holds(value):
            raise _expected(words, value)
        return value

    return read


#: A bool is no number, and an integer stays one where a number is declared. NaN and infinity are numbers.
PLAIN: Mapping[Any, Reader] = {
    Any: lambda value: value,
    object: lambda value: value,
    str: _checked("a string", lambda value: isinstance(value, str)),
    int: _checked("a whole number", is_whole),
    float: _checked("a number", is_number),
    bool: _checked("true or false", lambda value: isinstance(value, bool)),
}


def _bounded(kind: Any, *bounds: Bound) -> Reader:
    read_value = reader(kind)

    def read(value: Any) -> Any:
        value = read_value(value)
        for bound in bounds:
            if not bound.holds(value):
                raise _expected(bound.words, value)
        return value

    return read


def _one_of_types(*kinds: Any) -> Reader:
    """Read a value as the first type that it fits. If it fits none, the error is that of the last one."""
    is_optional = type(None) in kinds
    *others, last = (reader(kind) for kind in kinds if kind is not type(None))

    def read(value: Any) -> Any:
        if value is None and is_optional:
            return None
        for read_as in others:
            try:
                return read_as(value)
            except SchemaError:
                continue
        return last(value)

    return read


def _one_of(*words: str) -> Reader:
    return _checked(f"one of {', '.join(map(repr, words))}", lambda value: isinstance(value, str) and value in words)


def _below(read: Reader, value: Any, key: str) -> Any:
    try:
        return read(value)
    except SchemaError as exc:
        raise exc.below(key) from None


def _items(value: Any, read_item: Reader) -> list[Any]:
    if not isinstance(value, list):
        raise _expected("an array", value)
    return [_below(read_item, item, f"[{at}]") for at, item in enumerate(value)]


def _list(kind: Any) -> Reader:
    read_item = reader(kind)
    return lambda value: _items(value, read_item)


def _tuple(*kinds: Any) -> Reader:
    if kinds[-1] is not Ellipsis:
        return _row([reader(kind) for kind in kinds])
    read_item = reader(kinds[0])
    return lambda value: tuple(_items(value, read_item))


def _row(of_items: Sequence[Reader]) -> Reader:
    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) != len(of_items):
            raise _expected(f"an array of {len(of_items)}", value)
        return tuple(_below(read_item, item, f"[{at}]") for at, (read_item, item) in enumerate(zip(of_items, value)))

    return read


def _named_tuple(kind: Any) -> Reader:
    read = _row(list(readers(kind).values()))
    return lambda value: kind(*read(value))


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _expected("an object", value)
    return value


def _mapping(_: type[str], kind: Any) -> Reader:
    read_item = reader(kind)
    return lambda value: {key: _below(read_item, item, key) for key, item in _object(value).items()}


GENERIC: Mapping[Any, Callable[..., Reader]] = {
    Annotated: _bounded,
    Union: _one_of_types,
    getattr(types, "UnionType", Union): _one_of_types,  # of `X | None` where it is evaluated, from Python 3.10
    Literal: _one_of,
    list: _list,
    tuple: _tuple,
    Sequence: lambda kind: _tuple(kind, ...),
    dict: _mapping,
    Mapping: _mapping,
}


def _fields(value: Mapping[str, Any], by_key: Mapping[str, Reader], required: Collection[str]) -> dict[str, Any]:
    """Read the declared fields that an object has. Raises SchemaError if it lacks a required one."""
    for key in required:
        if key not in value:
            raise SchemaError("is missing").below(key)
    return {key: _below(read, value[key], key) for key, read in by_key.items() if key in value}


def _typed_dict(kind: Any) -> Reader:
    by_key, required = readers(kind), required_keys(kind)
    return lambda value: {**_object(value), **_fields(value, by_key, required)}


def _record(kind: Any) -> Reader:
    declared = types_of(kind)
    groups: dict[str, Any] = {
        name: of for name, of in declared.items() if isinstance(of, type) and issubclass(of, FieldGroup)
    }
    names = {name.rstrip("_"): name for name in declared if name not in groups}
    by_key = {key: reader(declared[name]) for key, name in names.items()}
    fields = dataclasses.fields(kind)
    required = [field.name.rstrip("_") for field in fields if field.default is field.default_factory is MISSING]
    known = {*by_key, *(key.rstrip("_") for group in groups.values() for key in types_of(group))}
    keeps_others = not issubclass(kind, FieldGroup)

    def read(value: Any) -> Any:
        found = _fields(_object(value), by_key, required)
        record = kind(
            **{names[key]: item for key, item in found.items()},
            **{name: reader(group)(value) for name, group in groups.items()},
        )
        if keeps_others and not known.issuperset(value):
            vars(record).update(_undeclared={key: item for key, item in value.items() if key not in known})
        return record

    return read


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value
