"""The end that a scheduler puts to a run: it knows why, and the run knows only that it was told to stop. Pure."""

from __future__ import annotations

from dataclasses import replace

from clusterctl.observe.why.errno_and_signals import Diagnosis
from clusterctl.observe.why.evidence import Incident
from clusterctl.observe.why.report import WhyReport

KIND = "scheduler"


def ended_by(report: WhyReport, *, kind: str, message: str, advice: str, t: float | None) -> WhyReport:
    """Return the explanation with the scheduler's reason as its first cause; what the run recorded follows from it.

    `t` is when the job ended, in seconds since the epoch. A run that had succeeded is left alone.
    """
    if report.members.run is None or report.state == "succeeded":
        return report
    known = report.explanation
    own = [known.cause] if known.cause is not None and known.cause.kind != "stopped" else []
    end = t or report.ended_t or (known.cause.onset if known.cause else 0.0)
    onset = min([end, *(one.onset for one in own)])
    cause = Incident(KIND, onset, end, None, message, Diagnosis(kind, "", advice), explained=True)
    return replace(report, explanation=replace(known, cause=cause, then=(*own, *known.then), notes=()))
