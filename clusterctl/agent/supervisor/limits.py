"""Memory and open-file limits of started processes."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from typing import Callable

from clusterctl.common.run_spec import Limits

MEGABYTE = 1_000_000
MOST_FILES = 65_536  # some programs try every descriptor up to the limit


def allow_open_files() -> None:
    """Raise the limit of open files to what this account may have, within reason, for this process and its children.

    The usual 1,024 are too few for a lead of a thousand nodes, to which strangers may connect, too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _at_most(resource.RLIMIT_NOFILE, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limiter(limits: Limits) -> Callable[[], None] | None:
    """The function that sets these limits in a new process between fork and exec; None if there are none.

    Raises OSError for more open files than this node allows.
    """
    wanted = dict(_wanted(limits))
    if not wanted:
        return None

    def limit() -> None:
        for kind, number in wanted.items():
            resource.setrlimit(kind, (number, number))

    return limit


def _wanted(limits: Limits) -> Iterator[tuple[int, int]]:
    memory, files = limits.memory_limit_mb, limits.open_files
    if memory is not None:
        yield resource.RLIMIT_AS, _at_most(resource.RLIMIT_AS, memory * MEGABYTE)
    if files is not None:
        most = _at_most(resource.RLIMIT_NOFILE, files)
        if most < files:
            words = f"OPEN_FILES = {files} is more than this node allows, {most} (ulimit -Hn)"
            raise OSError(errno.EPERM, words)
        yield resource.RLIMIT_NOFILE, files


def _at_most(kind: int, number: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return number if hard == resource.RLIM_INFINITY else min(number, hard)
