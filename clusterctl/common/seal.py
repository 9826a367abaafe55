"""The seal of a job directory: the list of its paths as dispatched, to detect any change since.

A dispatch without changes is the most frequent one, and goes to many nodes at once. It is answered by this module,
before anything else is imported.
"""

import os
import stat
import time

META = ".clusterctl"
SEAL = META + "/seal"
VERIFIED = "verified-"  # and the id of a boot
RESERVED = ("nodefile", "log", "output", META)  # ours at the top of a job directory
COPIED_SHARDS = META + "/shards"  # of other nodes' trainers: the only dispatched files there
FORMAT = 0o170000  # of a mode: the kind of file
ID_CHARS = len("JOB20261121-081530")


def untouched_job(root: str, job: str, tree: str, mark: str) -> str:
    """Return the absolute directory of `job` if it is the newest, sealed as `tree`, never started, and not in use.

    Return "" if any of that is false or hard to determine: the agent then checks in detail. `mark` is the name of the
    file that shows that no power cut can have damaged the job since it was verified.
    """
    here = os.path.join(root, job)
    try:
        if not (is_own(here) and is_own(f"{here}/{META}") and is_verified(f"{here}/{META}", mark)):
            return ""
        if _newest(root) != job or os.listdir(f"{here}/{META}/runs") or os.listdir(f"{root}/{META}/incoming"):
            return ""
        for path in (f"{here}/{META}/lock", f"{root}/{META}/journal", f"{root}/{META}/dispatch.lock"):
            if os.path.lexists(path):
                return ""
        return here if _is_plain(here) and read_seal(here) == (tree, listing(here)) else ""
    except (OSError, ValueError):
        return ""


def is_own(directory: str) -> bool:
    """Return True if it is a directory of this account to which no other account can write. A link is not one."""
    try:
        status = os.lstat(directory)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def is_verified(directory: str, mark: str) -> bool:
    """Return True if a job was made or verified since the node's last reboot. `directory` has its seal. Raises OSError.

    An adopted job has no mark; there the time of the seal decides.
    """
    if os.path.exists(f"{directory}/{mark}"):
        return True
    if any(name.startswith(VERIFIED) for name in os.listdir(directory)):
        return False
    return os.stat(f"{directory}/seal").st_ctime > time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _newest(root: str) -> str:
    jobs = [name for name in os.listdir(root) if name.startswith("JOB")]
    return max(jobs, key=lambda name: (name[:ID_CHARS], len(name), name), default="")


def _is_plain(path: str) -> bool:
    """Return True if it can be written into JSON unchanged."""
    return path.isascii() and path.isprintable() and '"' not in path and "\\" not in path


def read_seal(job_dir: str) -> "tuple[str, str]":
    """Return the name of the tree, and the directory's listing at that time. Raises OSError, ValueError."""
    with open(f"{job_dir}/{SEAL}", encoding="utf-8", errors="surrogateescape", newline="") as f:
        tree, _, listed = f.read().partition("\n")
    return tree, listed


def write_seal(job_dir: str, tree: str, listed: str) -> None:
    """Write the seal into a directory that is not visible to other processes yet."""
    with open(f"{job_dir}/{SEAL}", "w", encoding="utf-8", errors="surrogateescape", newline="") as f:
        f.write(f"{tree}\n{listed}")


def listing(job_dir: str) -> str:
    """Return the listing of a job directory without our own files."""
    lines: list[str] = []
    todo = ["", *_copied_shards(job_dir, lines)]
    while todo:
        below = todo.pop()
        directory = os.open(f"{job_dir}/{below}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            todo += _list(directory, below, lines)
        finally:
            os.close(directory)
    return joined(lines)


def _copied_shards(job_dir: str, lines: "list[str]") -> "list[str]":
    """Add the line of the directory of copied shards, and return it, if there is one."""
    try:
        status = os.lstat(f"{job_dir}/{COPIED_SHARDS}")
    except FileNotFoundError:
        return []
    lines.append(line_of(COPIED_SHARDS, status.st_mode, 0, (status.st_mtime_ns, 0, 0), ""))
    return [f"{COPIED_SHARDS}/"]


def _list(directory: int, below: str, lines: "list[str]") -> "list[str]":
    """Add the lines of an open directory. Return its subdirectories. Names alone save the kernel the paths: a third."""
    found = []
    for name in os.listdir(directory):
        path = below + name
        if not below and path in RESERVED:
            continue
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        mode = status.st_mode
        if mode & FORMAT == stat.S_IFREG:  # most are files: as `line_of` does it, but without the call
            stamp = f"{status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"
            lines.append(f"{path}\0{mode} {status.st_size} {stamp}")
            continue
        target = os.readlink(name, dir_fd=directory) if stat.S_ISLNK(mode) else ""
        lines.append(line_of(path, mode, 0, (status.st_mtime_ns, 0, 0), target))
        if stat.S_ISDIR(mode):
            found.append(f"{path}/")
    return found


def line_of(path: str, mode: int, size: int, stamp: "tuple[int, int, int]", target: str) -> str:
    """Return one path's line. `mode` is that of stat, `stamp` is (mtime_ns, ctime_ns, inode).

    A directory's size and inode mean nothing, and its change time depends on its neighbours.
    """
    if stat.S_ISREG(mode):
        return f"{path}\0{mode} {size} {stamp[0]} {stamp[1]} {stamp[2]}"
    if stat.S_ISLNK(mode):
        return f"{path}\0{mode} {target}"
    return f"{path}\0{mode} {stamp[0]}"


def joined(lines: "list[str]") -> str:
    """Return a listing of these lines, which may be in any order."""
    lines.sort()
    return "\0\0".join(lines)
