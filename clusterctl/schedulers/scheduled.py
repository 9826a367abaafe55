"""A job of a scheduler, seen from a machine outside it: waiting, running, or ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

from clusterctl.common.schema import NotRequired
from clusterctl.errors import ClusterctlError, UnreachableError

AGAIN_S = 10.0
QUEUED, RUNNING, ENDED = "queued", "running", "ended"
#: The ways in which a scheduler ends a job by itself or for its user, and not because its script ended.
ENDS = ("time_limit", "memory", "preempted", "node_failure", "cancelled", "deadline")


class SchedulerDocument(TypedDict):
    """A job in a document, as its scheduler sees it; what is not known is left out."""

    name: str  # of the scheduler: `slurm`
    id: str
    stage: str  # queued, running or ended
    state: NotRequired[str]  # the word of the scheduler
    kind: NotRequired[str]  # with `text`, why it waits or ended
    text: NotRequired[str]
    output: NotRequired[str]


@dataclass(frozen=True)
class ScheduledJob:
    """What a scheduler says about a job.

    `stage` is queued, running or ended. `kind`, `text` and `hint` are the reason for waiting or ending; of an end the
    kind is that of `slurm.reasons.EndReason`. `state` is the scheduler's own word, "" if it has forgotten the job.
    `run` is the name of the job's run, None if clusterctl did not submit it; `output` the file for what its script
    prints. `ended` is when it ended, in seconds since the epoch.
    """

    scheduler: str
    id: str
    stage: str
    state: str = ""
    kind: str = ""
    text: str = ""
    hint: str | None = None
    run: str | None = None
    output: str | None = None
    ended: float | None = None

    @property
    def name(self) -> str:
        return f"{self.scheduler} job {self.id}"

    @property
    def sentence(self) -> str:
        """The job in a line: `Slurm job 12 is queued: waiting for free nodes (Resources)`."""
        stage = "has ended" if self.stage == ENDED else f"is {self.stage}"
        return f"{self.name} {stage}" + (f": {self.text}" if self.text else "")

    def to_json(self) -> SchedulerDocument:
        """The form used in JSON documents."""
        document: SchedulerDocument = {"name": self.scheduler.lower(), "id": self.id, "stage": self.stage}
        if self.state:
            document["state"] = self.state
        if self.kind:
            document["kind"] = self.kind
        if self.text:
            document["text"] = self.text
        if self.output:
            document["output"] = self.output
        return document


class NoRunError(UnreachableError):
    """A job of a scheduler has no run that could be asked for: it waits, has only begun, or ended before its run."""

    def __init__(self, job: ScheduledJob) -> None:
        begins = job.stage == RUNNING
        sentence = f"{job.sentence}, but its run has not begun yet" if begins else job.sentence
        see = f"see what it prints: {job.output}" if job.output and job.stage != QUEUED else None
        super().__init__(sentence, hint=job.hint or see, details={"scheduler": job.to_json()})
        self.job = job


class JobWatch:
    """A job that is asked for again when what is known is older than AGAIN_S. Thread-safe.

    `ask` returns what the scheduler says now. If it raises a ClusterctlError, what was known stands.
    """

    def __init__(self, ask: Callable[[], ScheduledJob], clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._lock = threading.Lock()
        self._known = ask()
        self._asked_at = clock()

    def now(self) -> ScheduledJob:
        with self._lock:
            if self._clock() - self._asked_at > AGAIN_S:
                self._update()
            return self._known

    def again(self) -> ScheduledJob:
        """Return what the scheduler says now, however fresh what is known may be."""
        with self._lock:
            self._update()
            return self._known

    def _update(self) -> None:
        try:
            self._known = self._ask()
        except ClusterctlError:  # a controller that is away for a moment
            pass
        finally:
            self._asked_at = self._clock()

    def is_over(self) -> bool:
        """Return True while no machine has been given to the job: its files are all that is left of its run."""
        return self.now().stage != RUNNING
