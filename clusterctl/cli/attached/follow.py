"""Follow a run that was started: to its end, on a display, or until all its processes are running."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from clusterctl.api.start import ask_how_it_ended, wait_until_up
from clusterctl.cli import style
from clusterctl.cli.attached.live_display import LINES_WANTED, Display, PassFormat, default_pass_line
from clusterctl.cli.attached.term import on_term
from clusterctl.cli.causes import cause_lines, corrected_hint, first_cause_lines
from clusterctl.cli.console import human_time
from clusterctl.cli.invocation import Invocation
from clusterctl.cli.screen.keys import Pressed, keys
from clusterctl.cli.screen.log_feed import LogFeed
from clusterctl.cluster import Cluster
from clusterctl.documents.jobs import DetachedStart, StartDocument, StartedFrom, StartedRun, run_label
from clusterctl.errors import JobFailedError
from clusterctl.escape import clean
from clusterctl.inventory import nodeset
from clusterctl.launch import Adopted, Launch, Resume
from clusterctl.observe.follow import Follower, News
from clusterctl.observe.record.live import LiveRecord
from clusterctl.observe.record.references import job_name

AFTER_END_S = 5.0


class _Detach(Exception):  # noqa: N818 - a request, not an error
    """The user pressed d, or somebody sent TERM to this program."""

    def __init__(self, signal_number: int = 0) -> None:
        self.signal_number = signal_number


def _detach(signal_number: int) -> NoReturn:
    raise _Detach(signal_number)


def follow_run(
    invocation: Invocation,
    cluster: Cluster,
    run: Launch,
    pass_line: PassFormat = default_pass_line,
    *,
    kept: bool = False,
) -> LiveRecord:
    """Show the run until it ends. Raises if it failed.

    If it is lost and the caller has `kept` it, the error lacks the first cause: the caller asks the nodes itself.
    """
    view = LiveRecord(run.nodes)
    display = Display(invocation.console, view, _title(cluster, run), pass_line)
    try:
        with (
            display,
            on_term(_detach),
            keys(wanted=invocation.console.live) as pressed,
            Follower(cluster, run.nodes, run.job, run.run, LINES_WANTED, kept=kept) as follower,
        ):
            _watch(follower, display, pressed, LogFeed(display.screen, follower))
    except _Detach as request:
        words = f"detached from {run.job}, which continues" if request.signal_number else f"detached from {run.job}"
        invocation.console.say(f"{words}; to follow it: clusterctl logs -f {run.job}")
        if request.signal_number:
            raise SystemExit(128 + request.signal_number) from None
        return view
    ask_how_it_ended(cluster, run.job, run.run, view, hurries=kept)
    if view.ended is None or view.ended["state"] != "succeeded":
        _raise_failed(invocation, cluster, run, view, kept=kept)
    saved = f" · saved {view.model}" if view.model else ""
    document: StartDocument = {**identity(run), "state": "succeeded"}
    invocation.console.record(document)
    invocation.console.say(style.state("succeeded") + f" after {_duration(run, view)}{_progress(view)}{saved}")
    for doubt in (*view.doubts, *view.warning_messages):
        invocation.console.warn(f"warning: {clean(doubt)}")
    invocation.console.say(f"next: clusterctl collect {run.job}")
    return view


def until_running(adopted: Adopted | None, invocation: Invocation, cluster: Cluster, run: Launch) -> None:
    """Return once all processes are running; raise if the run fails first."""
    view = LiveRecord(run.nodes)
    with invocation.progress.operation("starting the processes"):
        is_up = wait_until_up(cluster, run.job, run.run, run.nodes, view)
    if not is_up:
        _raise_failed(invocation, cluster, run, view)
    name = job_name(cluster.inventory, run.job)
    document: DetachedStart = {**identity(run), "job_workspace": name, "state": "running"}
    if adopted is not None:
        document["adopted"] = adopted.to_json()
    invocation.console.document(document)
    follow, stop = f"clusterctl logs -f {run.job}", f"clusterctl stop {run.job}"
    invocation.console.say(style.good("all processes are running") + f"     follow: {follow}   stop: {stop}")


def _watch(follower: Iterable[News | None], display: Display, pressed: Pressed, log_feed: LogFeed) -> None:
    """Show news until all nodes have reported the end, or the lead has and the others take too long."""
    since = None
    for news in follower:
        display.news(news)
        log_feed.take(news)
        for key in pressed():
            if key == "d":
                raise _Detach
            if display.screen.press(key):
                log_feed.update()
        if display.screen.record.ended is None:
            since = None
        elif since is None:
            since = time.monotonic()
        elif time.monotonic() - since > AFTER_END_S:
            return


def identity(run: Launch) -> StartedRun:
    """Return the part of a document about a run that was started."""
    origin: StartedFrom = {}
    if run.origin is not None:
        origin["resumed" if isinstance(run.origin, Resume) else "loaded"] = run.origin.to_json()
    return {
        "job": run.job,
        "run": run.run,
        **run_label(run.name),
        "members": run.members,
        "left_out": run.left_out_json(),
        **origin,
    }


def _title(cluster: Cluster, run: Launch) -> str:
    named = f" ({run.name})" if run.name else ""
    return f"{run.job} run {int(run.run)}{named} · {cluster.settings.mode}"


def _duration(run: Launch, view: LiveRecord) -> str:
    """Return the duration of a run that has ended, by the clock of the lead's node; so far if its end is unknown."""
    until = view.ended["t"] if view.ended else time.time()
    return human_time(max(0.0, until - (run.started_t or until)))


def _raise_failed(
    invocation: Invocation, cluster: Cluster, run: Launch, view: LiveRecord, *, kept: bool = False
) -> None:
    """Raise JobFailedError with the outcome of the run, its first cause and the last lines of that process."""
    ended = view.ended or {"state": "lost", "cause": None}
    state = ended["state"]
    cause: Mapping[str, Any] = ended["cause"] or view.cause or {}
    lines = [style.state(state) + f" after {_duration(run, view)}{_progress(view)}"]
    if state == "lost" and kept:
        lines += cause_lines(cluster.inventory, cause)
    else:
        lines += first_cause_lines(cluster, run.job, run.run, cause)
    lines += [style.warning(f"warning: {clean(warning)}") for warning in view.warning_messages]
    if state == "lost":
        lines.append(f"the lead on {run.lead.label} is gone and reported no outcome; the other nodes stop on their own")
    missing = ended.get("not_heard_of")
    if missing == []:
        total = len(run.nodes)
        lines.append(f"then: the other processes were stopped; nothing is left running on {total}/{total} nodes")
    elif missing:
        silent = nodeset(node for node in missing if isinstance(node, int))
        lines.append(f"no answer from {silent}")
    details = {**identity(run), "state": state, "cause": cause}
    hint = f"clusterctl why {run.job}"
    if missing:
        hint += f"; clusterctl stop {run.job} shows what is left on {silent}"
    if view.checkpoint:
        hint += f"; to resume from {view.checkpoint}: clusterctl start --resume --job_workspace {run.job}"
        corrected = corrected_hint(run.job, cause.get("role"))
        hint += f"; {corrected}" if corrected else ""
    raise JobFailedError(style.join("\n", lines), hint=hint, details=details)


def _progress(view: LiveRecord) -> str:
    return f" · pass {view.pass_}, step {view.step:,}" if view.step else ""
