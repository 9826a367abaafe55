"""Decide what a start is about, start the run, and wait until its processes are running."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from clusterctl.api.operations.origin import (
    OriginOptions,
    StartTarget,
    begin_or_continue,
    job_to_start,
    kept_settings,
    would_start_from,
)
from clusterctl.api.operations.references import job_of
from clusterctl.cluster import Cluster
from clusterctl.dispatch import check_exists
from clusterctl.errors import ClusterctlError
from clusterctl.inventory import Node
from clusterctl.launch import Launch, LaunchPlan, Origin, plan
from clusterctl.launch import start as launch_run
from clusterctl.observe.follow import Follower, is_passing
from clusterctl.observe.record.live import LiveRecord
from clusterctl.observe.record.status import status
from clusterctl.observe.why.report import LAST_WORD_S

UP = ("running", "finishing")  # phases


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
            resumed, kept = kept_settings(cluster, other or job, given)
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


def ask_how_it_ended(cluster: Cluster, job: str, run: str, view: LiveRecord) -> None:
    """Ask the lead how the run ended before calling it lost: its final event may not have reached us."""
    if view.ended is None:
        answer = status(cluster, job, answer_s=LAST_WORD_S)
        ended = answer.lead.get("ended") if answer.lead else None
        if answer.run == run and ended:
            view.take(ended)
