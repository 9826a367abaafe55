"""Events of nodes, read into values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from clusterctl.api import events
from clusterctl.api.events import Event
from clusterctl.common.safe_json import is_whole

#: The class of each event, by the name that nodes record: `took_over` for TookOver.
KINDS: Mapping[str, type[Event]] = {
    re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower(): kind
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
}


def event_of(raw: Mapping[str, Any]) -> Event:
    """Return an event as a value. One whose fields do not fit, since programs write events, becomes a plain `Event`."""
    name = str(raw["event"])
    kind = KINDS.get(name, Event)
    values = _values(kind, raw)
    if values is None:
        kind, values = Event, _values(Event, raw) or {}
    return kind(**{**values, "name": name, "t": float(raw["t"]), "raw": dict(raw)})


def _values(kind: type[Event], raw: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the fields of an event; None if a required one is missing or malformed."""
    values: dict[str, Any] = {}
    for one in fields(kind):
        if one.name in ("name", "t", "raw"):
            continue
        value = raw.get(one.name.rstrip("_"))
        if value is not None and _FITS[str(one.type).removesuffix(" | None")](value):
            values[one.name] = tuple(value) if isinstance(value, list) else value
        elif one.default is MISSING:
            return None
    return values


def _is_number(value: object) -> bool:
    return isinstance(value, float) or is_whole(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


#: By the annotation of a field.
_FITS: Mapping[str, Callable[[Any], bool]] = {
    "int": is_whole,
    "float": _is_number,
    "bool": lambda value: isinstance(value, bool),
    "str": _is_text,
    "tuple[int, ...]": _list_of(is_whole),
    "tuple[str, ...]": _list_of(_is_text),
    "Mapping[str, float]": lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
    "Mapping[str, Any]": lambda value: isinstance(value, dict),
}
