"""Common operations on files: atomic writes, locks, digests, deletion."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clusterctl.common.safe_json import dumps, loads

READ_BYTES = 1 << 20
SYNC_HEARTBEAT_S = 1.0


def write_atomic(path: Path, data: bytes, mode: int = 0o600, *, durable: bool = True) -> None:
    """Write beside `path` and rename. With `durable` the bytes are on the disk before the rename."""
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


def sync_disk(path: Path, heartbeat: Callable[[], None] = lambda: None) -> None:
    """Write everything on the file system of `path` to the disk: many files at once, before they are renamed.

    For 2,000 files this takes 70 ms, and to sync each of them takes seconds. But it waits for the data of all programs,
    so `heartbeat` is called periodically. Raises OSError.
    """
    failures: list[BaseException] = []

    def sync() -> None:
        try:
            _sync_disk(path)
        except BaseException as failure:  # noqa: BLE001 - raised below
            failures.append(failure)

    thread = threading.Thread(target=sync, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(SYNC_HEARTBEAT_S)
        if thread.is_alive():
            heartbeat()
    if failures:
        raise failures[0]


def _sync_disk(path: Path) -> None:
    try:
        import ctypes  # noqa: PLC0415 - an incomplete Python lacks it

        syncfs = ctypes.CDLL(None, use_errno=True).syncfs
    except (ImportError, AttributeError, TypeError, OSError):  # an incomplete or a static Python
        os.sync()
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        if syncfs(fd):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    finally:
        os.close(fd)


def sync_directory(path: Path) -> None:
    """Write the names in a directory to the disk: those of renamed files. Raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def mark(path: Path) -> None:
    """Create an empty file, unless it is there. Raises OSError."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))


def write_json(path: Path, value: dict[str, Any], mode: int = 0o600, *, durable: bool = True) -> None:
    """Write a JSON object with one key per line."""
    lines = (dumps(key) + b": " + dumps(value[key]) for key in value)
    write_atomic(path, b"{\n" + b",\n".join(lines) + b"\n}\n", mode, durable=durable)


def read_json(path: Path) -> Any:
    """Return the parsed file, or None if it is missing or not JSON (a power cut may leave it empty)."""
    try:
        return loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def write_all(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def digest_of(path: Path, heartbeat: Callable[[], None] = lambda: None) -> str:
    """Return the sha256 of a file as hex digits. `heartbeat` is called periodically."""
    with path.open("rb") as f:
        digest = hashlib.sha256()
        while data := f.read(READ_BYTES):
            digest.update(data)
            heartbeat()
    return digest.hexdigest()


def is_locked(path: Path) -> bool:
    """Return True if a process holds the lock of this file; a missing file is not locked."""
    try:
        with path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def delete(path: Path, heartbeat: Callable[[], None] = lambda: None) -> None:
    """Delete a file or a tree, even one with read-only directories. Does not follow links. Raises OSError.

    `heartbeat` is called periodically.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        path.unlink()
        return
    if stat.S_IMODE(status.st_mode) & 0o700 != 0o700:
        path.chmod(0o700)
    for inside in list(path.iterdir()):
        delete(inside, heartbeat)
    path.rmdir()
    heartbeat()
