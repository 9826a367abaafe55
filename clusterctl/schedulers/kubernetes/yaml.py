"""Values of JSON as YAML that people read. Pure; it writes, and reads nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

#: What needs no quotes, apart from words that YAML takes for something else than text.
PLAIN = re.compile(r"[A-Za-z/][\w./-]*", re.ASCII)
OTHER_TYPES = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def dump(value: object) -> str:
    """Return a document: mappings and lists in blocks, text in double quotes where it needs them."""
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: object) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _entry(f"{_scalar(key)}:", item)
    elif isinstance(value, Sequence) and not isinstance(value, str) and value:
        for item in value:
            first, *rest = _lines(item)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def _entry(key: str, item: object) -> Iterator[str]:
    if not item or isinstance(item, str | int | float):
        yield f"{key} {_scalar(item)}"
        return
    yield key
    yield from (f"  {line}" for line in _lines(item))


def _scalar(value: object) -> str:
    if isinstance(value, str) and PLAIN.fullmatch(value) and value.lower() not in OTHER_TYPES:
        return value
    return json.dumps(value, ensure_ascii=False)
