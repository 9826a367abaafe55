"""A sweep: runs of one workspace with different settings, a few at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from clusterctl.api.collect import Collected
from clusterctl.api.job import Job
from clusterctl.api.outcome import Outcome, failure
from clusterctl.api.run import Run
from clusterctl.common.paths import is_label
from clusterctl.errors import ClusterctlError, UsageError, WaitTimeoutError

Figures = Callable[[str], Mapping[str, float]]


@dataclass(frozen=True)
class Trial:
    """One run of a sweep, which is over. `run` is None if it could not be started.

    `values` has its loss, and the numbers that the program logged last. `error` says why it is not `ok`.
    """

    settings: Mapping[str, object]
    job: Job
    run: Run | None
    outcome: Outcome | None
    values: Mapping[str, float]
    collected: Collected | None
    error: ClusterctlError | None

    @property
    def ok(self) -> bool:
        """True if the run succeeded, and was collected if that was wanted."""
        return self.error is None

    @property
    def row(self) -> dict[str, object]:
        """The trial as a row of a table: its settings, `run`, `state`, `seconds`, and its values."""
        state = self.outcome.state if self.outcome else "failed"
        seconds = self.outcome.seconds if self.outcome else None
        known = {"run": self.run.id if self.run else None, "state": state, "seconds": seconds}
        return {**self.settings, **known, **self.values}


@dataclass(frozen=True)
class TrialOptions:
    """What all trials of a sweep have in common: arguments of the program, a limit of time, and where results go."""

    args: Sequence[str] = ()
    timeout: float | None = None
    collect: Path | None = None


class Sweep:
    """The runs of `Cluster.map`. To iterate over it starts them, and yields each `Trial` as it ends. Thread-safe.

    A run that fails does not stop the others. Leaving the loop early stops those that run, and starts no more; so does
    an exception or an interrupt, at the latest where it leaves the `with` block of the sweep or of its `Cluster`.
    """

    def __init__(
        self, jobs: Iterable[tuple[Mapping[str, object], Job]], most: int, figures: Figures, options: TrialOptions
    ) -> None:
        self._planned = list(jobs)
        self._most = most
        self._figures = figures
        self._options = options
        self._changed = threading.Condition()
        self._waiting = deque(range(len(self._planned)))
        self._threads: list[threading.Thread] = []
        self._working = 0
        self._stopped = False
        self._live: dict[int, Run] = {}
        self._ended: dict[int, Trial] = {}  # in the order of their ends
        self._bug: BaseException | None = None

    def __repr__(self) -> str:
        return f"<Sweep: {len(self._ended)} of {len(self._planned)} runs are over>"

    def __iter__(self) -> Iterator[Trial]:
        """Yield the trials that are over, and each other one as it ends."""
        self._begin()
        try:
            count = 0
            while (trial := self._next(count)) is not None:
                yield trial
                count += 1
        finally:
            self.abandon()

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials that are over, in the order of the settings."""
        with self._changed:
            return tuple(self._ended[at] for at in sorted(self._ended))

    def table(self) -> list[dict[str, object]]:
        """Wait for all runs; return the row of each trial, in the order of the settings."""
        for _ in self:
            pass
        return [trial.row for trial in self.trials]

    def stop(self) -> None:
        """Start no more runs, and stop those that run. Return once nothing is left; raise if a node cannot prove it."""
        with self._changed:
            self._stopped = True
            self._waiting.clear()
            live = list(self._live.values())
        errors = [error for error in _at_once(_stopped, live) if error]
        for thread in self._threads:
            thread.join()
        if errors:
            raise errors[0]

    def abandon(self) -> None:
        """Do what `stop` does, as well as it can be done now: an error is on its way already."""
        with suppress(ClusterctlError):
            self.stop()

    def __enter__(self) -> Sweep:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop() if exc is None else self.abandon()

    def _begin(self) -> None:
        with self._changed:
            if self._threads or self._stopped:
                return
            self._working = min(self._most, len(self._planned))
            self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self._working)]
        for thread in self._threads:
            thread.start()

    def _next(self, count: int) -> Trial | None:
        """Return trial number `count`, in the order of their ends; None if no other one will end."""
        with self._changed:
            self._changed.wait_for(lambda: self._bug or len(self._ended) > count or not self._working)
            if self._bug is not None:
                raise self._bug
            return list(self._ended.values())[count] if len(self._ended) > count else None

    def _work(self) -> None:
        try:
            while True:
                with self._changed:
                    if not self._waiting:
                        return
                    at = self._waiting.popleft()
                trial = self._tried(at)
                with self._changed:
                    self._ended[at] = trial
                    self._changed.notify_all()
        except BaseException as exc:  # noqa: BLE001 - raised where the trials are awaited
            self._bug = exc
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    def _tried(self, at: int) -> Trial:
        settings, job = self._planned[at]
        run: Run | None = None
        outcome: Outcome | None = None
        collected: Collected | None = None
        values: Mapping[str, float] = {}
        error: ClusterctlError | None = None
        try:
            args, chosen = split(settings)
            run = job.start([*self._options.args, *args], set=chosen, name=run_name(settings))
            outcome = self._outcome(at, run)
            error = failure(outcome)
            values = self._figures(job.id)
            if self._options.collect is not None and not self._stopped:
                collected = run.collect(self._options.collect / job.id)
        except ClusterctlError as exc:
            error = error or exc
        return Trial(settings, job, run, outcome, values, collected, error)

    def _outcome(self, at: int, run: Run) -> Outcome:
        """Wait for the end of a run, and return it. One that takes too long, or that nobody waits for, is stopped."""
        with self._changed:
            is_wanted = not self._stopped
            if is_wanted:
                self._live[at] = run
        try:
            if not is_wanted:
                run.stop()
            return run.wait(self._options.timeout, check=False)
        except WaitTimeoutError:
            run.stop()
            raise
        finally:
            with self._changed:
                self._live.pop(at, None)


def _stopped(run: Run) -> ClusterctlError | None:
    try:
        run.stop()
    except ClusterctlError as exc:
        return exc
    return None


def _at_once(call: Callable[[Run], ClusterctlError | None], runs: Sequence[Run]) -> list[ClusterctlError | None]:
    with ThreadPoolExecutor(max(1, len(runs))) as threads:
        return list(threads.map(call, runs))


def split(settings: Mapping[str, object]) -> tuple[list[str], dict[str, object]]:
    """Return the arguments of the program, and the settings of conf.py, whose names are in upper case.

    Raises UsageError for a name that is neither.
    """
    for name in settings:
        if not isinstance(name, str) or not name or "=" in name or name.startswith("-"):
            raise UsageError(f"{name!r} is not the name of an argument or of a setting", hint='write "lr" or "MODE"')
    args = [f"--{name}={value}" for name, value in settings.items() if not name.isupper()]
    return args, {name: value for name, value in settings.items() if name.isupper()}


def run_name(settings: Mapping[str, object]) -> str | None:
    """Return a name for the run with these settings, such as `lr=0.1+MODE=async`; None if they cannot be one."""
    name = "+".join(f"{key}={value}" for key, value in settings.items())
    return name if is_label(name) else None
