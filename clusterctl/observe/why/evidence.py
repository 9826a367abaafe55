"""The evidence about a run from all its nodes, and the incidents found in it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterctl.observe.why.errno_and_signals import Diagnosis
from clusterctl.observe.why.node_report import NodeReport

PROCESS = re.compile(r"\b(pserver|trainer|scheduler) ?(\d+)\b")  # as programs name them
RANK = re.compile(r"\b(?:rank|peer)[ =#:\[]{1,2}(\d{1,6})\b", re.IGNORECASE)  # as libraries name trainers
Line = tuple[float, str]


@dataclass(frozen=True)
class Incident:
    """One thing that went wrong.

    `onset` is when it began, `t` when it was recorded, both by our clock; `until` is the latest time at which it may
    have begun, if `onset` is only the last sign of life. `peers` are the processes (`pserver1`) and nodes (`node2`)
    that it complains about. `forgiven`: the run survived it. `explained`: `message` already gives the reason.
    `awaited`: the run is waiting for a rejoin. `latent`: the process had failed, and was stopped before it had exited.
    `times` counts consecutive failures of the same kind, the first of them at `since`.
    """

    kind: str
    onset: float
    t: float
    node: int | None
    message: str
    diagnosis: Diagnosis
    role: str | None = None
    rank: int | None = None
    attempt: int = 1
    exit_code: int | None = None
    lines: tuple[Line, ...] = ()
    peers: frozenset[str] = frozenset()
    forgiven: bool = False
    explained: bool = False
    awaited: bool = False
    latent: bool = False
    until: float | None = field(default=None, compare=False)
    times: int = field(default=1, compare=False)
    since: float | None = field(default=None, compare=False)

    @property
    def process(self) -> str | None:
        return f"{self.role}{self.rank}" if self.role else None

    @property
    def signature(self) -> tuple[str, str, str]:
        """A value that is equal for failures of the same kind."""
        error = self.diagnosis.error
        return self.kind, self.diagnosis.kind, re.sub(r"\d+", "#", error) if error else f"exit code {self.exit_code}"


class Evidence:
    """All evidence about a run: `reports` on one clock, `lead` the id of the lead's node, and `silent` the nodes that
    do not answer now, with the reason.
    """

    def __init__(self, reports: Sequence[NodeReport], lead: int, silent: Mapping[int, str]) -> None:
        self.reports = {report.node: report for report in reports}
        self.lead_node = lead
        self.lead = self.reports.get(lead)
        self.silent = silent
        self.endpoints = {
            event["endpoint"]: f"{event['role']}{event['rank']}"
            for report in reports
            for event in report.find("ready")
            if event.get("endpoint")
        }
        self.node_of = {
            f"{event['role']}{event['rank']}": report.node for report in reports for event in report.find("spawned")
        }

    @property
    def stop(self) -> dict[str, Any] | None:
        """The lead's order to stop, with the cause as the lead saw it."""
        return self.lead.first("phase", phase="stopping") if self.lead else None

    @property
    def stop_t(self) -> float | None:
        return self.lead.at(self.stop["t"]) if self.lead and self.stop else None

    @property
    def cause(self) -> dict[str, Any]:
        """The cause as the lead saw it, from any node that has it; empty if no node does."""
        if self.stop:
            return dict(self.stop.get("cause") or {})
        ends = [event for report in self.reports.values() for event in report.find("ended")]
        return next((dict(event["cause"]) for event in ends if event.get("cause")), {})

    def peers_in(self, text: str) -> set[str]:
        """Return the processes that a program's output names."""
        named = {f"{role}{rank}" for role, rank in PROCESS.findall(text)}
        named |= {name for rank in RANK.findall(text) if (name := f"trainer{int(rank)}") in self.node_of}
        return named | {name for where, name in self.endpoints.items() if where in text}

    def with_nodes(self, named: Collection[str], own: str) -> frozenset[str]:
        """Return these processes without `own`, and the nodes they are on."""
        named = {*named} - {own}
        return frozenset(named | {f"node{self.node_of[name]}" for name in named if name in self.node_of})

    @property
    def ended_t(self) -> float:
        """The time of the lead's order to stop, or else of the first node's end; 0 while the run continues."""
        if self.stop_t is not None:
            return self.stop_t
        ends = [report.at(event["t"]) for report in self.reports.values() for event in report.find("ended")]
        return min(ends, default=0.0)
