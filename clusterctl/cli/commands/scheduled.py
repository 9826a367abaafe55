"""A job of a scheduler seen from outside it: what `status`, `why` and `stop` do while it has no run on nodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.cli import style
from clusterctl.cli.invocation import Invocation
from clusterctl.escape import clean

if TYPE_CHECKING:
    from clusterctl.observe.why.report import Why
    from clusterctl.schedulers import ScheduledJob

LINES = 10
TAIL_BYTES = 1 << 16
POLL_S = 5.0  # between questions to a controller that has others to answer
NO_RUN: dict[str, Any] = {"job": None, "run": None}
NO_NODES: dict[str, Any] = {"members": [], "left_out": [], "nodes": []}
STATES = {"succeeded": "succeeded", "cancelled": "stopped", "unknown": "unknown", "": "unknown"}


def state_of(job: ScheduledJob) -> str:
    """Return the state of a job without a run, as `status` shows it."""
    if job.stage != "ended":
        return "queued" if job.stage == "queued" else "starting"
    return STATES.get(job.kind, "failed")


def scheduler_json(invocation: Invocation) -> dict[str, Any]:
    """Return the part of a JSON document about the job as its scheduler sees it, {} if it has none."""
    return {"scheduler": invocation.scheduled.now().to_json()} if invocation.scheduled is not None else {}


def tell_end(invocation: Invocation) -> bool:
    """Say that the job waits or has ended, and why, if it is a scheduler's. Return True if the scheduler ended it."""
    job = invocation.scheduled.now() if invocation.scheduled is not None else None
    if job is None or job.stage == "running":
        return False
    from clusterctl.observe.why.scheduler import ENDS

    invocation.console.say(_coloured(job))
    return job.stage == "ended" and job.kind in ENDS


def once_it_runs(invocation: Invocation, show: Callable[[], None]) -> None:
    """Call `show`, again and again while the job of a scheduler has no run yet. Say what it waits for.

    Raises NoRunError if it ends without a run.
    """
    from clusterctl.schedulers import NoRunError

    told = ""
    while True:
        try:
            show()
            return
        except NoRunError as none:
            if none.job.stage == "ended":
                raise
            if told != (told := none.message):
                invocation.console.note(told)
        time.sleep(POLL_S)


def show_status(invocation: Invocation, job: ScheduledJob) -> None:
    """Show a job that has no run."""
    more: dict[str, Any] = {"job_workspace": None, "resumed": None, "processes": []}
    invocation.console.document({**NO_RUN, **NO_NODES, **more, "state": state_of(job), "scheduler": job.to_json()})
    _tell(invocation, job)
    if job.stage == "running":
        invocation.console.say("its run has not begun yet")


def explain(invocation: Invocation, job: ScheduledJob) -> None:
    """Explain why a job has no run: the scheduler's reason, and what its script printed last."""
    lines = last_lines(job.output) if job.stage == "ended" and job.kind != "succeeded" else []
    about = {**NO_RUN, "state": state_of(job), "cause": None, "advice": job.hint, "lines": lines}
    invocation.console.document({**about, "scheduler": job.to_json()})
    _tell(invocation, job)
    for line in lines:
        invocation.console.output(f"  | {clean(line)}")
    if job.hint:
        invocation.console.say(f"what to do: {job.hint}")


def _tell(invocation: Invocation, job: ScheduledJob) -> None:
    invocation.console.say(_coloured(job))
    if job.output and Path(job.output).exists():  # it does not if the job was cancelled in the queue
        invocation.console.say(f"what its script printed: {job.output}")


def _coloured(job: ScheduledJob) -> str:
    is_bad = job.stage == "ended" and job.kind != "succeeded"
    return style.bad(job.sentence) if is_bad else job.sentence


def last_lines(path: str | None) -> list[str]:
    """Return the last lines of a file; nothing if it cannot be read."""
    try:
        with Path(path or "/dev/null").open("rb") as f:
            f.seek(max(0, f.seek(0, 2) - TAIL_BYTES))
            return f.read().decode(errors="replace").splitlines()[-LINES:]
    except OSError:
        return []


def stop_without_run(invocation: Invocation, job: ScheduledJob) -> bool:
    """Cancel a job that waits, or whose run has not begun; report how one ended that is over.

    Return False if it has begun in the meantime, so that it has to be stopped like any other.
    """
    from clusterctl.errors import NodeError
    from clusterctl.schedulers import cancel

    after = job
    if job.stage != "ended":
        after = cancel(invocation.settings(), invocation.environ, job)
        if job.stage == "queued" and after.stage == "running":
            return False
        if after.stage != "ended":
            raise NodeError(f"{after.name} is still {after.stage}", hint=f"try scancel {job.id}")
    invocation.console.document({**NO_RUN, **NO_NODES, "survivors": 0, "scheduler": after.to_json()})
    if job.stage == "ended":
        invocation.console.say(f"nothing to stop: {job.sentence}")
    else:
        how = "was queued" if job.stage == "queued" else "had not begun its run"
        invocation.console.say(style.good("cancelled:") + f" {job.name}, which {how}")
    return True


def with_end(invocation: Invocation, report: Why) -> Why:
    """Return the explanation of a run with the end that its scheduler put to it, if it did."""
    from clusterctl.observe.why.scheduler import ENDS, ended_by

    job = invocation.scheduled.now() if invocation.scheduled is not None else None
    if job is None or job.stage != "ended" or job.kind not in ENDS:
        return report
    return ended_by(report, kind=job.kind, message=f"{job.name}: {job.text}", advice=job.hint or "", t=job.ended)
