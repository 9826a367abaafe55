"""A start: the job that it is about, what its run begins from, and the wait until its processes are running."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from clusterctl import launch as launching
from clusterctl.cluster import Cluster
from clusterctl.common.paths import MOST_LABEL_CHARS, is_label
from clusterctl.dispatch import check_exists
from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.inventory import Node
from clusterctl.launch import Launch, LaunchPlan, Origin, choose_model, has_checkpoint, plan
from clusterctl.launch import choose as choose_checkpoint
from clusterctl.launch import start as launch_run
from clusterctl.observe.follow import Follower, is_passing
from clusterctl.observe.record.live import LiveRecord
from clusterctl.observe.record.references import is_known, job_of, job_ref, need_newest, resolve, run_of
from clusterctl.observe.record.status import find, status
from clusterctl.observe.why.report import LAST_WORD_S

UP = ("running", "finishing")  # phases
HURRIED_S = 3.0


@dataclass(frozen=True)
class StartTarget:
    """A dispatched `job` to start, or a workspace to dispatch first; `word` names it if no option does."""

    job: str | None = None
    package: Path | None = None
    word: str | None = None

    @classmethod
    def find(cls, word: str | None, job_workspace: str | None, package: Path | None, *, only_jobs: bool) -> StartTarget:
        """Return the target that `word` or one of the options names.

        An existing directory is a workspace, unless the other options go with a job only. Raises UsageError if `word`
        and an option are given.
        """
        if word is None:
            return cls(job_workspace, package)
        if job_workspace is not None or package is not None:
            option = "--job_workspace" if package is None else "--job_dispatch_package"
            raise UsageError(f"{word!r} and {option} both name what to start", hint="give one of them")
        if not only_jobs and Path(word).is_dir():
            return cls(package=Path(word), word=word)
        return cls(job=word, word=word)


def check_target(target: StartTarget, options: OriginOptions, name: str | None) -> None:
    """Raise UsageError unless there is one job to start, at most one origin, and a plain name, if any."""
    check_origin(target.job, target.package, options, name)
    check_name(name)


def check_name(name: str | None) -> None:
    """Raise UsageError if this cannot be the name of a run."""
    if name is not None and not is_label(name):
        hint = (
            f"use 1 to {MOST_LABEL_CHARS} letters, digits and ._-=+, not - or . at the beginning, and nothing that "
            "looks like a job id"
        )
        raise UsageError(f"--name {name!r} cannot be the name of a run", hint=hint)


def job_to_start(cluster: Cluster, target: StartTarget, options: OriginOptions, *, as_given: bool) -> str | None:
    """Return the reference of the job to send to the nodes; `as_given`: without asking the nodes.

    The name of a run means its job. A resume continues from the newest run, which has to be that one then.
    """
    if as_given:
        return job_ref(cluster.settings.root_dir, target.job)
    if target.package is not None:
        if target.word is not None:
            _refuse_job_of_this_name(cluster, target.word)
        return None
    word = target.word or ""
    if options.resume and _is_relative_directory(word):
        raise _unknown(word, options)
    named = run_of(cluster, target.job)
    if named.chosen and not options.resume:
        return named.job
    label = word.rstrip("/")
    if is_label(label) and not named.chosen and not is_known(cluster, label):
        raise _unknown(word, options)
    return need_newest(cluster, named)


def _is_relative_directory(word: str) -> bool:
    """Return True for a directory of this machine that no node knows by this path."""
    return "/" in word.rstrip("/") and not word.startswith(("/", "~")) and Path(word).is_dir()


def _unknown(word: str, options: OriginOptions) -> UsageError:
    """Return the error about a word that is no job: a directory here is meant, if it exists."""
    if options.resume and Path(word).is_dir():
        return UsageError(
            f"there is no job {word} on the nodes, and --resume does not send the directory {word}",
            hint=f"clusterctl start {shlex.quote(word)} --resume-from JOB sends it, and resumes from the newest "
            "checkpoint of JOB; without a directory, --resume continues the job that ran last",
        )
    message = f"there is no job {word} on the nodes, and no directory {word} here"
    return UsageError(message, hint="clusterctl jobs lists the jobs on the nodes")


def begin_or_continue(
    cluster: Cluster, target: StartTarget, options: OriginOptions, name: str | None
) -> tuple[StartTarget, OriginOptions]:
    """Return what to start. A workspace to resume is the job of the newest run of this name, if it has a checkpoint.

    Otherwise the workspace is dispatched and started: so one command serves for every life of a job.
    """
    if not (options.resume and target.package is not None and name is not None):
        return target, options
    named = resolve(cluster, name)
    job = need_newest(cluster, named) if named.chosen else None
    if job is not None and has_checkpoint(cluster, job):
        return StartTarget(job=job), options
    return target, replace(options, resume=False, wanted_resume=True)


def _refuse_job_of_this_name(cluster: Cluster, word: str) -> None:
    """Raise UsageError if a directory of this machine is named like a job or a run. Errors of nodes come later."""
    ref = job_ref(cluster.settings.root_dir, word)
    if ref is not None and is_known(cluster, ref):
        quoted = shlex.quote(word)
        raise UsageError(
            f"{word!r} is a directory here, and a job on the nodes",
            hint=f"--job_dispatch_package {quoted} starts the directory, --job_workspace {quoted} the job",
        )


@dataclass(frozen=True)
class OriginOptions:
    """The options of `start` that name a checkpoint or a model to start from.

    `wanted_resume`: there was no run to resume, so that one begins.
    """

    resume: bool = False
    resume_from: str | None = None
    load: str | None = None
    load_run: int | None = None
    load_tag: str | None = None
    wanted_resume: bool = False

    def given(self) -> dict[str, object]:
        """Return the value of each option; those that were not given have none."""
        names = {"--resume-from": self.resume_from, "--load-run": self.load_run, "--load-tag": self.load_tag}
        return {"--resume": self.resume, "--load": self.load, **names}

    @property
    def is_patient(self) -> bool:
        """True if an earlier run of the job may still be ending."""
        return self.resume or self.wanted_resume

    @property
    def resumes(self) -> bool:
        return self.resume or self.resume_from is not None

    def __bool__(self) -> bool:
        return self.resumes or self.load is not None

    def find(self, cluster: Cluster, job: str, nodes: Sequence[Node], launch: LaunchPlan) -> Origin:
        """Return what a run of `job` on these nodes starts from."""
        if self.load is None:
            return choose_checkpoint(cluster, job, nodes, launch, job_of(cluster, self.resume_from))
        named = run_of(cluster, self.load, self.load_run)
        assert named.job is not None
        run = None if named.run is None else int(named.run)
        return choose_model(cluster, named.job, nodes, launch, run=run, tag=self.load_tag)


def check_origin(job_workspace: str | None, package: Path | None, options: OriginOptions, name: str | None) -> None:
    """Raise UsageError unless the options name the job to start in exactly one way, and at most one origin."""
    named = [name for name in ("--resume", "--resume-from", "--load") if options.given()[name]]
    if len(named) > 1:
        raise UsageError(f"{' and '.join(named)} exclude each other: a run starts from one checkpoint or model")
    if options.load is None and (options.load_run is not None or options.load_tag is not None):
        raise UsageError("--load-run and --load-tag choose a model of the job that --load names", hint="--load JOB")
    if options.resume and package is not None and (name is None or job_workspace is not None):
        raise UsageError(
            "--resume continues a job that is on the nodes; --job_dispatch_package creates a new one",
            hint="name the job with --job_workspace DIR, or leave it out for the one that ran last; with --name, a run "
            "of that name is resumed if there is one; a new job takes the checkpoint of another one with "
            "--resume-from JOB",
        )
    if not options.resume and (job_workspace is None) == (package is None):
        raise UsageError(
            "start needs a job: --job_workspace DIR, or --job_dispatch_package WORKSPACE to dispatch one first",
            hint="clusterctl start WORKSPACE does the latter; clusterctl jobs lists the jobs on the nodes",
        )


def would_start_from(
    cluster: Cluster, launch: LaunchPlan, ref: str | None, options: OriginOptions
) -> tuple[str, Origin]:
    """Return the job and what it would start from."""
    job = find(cluster, ref, to_resume=True)[0] if options.resume else ref or "JOB..."
    return job, options.find(cluster, job, launch.nodes, launch)


def recorded_settings(cluster: Cluster, ref: str | None, given: Collection[str]) -> tuple[str, dict[str, str]]:
    """Return the job to resume, and the `--set`s of its run that apply again; those `given` now replace them."""
    job, _ = find(cluster, ref, to_resume=True)
    return job, launching.recorded_settings(cluster, job, given)


@dataclass(frozen=True)
class PlannedStart:
    """A start that was decided on: a `job` on the nodes of `cluster`, or a `package` to dispatch to them first.

    `origin` is what was asked for, without a resume where there is nothing to resume.
    """

    cluster: Cluster
    launch: LaunchPlan
    job: str | None
    package: Path | None
    origin: OriginOptions

    def planned(self) -> tuple[str, LaunchPlan, Origin | None]:
        """Return what this would start: the job, or `JOB...`, the plan with what it takes over, and its origin.

        Raises ConfigError if there is no such workspace.
        """
        if self.package is not None:
            check_exists(self.package)
        if not self.origin:
            return self.job or "JOB...", self.launch, None
        job, origin = would_start_from(self.cluster, self.launch, self.job, self.origin)
        return job, origin.applied_to(self.launch), origin


@contextlib.contextmanager
def prepared(
    open_with: Callable[[Mapping[str, str]], AbstractContextManager[Cluster]],
    target: StartTarget,
    origin: OriginOptions,
    args: Sequence[str] | None,
    *,
    name: str | None = None,
    given: Collection[str] = (),
    as_given: bool = False,
    only_plan: bool = False,
) -> Iterator[PlannedStart]:
    """Open the nodes for a start of `target` from `origin`, and yield what is to be started.

    `open_with(kept)` opens them with these settings over its own. A run that is resumed keeps the settings that were
    chosen for it, except those `given` now; then the nodes are opened again. A job that is named `as_given`, to adopt
    it for example, is not looked for on the nodes; neither is one to `only_plan`, unless it is resumed.
    """
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(open_with({}))
        target, origin = begin_or_continue(cluster, target, origin, name)
        job = job_to_start(cluster, target, origin, as_given=as_given or (only_plan and not origin))
        if origin.resumes:
            other = job_of(cluster, origin.resume_from)
            resumed, kept = recorded_settings(cluster, other or job, given)
            job = resumed if origin.resume else job
            if kept:
                stack.close()
                cluster = stack.enter_context(open_with(kept))
        launch = plan(cluster.settings, cluster.inventory, None if args is None else list(args), name=name)
        yield PlannedStart(cluster, launch, job, target.package, origin)


def start(
    cluster: Cluster,
    launch: LaunchPlan,
    ref: str | None,
    on_go: Callable[[Launch], None],
    *,
    origin: OriginOptions | None = None,
    on_origin: Callable[[Origin], None],
    on_wait: Callable[[Node, str], None],
    allow_partial: bool = False,
    failed: Mapping[int, ClusterctlError] | None = None,
) -> Launch:
    """Start the job from its `origin`, if any; `on_origin` gets what was found. See `clusterctl.launch.start`."""

    def find_origin(job: str, nodes: Sequence[Node], placed: LaunchPlan) -> Origin:
        assert origin is not None
        chosen = origin.find(cluster, job, nodes, placed)
        on_origin(chosen)
        return chosen

    return launch_run(
        cluster,
        launch,
        ref,
        on_go,
        allow_partial=allow_partial,
        failed=failed,
        find_origin=find_origin if origin else None,
        patient=origin is not None and origin.is_patient,
        on_wait=on_wait,
    )


def wait_until_up(
    cluster: Cluster,
    job: str,
    run: str,
    nodes: Sequence[Node],
    view: LiveRecord,
    is_late: Callable[[], bool] = lambda: False,
) -> bool:
    """Wait until all processes of a run are running, or it has ended; return True if they ran, or it succeeded.

    `view` takes its events. Once `is_late()`, return False.
    """
    if not _await_running(cluster, job, run, nodes, view, nodes[:1], is_late) and not is_late():
        _await_running(cluster, job, run, nodes, view, nodes, is_late)
    if view.phase not in UP and not is_late():
        ask_how_it_ended(cluster, job, run, view)
    return view.phase in UP or (view.ended or {}).get("state") == "succeeded"


def _await_running(
    cluster: Cluster,
    job: str,
    run: str,
    nodes: Sequence[Node],
    view: LiveRecord,
    asked: Sequence[Node],
    is_late: Callable[[], bool],
) -> bool:
    """Follow the run on the nodes that are `asked`; return False if these cannot tell for now.

    The lead's node, the first one, knows. If it does not answer, the run is lost once the others have ended.
    """
    with Follower(cluster, asked, job, run, {"role": ""}) as follower:
        for news in follower:
            for event in news.events if news is not None else ():
                view.take(event)
            if view.phase in UP or view.ended is not None:
                return True
            error = news.error if news is not None and news.node.id == nodes[0].id else None
            if error is not None and not is_passing(error):
                return True
            if is_late() or (error is not None and len(asked) < len(nodes)):
                return False
    return False


def ask_how_it_ended(cluster: Cluster, job: str, run: str, view: LiveRecord, *, hurries: bool = False) -> None:
    """Ask the lead how the run ended before calling it lost: its final event may not have reached us.

    A caller that `hurries` asks again later, if nobody answers now.
    """
    if view.ended is not None:
        return
    with contextlib.suppress(*((ClusterctlError,) if hurries else ())):
        answer = status(cluster, job, answer_s=HURRIED_S if hurries else LAST_WORD_S)
        ended = answer.lead.get("ended") if answer.lead else None
        if answer.run == run and ended:
            view.take(ended)
