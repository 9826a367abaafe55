"""The code shipped to the nodes (PARTS) as a sequence of names, sizes and bytes, named by its hash."""

from __future__ import annotations

import hashlib
import zlib
from functools import cached_property, lru_cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
PARTS = ("common", "transfer", "agent", "runtime", "torch")
DIGEST_CHARS = 16


class Bundle:
    """The shipped code. It is read once, so that its name and contents match even if the sources change meanwhile."""

    def __init__(self) -> None:
        paths = [PACKAGE / "__init__.py", *(path for part in PARTS for path in (PACKAGE / part).rglob("*.py"))]
        parts = []
        for name in sorted(f"clusterctl/{path.relative_to(PACKAGE).as_posix()}" for path in paths):
            data = (PACKAGE.parent / name).read_bytes()
            parts += [b"%s\0%d\0" % (name.encode(), len(data)), data]
        self._whole = b"".join(parts)
        self.digest = hashlib.sha256(self._whole).hexdigest()[:DIGEST_CHARS]

    @cached_property
    def data(self) -> bytes:
        """The archive that `agent/boot.py` installs. It is made only when a node lacks it."""
        return zlib.compress(self._whole)


@lru_cache(maxsize=1)
def boot_code() -> bytes:
    """Return the first program that a node runs (`agent/boot.py`)."""
    return (PACKAGE / "agent" / "boot.py").read_bytes()
