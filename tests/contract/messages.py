"""The messages between supervisors, and between trainers and pservers, from a copy of the tree that records them."""

from __future__ import annotations

import functools
import json
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from clusterctl.agent.lead.channel import LeadFrame
from clusterctl.agent.lead.message_schema import REPORTS
from clusterctl.agent.lead.messages import ORDERS
from clusterctl.common.schema import required_keys, types_of
from contract.shapes import merged, structure

#: What is added to the modules that all messages of a kind pass through: it appends each to a file, as one line.
TAPS = {
    "clusterctl/agent/lead/connection.py": """
def _tapped(self, frame, send=LeadConnection.send):
    _write(json.dumps(frame))
    send(self, frame)
LeadConnection.send = _tapped
""",
    "clusterctl/runtime/wire/messages.py": """
def _tapped(message, encode=encode):
    frames = encode(message)
    _write(bytes(frames[0]).hex())
    return frames
encode = _tapped
""",
}
WRITE = """

def _write(line):
    import os
    file = os.open({path!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, b"\\n%b\\t" % line.encode())  # at once: other processes write there too
    os.close(file)
"""
#: The first frame of a message to or from a pserver: a header, an entry for each part, and the short parts themselves.
HEADER, ENTRY, INLINE = struct.Struct("<4sBBHIIIIIIQQQQQIII4x"), struct.Struct("<QQQQIBB2x"), 0
REQUESTS = {1: "HELLO", 2: "CREATE", 3: "PULL", 4: "PUSH", 5: "PROBE", 6: "SAVE", 7: "BYE", 9: "SET", 10: "BUFFERS"}
KINDS = {**REQUESTS, 64: "OK", 65: "ERROR", 66: "STATE"}
PARTS = ("", "DENSE", "IDS", "ROWS", "JSON", "LATER", "DENSE16", "ROWS16", "SAME", "BYTES", "CHANGE")
ITEM_BYTES = {"DENSE": 4, "IDS": 8, "ROWS": 4, "DENSE16": 2, "ROWS16": 2}
#: The contents of messages that a run shows only if something takes long or fails.
RARE: dict[str, list[dict[str, Any]]] = {
    "PROBE": [{}],
    "STATE": [{"JSON": [{"held": [1], "waiting": [0], "step": 1, **saving} for saving in ({}, {"saving": True})]}],
    "ERROR": [{"JSON": [{"error": "", "message": "", **differ} for differ in ({}, {"differ": True})]}],
}
#: The names of the JSON types of declared ones; of `Any`, those that are seen.
TYPES = {str: ["str"], int: ["int"], float: ["float", "int"], bool: ["bool"], type(None): ["NoneType"], Any: []}


def tapped(tree: Path, copy: Path, messages: Path) -> Path:
    """Return a copy of a tree that appends its messages to a file."""
    unfinished = shutil.ignore_patterns("*.pyc.*")  # other processes may be compiling the tree
    shutil.copytree(tree / "clusterctl", copy / "clusterctl", ignore=unfinished)
    for path in tree.iterdir():
        if path.name != "clusterctl":
            (copy / path.name).symlink_to(path)
    for name, tap in TAPS.items():
        module = (copy / name).read_text()
        (copy / name).write_text(module + WRITE.format(path=str(messages)) + tap)
    return copy


def documents(messages: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the kind and the content of each message; of those to and from pservers the parts by kind."""
    asked: dict[tuple[int, int], str] = {}
    for line in messages.read_text().splitlines() if messages.exists() else ():
        if not line.endswith("\t"):  # empty, or its process was killed while it wrote it
            continue
        if line.startswith("{"):
            frame = json.loads(line)
            message = frame.pop("m", None)
            yield "lead frame", frame
            if message is not None:
                yield f"lead {'report' if 'i' in frame else 'order'} {message['do']}", message
        else:
            yield _of_pserver(bytes.fromhex(line), asked)


def _of_pserver(first: bytes, asked: dict[tuple[int, int], str]) -> tuple[str, dict[str, Any]]:
    """Return the kind and the parts of a message. `asked` has the kinds of the requests so far, by rank and number."""
    magic, version, number, _, rank, *_, request, _, _, _, _, _, count, _ = HEADER.unpack_from(first)
    kind = KINDS.get(number, str(number))
    if number in REQUESTS:
        asked[rank, request] = kind
    elif kind == "OK":
        kind = f"OK to {asked[rank, request]}"
    parts: dict[str, Any] = {}
    at = HEADER.size + count * ENTRY.size
    for _, _, items, _, width, code, place in ENTRY.iter_unpack(first[HEADER.size : at]):
        part, size = PARTS[code], items * width * ITEM_BYTES.get(PARTS[code], 1) if place == INLINE else 0
        if part == "JSON" and size:
            parts.setdefault("more JSON" if "JSON" in parts else "JSON", []).append(json.loads(first[at : at + size]))
        elif part != "JSON":
            parts[part] = items
        at += size + -size % 8
    assert at == len(first)
    return f"wire {magic.decode()} {version} {kind}", parts


def declared() -> dict[str, Any]:
    """Return the structure of all messages that a run may show, whatever its timing.

    Those between supervisors are as the package declares them.
    """
    frame = _declared(LeadFrame)
    del frame["keys"]["m?"]  # the message
    reports = {f"lead report {do}": _declared(kind) for do, kind in REPORTS.items()}
    orders = {f"lead order {do}": _declared(kind) for do, kind in ORDERS.items()}
    rare = {f"wire CCPS 2 {kind}": structure(contents) for kind, contents in RARE.items()}
    return {"lead frame": frame, **reports, **orders, **rare}


def _declared(kind: Any) -> dict[str, Any]:
    always = required_keys(kind)
    keys = {key if key in always else f"{key}?": _type(declared) for key, declared in types_of(kind).items()}
    return {"types": ["dict"], "keys": keys}


def _type(kind: Any) -> dict[str, Any]:
    container, inner = get_origin(kind), get_args(kind)
    if container is Annotated:
        return _type(inner[0])
    if container is Union:
        return functools.reduce(merged, map(_type, inner))
    if container in (list, Sequence):
        return {"types": ["list"], "items": _type(inner[0])}
    if container in (dict, Mapping):
        return {"types": ["dict"], "keys": {"*?": _type(inner[1])}}
    if container is Literal:
        return _type(str)
    return {"types": TYPES[kind]} if kind in TYPES else _declared(kind)
