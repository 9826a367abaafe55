"""Whether a job directory is just what was dispatched: its seal lists all paths, and how to tell that none was touched.

The dispatch that changes nothing is the most frequent one, and goes to many nodes at once. It is answered from here,
before anything else is imported.
"""

import os
import stat

META = ".clusterctl"
SEAL = META + "/seal"
RESERVED = ("nodefile", "log", "output", META)  # ours at the top of a job directory
ID_CHARS = len("JOB20261121-081530")


def untouched_job(root: str, job: str, tree: str) -> str:
    """The absolute directory of `job` when it is the newest, sealed as `tree`, never started, and nothing is under way.

    Empty when anything of that is not so, or only hard to tell: then the agent has a closer look.
    """
    here = os.path.join(root, job)
    try:
        if _newest(root) != job or os.listdir(f"{here}/{META}/runs") or os.listdir(f"{root}/{META}/incoming"):
            return ""
        for path in (f"{here}/{META}/lock", f"{root}/{META}/journal", f"{root}/{META}/dispatch.lock"):
            if os.path.lexists(path):
                return ""
        return here if _is_plain(here) and read_seal(here) == (tree, listing(here)) else ""
    except (OSError, ValueError):
        return ""


def _newest(root: str) -> str:
    jobs = [name for name in os.listdir(root) if name.startswith("JOB")]
    return max(jobs, key=lambda name: (name[:ID_CHARS], len(name), name), default="")


def _is_plain(path: str) -> bool:
    """Whether it can be written into JSON as it is."""
    return path.isascii() and path.isprintable() and '"' not in path and "\\" not in path


def read_seal(job_dir: str) -> "tuple[str, str]":
    """The name of the tree, and the listing that the directory had then. Raises OSError, ValueError."""
    with open(f"{job_dir}/{SEAL}", encoding="utf-8", errors="surrogateescape", newline="") as f:
        tree, _, listed = f.read().partition("\n")
    return tree, listed


def write_seal(job_dir: str, tree: str, listed: str) -> None:
    """Into a directory that nobody sees yet."""
    with open(f"{job_dir}/{SEAL}", "w", encoding="utf-8", errors="surrogateescape", newline="") as f:
        f.write(f"{tree}\n{listed}")


def listing(job_dir: str) -> str:
    """All that is in a job directory, apart from what is ours."""
    lines = []
    todo = [""]
    while todo:
        below = todo.pop()
        with os.scandir(f"{job_dir}/{below}") as found:
            for item in found:
                path = f"{below}/{item.name}" if below else item.name
                if path in RESERVED:
                    continue
                status = item.stat(follow_symlinks=False)
                target = os.readlink(item.path) if stat.S_ISLNK(status.st_mode) else ""
                stamp = (status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
                lines.append(line_of(path, status.st_mode, status.st_size, stamp, target))
                if stat.S_ISDIR(status.st_mode):
                    todo.append(path)
    return joined(lines)


def line_of(path: str, mode: int, size: int, stamp: "tuple[int, int, int]", target: str) -> str:
    """`mode` is that of stat, `stamp` (mtime_ns, ctime_ns, inode).

    A directory's size and inode say nothing, and its change time is set by what happens around it.
    """
    if stat.S_ISREG(mode):
        return f"{path}\0{mode} {size} {stamp[0]} {stamp[1]} {stamp[2]}"
    if stat.S_ISLNK(mode):
        return f"{path}\0{mode} {target}"
    return f"{path}\0{mode} {stamp[0]}"


def joined(lines: "list[str]") -> str:
    """A listing of these lines, in whatever order they were found."""
    lines.sort()
    return "\0\0".join(lines)
