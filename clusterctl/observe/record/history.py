"""Read the record of a run from its nodes: its whole history, reduced there to what a view needs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

from clusterctl.cluster import Cluster, NodeOutcome, answers
from clusterctl.cluster.answers import CurvesEnd
from clusterctl.common.curves import Curve
from clusterctl.common.run_spec import RunSpec
from clusterctl.common.run_state import Key
from clusterctl.common.schema import SchemaError
from clusterctl.config.settings import TABLE
from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.inventory import Node
from clusterctl.observe.follow import read_logs
from clusterctl.observe.record.curves import shifted, split_undone
from clusterctl.observe.record.model import (
    CauseRecord,
    NodeRecord,
    ProcessRecord,
    RunRecord,
    Span,
    TimedLine,
)
from clusterctl.observe.record.secrets import Redactor
from clusterctl.observe.record.status import UNKNOWN
from clusterctl.observe.record.timeline import marks, rollbacks, spans
from clusterctl.observe.why.clocks import in_order
from clusterctl.observe.why.report import WhyReport, advice, headline, why

CURVES_S = 120.0
MOST_BYTES = 32 << 20  # of the curves of one node


class NodeCurves(NamedTuple):
    """The curves of one node's processes, by its own clock; `at` is the offset after the events that they are from.

    `offset_s` is our clock minus the node's; the time that its answer took is not subtracted.
    """

    curves: list[Curve]
    at: int
    offset_s: float


def read_curves(cluster: Cluster, node: Node, job: str, run: str | None, buckets: int) -> NodeCurves:
    """Return the curves, each with at most `buckets` buckets."""
    curves: list[Curve] = []
    with cluster.call(node, {"op": "curves", "ref": job, "run": run, "buckets": buckets}, answer_s=CURVES_S) as call:
        call.limit(MOST_BYTES)
        while "done" not in (message := call.receive(CURVES_S)):
            curves += answers.curves(message)
    end: CurvesEnd = answers.read(CurvesEnd, message["done"], "curves")
    return NodeCurves(curves, end["at"], time.time() - end["now"])


def settings_of(spec: RunSpec) -> dict[str, str]:
    """Return the settings that the spec of a run has, as text, in the order of conf.py's reference.

    Settings that only the control machine uses are not among them, unless they were given with `--set`.
    """
    places = {one.name: one.spec.split(".") for one in TABLE if one.spec}
    values: dict[str, Any] = {name: reduce(getattr, path, spec) for name, path in places.items()}
    if spec.training.engine != "clusterctl":
        del values["MODE"]
    if not spec.saving.checkpoints:
        del values["SAVE_EVERY"]
    known = {name: _text(value) for name, value in values.items() if value is not None and value != {}}
    return {**known, **(spec.settings or {})}


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return str(value)


BUCKETS = 400
TAIL_LINES = 20


def read_history(
    cluster: Cluster, ref: str | None, *, run: str | None = None, buckets: int = BUCKETS, tail: int = TAIL_LINES
) -> RunRecord:
    """Read the record of `run` (None: the newest) of job `ref` (None: the job that is meant).

    Each curve has at most `buckets` buckets, and each process its last `tail` log lines. Nodes that do not answer are
    named in the record. Raises UsageError if the job was never started, and if no node has it.
    """
    known = why(cluster, ref, run=run, with_spec=True)
    if known.members.run is None:
        raise UsageError(f"{known.job} was never started", hint=f"clusterctl start --job_workspace {known.job}")
    reporting = {report.node for report in known.reports}
    answering = [node for node in known.members.nodes if node.id in reporting]
    newest, job = known.members.run, known.job
    outcomes = cluster.map(lambda node: read_curves(cluster, node, job, newest, buckets), answering)
    curves = {outcome.node.id: outcome.get().curves for outcome in outcomes if outcome.ok}
    return build(known, curves, _tails(cluster, answering, known, tail), _problems(known, outcomes))


def _tails(cluster: Cluster, nodes: Sequence[Node], known: WhyReport, lines: int) -> dict[Key, list[TimedLine]]:
    """Return the last lines of every process, by our clock; what nodes send before they fail is enough."""
    offsets = {report.node: report.offset_s for report in known.reports}
    tails: dict[Key, list[TimedLine]] = {}
    if not lines:
        return tails
    try:
        for line in read_logs(cluster, nodes, known.job, known.members.run, {"tail": lines}):
            tails.setdefault((line.role, line.rank), []).append(TimedLine(line.t + offsets[line.node.id], line.text))
    except ClusterctlError:
        pass
    return tails


def _problems(known: WhyReport, outcomes: Sequence[NodeOutcome[Any]]) -> dict[str, str]:
    """Return, by the node's label, why a node's part is missing."""
    errors = [*known.errors, *(outcome.error for outcome in outcomes if outcome.error)]
    return {error.node: error.message for error in errors if error.node}


def build(
    known: WhyReport,
    curves: Mapping[int, Sequence[Curve]],
    tails: Mapping[Key, Sequence[TimedLine]],
    problems: Mapping[str, str],
) -> RunRecord:
    """Build the record from the answers of the nodes. Pure. `curves` are by node and by the node's clock."""
    known = replace(known, reports=tuple(in_order(known.reports, known.members.lead)))
    by_node = {report.node: report for report in known.reports}
    specs = {report.node: spec for report in known.reports if (spec := _spec(report.answer)) is not None}
    spec = specs.get(known.members.lead) or next(iter(specs.values()), None)
    secrets = Redactor(*(one.env for one in specs.values()))
    undone = rollbacks(known.reports, known.members.lead)
    has_pservers = any(process.role == "pserver" for process in known.seen.processes)
    tracks = spans(known.reports, known.ended_t)
    return RunRecord(
        job=known.job,
        run=known.members.run or "",
        members=known.members,
        state=known.state,
        mode=(known.seen.lead or {}).get("mode"),
        started_t=known.started_t,
        ended_t=known.ended_t,
        read_t=time.time(),
        processes=tuple(_with_history(process, tracks, tails, secrets) for process in known.seen.processes),
        nodes=tuple(_node(node, known, problems) for node in known.members.nodes),
        curves=tuple(
            part
            for node, some in curves.items()
            for curve in some
            for part in split_undone(shifted(_hidden(curve, secrets), by_node[node].offset_s), undone)
        ),
        rollbacks=undone,
        marks=tuple(
            replace(mark, text=secrets.hide(mark.text)) for mark in marks(known.reports, has_pservers=has_pservers)
        ),
        cause=_cause(known, secrets),
        warnings=[{**one, "message": secrets.hide(one["message"])} for one in known.warnings],
        settings={name: secrets.hide(value) for name, value in settings_of(spec).items()} if spec else {},
        env=tuple(sorted({name for one in specs.values() for name in one.env})),
        arguments=secrets.arguments(spec.arguments) if spec else (),
        workspace=_workspace(known),
        resumed=(known.seen.lead or {}).get("resumed"),
        saved=_tags(known, checkpoint=False),
        checkpoints=_tags(known, checkpoint=True),
        secrets=secrets,
        label=known.members.name,
    )


def _hidden(curve: Curve, secrets: Redactor) -> Curve:
    """Return the curve without secrets in the name, which the program has chosen for its own ones."""
    return replace(curve, name=secrets.hide(curve.name)) if curve.of in ("log", "table") else curve


def _spec(answer: Mapping[str, Any]) -> RunSpec | None:
    """Return the spec that a node sent, None if it is malformed."""
    try:
        return RunSpec.from_json(answer["spec"])
    except (KeyError, SchemaError):
        return None


def _with_history(
    process: ProcessRecord,
    tracks: Mapping[Key, tuple[Span, ...]],
    tails: Mapping[Key, Sequence[TimedLine]],
    secrets: Redactor,
) -> ProcessRecord:
    key = (process.role, process.rank)
    lines = tuple(TimedLine(line.t, secrets.hide(line.text)) for line in tails.get(key, ()))
    return replace(process, spans=tracks.get(key, ()), tail=lines)


def _node(node: Node, known: WhyReport, problems: Mapping[str, str]) -> NodeRecord:
    report = next((report for report in known.reports if report.node == node.id), None)
    if report is None:
        return NodeRecord(node, UNKNOWN, problem=problems.get(node.label, "it did not answer"))
    versions = report.answer.get("versions") or {}
    problem = problems.get(node.label)
    return NodeRecord(node, report.state, report.offset_s, report.margin_s, versions, problem)


def _cause(known: WhyReport, secrets: Redactor) -> CauseRecord | None:
    """Return the first cause as `why` shows it. A stop by the user is none."""
    cause = known.explanation.cause
    if cause is None or cause.kind == "stopped":
        return None
    remedy = advice(known)
    return CauseRecord(
        t=cause.onset,
        headline=secrets.hide(headline(known, cause)),
        lines=tuple(TimedLine(t, secrets.hide(line)) for t, line in cause.lines),
        notes=tuple(map(secrets.hide, known.explanation.notes)),
        advice=secrets.hide(remedy) if remedy else None,
        node=cause.node,
        role=cause.role,
        rank=cause.rank,
    )


def _workspace(known: WhyReport) -> str | None:
    records = (report.answer.get("record") for report in known.reports)
    names = (record.get("workspace") for record in records if isinstance(record, dict))
    return next((name for name in names if isinstance(name, str)), None)


def _tags(known: WhyReport, *, checkpoint: bool) -> tuple[str, ...]:
    """Return the tags of the complete saves, oldest first."""
    lead = next((report for report in known.reports if report.node == known.members.lead), None)
    events = lead.find("saved", complete=True) if lead is not None else ()
    return tuple(event["tag"] for event in events if bool(event.get("checkpoint")) == checkpoint)
