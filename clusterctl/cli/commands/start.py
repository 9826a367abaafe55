"""`clusterctl start`: dispatch if requested, start, and follow the run to its end."""

from __future__ import annotations

import contextlib
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from clusterctl.api.operations.origin import (
    OriginOptions,
    Target,
    begin_or_continue,
    check_target,
    job_to_start,
    kept_settings,
    would_start_from,
)
from clusterctl.api.operations.references import job_name, job_of
from clusterctl.api.operations.start import ask_how_it_ended, wait_until_up
from clusterctl.cli import style
from clusterctl.cli.adopted import adopt_directory, check_options
from clusterctl.cli.causes import corrected_hint, first_cause_lines
from clusterctl.cli.chosen_settings import named_like_settings, parse_chosen
from clusterctl.cli.commands.hooks import Hooks
from clusterctl.cli.commands.report import report_at_end
from clusterctl.cli.console import human_time, plural
from clusterctl.cli.invocation import Invocation
from clusterctl.cli.live_display import LINES_WANTED, Display, PassFormat, default_pass_line
from clusterctl.cli.origin import origin_json, tell_origin
from clusterctl.cli.screen.keys import Pressed, keys
from clusterctl.cli.screen.log_feed import LogFeed
from clusterctl.escape import clean

if TYPE_CHECKING:
    from clusterctl.cluster import Cluster
    from clusterctl.cluster.answers import Cause
    from clusterctl.errors import ClusterctlError
    from clusterctl.launch import Adopted, LaunchPlan, Origin, Run
    from clusterctl.observe.follow import News
    from clusterctl.observe.record.live import LiveRecord

T = TypeVar("T")
AFTER_END_S = 5.0


class _Detach(Exception):  # noqa: N818 - a request, not an error
    """The user pressed d, or somebody sent TERM to this program."""

    def __init__(self, signal_number: int = 0) -> None:
        self.signal_number = signal_number


def start(
    invocation: Invocation,
    target: Target,
    *,
    detach: bool,
    plan: bool,
    name: str | None = None,
    engine: str | None = None,
    origin: OriginOptions,
    chosen: Sequence[str] = (),
    adopt: bool = False,
    allow_partial: bool = False,
) -> None:
    from clusterctl.launch import plan as make_plan

    if adopt:
        check_options(target.job, resume=origin.resume, package=target.package)
    check_target(target, origin, name)
    given = parse_chosen(chosen, engine)
    settings = invocation.settings(given, ENGINE=engine)
    hooks = Hooks(invocation, settings, wanted=not plan)
    for line in named_like_settings(invocation.program_args or ()):
        invocation.console.warn(line)
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(invocation.whole_cluster(settings))
        target, origin = begin_or_continue(cluster, target, origin, name)
        package = target.package
        ref = job_to_start(cluster, target, origin, as_given=adopt or (plan and not origin))
        if origin.resumes:
            other = job_of(cluster, origin.resume_from)
            resumed, kept = kept_settings(cluster, other or ref, [*given, "ENGINE"] if engine else given)
            ref = resumed if origin.resume else ref
            if kept:
                stack.close()
                settings = invocation.settings({**kept, **given}, ENGINE=engine)
                cluster = stack.enter_context(invocation.whole_cluster(settings))
        launch = make_plan(cluster.settings, cluster.inventory, invocation.program_args, name=name)
        if plan:
            if package is not None:
                from clusterctl.dispatch import check_exists

                check_exists(package)
            would = would_start_from(cluster, launch, ref, origin) if origin else None
            _show_plan(invocation, launch, ref or "JOB...", would)
            return
        hooks.before_start()
        failed = None
        if package is not None:
            ref, failed = _dispatch(invocation, cluster, package, allow_partial)
        adopted = adopt_directory(invocation, cluster, ref, allow_partial) if adopt and ref else None
        if adopted is not None:
            failed = dict(adopted.failed)
        if not detach:
            invocation.console.stream()
        follow: Callable[[Invocation, Cluster, Run], object] = partial(_detached, adopted) if detach else follow_run
        follow = stack.enter_context(hooks.after_end(follow, attached=not detach))
        follow = stack.enter_context(report_at_end(invocation, cluster, follow, attached=not detach))
        more: Any = {"allow_partial": allow_partial, "failed": failed, "origin": origin, "started": hooks.started}
        launch_and_follow(invocation, cluster, launch, ref, follow, **more)


def _dispatch(
    invocation: Invocation, cluster: Cluster, package: Path, allow_partial: bool
) -> tuple[str, dict[int, ClusterctlError]]:
    """Dispatch; return the job and the errors of nodes that do not have it."""
    from clusterctl.api.operations.dispatch import may_go_on, partial_failure
    from clusterctl.cli.commands.dispatch import send

    done = send(invocation, cluster, package, to_start=True, allow_partial=allow_partial)
    error = partial_failure(done, len(cluster.nodes))
    if error is not None and not (allow_partial and may_go_on(done)):
        raise error
    return done.job, {outcome.node.id: outcome.error for outcome in done.outcomes if outcome.error}


def _show_plan(invocation: Invocation, launch: LaunchPlan, job: str, would: tuple[str, Origin] | None) -> None:
    launch = launch if would is None else would[1].applied_to(launch)
    described = launch.describe(job if would is None else would[0])
    document: dict[str, Any] = {"job": job, "processes": described}
    if would is not None:
        document.update(job=would[0], **origin_json(would[1], planned=True))
        tell_origin(invocation, would[1], launch.settings)
    invocation.console.document(document)
    if invocation.console.json:
        return
    for process in described:
        invocation.console.say(f"node{process['node']} {process['host']}  {process['role']}{process['rank']}")
        invocation.console.output(f"  cd {process['cwd']}")
        invocation.console.output(f"  {shlex.join(process['argv'])}")
        for name in sorted(process["env"]):
            invocation.console.output(f"    {name}={process['env'][name]}")


def launch_and_follow(
    invocation: Invocation,
    cluster: Cluster,
    launch: LaunchPlan,
    ref: str | None,
    follow: Callable[[Invocation, Cluster, Run], T],
    *,
    allow_partial: bool = False,
    failed: dict[int, ClusterctlError] | None = None,
    origin: OriginOptions | None = None,
    started: list[Run] | None = None,
) -> T:
    """Start the job and follow it with `follow`. Once a node has been ordered to start, Ctrl-C stops it everywhere.

    The run is added to `started` then.
    """
    from clusterctl.api.operations.start import start as launch_run
    from clusterctl.cli.commands.check import finding_lines
    from clusterctl.cli.commands.stop import stop_job, uninterrupted
    from clusterctl.errors import InterruptedRun

    started = [] if started is None else started

    def on_go(run: Run) -> None:
        started.append(run)
        invocation.console.on_document({**_identity(run), "state": "starting"})
        _report_left_out(invocation, cluster, run)
        for line in finding_lines(run.findings):
            invocation.console.say(line)

    try:
        more: Any = {"origin": origin, "allow_partial": allow_partial, "failed": failed}
        more["on_origin"] = lambda chosen: tell_origin(invocation, chosen, cluster.settings)
        with invocation.progress.operation("starting") as operation:
            run = launch_run(cluster, launch, ref, on_go, on_wait=operation.step, **more)
        name = job_name(cluster.settings, cluster.inventory, run.job)
        invocation.console.say(f"{name} run {int(run.run)}: supervisors are up on {plural(len(run.nodes), 'node')}")
        return follow(invocation, cluster, run)
    except KeyboardInterrupt:
        if not started:
            raise
        with uninterrupted(invocation):
            stop_job(invocation, cluster, started[0].job, nodes=started[0].nodes, document=False)
        raise InterruptedRun(f"interrupted; {started[0].job} is stopped on all nodes") from None


def _report_left_out(invocation: Invocation, cluster: Cluster, run: Run) -> None:
    """Warn about nodes left out of the run: why, the processes that remain, the data that no trainer reads."""
    from clusterctl.cluster import combined, fold_errors

    if not run.left_out:
        return
    errors = list(run.left_out.values())
    invocation.tolerate(combined(errors, len(cluster.nodes), "start"))
    pservers, trainers = _counts(run)
    whole = cluster.inventory
    rest = f"{pservers} of {whole.pserver_count} pservers and {trainers} of {whole.trainer_count} trainers"
    invocation.console.warn(f"{len(errors)} of {len(cluster.nodes)} nodes left out; the run has {rest}")
    for line in fold_errors(errors):
        invocation.console.warn(clean(line, keep_newlines=True))
    missing = whole.trainer_count - trainers
    if missing and cluster.settings.shards:
        invocation.console.warn(f"no trainer reads the data shards (SHARDS) of {plural(missing, 'missing trainer')}")


def _counts(run: Run) -> tuple[int, int]:
    """Count the pservers and the trainers of the run."""
    return sum(len(node.pserver_ranks) for node in run.nodes), sum(len(node.trainer_ranks) for node in run.nodes)


def _title(cluster: Cluster, run: Run) -> str:
    named = f" ({run.name})" if run.name else ""
    return f"{run.job} run {int(run.run)}{named} · {cluster.settings.mode}"


def _detached(adopted: Adopted | None, invocation: Invocation, cluster: Cluster, run: Run) -> None:
    """Return once all processes are running; raise if the run fails first."""
    from clusterctl.observe.record.live import LiveRecord

    view = LiveRecord(run.nodes)
    with invocation.progress.operation("starting the processes"):
        is_up = wait_until_up(cluster, run.job, run.run, run.nodes, view)
    if not is_up:
        raise_failed(invocation, cluster, run, view)
    name = job_name(cluster.settings, cluster.inventory, run.job)
    more = {} if adopted is None else {"adopted": adopted.to_json()}
    invocation.console.document({**_identity(run), "job_workspace": name, "state": "running", **more})
    follow, stop = f"clusterctl logs -f {run.job}", f"clusterctl stop {run.job}"
    invocation.console.say(style.good("all processes are running") + f"     follow: {follow}   stop: {stop}")


def follow_run(
    invocation: Invocation, cluster: Cluster, run: Run, pass_line: PassFormat = default_pass_line
) -> LiveRecord:
    """Show the run until it ends. Raises if it failed."""
    from clusterctl.observe.follow import Follower
    from clusterctl.observe.record.live import LiveRecord

    view = LiveRecord(run.nodes)
    display = Display(invocation.console, view, _title(cluster, run), pass_line)
    try:
        with (
            display,
            _detached_by_term(),
            keys(wanted=invocation.console.live) as pressed,
            Follower(cluster, run.nodes, run.job, run.run, **LINES_WANTED) as follower,
        ):
            _watch(follower, display, pressed, LogFeed(display.screen, follower))
    except _Detach as request:
        words = f"detached from {run.job}, which continues" if request.signal_number else f"detached from {run.job}"
        invocation.console.say(f"{words}; to follow it: clusterctl logs -f {run.job}")
        if request.signal_number:
            raise SystemExit(128 + request.signal_number) from None
        return view
    ask_how_it_ended(cluster, run.job, run.run, view)
    if view.ended is None or view.ended["state"] != "succeeded":
        raise_failed(invocation, cluster, run, view)
    saved = f" · saved {view.saved[-1]}" if view.saved else ""
    invocation.console.record({**_identity(run), "state": "succeeded"})
    invocation.console.say(style.state("succeeded") + f" after {_duration(run, view)}{_progress(view)}{saved}")
    for doubt in view.doubts:
        invocation.console.warn(f"warning: {clean(doubt)}")
    invocation.console.say(f"next: clusterctl collect {run.job}")
    return view


@contextlib.contextmanager
def _detached_by_term() -> Iterator[None]:
    """Detach at TERM, as the end of the terminal does. Only the main thread can receive it."""

    def detach(number: int, frame: object) -> None:
        raise _Detach(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, detach)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _identity(run: Run) -> dict[str, Any]:
    name = {"name": run.name} if run.name else {}
    about = {"job": run.job, "run": run.run, **name, "members": run.members, "left_out": run.left_out_json()}
    return {**about, **origin_json(run.origin)}


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


def _duration(run: Run, view: LiveRecord) -> str:
    """Return the duration of a run that has ended, by the clock of the lead's node; so far if its end is unknown."""
    until = view.ended["t"] if view.ended else time.time()
    return human_time(max(0.0, until - (run.started_t or until)))


def raise_failed(invocation: Invocation, cluster: Cluster, run: Run, view: LiveRecord) -> None:
    """Raise JobFailedError with the outcome of the run, its first cause and the last lines of that process."""
    from clusterctl.errors import JobFailedError
    from clusterctl.inventory import nodeset

    ended = view.ended or {"state": "lost", "cause": None}
    state = ended["state"]
    cause: Cause = ended["cause"] or (view.causes[0] if view.causes else {})
    lines = [style.state(state) + f" after {_duration(run, view)}{_progress(view)}"]
    lines += first_cause_lines(cluster, run.job, run.run, cause)
    if state == "lost":
        lines.append(f"the lead on {run.lead.label} is gone and reported no outcome; the other nodes stop on their own")
    missing = ended.get("not_heard_of")
    if missing == []:
        total = len(run.nodes)
        lines.append(f"then: the other processes were stopped; nothing is left running on {total}/{total} nodes")
    elif missing:
        silent = nodeset(node for node in missing if isinstance(node, int))
        lines.append(f"no answer from {silent}")
    details = {**_identity(run), "state": state, "cause": cause}
    hint = f"clusterctl why {run.job}"
    if missing:
        hint += f"; clusterctl stop {run.job} shows what is left on {silent}"
    if view.checkpoints:
        hint += f"; to resume from {view.checkpoints[-1]}: clusterctl start --resume --job_workspace {run.job}"
        corrected = corrected_hint(run.job, cause.get("role"))
        hint += f"; {corrected}" if corrected else ""
    raise JobFailedError(style.join("\n", lines), hint=hint, details=details)


def _progress(view: LiveRecord) -> str:
    return f" · pass {view.pass_}, step {view.step:,}" if view.step else ""
