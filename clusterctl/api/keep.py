"""Keep a job going: resume its runs that end because machines were lost. Several keepers never start two runs.

Inside a run the first node decides alone. When it is lost, a keeper resumes the job on the others, which any machine
with the conf.py may do. Two conditions keep it from starting a second run beside the first one. It has to reach more
than half of the run's nodes, none of which has processes left. And it waits until the others must have ended theirs:
they, too, have lost more than half of the run. Of several keepers that start at once, the locks of the nodes let one
win.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from clusterctl.api.outcome import Outcome, explain, failure
from clusterctl.api.start import OriginOptions, PlannedStart, start
from clusterctl.cluster import Cluster
from clusterctl.common.paths import is_label
from clusterctl.common.requests import FollowSelection
from clusterctl.common.run_spec import RunSpec
from clusterctl.errors import ClusterctlError, JobFailedError, NodeError, RefusedError, UsageError
from clusterctl.inventory import Node, nodeset
from clusterctl.launch import Launch, LaunchPlan, Origin, Resume, may_have_checkpoint, repeated_settings
from clusterctl.observe.follow import Follower
from clusterctl.observe.record.references import Reference, run_number
from clusterctl.observe.record.status import LIVE, LOST, UNKNOWN
from clusterctl.observe.why.node_report import NodeReport
from clusterctl.observe.why.report import WhyReport, headline, why

NODE_LOST = "node_lost"
HOUR_S = 3600.0
POLL_S = 2.0
RETRY_S = 10.0  # after a start that failed
ATTEMPTS = 20
NEEDS_MOVE = 'that needs ON_NODE_LOSS = "move" and our pservers'
NEEDS_MOVE_HINT = "to resume a run by hand without the nodes that are gone: clusterctl start --resume --allow-partial"
ANSWER_S = 10.0
LOCKED_S = 5.0  # the same while its nodes are locked, which have just answered

End = Literal["live", "lost", "final"]


def end_of(report: WhyReport) -> End:
    """Return how a run ended: "lost" if machines were, "final" if it has succeeded, failed or was stopped.

    "live" while a node that answers has processes of it. The lead's word counts most. Without it the run was lost
    unless another node has recorded another end: what a later start ended there was waiting for the lead.
    """
    lead = [one for one in report.reports if one.node == report.members.lead]
    others = [end for end in _ends(report.reports) if end["state"] != "stopped" or _cause(end)]
    ends = _ends(lead) or others
    if any(map(_was_stopped, report.reports)) or any(_cause(end).get("kind") != NODE_LOST for end in ends):
        return "final"
    if any(view["state"] in LIVE for view in report.seen.nodes):
        return "live"
    return "lost" if ends or report.state in (LOST, UNKNOWN) else "final"


def _was_stopped(report: NodeReport) -> bool:
    return bool(report.answer.get("stop_asked")) and not _was_undone(report)


def _was_undone(report: NodeReport) -> bool:
    return bool(report.answer.get("start_failed"))


def _ends(reports: Iterable[NodeReport]) -> list[Mapping[str, Any]]:
    return [event for report in reports for event in report.find("ended")]


def _cause(end: Mapping[str, Any]) -> Mapping[str, Any]:
    cause: Mapping[str, Any] = end.get("cause") or {}
    return cause


@dataclass(frozen=True)
class Readiness:
    """When a lost run may be resumed: from the time `t` on; for None not yet, for the reason `waits_for`."""

    t: float | None
    waits_for: str = ""


def readiness(report: WhyReport, since: float) -> Readiness:
    """Return when a keeper that has this report may resume the lost run.

    A node that does not answer has ended its processes NODE_GRACE_S + GRACE_S after the last sign that any of the
    others had of it, or after `since` if none of these recorded that it lost it. Times are by this machine's clock.
    """
    reached = {view["node"] for view in report.seen.nodes if view["ok"]}
    members = [node.id for node in report.members.nodes]
    silent = [node for node in members if node not in reached]
    if 2 * len(silent) >= len(members):
        answer = f"{len(members) - len(silent)} of its {len(members)} nodes answer"
        return Readiness(None, f"{answer}; more than half are needed")
    spec = _spec_of(report)
    if spec is None:
        return Readiness(None, "no node has reported how the run ended")
    silence_s = spec.timing.node_grace_s + spec.timing.grace_s
    signs = [_last_sign(report.reports, node) or since for node in silent]
    return Readiness(max((min(sign, time.time()) + silence_s for sign in signs), default=0.0))


def _spec_of(report: WhyReport) -> RunSpec | None:
    """Return the spec of the run as any node has it; they agree on all that counts here."""
    spec = next((one.answer["spec"] for one in report.reports if one.answer.get("spec")), None)
    return RunSpec.from_json(spec) if spec else None


def _last_sign(reports: Iterable[NodeReport], node: int) -> float | None:
    """Return the latest time at which a node heard from another one that it lost for good; None if none did."""
    signs = []
    for report in reports:
        events = [event for event in report.find("lost", role=None) if event.get("lost_node", event["node"]) == node]
        back = max((event["t"] for event in report.find("rejoined", node=node)), default=0.0)
        signs += [report.at(event["t"]) - float(event.get("silent_s") or 0.0) for event in events if event["t"] > back]
    return max(signs, default=None)


@dataclass
class Resumes:
    """How often a job may still be resumed: `most` times in an hour."""

    most: int
    _times: list[float] = field(default_factory=list)

    def are_left(self, now: float) -> bool:
        """Return True if there is one left at `now`, in seconds."""
        self._times = [t for t in self._times if t > now - HOUR_S]
        return len(self._times) < self.most

    def take(self, now: float) -> None:
        self._times.append(now)


@dataclass
class Keeper:
    """Finds or starts the run that continues a lost one of `job`.

    `prepare(chosen)` opens the nodes for a start with these settings, as text; it is planned anew each time. A run that
    was lost before any checkpoint was complete begins from `origin`, or as it began if that is None. `say` is called
    with messages for the user, `on_origin` and `on_wait` as by a start.
    """

    cluster: Cluster
    job: str
    prepare: Callable[[Mapping[str, str]], AbstractContextManager[PlannedStart]]
    say: Callable[[str], None]
    on_origin: Callable[[Origin], None]
    on_wait: Callable[[Node, str], None]
    origin: OriginOptions | None = None
    resumes: Resumes = field(init=False)

    def __post_init__(self) -> None:
        self.resumes = Resumes(self.cluster.settings.resumes)

    def keep(self, run: Launch, on_go: Callable[[Launch], None] = lambda run: None) -> tuple[Outcome, Launch, int]:
        """Watch a run to its end, and resume it whenever machines are lost.

        Return the outcome of the last run, that run, and how many were resumed. Raises as `next_run`.
        """
        resumes = 0
        while True:
            self.say(f"keeping {self.job} run {int(run.run)}")
            await_end(self.cluster, run)
            continued = self.next_run(run.run, on_go)
            if continued is None:
                return explain(self.cluster, Reference(self.job)), run, resumes
            resumes += continued.run != run.run
            run = continued

    def next_run(self, ended: str, on_go: Callable[[Launch], None], patience_s: float | None = None) -> Launch | None:
        """Return the run after `ended`, once there is one: this keeper's, or that of another one.

        It is `ended` itself if that goes on after all, because its nodes have found their lead again. None if the run
        is not resumed: it was not lost, RESUMES are used up, or too few nodes have answered for `patience_s` seconds.
        `on_go` is as for a start, and not called for a run of another keeper. Raises the error of a start that has
        failed ATTEMPTS times, or that has no checkpoint to resume from.
        """
        for attempt in range(ATTEMPTS):
            found = self._await_turn(ended, patience_s)
            if found is None or (isinstance(found, Launch) and found.run != ended):
                return found
            if not self.resumes.are_left(time.monotonic()):
                self.say(f"{self.job} is not resumed more than {self.resumes.most} times within an hour (RESUMES)")
                return None
            if isinstance(found, Launch):
                self.resumes.take(time.monotonic())
                self.say(f"{self.job} run {int(found.run)} goes on: its nodes have found their lead again")
                return found
            try:
                run = self._resume(found, on_go)
            except (NodeError, RefusedError) as exc:
                if attempt == ATTEMPTS - 1 or not (isinstance(exc, NodeError) or exc.details):
                    raise
                self.say(f"{self.job} was not resumed: {exc}")
                time.sleep(RETRY_S * random.uniform(0.5, 1.5))  # another keeper may be trying, too
            else:
                self.resumes.take(time.monotonic())
                return run
        raise AssertionError("the last attempt raises")

    def final_error(self, run: Launch, error: JobFailedError) -> ClusterctlError | None:
        """Return the error of a run that is not resumed, with what is known about it now if it was lost.

        None if its lead has recorded that it succeeded, which the others had not heard.
        """
        if error.details.get("state") != LOST:
            return error
        return failure(explain(self.cluster, Reference(run.job, run.run)))

    def _await_turn(self, ended: str, patience_s: float | None) -> WhyReport | Launch | None:
        """Return the report of a lost run once it may be resumed; otherwise what `next_run` returns."""
        since, said = time.time(), ""
        while True:
            report = self._report(ended)
            end = end_of(report) if report is not None else "lost"
            if report is not None and end != "lost" and report.members.run != ended:
                return _launched(report)
            if end == "final":
                return None
            if report is not None and self._goes_on(report, since):
                return _launched(report)
            if report is None:
                ready = Readiness(None, "none of its nodes answers")
            else:
                ready = readiness(report, since) if end == "lost" else Readiness(None, "its processes have not ended")
            if ready.t is not None and ready.t <= time.time():
                return report
            if ready.waits_for and ready.waits_for != said:
                said = ready.waits_for
                self.say(f"waiting to resume {self.job}: {said}")
            if ready.t is None and patience_s is not None and time.time() - since > patience_s:
                return None
            time.sleep(POLL_S)

    def _goes_on(self, report: WhyReport, since: float) -> bool:
        """Return True if the lead has had the time to end the run, and has not."""
        settings, lead = self.cluster.settings, report.members.lead
        is_live = any(view["node"] == lead and view["state"] in LIVE for view in report.seen.nodes)
        return is_live and time.time() > since + settings.node_grace_s + settings.grace_s

    def _report(self, ended: str, answer_s: float = ANSWER_S) -> WhyReport | None:
        """Return the report of the newest run, but for those that were undone because their start failed elsewhere.

        None if no node answers that knows the run that has `ended`, or a later one.
        """
        number: str | None = None
        with contextlib.suppress(NodeError, UsageError):
            while True:
                report = why(self.cluster, self.job, run=number, answer_s=answer_s, with_spec=True)
                run = int(report.members.run or 0)
                if number is None and run < int(ended):
                    return None
                if run <= 1 or not any(map(_was_undone, report.reports)):
                    return report
                number = run_number(run - 1)
        return None

    def _resume(self, report: WhyReport, on_go: Callable[[Launch], None]) -> Launch:
        """Start the job on the nodes that answer. Raises the errors of a start."""
        views = {view["node"]: view for view in report.seen.nodes}
        silent: dict[int, ClusterctlError] = {
            node: NodeError("it does not answer", node=f"node{node}") for node, view in views.items() if not view["ok"]
        }
        silent |= {node.id: error for node in self.cluster.nodes for error in report.errors if error.node == node.label}
        members = report.members.by_id

        def check(run: Launch) -> None:
            """Look again now that the nodes are locked: some may have failed, or somebody may have stopped the job."""
            if 2 * len(members.keys() & {*run.members}) <= len(members):
                raise NodeError(f"only {nodeset(run.members)} of {nodeset(members)} can take part")
            now = self._report(report.members.run or "0", LOCKED_S)
            if now is None or end_of(now) != "lost" or now.members.run != report.members.run:
                raise NodeError("somebody else has stopped it, or has resumed it")
            on_go(run)

        here = [node for node in self.cluster.nodes if node.id in members and node.id not in silent]
        loss = f"run {int(report.members.run or 0)} was lost: {_cause_of(report)}"
        self.say(f"{self.job} {loss}")
        self.say(f"resuming it on {nodeset(node.id for node in here)}")
        spec = _spec_of(report)
        assert spec is not None, "else it is not ready"
        with_lead = any(one.node == report.members.lead and one.answer.get("spec") for one in report.reports)
        saved = may_have_checkpoint(self.cluster, self.job, here, with_lead=with_lead)
        with self.prepare(repeated_settings(spec.settings or {})) as ready:
            origin, launch = OriginOptions(resume=True), ready.launch
            if not saved:
                origin, launch = self._as_it_began(spec, launch)

            def on_origin(found: Origin) -> None:
                if not saved:
                    _check_same(found, spec)
                self.on_origin(found)

            more: Any = {"origin": origin, "on_origin": on_origin, "on_wait": self.on_wait}
            launch = replace(launch, resumes=loss)
            return start(ready.cluster, launch, self.job, check, allow_partial=True, failed=silent, **more)

    def _as_it_began(self, spec: RunSpec, launch: LaunchPlan) -> tuple[OriginOptions, LaunchPlan]:
        """Return what a run began from that was lost before its first checkpoint, and the plan for one like it.

        Raises RefusedError if that was a model, or a checkpoint of this job, which must be on other nodes.
        """
        if self.origin is not None:
            return replace(self.origin, wanted_resume=True), launch
        before = spec.saving.resume
        if spec.saving.load is not None or (before is not None and before.job is None):
            origin = "a model" if spec.saving.load is not None else "a checkpoint that no node has that answers"
            message = f"{spec.job} was lost before its first checkpoint, and had begun from {origin}"
            raise RefusedError(message, hint=f"start it again: clusterctl start {spec.job}, with --load or --resume")
        if launch.program_args is None:
            launch = launch.with_arguments(spec.arguments)
        name = spec.name if spec.name is not None and is_label(spec.name) else None
        begun_from = OriginOptions(resume_from=before.job if before else None, wanted_resume=True)
        return begun_from, replace(launch, name=launch.name or name)


def _check_same(found: Origin, spec: RunSpec) -> None:
    """Raise RefusedError if a run would not begin from the checkpoint of another job from which the lost one began."""
    before = spec.saving.resume
    if before is not None and isinstance(found, Resume) and (found.run, found.tag) != (before.run, before.tag):
        began = f"checkpoint {before.tag} of {before.job} run {int(before.run)}"
        message = f"{spec.job} was lost before its first checkpoint, and had begun from {began}, not from {found}"
        raise RefusedError(message, hint=f"to begin from the other one: clusterctl start {spec.job} --resume-from JOB")


def _cause_of(report: WhyReport) -> str:
    cause = report.explanation.cause
    return headline(report, cause) if cause is not None else "nothing is known about the cause"


def newest_run(cluster: Cluster, job: str | None) -> Launch:
    """Return the newest run of a job (None: of the one that is meant). Raises UsageError if it cannot be kept."""
    report = why(cluster, job, with_spec=True)
    if report.members.run is None:
        hint = f"start it first: clusterctl start --job_workspace {report.job}"
        raise UsageError(f"{report.job} has no run to keep", hint=hint)
    spec = _spec_of(report)
    if spec is not None and (spec.failures.node_loss != "move" or spec.failures.whole):
        raise UsageError(f"{report.job} cannot be kept: {NEEDS_MOVE}", hint=NEEDS_MOVE_HINT)
    return _launched(report)


def await_end(cluster: Cluster, run: Launch) -> None:
    """Return once a run has ended on all nodes that answer."""
    wanted: FollowSelection = {"role": "", "events": False}
    with Follower(cluster, run.nodes, run.job, run.run, wanted, kept=True) as follower:
        for news in follower:
            if news is not None and news.ended is not None and news.node == run.lead:
                return


def _launched(report: WhyReport) -> Launch:
    """Return the newest run of a job that is under way, or was."""
    members, run = report.members, report.members.run
    assert run is not None
    return Launch(report.job, run, members.nodes, {}, started_t=report.started_t, name=members.name)
