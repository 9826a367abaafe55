"""Documents of commands beside their declarations: keys that are not declared, and values that do not fit."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from clusterctl.common.schema import SchemaError, fits, reader, types_of
from clusterctl.documents.commands import COMMANDS
from clusterctl.documents.nodes import Printed

SCHEMA = "clusterctl/1"


def command_of(kind: str) -> str | None:
    """Return the command that prints documents of a recorded kind such as `fake up` or `status error`."""
    words = kind.split()
    names = (" ".join(words[:count]) for count in (2, 1))
    return next((name for name in names if name in COMMANDS), None)


def problems(command: str, document: Mapping[str, Any]) -> list[str]:
    """Return what of a printed document is not as declared, nothing if all is.

    If a command has several declarations, the problems are those with the one that the document is closest to.
    """
    envelope = {key: document[key] for key in types_of(Printed) if key in document}
    found = list(misfits(Printed, envelope))
    if envelope.get("schema") != SCHEMA:
        found.append(f"`schema` is {envelope.get('schema')!r}")
    own = {key: value for key, value in document.items() if key not in envelope}
    if not own and "error" in envelope:
        return found
    return found + min((list(misfits(declared, own)) for declared in COMMANDS[command]), key=len)


def misfits(declared: Any, value: Any) -> Iterator[str]:
    """Yield the keys of a value that are not declared, at any depth, and why its reader refuses it."""
    yield from (f"`{where}` is not declared" for where in undeclared(declared, value))
    try:
        reader(declared)(value)
    except SchemaError as exc:
        yield str(exc)


def undeclared(declared: Any, value: Any, where: str = "") -> Iterator[str]:
    """Yield the paths of keys that a declaration does not have."""
    origin, inner = get_origin(declared), get_args(declared)
    if origin is Annotated:
        yield from undeclared(inner[0], value, where)
    elif origin in (Union, types.UnionType):
        forms = [one for one in inner if one is not type(None) and fits(one, value)]
        yield from min((list(undeclared(one, value, where)) for one in forms), key=len, default=[])
    elif isinstance(value, list):
        kinds = [inner[0]] * len(value) if origin is list or inner[-1:] == (...,) else inner
        for at, (kind, item) in enumerate(zip(kinds, value, strict=False)):
            yield from undeclared(kind, item, f"{where}[{at}]")
    elif isinstance(value, dict) and declared is not Any:
        if origin is None:
            by_key = {name.rstrip("_"): kind for name, kind in types_of(declared).items()}
        else:
            by_key = dict.fromkeys(value, inner[1])
        for key, item in value.items():
            path = f"{where}.{key}".removeprefix(".")
            if key in by_key:
                yield from undeclared(by_key[key], item, path)
            else:
                yield path
