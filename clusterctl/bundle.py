"""What is shipped to the nodes: the agent and the runtime, as one zip named by its contents."""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
PARTS = ("agent", "runtime")
DIGEST_CHARS = 16


class Bundle(NamedTuple):
    digest: str
    data: bytes


@lru_cache(maxsize=1)
def bundle() -> Bundle:
    """The same bytes for the same sources, whatever the time or the file system says."""
    sources = [HERE / "__init__.py", *(path for part in PARTS for path in sorted((HERE / part).rglob("*.py")))]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sources:
            name = f"clusterctl/{path.relative_to(HERE).as_posix()}"
            archive.writestr(zipfile.ZipInfo(name), path.read_bytes(), zipfile.ZIP_DEFLATED)
    data = buffer.getvalue()
    return Bundle(hashlib.sha256(data).hexdigest()[:DIGEST_CHARS], data)


@lru_cache(maxsize=1)
def boot_code() -> bytes:
    """The program that a node runs first (`agent/boot.py`)."""
    return (HERE / "agent" / "boot.py").read_bytes()
