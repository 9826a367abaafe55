"""Everything that went wrong in a run, from the events of its nodes: a list of incidents on one clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from clusterctl.observe.why.errno_and_signals import SHELL_CODES, Diagnosis, of_name
from clusterctl.observe.why.evidence import Evidence, Incident
from clusterctl.observe.why.exceptions import of_chain
from clusterctl.observe.why.exits import FENCED, FURTHER, MEMORY_LIMIT, UNFINISHED, WAIT_FOR_EACH_OTHER, diagnose
from clusterctl.observe.why.lost_nodes import lost_nodes
from clusterctl.observe.why.node_report import NodeReport, ProcessLog
from clusterctl.observe.why.symptoms import has_left, leaving, nan, stall, standstill
from clusterctl.observe.why.tracebacks import excerpt, raised

STEP_SLACK_S = 0.3  # output and events of a process arrive by different ways
MEMORY_SETTING = "MEMORY_LIMIT_MB"
CANNOT_START = {"ENOENT": 127, "EACCES": 126}  # as exit codes of a shell
RESUME = "start --resume continues from the last checkpoint, if there is one"
TIMED_OUT = "it was still running: its last lines may show what it was waiting for, or run it alone on {node}"
ADVICE = {
    "time_limit": f"raise TIME_LIMIT_S; {RESUME}",
    "supervisor_ended": "a person on {node}, its batch system or its shutdown sent the signal: see last -x and "
    f"journalctl there; {RESUME}",
}


def incidents(evidence: Evidence) -> list[Incident]:
    """Return everything that went wrong, ordered by onset."""
    known = [one for report in evidence.reports.values() for one in _of_node(evidence, report)]
    known += lost_nodes(evidence)
    known += _of_lead(evidence, known)
    return sorted(known, key=lambda one: (one.onset, one.t))


def _of_node(evidence: Evidence, report: NodeReport) -> Iterator[Incident]:
    for event in report.events:
        name = event.get("event")
        if name == "exited" and _went_wrong(evidence, event):
            yield of_exit(evidence, report, event)
        elif name == "exited" and event.get("stopping"):
            yield from _had_failed(evidence, report, event)
        elif name == "exited" and has_left(evidence, report, event):
            yield leaving(report, event)
        elif name == "stalled" and not event.get("over"):
            yield stall(report, event, restarted=_granted(evidence, event))
        elif name == "standstill" and not event.get("over"):
            yield standstill(report, event)
        elif name == "nan":
            yield nan(report, event)


def _had_failed(evidence: Evidence, report: NodeReport, event: dict[str, Any]) -> Iterator[Incident]:
    """The exception of a process that was stopped while it was about to exit, as its last lines before that show it."""
    role, rank, attempt = event["role"], event["rank"], int(event.get("attempt") or 1)
    output = report.output(role, rank, attempt).since(_its_last_step(report, event) - STEP_SLACK_S)
    own = output.own
    chain = raised(own)
    stop_t = evidence.ended_t or report.at(event["t"])
    if not chain or not chain[-1].frames or output.times[chain[-1].end] > stop_t:
        return
    if any(line[:1].strip() and not FURTHER.match(line) for line in own[chain[-1].end + 1 :]):
        return  # it went on
    t = output.times[chain[-1].end]
    diagnosis = of_chain(chain)
    message = "had raised an exception, and was stopped before it had exited"
    yield Incident(
        "exit",
        t,
        t,
        report.node,
        message,
        diagnosis,
        role,
        rank,
        attempt,
        event.get("exit_code"),
        tuple(excerpt(output.lines)),
        latent=True,
    )


def _went_wrong(evidence: Evidence, event: dict[str, Any]) -> bool:
    if event.get("stopping"):
        return False
    if event["exit_code"] or event.get("unfinished"):
        return True
    serves = event.get("role") != "trainer"
    return (serves and _granted(evidence, event)) or _names(evidence.cause, event)


def _names(cause: dict[str, Any], event: dict[str, Any]) -> bool:
    keys = ("role", "rank", "attempt")
    return cause.get("kind") == "exit" and all(cause.get(key) == event.get(key) for key in keys)


def _granted(evidence: Evidence, event: dict[str, Any]) -> bool:
    """Return True if it was restarted, or was going to be, or the others continued without it."""
    key = {"role": event.get("role"), "rank": event.get("rank")}
    attempt = int(event.get("attempt") or 1)
    granted = [*evidence.lead.find("restarting", **key), *evidence.lead.find("lost", **key)] if evidence.lead else []
    if any(int(one.get("attempt") or attempt + 1) > attempt for one in granted):
        return True
    return any(
        int(one.get("attempt") or 1) > attempt for s in evidence.reports.values() for one in s.find("spawned", **key)
    )


def of_exit(evidence: Evidence, report: NodeReport | None, event: dict[str, Any], t: float | None = None) -> Incident:
    """The end of a process. Without a `report` of its node, `event` is the lead's account of it."""
    role, rank, attempt = event["role"], event["rank"], int(event.get("attempt") or 1)
    t = report.at(event["t"]) if report and t is None else t or 0.0
    output = report.output(role, rank, attempt) if report else ProcessLog()
    output = output if output.lines else _tail(event, t)
    fresh = output.since(_its_last_step(report, event) - STEP_SLACK_S)
    texts = fresh.own
    oom, stalled = bool(event.get("oom")), bool(event.get("stalled"))
    uncaught = event.get("uncaught")
    diagnosis = diagnose(event.get("exit_code"), texts, oom=oom, stalled=stalled, uncaught=uncaught)
    if event.get("fenced"):
        diagnosis = FENCED
    if event.get("limit") == MEMORY_SETTING:
        diagnosis = replace(diagnosis, advice=MEMORY_LIMIT)
    if diagnosis.kind == "exit" and event.get("unfinished"):
        diagnosis = UNFINISHED.get(event["unfinished"], diagnosis)
    peers = event.get("peers") or evidence.peers_in(" ".join([diagnosis.error or "", *texts[-3:]]))
    return Incident(
        "exit",
        _raised_at(fresh, diagnosis, uncaught) or t,
        t,
        event.get("node", report.node if report else None),
        str(event.get("message", "")),
        diagnosis,
        role,
        rank,
        attempt,
        event.get("exit_code"),
        tuple(excerpt(fresh.lines or output.lines)),
        evidence.with_nodes(peers, f"{role}{rank}") if diagnosis.about_peer else frozenset(),
        bool(event.get("fenced")) or _granted(evidence, event),  # the loss of contact before is the cause
        diagnosis.kind == event.get("reason"),
        _is_held(evidence, event),
    )


def _raised_at(output: ProcessLog, diagnosis: Diagnosis, uncaught: str | None) -> float | None:
    """The time at which a process printed the exception of this diagnosis: its exit, after clean-up, may be later."""
    chain = raised(output.own, uncaught)
    error = (diagnosis.error or "").partition(":")[0]
    if not any(one.name.rpartition(".")[2] == error for one in chain):
        return None
    return output.times[chain[-1].begin]


def _tail(event: dict[str, Any], t: float) -> ProcessLog:
    """The last lines of a process that an event or a cause carries."""
    return ProcessLog([(t, line) for line in event.get("tail") or ()], event.get("ours") or ())


def _is_held(evidence: Evidence, event: dict[str, Any]) -> bool:
    """Return True if the run is waiting for the user to fix it."""
    key = {"role": event.get("role"), "rank": event.get("rank")}
    held = [one["t"] for one in evidence.lead.find("held", **key)] if evidence.lead else []
    back = [one["t"] for one in evidence.lead.find("rejoined", **key)] if evidence.lead else []
    return bool(held) and held[-1] > max(back, default=0.0) and not _granted(evidence, event)


def _its_last_step(report: NodeReport | None, event: dict[str, Any]) -> float:
    """The time of its last step. Output from before that did not end it."""
    keys = {name: event.get(name) for name in ("role", "rank", "attempt")}
    steps = [report.at(step["t"]) for step in report.find("step", **keys)] if report else []
    return max(steps, default=0.0)


def _of_lead(evidence: Evidence, known: Sequence[Incident]) -> Iterator[Incident]:
    """Causes that no node's own events show."""
    cause, t = evidence.cause, evidence.ended_t
    kind = cause.get("kind")
    if kind == "exit" and not any(_names(cause, _key(one)) for one in known if one.kind == "exit"):
        yield of_exit(evidence, evidence.reports.get(cause.get("node", -1)), cause, t)
    elif kind == "node":
        yield _of_failure(evidence, cause, t)
    elif kind in ("time_limit", "stopped"):
        reason = str(cause.get("reason") or kind)
        diagnosis = Diagnosis(reason, "", ADVICE.get(reason, ""))
        yield Incident(kind, t, t, cause.get("node"), str(cause.get("message")), diagnosis)
    elif kind == "stalled":
        yield Incident("failure", t, t, None, str(cause.get("message")), Diagnosis(kind, "", WAIT_FOR_EACH_OTHER))


def _key(one: Incident) -> dict[str, Any]:
    return {"role": one.role, "rank": one.rank, "attempt": one.attempt}


def _of_failure(evidence: Evidence, cause: dict[str, Any], t: float) -> Incident:
    """An operation that failed in a supervisor."""
    message = str(cause.get("message"))
    report = evidence.reports.get(cause.get("node", -1))
    t = report.at(cause["t"]) if report and cause.get("t") else t
    output = _tail(cause, t)
    system = of_name(cause.get("errno"), cause.get("command") or cause.get("path"))
    if system is not None:
        diagnosis = replace(system, error=message, words="")
        if "command" in cause and system.errno in CANNOT_START:
            like = SHELL_CODES[CANNOT_START[system.errno]]
            diagnosis = replace(diagnosis, kind=like.kind, advice=like.advice)
    else:
        diagnosis = diagnose(None, output.own) if output.lines else Diagnosis("node")
    if cause.get("timed_out") and diagnosis.kind in ("exit", "node"):
        diagnosis = replace(diagnosis, kind="timed_out", advice=TIMED_OUT)
    return Incident(
        "failure",
        t,
        t,
        cause.get("node"),
        message,
        diagnosis,
        cause.get("role"),
        cause.get("rank"),
        int(cause.get("attempt") or 1),
        lines=tuple(output.lines),
    )
