"""Files that a reader never sees half written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_atomic(path: Path, data: bytes, mode: int = 0o600, *, durable: bool = True) -> None:
    """Writes beside `path` and renames; with `durable` the bytes are on the disk before the name is."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(fd, "wb") as f:
            f.write(data)
            if durable:
                f.flush()
                os.fsync(f.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any, mode: int = 0o600, *, durable: bool = True) -> None:
    write_atomic(path, json.dumps(value, indent=1).encode() + b"\n", mode, durable=durable)


def read_json(path: Path) -> Any:
    """The parsed file, or None when there is none that makes sense (a power cut may leave it empty)."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
