"""Turn a job that was never started into its successor, in place: only differing files are touched.

Everything new is staged and verified first. Then a journal is written, the old directory is renamed into the staging
directory, changed there, and renamed to its new name. If the agent is killed, the next agent call finishes the work:
every step can be repeated.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable

from clusterctl.agent.node.content import PathLists, Row, lists_of, mark_verified, read_manifest, stamp_of, write_lists
from clusterctl.agent.node.locks import DispatchLock
from clusterctl.common.errors import AgentError
from clusterctl.common.files import (
    delete,
    is_locked,
    read_json,
    sync_directory,
    sync_disk,
    write_atomic,
    write_json,
)
from clusterctl.common.paths import JobPaths, incoming_dir
from clusterctl.common.procfs import wait_until
from clusterctl.common.safe_json import dumps, loads
from clusterctl.common.tree import DIRECTORY, FILE, LINK, Entry, decode, owned_name

Apply = Callable[[Path, Path, dict[str, Any]], None]

JOURNAL = "journal"
SETTLE_S = 10.0


def journal_of(root: Path) -> Path:
    return incoming_dir(root).parent / JOURNAL


def was_started(job: JobPaths) -> bool:
    """Return True if a run of the job was started, or is being started."""
    return job.newest_run() is not None or is_locked(job.lock)


def changed(base: dict[str, Row], entries: list[Entry]) -> list[int]:
    """Return the numbers of the file entries whose bytes the base does not have at that path."""
    numbers = []
    for number, entry in enumerate(entries):
        if has_other_bytes(base.get(entry.path), entry):
            numbers.append(number)
    return numbers


def has_other_bytes(row: Row | None, entry: Entry) -> bool:
    """Return True for a file whose bytes are not those of the file in the row."""
    if entry.kind != FILE:
        return False
    return row is None or (row.entry.kind, row.entry.size, row.entry.digest) != (FILE, entry.size, entry.digest)


def supersede(
    root: Path,
    staging: Path,
    old: str,
    record: dict[str, Any],
    listed: bytes,
    apply: Apply,
    heartbeat: Callable[[], None] = lambda: None,
) -> bool:
    """Turn job `old` into `record["job"]`. Return False if it was started in the meantime.

    `listed` is the entries as JSON. The files that `changed` names are in `staging/new/NUMBER`, verified.
    `apply(tree, staging, record)` changes the job directory as `change` does.
    """
    write_atomic(staging / "entries", listed, durable=False)
    sync_disk(staging, heartbeat)
    write_json(journal_of(root), {"staging": staging.name, "old": old, "record": record})
    return _complete(root, apply, heartbeat)


def recover(root: Path) -> None:
    """Finish the change that a killed agent had begun. Called before every operation that finds a journal."""

    def settled() -> bool:
        try:
            with DispatchLock(root, {"by": "recovery of an interrupted dispatch"}):
                if journal_of(root).exists():
                    _complete(root, _change_from_disk)
        except AgentError as exc:  # a dispatch is doing it right now
            if exc.kind != "busy":
                raise
        return not journal_of(root).exists()

    wait_until(settled, SETTLE_S)


def _complete(root: Path, apply: Apply, heartbeat: Callable[[], None] = lambda: None) -> bool:
    """Carry out the journal."""
    journal = read_json(journal_of(root))
    staging = incoming_dir(root) / str(journal["staging"]) if journal else None
    if journal is None or staging is None or not (staging / "entries").exists():
        journal_of(root).unlink()
        return False
    old, new, tree = JobPaths(root / journal["old"]), root / journal["record"]["job"], staging / "base"
    if old.dir.exists() and not tree.exists():
        if was_started(old):
            journal_of(root).unlink()
            return False
        old.dir.rename(tree)
    if tree.exists():
        apply(tree, staging, journal["record"])
        sync_disk(tree, heartbeat)
        tree.rename(new)
    sync_directory(root)
    journal_of(root).unlink()
    with suppress(OSError):
        delete(staging)
    return True


def _change_from_disk(tree: Path, staging: Path, record: dict[str, Any]) -> None:
    entries = decode(loads((staging / "entries").read_bytes()))
    change(tree, staging, record, entries, {row.entry.path: row for row in read_manifest(tree) or ()})


def change(tree: Path, staging: Path, record: dict[str, Any], entries: list[Entry], base: dict[str, Row]) -> None:
    """Change the job directory `tree`, whose rows are `base`, to `entries`."""
    for row in base.values():
        make_writable(tree, row.entry)
    _remove_gone(tree, base, entries)
    rows = [place(tree, staging, base, number, entry) for number, entry in enumerate(entries)]
    for entry in reversed(entries):
        if entry.kind == DIRECTORY:
            finish_directory(tree / entry.path, entry)
    seal(JobPaths(tree), record, lists_of(rows, dumps(entries)))


def make_writable(tree: Path, entry: Entry) -> None:
    """If the entry is a read-only directory, let this account write into it for now."""
    if entry.kind == DIRECTORY and entry.mode & 0o300 != 0o300 and _kind(tree / entry.path) == DIRECTORY:
        with suppress(OSError):
            (tree / entry.path).chmod(0o700)


def _remove_gone(tree: Path, base: dict[str, Row], entries: list[Entry]) -> None:
    """Remove the paths that are gone. Never look below a directory already replaced: it may be a link elsewhere."""
    wanted = {entry.path: entry.kind for entry in entries}
    gone: list[str] = []
    replaced: set[str] = set()
    for path, row in base.items():  # directories before their contents
        if path.rpartition("/")[0] in replaced:
            replaced.add(path)
        elif wanted.get(path) != row.entry.kind:
            if path in wanted and _kind(tree / path) != row.entry.kind:
                replaced.add(path)
            else:
                gone.append(path)
    for path in reversed(gone):
        _remove(tree / path)


def _kind(path: Path) -> str:
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return ""
    return DIRECTORY if stat.S_ISDIR(mode) else LINK if stat.S_ISLNK(mode) else FILE


def _remove(path: Path) -> None:
    with suppress(NotADirectoryError):
        delete(path)


def place(tree: Path, staging: Path, base: dict[str, Row], number: int, entry: Entry) -> Row:
    """Give a path of `tree` the bytes and attributes of an entry, and return its row."""
    path = tree / entry.path
    known = base.get(entry.path)
    if known is not None and known.entry == entry:
        return known
    if entry.kind == DIRECTORY:
        with suppress(FileExistsError):
            path.mkdir(0o700)
        return Row(entry, None)
    if entry.kind == LINK:
        _remove(path)
        make_link(path, entry)
        return Row(entry, None)
    with suppress(FileNotFoundError):
        (staging / "new" / str(number)).replace(path)
    path.chmod(entry.mode)
    os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns))
    return Row(entry, stamp_of(path.lstat()))


def make_link(path: Path, entry: Entry) -> None:
    path.symlink_to(entry.target)
    os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)


def finish_directory(path: Path, entry: Entry) -> None:
    """Set mode and time of a directory whose contents are complete."""
    path.chmod(entry.mode)
    os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns))


def seal(job: JobPaths, record: dict[str, Any], lists: PathLists) -> None:
    """Write our own files into a job directory."""
    for ours in (job.log, job.output, job.meta, job.runs):
        ours.mkdir(0o700, exist_ok=True)
    write_atomic(job.nodefile, b"%d\n" % record["node"], 0o644, durable=False)
    mark_verified(job.meta)
    write_lists(job.dir, owned_name(record["tree"], record["source"], record["node"], record["nodes"]), lists)
    write_json(job.record, record, durable=False)  # it makes the directory a job
