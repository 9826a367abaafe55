"""The processes that belong to a job on this node, even if its supervisor, its runs or its directory are gone.

Processes are identified by uid and by the environment that every process of a run has; those that have overwritten it,
by the supervisor's record and by descent; supervisors and guardians by their arguments. A process of another job, of
another ROOT_DIR or of another account is never among them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Callable

from clusterctl.agent.node.ports import holders
from clusterctl.agent.node.runs import read_summary
from clusterctl.common.files import read_json
from clusterctl.common.paths import JobPaths, RunPaths, find_jobs, is_job_name
from clusterctl.common.port_claims import claimed_ports
from clusterctl.common.procfs import (
    PROC,
    Identity,
    arguments_of,
    environment_of,
    find_by_environment,
    identify,
    is_alive,
    named_by,
    own_environments,
    own_pids,
    own_processes,
    run_environment,
    stat_fields,
    variable,
)

MARK = b"CLUSTERCTL_JOB_DIR"
SUPERVISOR, GUARDIAN = b"supervisor", b"guardian"
AGENTS = (SUPERVISOR, GUARDIAN, b"piece-server")
ENTRY = b"/agent/entry.py"
MOST_NAMED = 20
MOST_WORDS = 60  # characters of a command


def of_job(job_dir: Path) -> list[Identity]:
    """Return every process of any run of the job. If there is none, look again to be sure."""
    return _of_job(job_dir) or _of_job(job_dir)


def _of_job(job_dir: Path) -> list[Identity]:
    path = os.path.realpath(job_dir)
    marked = [process for process, value in _job_dirs().items() if os.path.realpath(value) == path]
    return _with_kin([*marked, *_recorded(JobPaths(job_dir))])


def of_run(run: RunPaths) -> list[Identity]:
    """Return every process of one run, in the same way."""
    marks = run_environment(run.job.dir, run.run)

    def look() -> list[Identity]:
        return _with_kin([*find_by_environment(marks), *_recorded(run.job)])

    return look() or look()


def _recorded(job: JobPaths) -> list[Identity]:
    """Return the live processes in the newest run's state by identity: some overwrite their environment."""
    run = job.newest_run()
    known = (read_json(job.run(run).state) or {}).get("processes", ()) if run else ()
    identities = [Identity(*process["identity"]) for process in known if process.get("identity")]
    return [identity for identity in identities if is_alive(identity)]


def _with_kin(some: Iterable[Identity]) -> list[Identity]:
    """Return these processes, their descendants, and the other members of the sessions they lead."""
    kin = dict.fromkeys(some)
    processes, todo = own_processes() if kin else {}, list(kin)
    while todo:
        parent = todo.pop()
        if is_alive(parent):  # so no other process had its pid when the list was read
            pid = str(parent.pid)
            near = [child for child, fields in processes.items() if pid in (fields[1], fields[3]) and child not in kin]
            kin.update(dict.fromkeys(near))
            todo += near
    return list(kin)


def by_job(root: Path) -> dict[str, list[Identity]]:
    """Return the processes of jobs below `root` by job, including jobs whose directories are gone."""
    path = os.path.realpath(root)
    jobs = {job.dir.name: set(_recorded(job)) for job in find_jobs(root)}
    for process, value in _job_dirs().items():
        parent, name = os.path.split(os.path.realpath(value))
        if parent == path and is_job_name(name):
            jobs.setdefault(name, set()).add(process)
    return {name: sorted(processes) for name, processes in sorted(jobs.items()) if processes}


def job_dir_of(pid: int) -> str | None:
    """Return the real path of the job directory that a process was started for."""
    value = variable(environment_of(pid), MARK)
    return os.path.realpath(os.fsdecode(value)) if value is not None else None


def _job_dirs() -> dict[Identity, str]:
    """Return the job directory of every process of this account that has one in its environment."""
    environments = own_environments(lambda environment: variable(environment, MARK) is not None)
    return {process: os.fsdecode(variable(environment, MARK) or b"") for process, environment in environments.items()}


def agents_of(job_dir: Path, *kinds: bytes) -> list[Identity]:
    """Return the job's supervisors, guardians or both. Found by arguments: `start` does not mark their environment."""
    path = os.path.realpath(job_dir)
    return [process for process, directory, _ in supervised(*kinds) if os.path.realpath(directory) == path]


def supervised(*kinds: bytes) -> Iterator[tuple[Identity, str, str]]:
    """Yield the supervisors, guardians or both of all jobs of this account, with their job directories and runs."""
    for pid in own_pids():
        words = arguments_of(pid)
        at = next((i for i, word in enumerate(words) if word.endswith(ENTRY)), len(words))
        kind, directory, run = [*words[at + 1 : at + 4], b"", b"", b""][:3]
        if directory and kind in kinds:
            process = identify(pid)
            if process is not None and arguments_of(pid) == words and is_alive(process):
                yield process, os.fsdecode(directory), os.fsdecode(run)


def descendants(spared: Callable[[int], bool]) -> dict[Identity, int]:
    """Return every descendant of this process with its session, except those `spared` and their descendants."""
    children: dict[int, list[tuple[Identity, int]]] = {}
    for pid in (int(entry.name) for entry in os.scandir(PROC) if entry.name.isdigit()):
        fields = stat_fields(pid)
        if fields is not None and (process := named_by(pid, fields)) is not None:
            children.setdefault(int(fields[1]), []).append((process, int(fields[3])))
    sessions: dict[Identity, int] = {}
    todo = [os.getpid()]
    while todo:
        below = {child: session for child, session in children.get(todo.pop(), ()) if not spared(child.pid)}
        sessions.update(below)
        todo += [child.pid for child in below]
    return sessions


def named(processes: Iterable[Identity]) -> list[dict[str, Any]]:
    """Return the first few processes as `pid` and `command`."""
    return [{"pid": process.pid, "command": _command(process.pid)} for process in list(processes)[:MOST_NAMED]]


def _command(pid: int) -> str:
    text = b" ".join(arguments_of(pid)).decode(errors="replace")
    return text if len(text) <= MOST_WORDS else text[: MOST_WORDS - 1] + "\u2026"


HOME = b"HOME"


def other_jobs(own: Path) -> list[dict[str, Any]]:
    """Return the jobs of this account, in any ROOT_DIR: `job`, who started it (`by`) and when (`since`), if known.

    Of other accounts, return the `port` that a job has claimed, and the `uid`. Nodes of a fake cluster, which share a
    machine and an account, each have their own HOME, and do not count as one node.
    """
    home = _home(os.getpid())
    found = {}
    for process, directory, run in supervised(SUPERVISOR):
        if os.path.realpath(directory) != os.path.realpath(own) and _home(process.pid) == home:
            job = JobPaths(Path(directory))
            spec = read_summary(job.run(run)) if job.is_own() else None
            found[job.dir.name] = {
                "job": job.dir.name,
                "by": spec.by if spec else None,
                "since": (spec.t if spec else None) or _started(process.pid),
            }
    return [*found.values(), *_of_others()][:MOST_NAMED]


def _of_others() -> list[dict[str, Any]]:
    """Return one port of each other account whose job listens on a claimed port."""
    by_uid = {holder["uid"]: holder["port"] for holder in holders(claimed_ports(), except_of=os.getuid())}
    return [{"port": port, "uid": uid} for uid, port in sorted(by_uid.items())]


def _home(pid: int) -> bytes | None:
    return variable(environment_of(pid), HOME)


def _started(pid: int) -> float | None:
    try:
        return float((PROC / str(pid)).lstat().st_ctime)
    except OSError:
        return None
