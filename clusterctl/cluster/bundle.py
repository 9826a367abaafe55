"""The code shipped to the nodes (PARTS) as a sequence of names, sizes and bytes, named by its hash."""

from __future__ import annotations

import hashlib
import threading
import zlib
from functools import lru_cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
PARTS = ("common", "transfer", "agent", "runtime", "torch")
#: The first bytes for FIRST_LINE. If a start-up file replaces the agent by a shell that reads commands from its input,
#: the shell ends here, and runs nothing of the program.
STOP_SHELL = b"exit 97;"
DIGEST_CHARS = 16


class Bundle:
    """The shipped code. It is read once, so that its name and contents match even if the sources change meanwhile."""

    def __init__(self) -> None:
        paths = [PACKAGE / "__init__.py", *(path for part in PARTS for path in (PACKAGE / part).rglob("*.py"))]
        names = sorted(f"clusterctl/{path.relative_to(PACKAGE).as_posix()}" for path in paths)
        sources = {name.encode(): (PACKAGE.parent / name).read_bytes() for name in names}
        self._whole = b"".join(
            part for name, data in sources.items() for part in (b"%s\0%d\0" % (name, len(data)), data)
        )
        self.digest = hashlib.sha256(self._whole).hexdigest()[:DIGEST_CHARS]
        self._parcel = b""
        self._lock = threading.Lock()

    @property
    def parcel(self) -> bytes:
        """The size and the archive that `agent/boot.py` installs. It is made only when a node lacks it."""
        with self._lock:  # all nodes of a first dispatch ask at once
            if not self._parcel:
                archive = zlib.compress(self._whole)
                self._parcel = b"%d\n%s" % (len(archive), archive)
            return self._parcel


@lru_cache(maxsize=1)
def boot_program(source: bytes | None = None) -> bytes:
    """Return what FIRST_LINE reads and runs: the size and the text of `agent/boot.py`, or of `source` in its place."""
    text = (PACKAGE / "agent" / "boot.py").read_bytes() if source is None else source
    return b"%s%d\n%s" % (STOP_SHELL, len(text), text)
