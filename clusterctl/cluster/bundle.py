"""The code shipped to the nodes (PARTS) as a sequence of names, sizes and bytes, named by its hash."""

from __future__ import annotations

import hashlib
import struct
import sys
import threading
import zlib
from functools import cached_property, lru_cache
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
PARTS = ("common", "transfer", "agent", "runtime", "torch")
#: The modules that the first calls on a node load: it need not compile them.
COMPILED = [
    f"clusterctl{below}" for below in ("", "/common", "/agent", "/agent/dispatch", "/agent/node", "/agent/relay")
]
#: The first bytes for FIRST_LINE. If a start-up file replaces the agent by a shell that reads commands from its input,
#: the shell ends here, and runs nothing of the program.
STOP_SHELL = b"exit 97;"
DIGEST_CHARS = 16
HEADER = struct.Struct("<III")  # of a compiled file, after the magic number: flags, and its source's time and size
SOURCE_TIME_S = 946_684_800  # that of the sources on a node, and in the header of the files compiled from them


class Bundle:
    """The shipped code. It is read once, so that its name and contents match even if the sources change meanwhile."""

    def __init__(self) -> None:
        paths = [PACKAGE / "__init__.py", *(path for part in PARTS for path in (PACKAGE / part).rglob("*.py"))]
        names = sorted(f"clusterctl/{path.relative_to(PACKAGE).as_posix()}" for path in paths)
        self._sources = {name: (PACKAGE.parent / name).read_bytes() for name in names}
        self._whole = _joined(self._sources)
        self.digest = hashlib.sha256(self._whole).hexdigest()[:DIGEST_CHARS]
        self._parcels: dict[bool, bytes] = {}
        self._lock = threading.Lock()

    @cached_property
    def data(self) -> bytes:
        """The archive that `agent/boot.py` installs. It is made only when a node lacks it."""
        return zlib.compress(self._whole)

    def parcel(self, magic: str) -> bytes:
        """Return what a node gets that lacks the code: two sizes, the archive, and an archive of compiled files.

        The second one is empty unless `magic`, the mark of the bytecode that the node reads, is that of this Python.
        """
        is_ours = magic == MAGIC_NUMBER.hex() and not sys.flags.optimize
        with self._lock:  # all nodes of a first dispatch ask at once
            if is_ours not in self._parcels:
                compiled = self._compiled() if is_ours else b""
                self._parcels[is_ours] = b"%d %d\n" % (len(self.data), len(compiled)) + self.data + compiled
            return self._parcels[is_ours]

    def _compiled(self) -> bytes:
        files = {}
        for name, source in self._sources.items():
            if name.rpartition("/")[0] in COMPILED:
                path = PACKAGE.parent / name
                code = _bytecode(path)
                if path.read_bytes() == source:  # else it changed after it was read
                    files[cache_from_source(name)] = MAGIC_NUMBER + HEADER.pack(0, SOURCE_TIME_S, len(source)) + code
        return zlib.compress(_joined(files))


@lru_cache(maxsize=1)
def boot_program(source: bytes | None = None) -> bytes:
    """Return what FIRST_LINE reads and runs: `agent/boot.py`, compiled and as it is; `source` stands in for it."""
    path = PACKAGE / "agent" / "boot.py"
    compiled = b"" if source is not None or sys.flags.optimize else _bytecode(path)
    magic = MAGIC_NUMBER.hex().encode() if compiled else b"-"
    text = path.read_bytes() if source is None else source
    return STOP_SHELL + b"%s %d %d\n" % (magic, len(compiled), len(text)) + compiled + text


def _bytecode(path: Path) -> bytes:
    """Return a module's marshalled code, from Python's cache if that is up to date. Else compile and cache it."""
    import marshal
    from importlib.machinery import SourceFileLoader

    name = path.relative_to(PACKAGE.parent).with_suffix("").as_posix().replace("/", ".")
    return marshal.dumps(SourceFileLoader(name, str(path)).get_code(name))


def _joined(files: dict[str, bytes]) -> bytes:
    return b"".join(part for name, data in files.items() for part in (b"%s\0%d\0" % (name.encode(), len(data)), data))
