"""Values of recordings: without what differs from run to run, and as structures of keys and types."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

#: What a string may have that differs from run to run, and its mark.
MARKS = [
    (re.compile(pattern), mark)
    for pattern, mark in (
        (r"(?<![\w.])/[^\s\"']*?/(nodes/node\d+|fake|work)(?=/|\b)", r"<\1>"),
        (r"\bJOB\d{8}-\d{6}\b", "<job>"),
        (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(\+\d\d:\d\d|Z)?", "<time>"),
        (r"\b(127\.0\.0\.1|localhost):\d+", r"\1:<port>"),
        (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<hash>"),
        (r"\b[0-9a-f]{12,}\b", "<hash>"),
        (r"\bSHA256:[\w+/]{43}|[\w+/]{43}=", "<hash>"),
        (r"\b(pid|port) \d+", r"\1 <n>"),
        (r"\b\d+(\.\d+)? ?(B|kB|MB|GB|ms|s|min|%|samples/s|samples)(?!\w)", r"<n> \2"),
        (r"\b\d\d:\d\d:\d\d\b", "<time>"),
        (r"(?<![\w.])\d+\.\d+(e[+-]?\d+)?(?![\w.]*\w)", "<x>"),
    )
]
#: Whole numbers that differ from run to run.
VARYING = re.compile(
    r".*(pid|port|bytes|_ns|_t|seq|seed|fd|pids|inode)s?|t|size|time|total|free|available|inodes_free|offset|memory|points"
    r"|first|last|lowest|highest|samples|started|start|processes_cpu|ended|signal|uid|supervisor|identity|cores|soft|hard|weight|session"
)

#: Keys that are numbers, paths, or names of nodes, processes and checkpoints.
NAME = re.compile(r"(node|trainer|pserver|scheduler|rendezvous|step-|pass-|/)?\d|<|/")
#: Objects whose keys are names that programs and people choose.
BY_NAME = ("tables", "others", "metrics", "values", "env", "packages")


def normal(value: Any, key: str = "") -> Any:
    """Return a value with marks in place of times, pids, ports, paths, hashes and measured numbers."""
    if isinstance(value, dict):
        return {normal_text(name): normal(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [normal(inner, key) for inner in value]
    if isinstance(value, str):
        return normal_text(value)
    if isinstance(value, float):
        return "<float>"
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return "<int>" if is_whole and VARYING.fullmatch(key) else value


def normal_text(text: str) -> str:
    for pattern, mark in MARKS:
        text = pattern.sub(mark, text)
    return text


def without(value: Any, keys: Container[str]) -> Any:
    """Return a value without these keys of its objects, at any depth."""
    if isinstance(value, dict):
        return {key: without(inner, keys) for key, inner in value.items() if key not in keys}
    return [without(inner, keys) for inner in value] if isinstance(value, list) else value


def structure(values: Iterable[Any], name: str = "") -> dict[str, Any]:
    """Return what all these values have: the names of their `types`, `keys` of objects and `items` of lists.

    A key that some objects lack ends in `?`. Keys that are numbers, paths, or names of nodes, processes and tables
    count as one, `*`. `name` is the key of the values.
    """
    values = list(values)
    found: dict[str, Any] = {"types": sorted({type(value).__name__ for value in values})}
    objects = [value for value in values if isinstance(value, dict)]
    keys: dict[str, list[Any]] = {}
    for one in objects:
        for key, inner in one.items():
            keys.setdefault(_key(key, name), []).append(inner)
    if keys:
        always = {key for key in keys if all(key in [_key(inner, name) for inner in one] for one in objects)}
        shapes = {key: structure(inner, key) for key, inner in sorted(keys.items())}
        found["keys"] = {key if key in always else f"{key}?": shape for key, shape in shapes.items()}
    items = [inner for value in values if isinstance(value, list) for inner in value]
    return {**found, "items": structure(items)} if items else found


def _key(key: str, parent: str) -> str:
    is_name = parent in BY_NAME or NAME.match(normal_text(key))
    return "*" if is_name else key


def merged(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Return the structure of the values of both."""
    found: dict[str, Any] = {"types": sorted({*a["types"], *b["types"]})}
    if "keys" in a or "keys" in b:
        bare = [{key.rstrip("?"): key for key in one.get("keys", {})} for one in (a, b)]
        found["keys"] = {}
        for key in sorted({*bare[0], *bare[1]}):
            inner = [one["keys"][names[key]] for one, names in zip((a, b), bare, strict=True) if key in names]
            lacks = any(
                "dict" in one["types"] and names.get(key) != key for one, names in zip((a, b), bare, strict=True)
            )
            found["keys"][f"{key}?" if lacks else key] = inner[0] if len(inner) == 1 else merged(*inner)
    inner = [one["items"] for one in (a, b) if "items" in one]
    return {**found, "items": inner[0] if len(inner) == 1 else merged(*inner)} if inner else found


def misfits(found: Mapping[str, Any], known: Mapping[str, Any], where: str) -> Iterator[str]:
    """Yield what a structure has that the known one has not, and the keys that it lacks."""
    for name in found["types"]:
        if name not in known["types"]:
            yield f"{where}: {name}, not {' or '.join(known['types'])}"
    keys, always = found.get("keys", {}), known.get("keys", {})
    for key, inner in keys.items():
        bare = key.rstrip("?")
        there = always.get(bare, always.get(f"{bare}?"))
        if there is None:
            yield f"{where}.{bare}: new"
        else:
            yield from misfits(inner, there, f"{where}.{bare}")
    if "dict" in found["types"]:
        yield from (f"{where}.{key}: missing" for key in always if not key.endswith("?") and key not in keys)
    if "items" in found and "items" in known:
        yield from misfits(found["items"], known["items"], f"{where}[]")
