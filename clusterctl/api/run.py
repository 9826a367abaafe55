"""One run of a job: its events, its end, its figures and its logs."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.api import collect as collecting
from clusterctl.api import control, logs, report
from clusterctl.api.collect import Collected
from clusterctl.api.control import Checkpoint, Stopped
from clusterctl.api.diff import Comparison, diff, run_to_compare
from clusterctl.api.events import Event, event_of
from clusterctl.api.logs import LogLine
from clusterctl.api.outcome import Outcome, explain, failure
from clusterctl.api.report import Exported
from clusterctl.api.session import ClusterSession
from clusterctl.api.start import wait_until_up
from clusterctl.api.status import Status, status
from clusterctl.cluster import combined
from clusterctl.common.requests import FollowSelection, LogSelection
from clusterctl.errors import ClusterctlError, WaitTimeoutError
from clusterctl.inventory import select as select_nodes
from clusterctl.observe.follow import Follower, News, is_passing
from clusterctl.observe.record.live import LiveRecord
from clusterctl.observe.record.members import Members
from clusterctl.observe.record.references import Reference, need_newest, run_number
from clusterctl.observe.record.status import LIVE, UNKNOWN, find

if TYPE_CHECKING:
    from clusterctl.api.metrics import Metrics

AFTER_END_S = 5.0  # for the other nodes, once the lead's has ended the run
_OVER = object()


class Run:
    """A run on the nodes. It holds no state but its name, so that any number of programs may look at one.

    Thread-safe. What it returns was asked for at that moment. Methods raise the errors of `clusterctl.errors`.
    `warnings` are those of the start, if this object comes from one.
    """

    def __init__(
        self,
        session: ClusterSession,
        job: str,
        number: int,
        members: Members | None = None,
        *,
        warnings: Sequence[str] = (),
    ) -> None:
        self._session = session
        self._known = members
        self.job = job
        self.number = number
        self.warnings = tuple(warnings)

    @property
    def id(self) -> str:
        """`JOB20261121-081530/1`, which every command and `Cluster.run` accept."""
        return f"{self.job}/{self.number}"

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    @property
    def _name(self) -> str:
        return run_number(self.number)

    @property
    def _reference(self) -> Reference:
        return Reference(self.job, self._name)

    @property
    def _members(self) -> Members:
        if self._known is None:
            self._known = find(self._session.nodes, self.job, run=self._name)[1]
        return self._known

    @property
    def name(self) -> str | None:
        """The name that it was given at the start."""
        return self._members.name

    @property
    def state(self) -> str:
        """One of starting, running, succeeded, failed, stopped, lost and unknown."""
        return self.status().state

    def status(self) -> Status:
        """Return the state of the run and of its processes. Nodes that do not answer are among its `errors`."""
        return status(self._session.nodes, self.job, self._name)

    def events(self) -> Iterator[Event]:
        """Yield the events of all nodes, from the first one on, as they arrive; end with the run.

        Those of a process come in order. A broken connection is opened again, without gaps or repeats. Raises the
        errors of nodes that cannot be followed, after the events of the others. Leaving the loop leaves the run
        running.
        """
        errors: list[ClusterctlError] = []
        for news in self._news(errors, {"role": ""}):
            yield from map(event_of, news.events if news is not None else ())
        if errors:
            raise combined(errors, len(self._members.nodes), "following")

    async def events_async(self) -> AsyncIterator[Event]:
        """Yield what `events` does, for asyncio: a thread of its own waits.

        A cancellation, or the end of the iterator, ends that thread within a moment and leaves the run running.
        """
        errors: list[ClusterctlError] = []
        news = self._news(errors, {"role": ""})
        async with _thread(news.close) as call:
            while (one := await call(next, news, _OVER)) is not _OVER:
                for event in one.events if isinstance(one, News) else ():
                    yield event_of(event)
        if errors:
            raise combined(errors, len(self._members.nodes), "following")

    def _news(self, errors: list[ClusterctlError], wanted: FollowSelection) -> Generator[News | None, None, None]:
        nodes = self._session.nodes
        with Follower(nodes, self._members.nodes, self.job, self._name, wanted) as follower:
            for news in follower:
                if news is not None and news.error is not None:
                    if is_passing(news.error):
                        self._session.progress.say(f"{news.error}; retrying")
                    else:
                        errors.append(news.error)
                yield news

    def wait(self, timeout: float | None = None, *, check: bool = True) -> Outcome:
        """Wait for the end of the run and return how it ended.

        Raises JobFailedError unless it succeeded; with `check=False` it never does. Raises WaitTimeoutError after
        `timeout` seconds. The run continues then, as it does after a KeyboardInterrupt.
        """
        return self._wait(timeout, check, threading.Event())

    async def wait_async(self, timeout: float | None = None, *, check: bool = True) -> Outcome:
        """Do what `wait` does, for asyncio: a thread of its own waits.

        A cancellation ends that thread within a moment, or once nodes have answered, and leaves the run running.
        """
        left = threading.Event()
        async with _thread(left.is_set) as call:
            try:
                outcome: Outcome = await call(self._wait, timeout, check, left)
            finally:
                left.set()
        return outcome

    def _wait(self, timeout: float | None, check: bool, left: threading.Event) -> Outcome:
        """Do what `wait` does until nobody waits any more: the caller has `left`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        self._await_end(lambda: left.is_set() or (deadline is not None and time.monotonic() > deadline), timeout)
        outcome = self.outcome()
        error = failure(outcome) if check else None
        if error is not None:
            raise error
        return outcome

    def _await_end(self, is_late: Callable[[], bool], timeout: float | None) -> None:
        state = self.status().state
        while state in (*LIVE, UNKNOWN):  # of a node that does not answer now, more may be known later
            errors = self._follow_to_end(is_late, timeout)
            state = self.status().state
            if errors and state in LIVE:
                raise combined(errors, len(self._members.nodes), "following")
            if state == UNKNOWN:
                return

    def _follow_to_end(self, is_late: Callable[[], bool], timeout: float | None) -> list[ClusterctlError]:
        """Return once the run has ended on all nodes that can be followed, and the errors of the others."""
        ended: float | None = None
        errors: list[ClusterctlError] = []
        for news in self._news(errors, {"role": "", "events": False}):
            if is_late():
                limit = "" if timeout is None else f" within {timeout:g} s"
                raise WaitTimeoutError(f"{self.id} has not ended{limit}; it continues")
            if news is not None and news.node.id == self._members.lead:
                ended = time.monotonic() if news.ended is not None else None if news.back else ended
            if ended is not None and time.monotonic() - ended > AFTER_END_S:
                break
        return errors

    def wait_until_running(self, timeout: float | None = None) -> None:
        """Wait until all processes of the run are running.

        Raises JobFailedError if it fails first, and WaitTimeoutError after `timeout` seconds; it continues then.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        nodes, members = self._session.nodes, self._members.nodes

        def is_late() -> bool:
            return deadline is not None and time.monotonic() > deadline

        if wait_until_up(nodes, self.job, self._name, members, LiveRecord(members), is_late):
            return
        outcome = self.outcome()
        error = failure(outcome)
        if error is None or outcome.state in LIVE:
            limit = "so far" if timeout is None else f"within {timeout:g} s"
            raise WaitTimeoutError(f"{self.id}: not all processes were running {limit}; it continues")
        raise error

    def outcome(self) -> Outcome:
        """Return how the run ended and its first cause, as `clusterctl why` does; its state so far if it continues."""
        return explain(self._session.nodes, self._reference)

    def metrics(self) -> Metrics:
        """Return all points of the curves of the run so far. Raises if a part is missing, as of a silent node."""
        from clusterctl.api.metrics import read_metrics  # noqa: PLC0415 - it loads numpy

        return read_metrics(self._session.nodes, self.job, self._name, self._session.cache)

    def logs(
        self,
        *,
        role: str | None = None,
        rank: int | None = None,
        node: int | str | None = None,
        since: float | datetime.datetime | str | None = None,
        tail: int | None = None,
        grep: str | None = None,
    ) -> Iterator[LogLine]:
        """Return the lines of all processes so far, in time order, or of some, as the options of `clusterctl logs` say.

        `node` is an id or a node set such as "node[0-2]". `since` is a time in seconds since the epoch, a datetime, or
        a text such as "90s". `tail` counts lines of each process. `grep` is a regular expression. Errors of nodes come
        after the lines of the others.
        """
        start = since.timestamp() if isinstance(since, datetime.datetime) else since
        start = logs.parse_since(start) if isinstance(start, str) else start
        wanted: LogSelection = {"role": role, "rank": rank, "since": start, "tail": tail, "grep": grep}
        logs.check(wanted)
        nodes = self._session.nodes
        some = nodes.nodes
        if node is not None:
            some = select_nodes(nodes.inventory, f"node{node}" if isinstance(node, int) else node)
        lines = logs.read(nodes, logs.select(nodes, self._reference, some, wanted))
        return (LogLine(line.t, line.node.id, line.role, line.rank, line.text) for line in lines)

    def stop(self) -> Stopped:
        """Stop the run: TERM, wait, KILL. Return once nothing of it is left; raise if a node cannot prove that.

        A run that is over stays as it is. Raises UsageError if the job has a newer run.
        """
        with self._session.whole() as nodes:
            need_newest(nodes, self._reference)
            self._session.progress.say(f"stopping {self.id}")
            return control.stop(nodes, self.job).or_raise()

    def save(self, timeout: float = 300.0) -> Checkpoint:
        """Make a checkpoint now, and return it once it is complete. Raises if that takes longer than `timeout` seconds.

        Raises RefusedError if the run is over, and UsageError if the job has a newer one.
        """
        with self._session.whole() as nodes:
            return control.save(nodes, need_newest(nodes, self._reference), timeout_s=timeout)

    def report(self, output: str | Path) -> Path:
        """Write the report of the run so far to a file, or into a directory, and return its path; an older one goes.

        It is one HTML file that needs no network. Nodes that do not answer are missing in it; `progress` is called
        with a line about each.
        """
        file, directory = report.place(Path(output))
        with self._session.whole() as nodes:
            written = report.report(nodes, self._reference, file, directory)
        for error in written.errors:
            self._session.progress.say(f"{error}; it is missing in the report")
        return written.file

    def export(self, directory: str | Path, to: str = "csv") -> Exported:
        """Write all points of the run into a directory: `to` "csv" or "tensorboard"; or its events as a "trace"."""
        with self._session.whole() as nodes:
            return report.export(nodes, self._reference, to, Path(directory))

    def diff(self, other: str | Run) -> Comparison:
        """Compare this run, `a`, with another one, `b`: a `Run`, the name of one or JOB/RUN."""
        with self._session.whole() as nodes:
            named = run_to_compare(nodes, other.id if isinstance(other, Run) else other)
            return diff([(nodes, self._reference), (nodes, named)])

    def collect(self, directory: str | Path, *, tag: str | None = None, every: bool = False) -> Collected:
        """Bring the logs, the outputs and the model of this run into `directory`, checked by hash.

        `tag` chooses a model; by default it is the newest. With `every`, all complete models are brought.
        """
        return collect(self._session, self._reference, directory, tag=tag, every=every)


@contextlib.asynccontextmanager
async def _thread(leave: Callable[[], object]) -> AsyncIterator[Callable[..., asyncio.Future[Any]]]:
    """Yield a function that calls another one in a thread of its own. In the end that thread calls `leave`.

    It does so once its last call has returned, also if whoever awaited that was cancelled.
    """
    thread = ThreadPoolExecutor(1, "clusterctl")
    call = partial(asyncio.get_running_loop().run_in_executor, thread)
    try:
        yield call
    finally:
        try:
            await call(leave)
        finally:
            thread.shutdown(wait=False)


def collect(
    session: ClusterSession, reference: Reference, directory: str | Path, *, tag: str | None, every: bool
) -> Collected:
    collecting.check_tag(tag)
    target = Path(directory)
    progress = session.progress.bytes("collecting")
    found = collecting.collect(session.nodes, reference, target, progress.on, tag=tag, every=every).or_raise()
    session.progress.say(f"collected {len(found.files)} files of {found.job} into {target}")
    return found
