"""`clusterctl keep`, and the resumes of an attached `start`: continue a job whose run was lost with its machines."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TypeVar

from clusterctl.api.keep import Keeper, newest_run
from clusterctl.api.outcome import failure
from clusterctl.api.start import OriginOptions, PlannedStart, StartTarget, prepared
from clusterctl.cli.attached.beginning import begun, supervisors_up, tell_origin
from clusterctl.cli.invocation import Invocation
from clusterctl.cluster import Cluster
from clusterctl.documents.jobs import KeeperOnMachine, KeepersDocument, KeptJob
from clusterctl.errors import JobFailedError, RefusedError
from clusterctl.escape import clean
from clusterctl.launch import Launch

T = TypeVar("T")
TICK_S = 0.05
LINES = 5  # of a keeper's log
PATIENCE = 10  # times NODE_GRACE_S, in which enough nodes have to answer an attached start


def resuming(
    invocation: Invocation,
    ready: PlannedStart,
    follow: Callable[[Invocation, Cluster, Launch], T],
    started: list[Launch],
) -> Callable[[Invocation, Cluster, Launch], T]:
    """Return `follow`, made to follow also the runs that continue one that was lost. These are added to `started`."""

    def followed(invocation: Invocation, cluster: Cluster, run: Launch) -> T:
        keeper = _keeper(invocation, cluster, run.job, lambda chosen: nullcontext(ready))
        keeper.origin = ready.origin
        patience_s = PATIENCE * cluster.settings.node_grace_s
        while True:
            try:
                return follow(invocation, cluster, run)
            except JobFailedError as exc:
                continued = keeper.next_run(run.run, partial(begun, invocation, cluster, started), patience_s)
                if continued is None:
                    error = keeper.final_error(run, exc)
                    if error is None:
                        return follow(invocation, cluster, run)
                    raise error from None
            if continued.run == run.run:
                continue
            run = continued
            if started[-1].run == run.run:
                supervisors_up(invocation, cluster, run)
            else:
                started.append(run)
                invocation.console.say(f"{run.job} was resumed by another clusterctl, as run {int(run.run)}")

    return followed


def keep(invocation: Invocation, job: str | None, *, status: bool) -> None:
    """Watch the newest run of a job to its end, and resume it whenever machines are lost. Raises if it fails."""
    if status:
        show_keepers(invocation)
        return
    console = invocation.console
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(invocation.cluster_of(job, whole=True))
        run = newest_run(cluster, invocation.job_of(cluster, job))
        ref = run.job
        stack.enter_context(_only_keeper(_lock(_directory(invocation), ref), ref))
        keeper = _keeper(invocation, cluster, ref, partial(_prepared, invocation, ref))
        keeper.say = lambda text: console.say(f"{time.strftime('%H:%M:%S')} {text}")
        outcome, run, resumes = keeper.keep(run, partial(begun, invocation, cluster, []))
        error = failure(outcome)
        document: KeptJob = {"job": ref, "run": run.run, "state": outcome.state, "resumes": resumes}
        if error is None:
            keeper.say(f"{ref} run {int(run.run)} {outcome.state}")
        console.finish(document, error)


def keep_in_background(invocation: Invocation, job: str) -> None:
    """Start `clusterctl keep` in a session of its own, which survives this program, its terminal and its session."""
    directory = _directory(invocation)
    directory.mkdir(parents=True, exist_ok=True)
    conf = ["--conf", invocation.options.conf] if invocation.options.conf else []
    file = _log(directory, job)
    with file.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "clusterctl", *conf, "keep", job],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    with invocation.progress.operation("starting the keeper"):
        while _holder(_lock(directory, job)) is None:
            if process.poll() is not None:
                last = file.read_text(errors="replace").strip()
                raise JobFailedError(f"{job} is running, but its keeper has ended: {clean(last)}")
            time.sleep(TICK_S)
    invocation.console.say("a keeper watches it from this machine     its log: clusterctl keep --status")


def show_keepers(invocation: Invocation) -> None:
    """Print the keepers on this machine with the last lines of their logs, the one that began last at the end."""
    console = invocation.console
    locks = sorted(_directory(invocation).glob("*.lock"), key=lambda path: path.stat().st_mtime)
    keepers: list[KeeperOnMachine] = [
        {"job": path.stem, "pid": pid, "log": str(log) if log.exists() else None}
        for path in locks
        if (pid := _holder(path)) is not None
        for log in [_log(path.parent, path.stem)]
    ]
    document: KeepersDocument = {"keepers": keepers}
    console.document(document)
    if not keepers:
        console.say("no keeper runs on this machine     to start one: clusterctl keep JOB")
    for one in keepers:
        console.say(f"{one['job']}  pid {one['pid']}  {one['log'] or 'in the foreground'}")
        for line in Path(one["log"]).read_text(errors="replace").splitlines()[-LINES:] if one["log"] else ():
            console.output(f"  {clean(line)}")


def _directory(invocation: Invocation) -> Path:
    """Return where the keepers of this machine have their locks and logs."""
    return invocation.cache_dir / "keepers"


def _log(directory: Path, job: str) -> Path:
    return directory / f"{job}.log"


def _lock(directory: Path, job: str) -> Path:
    return directory / f"{job}.lock"


def _holder(lock: Path) -> int | None:
    """Return the pid of the keeper that holds a lock; None if nobody does."""
    if not lock.exists():
        return None
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(file.read() or 0)
    return None


@contextlib.contextmanager
def _only_keeper(lock: Path, job: str) -> Iterator[None]:
    """Hold the lock of a job's keeper on this machine. Raises RefusedError if another one has it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"{job} already has a keeper on this machine (pid {_holder(lock)})"
            raise RefusedError(message, hint="clusterctl keep --status shows it") from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            lock.unlink()


def _prepared(invocation: Invocation, job: str, chosen: Mapping[str, str]) -> AbstractContextManager[PlannedStart]:
    def open_with(kept: Mapping[str, str]) -> Cluster:
        return invocation.whole_cluster(invocation.settings({**kept, **chosen}))

    return prepared(open_with, StartTarget(job=job), OriginOptions(), invocation.program_args, as_given=True)


def _keeper(
    invocation: Invocation,
    cluster: Cluster,
    job: str,
    prepare: Callable[[Mapping[str, str]], AbstractContextManager[PlannedStart]],
) -> Keeper:
    return Keeper(
        cluster,
        job,
        prepare,
        say=invocation.console.say,
        on_origin=lambda origin: tell_origin(invocation, origin, cluster.settings),
        on_wait=lambda node, words: invocation.console.say(f"{node.label} {words}"),
    )
