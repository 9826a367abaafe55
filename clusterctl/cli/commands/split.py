"""`clusterctl split`."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from clusterctl.cli.console import Console, human_bytes, plural
from clusterctl.dispatch.split import ShardName
from clusterctl.dispatch.split import split as run
from clusterctl.documents.local import ShardDocument, SplitDocument
from clusterctl.errors import UsageError
from clusterctl.escape import clean

ESCAPE = re.compile(rb"\\(x[0-9A-Fa-f]{2}|.|$)", re.DOTALL)
ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"0": b"\0", b"\\": b"\\"}
HINT = r"use for example '\n', '\n\n', '\0' or '\x1e'; a backslash is '\\'"


def split(console: Console, file: Path, count: int, delimiter: str, output: Path | None, *, has_a_header: bool) -> None:
    shards, warnings = run(file, count, delimiter_bytes(delimiter), output, has_a_header=has_a_header)
    records = sum(shard.records for shard in shards)
    described: list[ShardDocument] = [
        {"path": str(shard.path), "records": shard.records, "bytes": shard.bytes} for shard in shards
    ]
    document: SplitDocument = {"records": records, "shards": described, "warnings": warnings}
    console.document(document)
    first, last = shards[0], shards[-1]
    names = f"{first.path} to -{last.path.name.rpartition('-')[2]}" if count > 1 else str(first.path)
    total = human_bytes(sum(shard.bytes for shard in shards))
    each = f"{last.records:,}" + (f" or {first.records:,}" if first.records != last.records else "")
    console.say(f"{names}: {plural(records, 'record')}, {total}; {each} per shard")
    for warning in warnings:
        console.warn(clean(warning, keep_newlines=True))
    console.say(f"conf.py needs SHARDS = {json.dumps([ShardName.of(file).pattern])}")


def delimiter_bytes(text: str) -> bytes:
    r"""Decode `--delimiter`: text with the escapes `\n`, `\r`, `\t`, `\0`, `\x1e` (any byte) and `\\`."""
    delimiter = ESCAPE.sub(_unescaped, os.fsencode(text))
    if not delimiter:
        raise UsageError("--delimiter is empty", hint=HINT)
    return delimiter


def _unescaped(match: re.Match[bytes]) -> bytes:
    escape = match[1]
    if len(escape) == 3:
        return bytes([int(escape[1:], 16)])
    if escape not in ESCAPES:
        raise UsageError(f"--delimiter: \\{os.fsdecode(escape)} is not an escape", hint=HINT)
    return ESCAPES[escape]
