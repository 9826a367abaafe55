"""A job on the nodes, and the start of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from clusterctl.api import control
from clusterctl.api.collect import Collected
from clusterctl.api.control import Rejoining, Stopped
from clusterctl.api.keep import Keeper, newest_run
from clusterctl.api.outcome import Outcome, failure
from clusterctl.api.run import Run, collect
from clusterctl.api.session import ClusterSession, texts
from clusterctl.api.start import OriginOptions, PlannedStart, StartTarget, check_name, prepared, start
from clusterctl.api.status import Status, list_jobs, status
from clusterctl.cluster import Cluster as Nodes
from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.inventory import Node
from clusterctl.launch import Launch, Origin, Resume
from clusterctl.observe.record.model import JobOverview
from clusterctl.observe.record.references import Reference, run_number
from clusterctl.observe.record.status import find


class Job:
    """A dispatched workspace. `warnings` are those of the dispatch, if this object comes from one. Thread-safe."""

    def __init__(
        self,
        session: ClusterSession,
        id: str,
        *,
        warnings: Sequence[str] = (),
        failed: Mapping[int, ClusterctlError] | None = None,
    ) -> None:
        self._session = session
        self._failed = dict(failed or {})
        self.id = id
        self.warnings = tuple(warnings)

    def __repr__(self) -> str:
        return f"<Job {self.id}>"

    def start(
        self,
        args: Sequence[str] | None = None,
        *,
        set: Mapping[str, object] | None = None,
        name: str | None = None,
        resume: bool = False,
        resume_from: str | Job | Run | None = None,
        load: str | Job | Run | None = None,
        load_tag: str | None = None,
        allow_partial: bool = False,
        timeout: float | None = None,
    ) -> Run:
        """Start a new run on all nodes with these arguments for the program; return once all supervisors are up.

        `set` are settings over those of conf.py, `name` is a name for the run. The run begins from the newest complete
        checkpoint of this job (`resume`) or of another one (`resume_from`), or from a model of another job (`load`;
        `load_tag` unless it is the newest). A run that resumes takes the arguments and settings of the one before,
        where none are given. With `allow_partial`, nodes that fail are left out. With a `timeout`, also wait so many
        seconds until all processes are running. Raises RefusedError if a run of the job is live. An interrupt stops
        what has been started.
        """
        if isinstance(args, str):
            raise UsageError(f"args has to be a list of arguments, not the text {args!r}")
        for at, one in enumerate(args or ()):
            if not isinstance(one, str):
                message = f"args[{at}] has to be a text, not the {type(one).__name__} {one}"
                raise UsageError(message, hint=f"write str({one!r})" if isinstance(one, (int, float)) else "use str()")
        check_name(name)
        if sum(map(bool, (resume, resume_from, load))) > 1:
            raise UsageError("resume, resume_from and load exclude each other: a run starts from one of them")
        if load_tag is not None and load is None:
            raise UsageError("load_tag chooses a model of the job that load names")
        origin = OriginOptions(resume, _ref(resume_from), _ref(load), None, load_tag)
        chosen = texts(set or {})
        launched = self._launch(args, chosen, origin, name, allow_partial)
        warnings = [f"{one.message}{f' ({one.hint})' if one.hint else ''}" for one in launched.findings]
        warnings += [f"left out: {error}" for error in launched.left_out.values()]
        run = Run(self._session, launched.job, int(launched.run), warnings=warnings)
        for line in (*(f"warning: {one}" for one in warnings), f"{run.id} is up on {len(launched.nodes)} nodes"):
            self._session.progress.say(line)
        if timeout is not None:
            run.wait_until_running(timeout)
        return run

    def _launch(
        self,
        args: Sequence[str] | None,
        chosen: Mapping[str, str],
        origin: OriginOptions,
        name: str | None,
        allow_partial: bool,
    ) -> Launch:
        started: list[Launch] = []
        more: Any = {"allow_partial": allow_partial, "failed": self._failed}
        with self._prepared(args, chosen, origin, name) as ready:
            self._session.progress.say(f"starting {self.id}")
            try:
                return start(
                    ready.cluster,
                    ready.launch,
                    self.id,
                    started.append,
                    origin=ready.origin,
                    on_origin=self._on_origin,
                    on_wait=self._on_wait,
                    **more,
                )
            except KeyboardInterrupt:
                if started:
                    with suppress(ClusterctlError):
                        control.stop(ready.cluster, started[0].job, started[0].nodes)
                raise

    def _prepared(
        self,
        args: Sequence[str] | None,
        chosen: Mapping[str, str],
        origin: OriginOptions,
        name: str | None = None,
    ) -> AbstractContextManager[PlannedStart]:
        def opened(kept: Mapping[str, str]) -> AbstractContextManager[Nodes]:
            return self._session.whole({**kept, **chosen})

        given = {**self._session.chosen, **chosen}
        return prepared(opened, StartTarget(self.id), origin, args, name=name, given=given, as_given=True)

    def _on_origin(self, found: Origin) -> None:
        for line in (*found.warnings, f"{'resuming from' if isinstance(found, Resume) else 'loading'} {found}"):
            self._session.progress.say(line)

    def _on_wait(self, node: Node, words: str) -> None:
        self._session.progress.say(f"{node.label}: {words}")

    def keep(self, *, check: bool = True) -> Outcome:
        """Watch the newest run to its end, and resume it on the nodes that are left whenever machines are lost.

        Return how the last run ended, as `clusterctl keep` does. Raises JobFailedError unless it succeeded; with
        `check=False` it never does. Raises UsageError if the job has no run, or one whose processes do not move.
        """
        with self._session.whole() as nodes:
            run = newest_run(nodes, self.id)
            keeper = Keeper(
                nodes,
                self.id,
                lambda chosen: self._prepared(None, chosen, OriginOptions()),
                say=self._session.progress.say,
                on_origin=self._on_origin,
                on_wait=self._on_wait,
            )
            outcome, *_ = keeper.keep(run)
        error = failure(outcome) if check else None
        if error is not None:
            raise error
        return outcome

    def runs(self) -> list[Run]:
        """Return the runs of the job on the nodes that answer, oldest first."""
        found = [job for job in jobs_on_nodes(self._session) if job.job == self.id]
        return [Run(self._session, self.id, int(run.run)) for job in found for run in job.runs]

    def run(self, number: int | None = None) -> Run:
        """Return a run of the job, by default the newest. Raises UsageError if there is none."""
        _, members = find(self._session.nodes, self.id, run=None if number is None else run_number(number))
        if members.run is None:
            raise UsageError(f"{self.id} was never started", hint="start it with Job.start")
        return Run(self._session, self.id, int(members.run), members)

    @property
    def state(self) -> str:
        """`dispatched`, or the state of the newest run."""
        return self.status().state

    def status(self) -> Status:
        """Return the state of the newest run and of its processes."""
        return status(self._session.nodes, self.id)

    def stop(self) -> Stopped:
        """Stop the newest run, as `Run.stop` does; a job that never ran stays as it is."""
        with self._session.whole() as nodes:
            self._session.progress.say(f"stopping {self.id}")
            return control.stop(nodes, self.id).or_raise()

    def rejoin(self) -> Rejoining:
        """Let the nodes that the newest run is waiting for rejoin it; raise if one cannot, or if the run is over."""
        return control.rejoin(self._session.nodes, self.id).or_raise()

    def collect(self, directory: str | Path, *, tag: str | None = None, every: bool = False) -> Collected:
        """Bring the logs, the outputs and the model of the newest run home, as `Run.collect` does."""
        return collect(self._session, Reference(self.id), directory, tag=tag, every=every)


def jobs_on_nodes(session: ClusterSession) -> Sequence[JobOverview]:
    """Return the jobs on the nodes that answer, and report the other nodes to `progress`."""
    known = list_jobs(session.nodes)
    for error in known.errors:
        session.progress.say(f"{error}; its jobs are left out")
    return known.jobs


def _ref(value: str | Job | Run | None) -> str | None:
    return value.id if isinstance(value, (Job, Run)) else value
