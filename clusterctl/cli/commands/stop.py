"""`clusterctl stop`, and the stop triggered by Ctrl-C."""

from __future__ import annotations

import contextlib
import datetime
import signal
import threading
import time
from collections.abc import Iterator, Sequence

from clusterctl.api.control import Stopped, job_meant, processes
from clusterctl.api.control import stop as stop_everything
from clusterctl.cli import style
from clusterctl.cli.commands.scheduled import stop_without_run
from clusterctl.cli.console import human_time, plural
from clusterctl.cli.invocation import Invocation
from clusterctl.cluster import Cluster, NodeOutcome
from clusterctl.cluster.answers import StopAnswer
from clusterctl.inventory import Node
from clusterctl.schedulers import NoRunError


def stop(invocation: Invocation, job: str | None) -> None:
    while True:
        try:
            with invocation.cluster_of(job, whole=True) as cluster:
                invocation.need_nodes()
                ref = job_meant(cluster, invocation.job_of(cluster, job))
                with _stopping(invocation, ref, cluster.nodes):
                    stopped = stop_everything(cluster, ref)
                _report(invocation, stopped, document=True)
                return
        except NoRunError as none:
            if stop_without_run(invocation, none.job):
                return
            job = none.job.id


def stop_job(invocation: Invocation, cluster: Cluster, ref: str | None, nodes: Sequence[Node] | None = None) -> None:
    """Stop a job on `nodes` (None: all) as a part of another command; raise if anything is left.

    A node that is not in the newest run need not answer.
    """
    ref = job_meant(cluster, ref)
    with _stopping(invocation, ref, cluster.nodes if nodes is None else nodes):
        stopped = stop_everything(cluster, ref, nodes)
    _report(invocation, stopped, document=False)


@contextlib.contextmanager
def _stopping(invocation: Invocation, job: str, nodes: Sequence[Node]) -> Iterator[None]:
    invocation.console.say(f"stopping {job} on {plural(len(nodes), 'node')}")
    with invocation.progress.operation("stopping"):
        yield


def _report(invocation: Invocation, stopped: Stopped, *, document: bool) -> None:
    """Say what was stopped, and raise if anything is left."""
    console = invocation.console
    count, of = len(stopped.answers), len(stopped.outcomes)
    _report_kills(invocation, stopped.outcomes)
    if stopped.members.errors(stopped.outcomes) and count:
        summary = f" {count}/{of} nodes, {processes(stopped.survivors)} left"
        console.say(style.warning("stopped:") + f"{summary}; nothing is known about the others")
    if document:
        console.finish(stopped.document, stopped.problem)
    stopped.or_raise()
    ports = "" if stopped.taken else ", ports free"
    console.say(style.good("stopped:") + f" {count}/{count} nodes, 0 processes left{ports}")
    for message in stopped.taken:
        console.say(style.warning(f"{message}; the run had already ended"))
    if stopped.was_over:
        console.say(_how_it_was_over(stopped))
    for outcome in stopped.outcomes:
        if not outcome.ok:
            console.say(style.warning(f"{outcome.error} (not in this run)"))


def _how_it_was_over(stopped: Stopped) -> str:
    """Return the line for a job that did not run any more."""
    run = stopped.members.run
    ends = [end for answer in stopped.answers if (end := answer.get("ended")) and answer["run"] == run]
    if not ends:
        return "it was not running"
    last = max(ends, key=lambda end: float(end["t"]))
    when = datetime.datetime.fromtimestamp(last["t"]).strftime("%Y-%m-%d %H:%M")
    ago = human_time(max(0.0, time.time() - last["t"]))
    return "it had already ended: " + style.state(last["state"]) + f" at {when}, {ago} ago"


def _report_kills(invocation: Invocation, outcomes: Sequence[NodeOutcome[StopAnswer]]) -> None:
    for outcome in outcomes:
        if outcome.ok and (killed := outcome.get()["killed"]):
            line = f"{outcome.node.label}: {processes(killed)} ignored TERM and needed KILL"
            invocation.console.say(style.warning(line))
        if outcome.ok and (count := outcome.get()["leftovers"]):
            line = f"{outcome.node.label}: stopped {processes(count)} left behind without a supervisor"
            invocation.console.say(style.warning(line))


@contextlib.contextmanager
def interrupted_once(invocation: Invocation, started: Sequence[object]) -> Iterator[None]:
    """Once something has started, let only the first Ctrl-C interrupt the block, and answer others with a message.

    A half-done stop is worse than a slow one. One handler does both, so that no interrupt comes between the two.
    """
    is_stopping = False

    def on_interrupt(*_: object) -> None:
        nonlocal is_stopping
        if is_stopping:
            invocation.console.interject("still stopping; please wait, so that no node is left half stopped")
            return
        is_stopping = bool(started)
        raise KeyboardInterrupt

    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
