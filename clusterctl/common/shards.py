"""Data shards: which files are some, and where a node keeps copies of those of other nodes' trainers.

A copy is below `.clusterctl/shards/RANK/` of the job directory, under a name that hardly any program takes for data:
the bytes of its path in hexadecimal, in parts of PART_CHARS, all but the last of which end in `+`.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
from typing import Callable

from clusterctl.common.seal import COPIED_SHARDS

PART_CHARS = 140  # some file systems allow no more


def matcher(pattern: str) -> Callable[[str], object]:
    """Return a test of paths. A pattern without a slash matches file names in any directory."""
    matches = re.compile(fnmatch.translate(pattern)).match
    return matches if "/" in pattern else lambda path: matches(posixpath.basename(path))


def directory_of(rank: int) -> str:
    """Return the directory with the copies of a trainer's shards."""
    return f"{COPIED_SHARDS}/{rank}"


def copy_of(path: str, rank: int) -> str:
    """Return the path of the copy of a trainer's shard."""
    text = os.fsencode(path).hex()
    parts = [text[first : first + PART_CHARS] for first in range(0, len(text), PART_CHARS)]
    return "/".join([directory_of(rank), *(f"{part}+" for part in parts[:-1]), parts[-1]])


def copied(path: str) -> tuple[int, str] | None:
    """Return the trainer and the original path of a copied shard; None if the file `path` is not a copy."""
    if not path.startswith(f"{COPIED_SHARDS}/"):
        return None
    rank, _, text = path[len(COPIED_SHARDS) + 1 :].partition("/")
    is_file = text and not text.endswith("+")
    return (int(rank), os.fsdecode(bytes.fromhex(text.replace("+/", "")))) if is_file else None


def original(path: str) -> str:
    """Return the path in the workspace of a file of a job."""
    copy = copied(path)
    return copy[1] if copy else path


def described(path: str) -> str:
    """Return the path of a file of a job for a reader."""
    copy = copied(path)
    return f"{copy[1]} (copy for trainer {copy[0]})" if copy else path


def is_directory_of_copies(path: str) -> bool:
    return (path == COPIED_SHARDS or path.startswith(f"{COPIED_SHARDS}/")) and copied(path) is None
