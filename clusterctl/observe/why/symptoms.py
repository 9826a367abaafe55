"""Signs that are not failures in themselves but may lead to one: stalls, trainers that left early, NaN."""

from __future__ import annotations

from typing import Any

from clusterctl.observe.why.errno_and_signals import NUMBERS, Diagnosis
from clusterctl.observe.why.evidence import Evidence, Incident
from clusterctl.observe.why.exceptions import of_chain
from clusterctl.observe.why.exits import HALTED, LEFT, STALLED, UNCONNECTED, WAIT_FOR_EACH_OTHER
from clusterctl.observe.why.node_report import NodeReport
from clusterctl.observe.why.tracebacks import excerpt, raised

STACKS_S = 5.0  # after which the stacks of its threads are in its log
ALONE_S = 3.0  # without progress of any other trainer


def stall(report: NodeReport, event: dict[str, Any], *, restarted: bool) -> Incident:
    """A process without signs of life, with the last exception in its output: of a thread, or one it handled."""
    key = {"role": event["role"], "rank": event["rank"]}
    attempt = int(event.get("attempt") or 1)
    message = str(event.get("message") or "stalled")
    t = report.at(event["t"])
    lines = [line for line in report.output(event["role"], event["rank"], attempt).lines if line[0] <= t + STACKS_S]
    chain = raised([text for at, text in lines if at <= t])
    earlier = of_chain(chain) if chain else Diagnosis("stalled")
    words = f"it had raised {earlier.error}" if earlier.error else ""
    advice = HALTED if event.get("halted") else UNCONNECTED if event.get("unconnected") else STALLED
    return Incident(
        "stalled",
        t - float(event.get("stalled_s") or 0),
        t,
        report.node,
        message,
        Diagnosis("stalled", words, advice, earlier.error, earlier.where),
        attempt=attempt,
        lines=tuple(excerpt(lines)),
        forgiven=restarted or any(one["t"] > event["t"] and one.get("over") for one in report.find("stalled", **key)),
        **key,
    )


def standstill(report: NodeReport, event: dict[str, Any]) -> Incident:
    """A run in which all trainers wait for each other, as the lead reports it."""
    over = any(one["t"] > event["t"] and one.get("over") for one in report.find("standstill"))
    t = report.at(event["t"])
    onset = t - float(event.get("stalled_s") or 0)
    diagnosis = Diagnosis("stalled", "", WAIT_FOR_EACH_OTHER)
    message = str(event.get("message") or "the run is stalled")
    return Incident("stalled", onset, t, None, message, diagnosis, forgiven=over)


def has_left(evidence: Evidence, report: NodeReport, event: dict[str, Any]) -> bool:
    """Return True if a trainer exited with code 0 between steps without leaving the run, and the others stalled."""
    about = {name: event.get(name) for name in ("role", "rank", "attempt")}
    between_steps = event.get("role") == "trainer" and not event.get("pushes") and report.first("step", **about)
    if not between_steps or event.get("exit_code") or event.get("stopping"):
        return False
    t, reports = report.at(event["t"]), evidence.reports.values()
    until = evidence.ended_t or max(one.at(one.answer.get("now", 0.0)) for one in reports)
    steps = [one.at(step["t"]) for one in reports for step in one.find("step", role="trainer")]
    begun = {one["rank"] for other in reports for one in other.find("spawned", role="trainer")}
    done = {one["rank"] for other in reports for one in other.find("exited", role="trainer", exit_code=0)}
    return until - t > ALONE_S and max(steps) < t + ALONE_S / 2 and bool(begun - done)


def leaving(report: NodeReport, event: dict[str, Any]) -> Incident:
    t = report.at(event["t"])
    attempt = int(event.get("attempt") or 1)
    return Incident(
        "left",
        t,
        t,
        report.node,
        f"{event.get('message')} in the middle of training, and the others waited for it",
        Diagnosis("left_early", "", LEFT),
        event["role"],
        event["rank"],
        attempt,
        exit_code=0,
        lines=tuple(excerpt(report.output(event["role"], event["rank"], attempt).lines)),
    )


def nan(report: NodeReport, event: dict[str, Any]) -> Incident:
    t = report.at(event["t"])
    at = f" (pass {event['pass']}, step {event['step']:,})" if event.get("step") is not None else ""
    message = f"{event['what']} is not finite" if event.get("what") else event.get("message") or "NaN or infinity"
    return Incident(
        "nan",
        t,
        t,
        report.node,
        f"{message}{at}",
        Diagnosis("not_finite", "", NUMBERS),
        event.get("role"),
        event.get("rank"),
        int(event.get("attempt") or 1),
        forgiven=event.get("action") == "skipped",
    )
