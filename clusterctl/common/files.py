"""Common operations on files: atomic writes, locks, digests, deletion."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress

from clusterctl.common.fastjson import dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    import hashlib
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from clusterctl.common.fastjson import LightPath

READ_BYTES = 1 << 20
SHORT_BYTES = 500_000
SYNC_BEAT_S = 1.0


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
        os.replace(beside, path)  # noqa: PTH105 - a LightPath is a str, which has a `replace` of its own
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def sync_disk(path: Path, beat: Callable[[], None] = lambda: None) -> None:
    """Write everything on the file system of `path` to the disk: many files at once, before they are renamed.

    For 2,000 files this takes 70 ms, and to sync each of them takes seconds. But it waits for the data of all programs,
    so `beat` is called periodically. Raises OSError.
    """
    import _thread

    failures: list[BaseException] = []
    done = _thread.allocate_lock()
    done.acquire()

    def sync() -> None:
        try:
            _sync_disk(path)
        except BaseException as failure:  # noqa: BLE001 - raised below
            failures.append(failure)
        finally:
            done.release()

    _thread.start_new_thread(sync, ())  # `threading` itself takes 2 ms to import
    while not done.acquire(timeout=SYNC_BEAT_S):
        beat()
    if failures:
        raise failures[0]


def _sync_disk(path: Path) -> None:
    try:
        import _ctypes  # without `ctypes` itself, which takes 1 ms to import

        syncfs = _system_function("syncfs")
    except (ImportError, AttributeError, TypeError, OSError):  # an incomplete, a static or a future Python
        os.sync()
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        if syncfs(fd):
            raise OSError(_ctypes.get_errno(), os.strerror(_ctypes.get_errno()), str(path))
    finally:
        os.close(fd)


def _system_function(name: str) -> Callable[[int], int]:
    """Return a C function as `ctypes.CDLL(None, use_errno=True)` has it."""
    import _ctypes

    class Int(_ctypes._SimpleCData):  # type: ignore[type-arg]  # Python 3.9 has no brackets for it
        _type_ = "i"

    class Function(_ctypes.CFuncPtr):
        _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
        _restype_ = Int

    function: Callable[[int], int] = Function(_ctypes.dlsym(_ctypes.dlopen(None, 0), name))  # type: ignore[arg-type]  # None: this program
    return function


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


def read_json(path: Path | LightPath) -> Any:
    """Return the parsed file, or None if it is missing or not JSON (a power cut may leave it empty)."""
    try:
        return loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def write_all(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sha256_of(count: int) -> Callable[[], hashlib._Hash]:
    """Return a constructor of sha256 for about `count` bytes in all. OpenSSL's is faster, but takes 2 ms to load."""
    if count < SHORT_BYTES:
        for name in ("_sha2", "_sha256"):  # since Python 3.12, and before
            with suppress(ImportError):
                builtin: Callable[[], hashlib._Hash] = __import__(name).sha256
                return builtin
    import hashlib

    return hashlib.sha256


def digest_of(path: str | Path, beat: Callable[[], None] = lambda: None) -> str:
    """Return the sha256 of a file as hex digits. `beat` is called periodically."""
    with open(path, "rb") as f:  # noqa: PTH123
        digest = sha256_of(os.fstat(f.fileno()).st_size)()
        while data := f.read(READ_BYTES):
            digest.update(data)
            beat()
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


def delete(path: Path | LightPath, beat: Callable[[], None] = lambda: None) -> None:
    """Delete a file or a tree, even one with read-only directories. Does not follow links. Raises OSError.

    `beat` is called periodically.
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
    for name in os.listdir(path):  # noqa: PTH208 - Path.iterdir would be lazy
        delete(path / name, beat)
    path.rmdir()
    beat()
