"""The end that a scheduler puts to a run is its first cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from clusterctl.api.outcome import document_of
from clusterctl.inventory import Inventory
from clusterctl.observe.record.members import Members
from clusterctl.observe.record.status import JobStatus
from clusterctl.observe.why.errno_and_signals import Diagnosis
from clusterctl.observe.why.evidence import Incident
from clusterctl.observe.why.first_cause import Explanation
from clusterctl.observe.why.report import WhyReport, advice, headline
from clusterctl.observe.why.scheduler import ended_by

KILLED = Incident("exit", 90.0, 90.0, 0, "was killed by signal 15", Diagnosis("signal"), "trainer", 0)
STOPPED = Incident("stopped", 95.0, 95.0, None, "stopped by the user", Diagnosis("stopped"))
END: dict[str, Any] = {"kind": "time_limit", "message": "Slurm job 12: it reached its limit", "advice": "more time"}


def report(cause: Incident | None, state: str = "failed") -> WhyReport:
    members = Members("0001", Inventory(()).nodes, ())
    explanation = Explanation(cause, notes=("a note about the old cause",))
    return WhyReport("JOB", members, state, cast("JobStatus", None), explanation, (), [], 10.0)


def test_what_the_run_recorded_follows_from_it() -> None:
    found = ended_by(report(KILLED), **END, t=100.0)
    cause = found.explanation.cause
    assert cause is not None
    assert headline(found, cause) == "Slurm job 12: it reached its limit"
    assert (cause.kind, cause.diagnosis.kind, advice(found)) == ("scheduler", "time_limit", "more time")
    assert (found.explanation.then, found.explanation.notes) == ((KILLED,), ())
    assert document_of(found)["cause"]["t"] == 90.0


def test_an_order_to_stop_is_no_incident() -> None:
    assert ended_by(report(STOPPED, "stopped"), **END, t=100.0).explanation.then == ()


def test_a_run_that_had_succeeded_or_never_began_is_left_alone() -> None:
    for one in (report(None, "succeeded"), replace(report(None), members=Members(None, (), ()))):
        assert ended_by(one, **END, t=100.0) is one


def test_a_lost_run_has_the_scheduler_as_its_cause() -> None:
    cause = ended_by(report(None, "lost"), **END, t=None).explanation.cause
    assert cause is not None
    assert cause.kind == "scheduler"
