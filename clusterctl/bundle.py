"""What is shipped to the nodes: the agent and the runtime, as one zip named by its contents."""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import cached_property, lru_cache
from pathlib import Path

HERE = Path(__file__).parent
PARTS = ("agent", "runtime")
DIGEST_CHARS = 16


class Bundle:
    """Read once, so that its name and its contents agree even while someone edits the sources."""

    def __init__(self) -> None:
        paths = [HERE / "__init__.py", *(path for part in PARTS for path in sorted((HERE / part).rglob("*.py")))]
        self._files = [(f"clusterctl/{path.relative_to(HERE).as_posix()}", path.read_bytes()) for path in paths]
        digest = hashlib.sha256()
        for name, data in self._files:  # as agent/boot.py does it
            digest.update(b"%s\0%d\0" % (name.encode(), len(data)) + data)
        self.digest = digest.hexdigest()[:DIGEST_CHARS]

    @cached_property
    def data(self) -> bytes:
        """The zip; made only when a node lacks it."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in self._files:
                archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        return buffer.getvalue()


@lru_cache(maxsize=1)
def boot_code() -> bytes:
    """The program that a node runs first (`agent/boot.py`)."""
    return (HERE / "agent" / "boot.py").read_bytes()
