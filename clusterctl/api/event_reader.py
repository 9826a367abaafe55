"""Events of nodes, read into values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from clusterctl.api import events
from clusterctl.api.events import Event
from clusterctl.common.schema import SchemaError, readers

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


def _values(kind: Any, raw: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the fields of an event; None if a required one is missing or malformed."""
    values: dict[str, Any] = {}
    of_fields = readers(kind)
    for one in fields(kind):
        if one.name in ("name", "t", "raw"):
            continue
        try:
            value = of_fields[one.name](raw.get(one.name.rstrip("_")))
        except SchemaError:
            value = None
        if value is not None:
            values[one.name] = value
        elif one.default is MISSING:
            return None
    return values
