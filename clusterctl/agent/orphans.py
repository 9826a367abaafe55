"""Who belongs to a job on this node, whatever became of its supervisor, its runs and its directory.

By uid and by the environment that every process of a run carries; supervisors and guardians by their arguments. A
process of another job, of another ROOT_DIR or of another account is never among them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Callable

from clusterctl.agent.paths import is_job_id
from clusterctl.agent.processes import PROC, Identity, environment_of, identify, own_environments, own_pids, stat_fields

MARK = b"CLUSTERCTL_JOB_DIR="
SUPERVISOR, GUARDIAN = b"supervisor", b"guardian"
ENTRY = b"/agent/entry.py"
MOST_NAMED = 20
MOST_WORDS = 60  # characters of a command


def of_job(job_dir: Path) -> list[Identity]:
    """Every process of any run of the job; a second look tells that there is none."""
    return _of_job(job_dir) or _of_job(job_dir)


def _of_job(job_dir: Path) -> list[Identity]:
    place = os.path.realpath(job_dir)
    return _living(pid for pid, value in _job_dirs().items() if os.path.realpath(value) == place)


def by_job(root: Path) -> dict[str, list[Identity]]:
    """The processes of jobs below `root`, by job, also of those whose directories are gone."""
    place, found = os.path.realpath(root), dict[str, list[int]]()
    for pid, value in _job_dirs().items():
        parent, name = os.path.split(os.path.realpath(value))
        if parent == place and is_job_id(name):
            found.setdefault(name, []).append(pid)
    living = {name: _living(sorted(pids)) for name, pids in sorted(found.items())}
    return {name: who for name, who in living.items() if who}


def job_dir_of(pid: int) -> str | None:
    """The real path of the job directory that a process was started for."""
    value = _job_dir(environment_of(pid))
    return os.path.realpath(value) if value is not None else None


def _job_dirs() -> dict[int, str]:
    """The job directory of every process of this account that has one in its environment."""
    found = ((pid, _job_dir(environment)) for pid, environment in own_environments().items())
    return {pid: value for pid, value in found if value is not None}


def _job_dir(environment: set[bytes]) -> str | None:
    return next((os.fsdecode(entry[len(MARK) :]) for entry in environment if entry.startswith(MARK)), None)


def _living(pids: Iterable[int]) -> list[Identity]:
    return [who for who in map(identify, pids) if who is not None]


def agents_of(job_dir: Path, *kinds: bytes) -> list[Identity]:
    """The job's supervisors, or guardians, or both: what a start leaves behind carries no mark of the run."""
    place = os.path.realpath(job_dir)

    def is_one(words: list[bytes]) -> bool:
        at = next((i for i, word in enumerate(words) if word.endswith(ENTRY)), len(words))
        kind, directory = words[at + 1 : at + 2], words[at + 2 : at + 3]
        return bool(directory) and kind[0] in kinds and os.path.realpath(os.fsdecode(directory[0])) == place

    return _living(pid for pid in own_pids() if is_one(_arguments(pid)))


def descendants(spared: Callable[[int], bool]) -> list[Identity]:
    """Every process below this one, but those `spared` and what is below them."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir(PROC):
        if entry.name.isdigit() and (fields := stat_fields(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    todo = [os.getpid()]
    while todo:
        below = [pid for pid in children.get(todo.pop(), ()) if not spared(pid)]
        found += below
        todo += below
    return _living(found)


def _arguments(pid: int) -> list[bytes]:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return []


def named(found: Iterable[Identity]) -> list[dict[str, Any]]:
    """The first few, as people know them: `pid` and `command`."""
    return [{"pid": who.pid, "command": _command(who.pid)} for who in list(found)[:MOST_NAMED]]


def _command(pid: int) -> str:
    text = b" ".join(_arguments(pid)).decode(errors="replace")
    return text if len(text) <= MOST_WORDS else text[: MOST_WORDS - 1] + "\u2026"
