"""Directories that no other account can change, and the files in them, by descriptors.

A path is trusted by the rule for ROOT_DIR (`agent/boot.py`, which nothing imports), much like StrictModes of sshd:
every directory and link on the way belongs to this account or root, and nobody else can write to a directory, unless
it is sticky and the next part of the path belongs to this account or root. A group counts as others if it has other
members, or if there is an access control list. Below such a directory, files are opened relative to its descriptor: no
rename puts another in its place.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import shutil
import stat
from pathlib import Path

from clusterctl.common.files import write_all
from clusterctl.ranks.errors import RankError

# O_DIRECTORY triggers an automounter. O_PATH needs no permission to list.
PASSED = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
ITSELF = os.O_PATH | os.O_NOFOLLOW
MOST_LINKS = 40  # like the kernel
MOST_BYTES = 64 << 20  # of a file
USE_OWN = "name a directory of your own: clusterctl-rank --shared DIR"


def check_program(path: Path) -> None:
    """Raise RankError if another account could have written a file that is to run, or can replace it.

    `path` is absolute. Raises OSError.
    """
    fd = _walk(path, ITSELF)
    try:
        writers = _writers(fd, None)
    finally:
        os.close(fd)
    if writers:
        hint = "read it; if it is as it should be, copy it to a file that only you can write to: --conf FILE"
        raise RankError(f"{path} can be written by {writers}, and would run as you", hint)


def _walk(path: Path, flags: int) -> int:
    """Open an absolute path with `flags`. Raises RankError if another account could replace a part of it."""
    here, links = Path("/"), 0
    opened = [os.open("/", PASSED)]
    todo = list(reversed(path.parts[1:]))
    try:
        while todo:
            name = todo.pop()
            above = opened[-1]
            opened.append(_part(name, PASSED if todo else flags, above, here / name))
            status = os.fstat(opened[-1])
            if name != ".." and _writers(above, status):
                raise _replaceable(here, above, name, status)
            if not stat.S_ISLNK(status.st_mode):
                here = here / name
                continue
            target = Path(os.readlink("", dir_fd=opened.pop()))
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            if target.is_absolute():
                here = Path("/")
                opened.append(os.open("/", PASSED))
            todo += [part for part in reversed(target.parts) if part != "/"]
        return os.dup(opened[-1])
    finally:
        for fd in opened:
            os.close(fd)


def _replaceable(path: Path, fd: int, name: str, child: os.stat_result) -> RankError:
    if writers := _writers(fd, None):
        return RankError(f"{path} can be written by {writers}, who could replace what is in it", USE_OWN)
    if child.st_uid in (0, os.getuid()):
        return RankError(f"{path / name} has several names, and another account may have made this one", USE_OWN)
    return RankError(f"{path / name} belongs to another account, uid {child.st_uid}", USE_OWN)


def _part(name: str, flags: int, dir_fd: int, path: Path) -> int:
    """Open one part of a path; if it is a link, the link itself."""
    try:
        return _open(name, flags, dir_fd, path)
    except NotADirectoryError:
        fd = _open(name, ITSELF, dir_fd, path)
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        raise


def _open(name: str, flags: int, dir_fd: int, path: Path) -> int:
    """Open `name` relative to a descriptor. Errors name the `path`. What NFS calls stale does not exist."""
    try:
        return os.open(name, flags, 0o600, dir_fd=dir_fd)
    except OSError as exc:
        number = errno.ENOENT if exc.errno == errno.ESTALE else exc.errno or 0
        raise OSError(number, os.strerror(number), str(path)) from exc


def _writers(fd: int, child: os.stat_result | None) -> str:
    """Return who else could change a file, or replace `child` in a directory; "" if nobody could."""
    status, ours = os.fstat(fd), (0, os.getuid())
    if status.st_uid not in ours:
        return f"its owner, uid {status.st_uid}"
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX and (child is None or _is_safe(child, ours)):
        return ""
    if status.st_mode & 0o002:
        return "everybody"
    if not status.st_mode & 0o020:
        return ""
    if _has_list(fd):
        return "accounts in its access control list"
    return "" if _is_alone(status.st_gid) else f"group {status.st_gid}"


def _is_safe(child: os.stat_result, ours: tuple[int, int]) -> bool:
    """Return True if nobody else could have put it into a sticky directory: not even as a hard link to our file."""
    return child.st_uid in ours and (stat.S_ISDIR(child.st_mode) or child.st_nlink == 1)


def _has_list(fd: int) -> bool:
    """Return True if a file has an access control list. What the group may do is then the most that any entry may."""
    try:
        return bool(os.getxattr(f"/proc/self/fd/{fd}", "system.posix_acl_access"))
    except OSError:
        return False


def _is_alone(gid: int) -> bool:
    """Return True if a group is known to have no members but this account and root."""
    try:
        account, group = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(gid)
    except KeyError:
        return False
    members = {*group.gr_mem, *(entry.pw_name for entry in pwd.getpwall() if entry.pw_gid == gid)}
    has_it = gid in (os.getgid(), *os.getgroups())  # although the list of members may not show it
    return {"root", account}.issuperset(members) and (group.gr_name == account or not has_it)


class PrivateDirectory:
    """An open directory. `open_shared` opens the first one, in which `open` opens others."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self.path = path

    def __enter__(self) -> PrivateDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def open(self, name: str) -> PrivateDirectory:
        """Open a directory of this account to which nobody else can write. Raises OSError and RankError."""
        path = self.path / name
        try:
            fd = _open(name, LISTED, self._fd, path)
        except NotADirectoryError:
            raise RankError(f"{path} is not a directory, or is a link", f"remove it: rm {path}") from None
        if not _is_own(os.fstat(fd)):
            os.close(fd)
            raise RankError(f"{path} belongs to another account, or others can write to it", USE_OWN)
        return PrivateDirectory(fd, path)

    def make(self, name: str, *, exist_ok: bool = False) -> PrivateDirectory:
        """Make a private directory and open it. Raises OSError and RankError."""
        try:
            os.mkdir(name, 0o700, dir_fd=self._fd)
        except OSError as exc:
            if not (exist_ok and isinstance(exc, FileExistsError)):
                raise type(exc)(exc.errno, exc.strerror, str(self.path / name)) from exc
        return self.open(name)

    def names(self) -> set[str]:
        """List a directory that `open` opened, as it is now. Raises FileNotFoundError if it was removed."""
        again = _open(f"../{self.path.name}", LISTED, self._fd, self.path)  # NFS may not look again for less
        try:
            if not os.path.sameopenfile(again, self._fd):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))
            return set(os.listdir(again))  # noqa: PTH208 - of a descriptor
        finally:
            os.close(again)

    def read(self, name: str) -> bytes:
        """Return the content of a file of this account. Raises OSError, and RankError for any other file."""
        path = self.path / name
        fd = _open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, self._fd, path)
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or not _is_own(status) or status.st_size > MOST_BYTES:
                raise RankError(f"{path} is not a file of this account, or is too large", f"remove it: rm {path}")
            return file.read(MOST_BYTES)

    def write(self, name: str, data: bytes, *, durable: bool = False) -> None:
        """Write a file beside its name, and rename it into place."""
        beside = f".{name}.{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        fd = _open(beside, flags, self._fd, self.path / name)
        try:
            write_all(fd, data)
            if durable:
                os.fsync(fd)
            os.rename(beside, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        finally:
            os.close(fd)

    def unlink(self, name: str) -> None:
        os.unlink(name, dir_fd=self._fd)

    def remove(self, name: str) -> None:
        """Remove a directory and all that is in it, as far as that is possible."""
        shutil.rmtree(f"/proc/self/fd/{self._fd}/{name}", ignore_errors=True)  # `dir_fd` is of Python 3.11


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def open_shared(path: Path) -> PrivateDirectory:
    """Open a directory in which nobody else can replace what is ours. `path` is absolute.

    Raises OSError, and RankError if another account could replace a part of the path.
    """
    fd = _walk(path, LISTED)
    writers = _writers(fd, None)
    if writers:
        os.close(fd)
        raise RankError(f"{path} can be written by {writers}, who could replace what is in it", USE_OWN)
    os.listdir(fd)  # noqa: PTH208 - of a descriptor. NFS then looks again for names that were missing
    return PrivateDirectory(fd, path)
