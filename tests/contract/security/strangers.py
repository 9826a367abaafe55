"""Other users of the same machine."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree

import pytest

from clusterctl.agent.dispatch.in_place import seal
from clusterctl.agent.node.content import Row, lists_of, read_manifest, stamp_of
from clusterctl.common.paths import JobPaths
from clusterctl.common.safe_json import dumps
from clusterctl.common.tree import FILE, Entry, content_of

NOBODY = 65534

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 and not os.environ.get("CI"), reason="only root can run commands as another user"
)


def let_write(path: Path, uid: int) -> None:
    """Give an account all rights on a file by an access control list."""
    entries = ((1, 7, -1), (2, 7, uid), (4, 0, -1), (16, 7, -1), (32, 0, -1))  # owner, account, group, mask, others
    try:
        value = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
        os.setxattr(path, "system.posix_acl_access", value)
    except OSError as exc:
        pytest.skip(f"{path} is on a file system without access control lists: {exc}")


def as_stranger(*argv: str, uid: int = NOBODY) -> subprocess.CompletedProcess[bytes]:
    """Run a command as another user: nobody, if no other is given."""
    return subprocess.run(
        argv, user=uid, group=uid, extra_groups=[], cwd="/", capture_output=True, check=False, timeout=180
    )


def in_stranger(work: Callable[[], bool], uid: int = NOBODY) -> bool:
    """Return what `work` returns in a child process that runs as another user."""
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            code = 0 if work() else 1
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 1)
    return code == 0


def is_told_stranger(name: str, connect: Callable[[], object]) -> bool:
    """Let another user listen at an abstract name; return True if `connect()` then sends them anything."""
    begun, begin = os.pipe()

    def takes_it() -> bool:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"\0{name}")
            listener.listen()
            os.write(begin, b"!")
            return bool(listener.accept()[0].recv(4096))

    with ThreadPoolExecutor() as pool:
        told = pool.submit(in_stranger, takes_it)
        assert os.read(begun, 1) == b"!"
        connect()
        os.close(begun)
        os.close(begin)
        return told.result()


@contextmanager
def shared_directory(mode: int) -> Iterator[Path]:
    """A directory that all users can reach, like a node's scratch disk."""
    directory = Path(tempfile.mkdtemp(prefix="clusterctl-security-"))
    try:
        directory.chmod(mode)
        assert as_stranger("ls", str(directory)).returncode == 0
        yield directory
    finally:
        rmtree(directory)


def open_to_strangers(directory: Path, uid: int = NOBODY) -> list[str]:
    """Return all paths below a directory that another user can read, write or list."""
    listing = as_stranger(
        "find", str(directory), "-mindepth", "1", "(", "-readable", "-o", "-writable", "-o", "-executable", ")", uid=uid
    )
    return listing.stdout.decode().splitlines()


def plant(directory: Path, path: str, contents: bytes) -> bool:
    """Make a job that looks dispatched and whole, with other bytes than its manifest claims for the file at `path`."""
    job = JobPaths(directory)
    job.meta.mkdir(parents=True)
    (job.dir / path).write_bytes(b"print('their code')".ljust(len(contents), b"#"))
    stamp = stamp_of((job.dir / path).lstat())
    mtime = (job.dir / path).lstat().st_mtime_ns
    claimed = Entry(path, FILE, 0o600, mtime, len(contents), hashlib.sha256(contents).hexdigest())
    record = {"node": 0, "nodes": 1, "tree": content_of([claimed]), "source": "x"}
    seal(job, record, lists_of([Row(claimed, stamp)], dumps([claimed])))
    for made in (job.dir, *job.dir.rglob("*")):
        if made.name != path:  # its time is in the manifest
            made.chmod(0o777)
    return read_manifest(job.dir) is not None
