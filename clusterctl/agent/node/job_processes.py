"""Who belongs to a job on this node, whatever became of its supervisor, its runs and its directory.

By uid and by the environment that every process of a run carries; by their record and by descent those that have
written over it; supervisors and guardians by their arguments. A process of another job, of another ROOT_DIR or of
another account is never among them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Callable

from clusterctl.common.files import read_json
from clusterctl.common.paths import JobPaths, RunPaths, find_jobs, is_job_id
from clusterctl.common.procfs import (
    PROC,
    Identity,
    environment_of,
    find_by_environment,
    is_alive,
    named_by,
    own_environments,
    own_processes,
    run_environment,
    stat_fields,
)

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
    marked = [who for who, value in _job_dirs().items() if os.path.realpath(value) == place]
    return _with_kin([*marked, *_recorded(JobPaths(job_dir))])


def of_run(run: RunPaths) -> list[Identity]:
    """Those of one run, in the same way."""
    marks = run_environment(run.job.dir, run.run)

    def look() -> list[Identity]:
        return _with_kin([*find_by_environment(marks), *_recorded(run.job)])

    return look() or look()


def _recorded(job: JobPaths) -> list[Identity]:
    """Those that the newest run's supervisor has started, by their identities: some write over their environment."""
    run = job.newest_run()
    known = (read_json(job.run(run).state) or {}).get("processes", ()) if run else ()
    return [who for process in known if process.get("identity") and is_alive(who := Identity(*process["identity"]))]


def _with_kin(found: Iterable[Identity]) -> list[Identity]:
    """These, what is below them, and the rest of the sessions that they lead."""
    kin = dict.fromkeys(found)
    processes, todo = own_processes() if kin else {}, list(kin)
    while todo:
        parent = todo.pop()
        if is_alive(parent):  # so nobody else had its number when the others were looked at
            pid = str(parent.pid)
            near = [who for who, fields in processes.items() if pid in (fields[1], fields[3]) and who not in kin]
            kin.update(dict.fromkeys(near))
            todo += near
    return list(kin)


def by_job(root: Path) -> dict[str, list[Identity]]:
    """The processes of jobs below `root`, by job, also of those whose directories are gone."""
    place = os.path.realpath(root)
    found = {job.dir.name: set(_recorded(job)) for job in find_jobs(root)}
    for who, value in _job_dirs().items():
        parent, name = os.path.split(os.path.realpath(value))
        if parent == place and is_job_id(name):
            found.setdefault(name, set()).add(who)
    return {name: sorted(whos) for name, whos in sorted(found.items()) if whos}


def job_dir_of(pid: int) -> str | None:
    """The real path of the job directory that a process was started for."""
    value = _job_dir(environment_of(pid))
    return os.path.realpath(value) if value is not None else None


def _job_dirs() -> dict[Identity, str]:
    """The job directory of every process of this account that has one in its environment."""
    found = own_environments(lambda environment: _job_dir(environment) is not None)
    return {who: _job_dir(environment) or "" for who, environment in found.items()}


def _job_dir(environment: set[bytes]) -> str | None:
    return next((os.fsdecode(entry[len(MARK) :]) for entry in environment if entry.startswith(MARK)), None)


def agents_of(job_dir: Path, *kinds: bytes) -> list[Identity]:
    """The job's supervisors, or guardians, or both: what a start leaves behind carries no mark of the run."""
    place = os.path.realpath(job_dir)

    def is_one(words: list[bytes]) -> bool:
        at = next((i for i, word in enumerate(words) if word.endswith(ENTRY)), len(words))
        kind, directory = words[at + 1 : at + 2], words[at + 2 : at + 3]
        return bool(directory) and kind[0] in kinds and os.path.realpath(os.fsdecode(directory[0])) == place

    return [who for who in own_processes() if is_one(_arguments(who.pid)) and is_alive(who)]


def descendants(spared: Callable[[int], bool]) -> dict[Identity, int]:
    """Every process below this one, with its session, but those `spared` and what is below them."""
    children: dict[int, list[tuple[Identity, int]]] = {}
    for pid in (int(entry.name) for entry in os.scandir(PROC) if entry.name.isdigit()):
        fields = stat_fields(pid)
        if fields is not None and (who := named_by(pid, fields)) is not None:
            children.setdefault(int(fields[1]), []).append((who, int(fields[3])))
    found: dict[Identity, int] = {}
    todo = [os.getpid()]
    while todo:
        below = {who: session for who, session in children.get(todo.pop(), ()) if not spared(who.pid)}
        found.update(below)
        todo += [who.pid for who in below]
    return found


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
