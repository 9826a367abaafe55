"""Hash many files in several threads, and detect a file that changes while it is being read."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from clusterctl.common.tree import COPY_BYTES
from clusterctl.dispatch.digest_cache import is_settled, stamp
from clusterctl.errors import ConfigError, RefusedError

BATCH_FILES = 64
BATCH_BYTES = 4 << 20
MOST_THREADS = 8
GONE = (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENXIO)  # deleted, or replaced, for example by a link
OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Hashed(NamedTuple):
    """A file's digest and the status it had when it was read. `row` is for the cache; None if the file is too new."""

    mode: int
    mtime_ns: int
    size: int
    digest: str
    row: bytes | None


class _Changed(Exception):  # noqa: N818 - a signal to read the file again, not an error
    pass


class Meter:
    """Counts the bytes that several threads have read, and reports them with the total."""

    def __init__(self, total: int, report: Callable[[int, int], None]) -> None:
        self._total = total
        self._report = report
        self._lock = threading.Lock()
        self._done = 0

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._report(min(self._done, self._total), self._total)  # a file that changes is read again


def hash_files(
    top: str, files: Sequence[tuple[str, int]], report: Callable[[int, int], None] = lambda done, total: None
) -> Iterator[Hashed]:
    """Hash the files below `top`, given as (path, size), and yield the results in the same order.

    `report` gets the bytes done and in total, from several threads, one at a time. Raises RefusedError for a file that
    keeps changing while it is read, ConfigError for one that cannot be read.
    """
    meter = Meter(sum(size for _, size in files), report)
    batches = list(_batches(files))
    if len(batches) <= 1:
        for batch in batches:
            yield from _hash_batch(top, batch, meter)
        return
    pool = ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1), "hash")
    try:
        for results in pool.map(lambda batch: _hash_batch(top, batch, meter), batches):
            yield from results
    finally:
        pool.shutdown(cancel_futures=True)


def _batches(files: Iterable[tuple[str, int]]) -> Iterator[list[str]]:
    batch: list[str] = []
    total = 0
    for path, size in files:
        batch.append(path)
        total += size
        if len(batch) == BATCH_FILES or total >= BATCH_BYTES:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def _hash_batch(top: str, paths: list[str], meter: Meter) -> list[Hashed]:
    return [hash_file(top, path, meter) for path in paths]


def hash_file(top: str, path: str, meter: Meter) -> Hashed:
    """Hash a file. If it changes while it is read, retry once."""
    try:
        try:
            return _read(f"{top}/{path}", meter)
        except _Changed:
            return _read(f"{top}/{path}", meter)
    except (_Changed, OSError) as exc:
        if isinstance(exc, _Changed) or exc.errno in GONE:
            raise RefusedError(
                f"{path!r} in the workspace changed while it was being read",
                hint="dispatch again when nothing writes to it, or list it in .clusterctlignore",
            ) from exc
        raise ConfigError(
            f"cannot read {path!r} in the workspace: {exc.strerror}",
            hint="make it readable, or list it in .clusterctlignore",
        ) from exc


def _read(path: str, meter: Meter) -> Hashed:
    started_ns = time.time_ns()
    digest = hashlib.sha256()
    with os.fdopen(os.open(path, OPEN_FLAGS), "rb", buffering=0) as f:
        before = os.fstat(f.fileno())
        if not stat.S_ISREG(before.st_mode):
            raise _Changed
        left = before.st_size + 1  # one more byte, to see that the file ends there
        while data := f.read(min(left, COPY_BYTES)):
            digest.update(data)
            left -= len(data)
            meter.add(len(data))
        after = os.fstat(f.fileno())
    if left != 1 or stamp(before) != stamp(after):
        raise _Changed
    row = stamp(before) + digest.digest() if is_settled(before, started_ns) else None
    return Hashed(stat.S_IMODE(before.st_mode) & 0o777, before.st_mtime_ns, before.st_size, digest.hexdigest(), row)
