"""The clocks of the nodes: their offsets from ours, and those that are wrong."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from clusterctl.observe.why.node_report import NodeReport

#: (phase, event, role): events on every node that follow an order of the lead, and events that precede one.
AFTER = (("pservers", "spawned", "pserver"), ("trainers", "spawned", "trainer"))
BEFORE = (("trainers", "ready", "pserver"),)
WRONG_S = 2.0
UNITS = ((365.25 * 86_400, "years"), (86_400, "days"), (3_600, "hours"), (60, "minutes"), (1, "s"))


def clock_offset(readings: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """(our clock minus theirs, margin of error) in seconds, from readings of (asked, their time, answered).

    The fastest reading is used, and half of its round trip is taken for each direction.
    """
    asked, theirs, answered = min(readings, key=lambda one: one[2] - one[0])
    return (asked + answered) / 2 - theirs, (answered - asked) / 2


def in_order(reports: Sequence[NodeReport], lead: int) -> list[NodeReport]:
    """The reports, with the offset corrected of every clock that contradicts the order of cause and effect.

    A clock that was set after the run has a different offset now than it had then. With today's offset, processes
    would have started before the lead's order, or pservers become ready after the lead was informed of it.
    """
    leading = next((report for report in reports if report.node == lead), None)
    if leading is None:
        return list(reports)
    return [_moved(report, leading) for report in reports]


def _moved(report: NodeReport, lead: NodeReport) -> NodeReport:
    if report.node == lead.node:
        return report
    least, most = float("-inf"), float("inf")
    for phase, name, role in AFTER:
        order, done = lead.first("phase", phase=phase), report.first(name, role=role)
        if order and done:
            least = max(least, lead.at(order["t"]) - done["t"])
    for phase, name, role in BEFORE:
        order, done = lead.first("phase", phase=phase), report.first(name, role=role)
        if order and done:
            most = min(most, lead.at(order["t"]) - done["t"])
    stop = lead.first("phase", phase="stopping")
    cause = (stop or {}).get("cause") or {}
    for event in report.find("exited", stopping=False):
        if stop and cause.get("node") == report.node and _is(event, cause):
            most = min(most, lead.at(stop["t"]) - event["t"])
    slack = report.margin_s + lead.margin_s + 0.05
    if report.offset_s < least - slack:
        return replace(report, offset_s=least)
    return replace(report, offset_s=most) if report.offset_s > most + slack else report


def _is(event: dict[str, Any], cause: dict[str, Any]) -> bool:
    return all(event.get(name) == cause.get(name) for name in ("role", "rank", "attempt"))


def wrong_clock(report: NodeReport, reports: Collection[NodeReport]) -> str | None:
    """Return the fact that a node's clock, or that of this machine, is wrong; None if it is not.

    The time of most of them counts as right.
    """
    votes = sorted((*(one.offset_s for one in reports), 0.0), key=abs)
    right = votes[(len(votes) - 1) // 2]
    behind = report.offset_s - right
    if abs(behind) > WRONG_S:
        return f"the clock of node{report.node} is {_span(behind)} {'behind' if behind > 0 else 'ahead'}"
    if abs(right) > WRONG_S:
        return f"the clock of this machine is {_span(right)} {'ahead' if right > 0 else 'behind'}"
    return None


def difference(one: NodeReport, other: NodeReport) -> str | None:
    """Return the time by which the clocks of two nodes differ; None if they agree."""
    apart = one.offset_s - other.offset_s
    return _span(apart) if abs(apart) > WRONG_S else None


def _span(seconds: float) -> str:
    """Format a time as `3.0 years` or `12 s`, in the largest unit of which there are two."""
    size, unit = next((one for one in UNITS if abs(seconds) >= 2 * one[0]), UNITS[-1])
    amount = abs(seconds) / size
    return f"{amount:,.0f} {unit}" if amount >= 10 or unit == "s" else f"{amount:,.1f} {unit}"
