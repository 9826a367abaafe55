"""`clusterctl start`: dispatch or adopt if requested, start, and follow the run to its end; or `--rejoin` one."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from clusterctl.api.control import rejoin as ask_to_rejoin
from clusterctl.api.dispatch import failed_nodes
from clusterctl.api.keep import NEEDS_MOVE, NEEDS_MOVE_HINT
from clusterctl.api.start import OriginOptions, PlannedStart, StartTarget, check_target, prepared
from clusterctl.api.start import start as launch_run
from clusterctl.cli.attached.beginning import begun, supervisors_up, tell_origin
from clusterctl.cli.attached.follow import follow_run, until_running
from clusterctl.cli.chosen_settings import named_like_settings, parse_chosen
from clusterctl.cli.commands.dispatch import send
from clusterctl.cli.commands.hooks import Hooks
from clusterctl.cli.commands.keep import keep_in_background, resuming
from clusterctl.cli.commands.report import report_at_end
from clusterctl.cli.commands.stop import interrupted_once, stop_job
from clusterctl.cli.console import human_bytes, plural
from clusterctl.cli.invocation import Invocation
from clusterctl.cluster import Cluster
from clusterctl.common.errors import first_of
from clusterctl.common.placement import names_by_node
from clusterctl.documents.jobs import LossPlan, StartPlan
from clusterctl.errors import ClusterctlError, InterruptedRun, UsageError
from clusterctl.escape import clean
from clusterctl.launch import Adopted, Launch, LaunchPlan, Origin, Resume
from clusterctl.launch import adopt as adopt_there

T = TypeVar("T")
SHOWN = 3  # paths of files that differ
REJOINED = {
    "joined": "has rejoined run {run}",
    "told": "is already in run {run}; restarting any trainer that failed there",
    "ended": "cannot rejoin: run {run} has ended ({state})",
}


def start_or_rejoin(
    invocation: Invocation,
    word: str | None,
    *,
    job_workspace: str | None,
    package: Path | None,
    name: str | None,
    engine: str | None,
    chosen: Sequence[str] | None,
    resume: bool,
    adopt: bool,
    resume_from: str | None,
    load: str | None,
    load_run: int | None,
    load_tag: str | None,
    rejoin: bool,
    detach: bool,
    keep: bool,
    plan: bool,
    allow_partial: bool,
) -> None:
    """Do what the options of `start` ask for."""
    target = StartTarget.find(word, job_workspace, package, only_jobs=resume or rejoin or adopt)
    origin = OriginOptions(resume, resume_from, load, load_run, load_tag)
    if rejoin:
        others = {
            **origin.given(),
            **{"--adopt": adopt, "--detach": detach, "--keep": keep, "--plan": plan, "--allow-partial": allow_partial},
            **{"--job_dispatch_package": package, "--engine": engine, "--set": chosen, "--name": name},
            "--": invocation.program_args,
        }
        rejoin_nodes(invocation, target.job, [option for option, given in others.items() if given])
        return
    start(
        invocation,
        target,
        name=name,
        engine=engine,
        chosen=chosen or (),
        adopt=adopt,
        origin=origin,
        detach=detach,
        keep=keep,
        plan=plan,
        allow_partial=allow_partial,
    )


def start(
    invocation: Invocation,
    target: StartTarget,
    *,
    detach: bool,
    plan: bool,
    keep: bool = False,
    name: str | None = None,
    engine: str | None = None,
    origin: OriginOptions,
    chosen: Sequence[str] = (),
    adopt: bool = False,
    allow_partial: bool = False,
) -> None:
    if keep and not detach:
        raise UsageError("--keep needs --detach", hint="a start that follows its run resumes it, too")
    if adopt:
        check_adopt_options(target.job, resume=origin.resume, package=target.package)
    check_target(target, origin, name)
    given = parse_chosen(chosen, engine)
    settings = invocation.settings(given, ENGINE=engine)
    hooks = Hooks(invocation, settings, wanted=not plan)
    for line in named_like_settings(invocation.program_args or ()):
        invocation.console.warn(line)

    def open_with(kept: Mapping[str, str]) -> Cluster:
        return invocation.whole_cluster(invocation.settings({**kept, **given}, ENGINE=engine) if kept else settings)

    more: Any = {"name": name, "given": [*given, "ENGINE"] if engine else given}
    args = invocation.program_args
    with prepared(open_with, target, origin, args, as_given=adopt, only_plan=plan, **more) as ready:
        if plan:
            _show_plan(invocation, *ready.planned())
            return
        if keep and not ready.launch.can_be_kept:
            raise UsageError(f"the run cannot be kept: {NEEDS_MOVE}, and RESUMES above 0", hint=NEEDS_MOVE_HINT)
        hooks.before_start()
        _start(invocation, ready, hooks, detach=detach, adopt=adopt, allow_partial=allow_partial)
        if keep:
            keep_in_background(invocation, hooks.started[-1].job)


def _start(
    invocation: Invocation, ready: PlannedStart, hooks: Hooks, *, detach: bool, adopt: bool, allow_partial: bool
) -> None:
    """Dispatch or adopt first if that is wanted, start the run, and follow it."""
    cluster, ref, failed = ready.cluster, ready.job, None
    if ready.package is not None:
        ref, failed = _dispatch(invocation, cluster, ready.package, allow_partial)
    adopted = adopt_directory(invocation, cluster, ref, allow_partial) if adopt and ref else None
    if adopted is not None:
        failed = dict(adopted.failed)
    if not detach:
        invocation.console.stream()
    follow: Callable[[Invocation, Cluster, Launch], object] = (
        partial(until_running, adopted) if detach else partial(follow_run, kept=ready.launch.can_be_kept)
    )
    with contextlib.ExitStack() as stack:
        follow = stack.enter_context(hooks.after_end(follow, attached=not detach))
        follow = stack.enter_context(report_at_end(invocation, cluster, follow, attached=not detach))
        if not detach and ready.launch.can_be_kept:
            follow = resuming(invocation, ready, follow, hooks.started)
        more: Any = {"allow_partial": allow_partial, "failed": failed, "started": hooks.started}
        launch_and_follow(invocation, cluster, ready.launch, ref, follow, origin=ready.origin, **more)


def _dispatch(
    invocation: Invocation, cluster: Cluster, package: Path, allow_partial: bool
) -> tuple[str, dict[int, ClusterctlError]]:
    """Dispatch; return the job and the errors of nodes that do not have it."""
    done = send(invocation, cluster, package, to_start=True, allow_partial=allow_partial)
    return done.job, failed_nodes(done, len(cluster.nodes), allow_partial=allow_partial)


def _show_plan(invocation: Invocation, job: str, launch: LaunchPlan, origin: Origin | None) -> None:
    described = launch.describe(job)
    document: StartPlan = {"job": job, "processes": described}
    losses = launch.describe_losses()
    if losses:
        document["losses"] = losses
    if isinstance(origin, Resume):
        document["resume"] = origin.to_json()
    elif origin is not None:
        document["load"] = origin.to_json()
    if origin is not None:
        tell_origin(invocation, origin, launch.settings)
    invocation.console.document(document)
    if invocation.console.json:
        return
    for process in described:
        invocation.console.say(f"node{process['node']} {process['host']}  {process['role']}{process['rank']}")
        invocation.console.output(f"  cd {process['cwd']}")
        invocation.console.output(f"  {shlex.join(process['argv'])}")
        for name in sorted(process["env"]):
            invocation.console.output(f"    {name}={process['env'][name]}")
    for loss in losses:
        invocation.console.say(f"if node{loss['node']} is lost: {_after(loss)}")


def _after(loss: LossPlan) -> str:
    if "fails" in loss:
        return f"the run fails ({loss['fails']})"
    moves = [f"{names} to node{node}" for node, names in names_by_node(loss["moves"]).items()]
    effects = [f"clusterctl moves {'; '.join(moves)}"] if moves else []
    if loss.get("gives_up"):
        effects.append(f"the run goes on without {', '.join(loss['gives_up'])}, whose shards are there only")
    return "; ".join(effects) or "nothing runs there"


def launch_and_follow(
    invocation: Invocation,
    cluster: Cluster,
    launch: LaunchPlan,
    ref: str | None,
    follow: Callable[[Invocation, Cluster, Launch], T],
    *,
    allow_partial: bool = False,
    failed: dict[int, ClusterctlError] | None = None,
    origin: OriginOptions | None = None,
    started: list[Launch] | None = None,
) -> T:
    """Start the job and follow it with `follow`. Once a node has been ordered to start, Ctrl-C stops it everywhere.

    The run is added to `started` then.
    """
    started = [] if started is None else started
    more: Any = {"origin": origin, "allow_partial": allow_partial, "failed": failed}
    more["on_origin"] = lambda chosen: tell_origin(invocation, chosen, cluster.settings)
    with interrupted_once(invocation, started):
        try:
            with invocation.progress.operation("starting") as operation:
                on_go = partial(begun, invocation, cluster, started)
                run = launch_run(cluster, launch, ref, on_go, on_wait=operation.step, **more)
            supervisors_up(invocation, cluster, run)
            return follow(invocation, cluster, run)
        except KeyboardInterrupt:
            if not started:
                raise
            stop_job(invocation, cluster, started[-1].job, started[-1].nodes)
            raise InterruptedRun(f"interrupted; {started[-1].job} is stopped on all nodes") from None


def rejoin_nodes(invocation: Invocation, job_workspace: str | None, others: Sequence[str]) -> None:
    """Ask all nodes, or those of --only, to rejoin; raise if one cannot. `others` are options that do not apply."""
    if others:
        raise UsageError(
            f"--rejoin cannot be combined with {others[0]}: the run continues with the options it was started with"
        )
    with invocation.cluster() as cluster:
        done = ask_to_rejoin(cluster, job_workspace)
        for outcome in done.outcomes:
            if outcome.ok:
                answer = outcome.get()
                run = {"run": int(answer["run"]), "state": answer.get("state")}
                invocation.console.say(f"{outcome.node.label} {REJOINED[answer['did']].format(**run)}")
        invocation.console.finish(done.document, done.problem)


def check_adopt_options(job_workspace: str | None, *, resume: bool, package: Path | None) -> None:
    """Raise UsageError if --adopt has no directory, or is given with options that it excludes."""
    others = [name for name, given in (("--resume", resume), ("--job_dispatch_package", package)) if given]
    if job_workspace is None or others:
        raise UsageError(
            f"--adopt cannot be combined with {', '.join(others)}" if others else "--adopt needs a directory",
            hint="to adopt one and start it: clusterctl start --job_workspace DIR --adopt",
        )


def adopt_directory(invocation: Invocation, cluster: Cluster, ref: str, allow_partial: bool) -> Adopted:
    """Record a directory as a job, and print what it has."""
    adopted = adopt_there(cluster, ref, allow_partial=allow_partial)
    say, of = invocation.console.say, len(cluster.nodes)
    size = human_bytes(adopted.bytes)
    say(f"adopted {adopted.job} on {of - len(adopted.failed)}/{of} nodes: {plural(adopted.files, 'file')}, {size}")
    if adopted.differ:
        say(f"note: {plural(len(adopted.differ), 'file')} with other contents on other nodes: {_paths(adopted.differ)}")
    if adopted.missing:
        say(f"note: {plural(len(adopted.missing), 'file')} on some nodes only: {_paths(adopted.missing)}")
    if adopted.unrecorded:
        say(f"note: not recorded: sockets, pipes and devices ({adopted.unrecorded:,})")
    return adopted


def _paths(paths: Sequence[str]) -> str:
    return clean(first_of(paths, SHOWN))
