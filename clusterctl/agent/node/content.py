"""Find wanted contents on this node by digest.

There is no central index that could be wrong: every job directory has its own manifest (`JOB/.clusterctl/manifest`), a
row per path with the stamp (mtime, ctime, inode) that its file had when its bytes were verified. A row is valid only
while the size and stamp of its file are unchanged. When a job is removed, so are its rows.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Callable, NamedTuple

from clusterctl.common import seal
from clusterctl.common.errors import AgentError
from clusterctl.common.files import digest_of, write_all
from clusterctl.common.paths import META, JobPaths, find_jobs, incoming_dir
from clusterctl.common.procfs import boot_id
from clusterctl.common.safe_json import dumps, loads
from clusterctl.common.seal import VERIFIED, joined, line_of, listing, read_seal, write_seal
from clusterctl.common.shards import described
from clusterctl.common.tree import COPY_BYTES, DIRECTORY, FILE, LINK, Entry

KIND_MODES = {FILE: stat.S_IFREG, DIRECTORY: stat.S_IFDIR, LINK: stat.S_IFLNK}
TORN = "torn-"  # with a digest: the name of a large file that has arrived in part
RANGE_BYTES = 256 << 20
MANY = 1000  # rows per line
BLOCK = 4096
FEW = 32  # up to this many digests are searched for as text before a manifest is parsed


class Stamp(NamedTuple):
    """The attributes that show that a file is still the one that was verified."""

    mtime_ns: int
    ctime_ns: int
    inode: int


class Row(NamedTuple):
    """An entry of a job's manifest; only files have a stamp."""

    entry: Entry
    stamp: Stamp | None


class LocalCopy(NamedTuple):
    """A file on this node with the wanted bytes; it may be moved if nothing else needs it.

    If it is not `sure`, a power cut may have damaged it.
    """

    path: Path
    stamp: Stamp
    movable: bool
    sure: bool


def is_verified(directory: Path) -> bool:
    """Return True if the files of a job, or of a dispatch in progress, were made or verified since the last reboot.

    `directory` has the mark: the `.clusterctl` of a job, or the directory of a dispatch.
    """
    try:
        return seal.is_verified(str(directory), VERIFIED + boot_id())
    except OSError:
        return False


def mark_verified(directory: Path) -> None:
    os.close(os.open(directory / (VERIFIED + boot_id()), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))


def stamp_of(status: os.stat_result) -> Stamp:
    return Stamp(status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


class Sums(NamedTuple):
    """The numbers of the rows of a tree: `blocks` is the space that the files take."""

    files: int = 0
    bytes: int = 0
    blocks: int = 0
    directories: int = 0

    def plus(self, other: Sums, sign: int = 1) -> Sums:
        return Sums(*(mine + sign * theirs for mine, theirs in zip(self, other)))


def sums_of(entries: list[Entry]) -> Sums:
    sizes = [entry.size for entry in entries if entry.kind == FILE]
    directories = sum([entry.kind == DIRECTORY for entry in entries])
    return Sums(len(sizes), sum(sizes), sum([-(-size // BLOCK) for size in sizes]), directories)


class PathLists(NamedTuple):
    """The lists of a job's paths: the text of its manifest, the listing of its seal, its entries as JSON with sums."""

    manifest: bytes
    listing: str
    entries: bytes
    sums: Sums


def lists_of(rows: list[Row], listed: bytes) -> PathLists:
    """Return the lists of these rows. `listed` is their entries as JSON."""
    parts = [rows[first : first + MANY] for first in range(0, len(rows), MANY)]
    manifest = b"[%s]" % b",\n".join([dumps([(*row.entry, row.stamp) for row in part])[1:-1] for part in parts])
    return PathLists(manifest, joined([row_line(row) for row in rows]), listed, sums_of([row.entry for row in rows]))


def write_lists(job_dir: Path, tree: str, lists: PathLists) -> None:
    """Write the lists into a directory that is not visible to other processes yet. Edits need `entries`."""
    for name, data in (("manifest", lists.manifest), ("entries", b"%s\n%s" % (lists.entries, dumps(lists.sums)))):
        with (job_dir / META / name).open("wb") as f:
            f.write(data)
    write_seal(str(job_dir), tree, lists.listing)


def read_list(job_dir: Path) -> tuple[bytes, Sums]:
    """Return a job's entries as JSON, and their sums. Raises OSError, ValueError or TypeError."""
    listed, _, sums = (job_dir / META / "entries").read_bytes().partition(b"\n")
    return listed, Sums(*loads(sums))


def encode_row(row: Row) -> bytes:
    """Return a row as it is in a manifest."""
    return dumps((*row.entry, row.stamp))


def row_line(row: Row) -> str:
    """Return the line of a row in a seal."""
    entry, stamp = row
    mode = KIND_MODES[entry.kind] | entry.mode
    return line_of(entry.path, mode, entry.size, stamp or (entry.mtime_ns, 0, 0), entry.target)


def read_manifest(job_dir: Path) -> list[Row] | None:
    """Return a job's rows, or None if they are missing or damaged."""
    try:
        rows = loads((job_dir / META / "manifest").read_bytes())
        return [Row(Entry(*row[:-1]), Stamp(*row[-1]) if row[-1] else None) for row in rows]
    except (OSError, ValueError, TypeError):
        return None


def is_exact(job_dir: Path) -> bool:
    """Return True if a job directory holds exactly what was dispatched: nothing changed and nothing added."""
    return exact_listing(job_dir) is not None


def exact_listing(job_dir: Path) -> str | None:
    """Return the listing of a job directory that holds exactly what was dispatched, else None."""
    try:
        listed = listing(str(job_dir))
        return listed if read_seal(str(job_dir))[1] == listed else None
    except (OSError, ValueError):
        return None


def find_sources(
    root: Path, wanted: Collection[str], sizes: dict[str, int], heartbeat: Callable[[], None]
) -> dict[str, LocalCopy]:
    """Return files of this node with the wanted digests: first from interrupted dispatches, then from the newest jobs.

    `heartbeat` is called periodically: a job of 100,000 files takes half a second.
    """
    sources: dict[str, LocalCopy] = {}
    missing = set(wanted)
    for digest, source in _left_over(incoming_dir(root)):
        if digest in missing and is_still(source, sizes[digest]):
            sources[digest] = source
            missing.discard(digest)
    for job in find_jobs(root):
        if not missing:
            break
        heartbeat()
        for digest, source in _of_job(job, missing):
            if digest in missing and is_still(source, sizes[digest]):
                sources[digest] = source
                missing.discard(digest)
    return sources


def is_still(source: LocalCopy, size: int) -> bool:
    try:
        status = source.path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == size and stamp_of(status) == source.stamp


def _of_job(job: JobPaths, missing: set[str]) -> Iterator[tuple[str, LocalCopy]]:
    try:
        text = (job.meta / "manifest").read_bytes()
    except OSError:
        return
    if len(missing) <= FEW and not any(digest.encode() in text for digest in missing):
        return
    sure = is_verified(job.meta)
    for row in read_manifest(job.dir) or ():
        if row.stamp and row.entry.digest in missing:
            yield row.entry.digest, LocalCopy(job.dir / row.entry.path, row.stamp, False, sure)


def _left_over(incoming: Path) -> Iterator[tuple[str, LocalCopy]]:
    """Yield files that arrived whole in interrupted dispatches: their staging directories keep a list."""
    for staging in incoming.iterdir():
        with suppress(OSError), (staging / "arrived").open() as lines:
            sure = is_verified(staging)
            for line in lines:
                with suppress(ValueError, TypeError):  # the last line may be torn
                    digest, path, stamp = loads(line)
                    yield digest, LocalCopy(staging / path, Stamp(*stamp), True, sure)


def find_torn(incoming: Path, sizes: dict[str, int]) -> dict[str, tuple[Path, int]]:
    """Return the beginnings of large files from interrupted dispatches, as (path, bytes) by digest."""
    torn: dict[str, tuple[Path, int]] = {}
    for staging in incoming.iterdir():
        for path in staging.iterdir() if sizes and staging.is_dir() else ():
            digest = path.name[len(TORN) :]
            if path.name.startswith(TORN) and digest in sizes:
                status = path.lstat()
                known = torn[digest][1] if digest in torn else 0
                if stat.S_ISREG(status.st_mode) and known < status.st_size < sizes[digest]:
                    torn[digest] = (path, status.st_size)
    return torn


def copy_file(source: LocalCopy, size: int, fd: int, heartbeat: Callable[[], None]) -> None:
    """Copy a source into an open file; the file system may share the bytes between both.

    `heartbeat` is called periodically. Raises AgentError if the source changes in the meantime.
    """
    with source.path.open("rb") as f:
        left = size
        with suppress(OSError, AttributeError):  # not on this system, or not between these file systems
            while left and (done := os.copy_file_range(f.fileno(), fd, min(left, RANGE_BYTES))):
                left -= done
                heartbeat()
        while left and (data := f.read(min(left, COPY_BYTES))):
            write_all(fd, data)
            left -= len(data)
            heartbeat()
        if left or not stamp_of(os.fstat(f.fileno())) == source.stamp:
            raise AgentError(f"{source.path} changed while it was being copied", hint="dispatch again")


def find_damage(job: JobPaths, heartbeat: Callable[[], None]) -> list[str]:
    """Return the paths of a job whose bytes are not those that were dispatched, though nobody has changed them.

    `heartbeat` is called periodically.
    """
    if is_verified(job.meta):
        return []
    rows = read_manifest(job.dir)
    if rows is None:
        return [f"{META}/manifest"]
    damaged = [described(row.entry.path) for row in rows if _is_damaged(job.dir / row.entry.path, row, heartbeat)]
    if not damaged:
        mark_verified(job.meta)
    return damaged


def _is_damaged(path: Path, row: Row, heartbeat: Callable[[], None]) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    if row.stamp != stamp_of(status):  # somebody changed it
        return False
    return status.st_size != row.entry.size or digest_of(path, heartbeat) != row.entry.digest
