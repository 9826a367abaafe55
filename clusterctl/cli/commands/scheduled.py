"""A job of a scheduler seen from outside it: what `status`, `why` and `stop` do while it has no run on nodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from clusterctl.api.scheduled import cancel, printed_last, status_json, stop_json, was_ended, why_json
from clusterctl.cli import style
from clusterctl.cli.invocation import Invocation
from clusterctl.errors import NodeError
from clusterctl.escape import clean
from clusterctl.schedulers import NoRunError, ScheduledJob

T = TypeVar("T")
POLL_S = 5.0  # between questions to a controller that has others to answer


def tell_end(invocation: Invocation) -> bool:
    """Say that the job waits or has ended, and why, if it is a scheduler's. Return True if the scheduler ended it."""
    job = invocation.scheduled.now() if invocation.scheduled is not None else None
    if job is None or job.stage == "running":
        return False

    invocation.console.say(_coloured(job))
    return was_ended(job)


def once_it_runs(invocation: Invocation, find: Callable[[], T]) -> T:
    """Call `find` until the job of a scheduler has a run, and return what it returns. Say what the job waits for.

    A job that ends meanwhile is looked for once more, among the files that it has left. Raises NoRunError if it ends
    without a run.
    """
    told, has_ended = "", False
    while True:
        try:
            return find()
        except NoRunError as none:
            if none.job.stage == "ended":
                raise
            if told != (told := none.message):
                invocation.console.note(told)
            time.sleep(POLL_S)
        except NodeError:
            if has_ended or invocation.scheduled is None or invocation.scheduled.again().stage != "ended":
                raise
            has_ended = True


def show_status(invocation: Invocation, job: ScheduledJob) -> None:
    """Show a job that has no run."""
    invocation.console.document(status_json(job))
    _tell(invocation, job)
    if job.stage == "running":
        invocation.console.say("its run has not begun yet")


def explain(invocation: Invocation, job: ScheduledJob) -> None:
    """Explain why a job has no run: the scheduler's reason, and what its script printed last."""
    lines = printed_last(job)
    invocation.console.document(why_json(job, lines))
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


def stop_without_run(invocation: Invocation, job: ScheduledJob) -> bool:
    """Cancel a job that waits, or whose run has not begun; report how one ended that is over.

    Return False if it has begun in the meantime, so that it has to be stopped like any other.
    """
    after = cancel(invocation.settings(), invocation.environ, job)
    if after.stage != "ended":
        return False
    invocation.console.document(stop_json(after))
    if job.stage == "ended":
        invocation.console.say(f"nothing to stop: {job.sentence}")
    else:
        how = "was queued" if job.stage == "queued" else "had not begun its run"
        invocation.console.say(style.good("cancelled:") + f" {job.name}, which {how}")
    return True
