"""Explain a job's failure: ask all nodes of its newest run for their reports, and find the first cause."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass

from clusterctl.cluster import ANSWER_S, Cluster, NodeOutcome, answers
from clusterctl.common.events import RunWarning
from clusterctl.common.schema import Moment, fits
from clusterctl.errors import ClusterctlError
from clusterctl.inventory import Node
from clusterctl.observe.record.marks import by_our_clock
from clusterctl.observe.record.members import Members
from clusterctl.observe.record.status import DISPATCHED, JobStatus, status
from clusterctl.observe.why.clocks import clock_offset
from clusterctl.observe.why.evidence import Incident
from clusterctl.observe.why.first_cause import Explanation, explain
from clusterctl.observe.why.node_report import NodeReport

READINGS = 3  # of each node's clock
CLOCKS_S = 0.5  # by how much the clocks of nodes may differ that cannot be asked any more
REPORT_S = 120.0
LAST_WORD_S = 10.0  # to answer, for nodes that may be the cause of an end


@dataclass(frozen=True)
class WhyReport:
    """The explanation of a run. `seen` is its status, `errors` those of nodes that gave no report.

    `warnings` are those of the run.
    """

    job: str
    members: Members
    state: str
    seen: JobStatus
    explanation: Explanation
    reports: tuple[NodeReport, ...]
    errors: list[ClusterctlError]
    started_t: float | None
    ended_t: float | None = None
    warnings: Sequence[RunWarning] = ()

    @property
    def seconds(self) -> float | None:
        """The duration of the run, so far if it is still running; None if it never started."""
        if self.started_t is None:
            return None
        return max(0.0, (self.ended_t or time.time()) - self.started_t)


def why(
    cluster: Cluster, ref: str | None, *, run: str | None = None, answer_s: float = ANSWER_S, with_spec: bool = False
) -> WhyReport:
    """Explain `run` (None: the newest) of job `ref` (None: the job that is meant). Raises when no node knows the job.

    Nodes that have not answered after `answer_s` are left out. `with_spec` asks for the specs of the run, too.
    """
    seen = status(cluster, ref, run=run, answer_s=answer_s)
    if seen.run is None:
        return WhyReport(seen.job, seen.members, DISPATCHED, seen, Explanation(None), (), seen.errors, None)
    answering = [view["node"] for view in seen.nodes if view["ok"]]
    outcomes = ask(
        cluster, [node for node in seen.members.nodes if node.id in answering], seen.job, seen.run, with_spec
    )
    reports = tuple(outcome.get() for outcome in outcomes if outcome.ok)
    errors = [*seen.errors, *(outcome.error for outcome in outcomes if outcome.error)]
    lead = next((report for report in reports if report.node == seen.members.lead), None)
    first = (lead or reports[0]) if reports else None
    state = "lost" if lead is not None and lead.is_closed else seen.state
    explanation = explain(reports, seen.members.lead, _silent(seen.members, reports, errors), state)
    end = first.first("ended") if first else None
    return WhyReport(
        seen.job,
        seen.members,
        state,
        seen,
        explanation,
        reports,
        errors,
        first.at(first.answer["started"]) if first and first.answer.get("started") else None,
        first.at(end["t"]) if first and end else explanation.ended_t,
        seen.warnings if lead is None else by_our_clock(seen.warnings, lead.offset_s),
    )


def ask(
    cluster: Cluster, nodes: Sequence[Node], job: str, run: str, with_spec: bool = False
) -> list[NodeOutcome[NodeReport]]:
    """Ask each node for its report, and measure the offset of its clock."""

    def one(node: Node) -> NodeReport:
        with cluster.call(node, {"op": "diagnose", "ref": job, "run": run, "spec": with_spec}) as call:
            readings = []
            for _ in range(READINGS):
                asked = time.time()
                call.send({"now": asked})
                theirs = call.receive().get("now")
                if not fits(Moment, theirs):
                    raise ValueError("diagnose: now")
                readings.append((asked, float(theirs), time.time()))
            call.send({"tell": True})
            answer = answers.check("diagnose", call.result(REPORT_S))
        offset_s, margin_s = clock_offset(readings)
        margin_s = max(margin_s, CLOCKS_S) if cluster.is_over() else margin_s  # it was the clock of this machine
        return NodeReport(node.id, offset_s, margin_s, answer)

    return cluster.map(one, nodes)


def _silent(members: Members, reports: Sequence[NodeReport], errors: Sequence[ClusterctlError]) -> dict[int, str]:
    answered = {report.node for report in reports}
    reasons = {error.node: error.message for error in errors}
    return {node.id: reasons.get(node.label, "not asked") for node in members.nodes if node.id not in answered}


def headline(report: WhyReport, one: Incident) -> str:
    """One incident in a line: the process, its node, the event, and the reason."""
    node = report.members.by_id.get(one.node if one.node is not None else -1)
    process = f"{one.process}@{node.label} ({node.where}) " if node and one.process else ""
    reason = one.diagnosis.words
    if one.kind == "node_lost":
        return f"node{one.node} is lost: {one.message}{'; ' + reason if reason else ''}"
    where = f"{node.label} ({node.where}): " if node and not process else ""
    text = f"{process}{where}{one.message}" + (f": {reason}" if reason and not one.explained else "")
    if one.times > 1 and one.since is not None:
        text += f", {one.times} times the same way within {one.t - one.since:.0f} s"
    return text


def advice(report: WhyReport) -> str | None:
    """The remedy for the cause, if there is one. Users paste it, so the subject, a program's output, is quoted.

    A subject may be relative to the directory of the job, in which programs run.
    """
    cause = report.explanation.cause
    if cause is None or not cause.diagnosis.advice:
        return None
    where = f"node{cause.node}" if cause.node is not None else "the node"
    subject = shlex.quote(cause.diagnosis.subject or "")
    return cause.diagnosis.advice.replace("{node}", where).replace("{job}", report.job).replace("{subject}", subject)
