"""The selection of log lines, checked before the nodes are asked for them."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clusterctl.api.operations.references import run_title

if TYPE_CHECKING:
    from clusterctl.inventory import Node
    from clusterctl.observe.record.members import Members
    from clusterctl.observe.record.status import JobStatus

AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def check(wanted: Mapping[str, Any]) -> None:
    from clusterctl.errors import UsageError

    if wanted["role"] not in (None, "pserver", "trainer", "scheduler"):
        raise UsageError(f"unknown --role {wanted['role']}", hint="choose one of pserver, trainer, scheduler")
    try:
        re.compile(wanted["grep"] or "")
    except re.error as exc:
        raise UsageError(f"--grep {wanted['grep']!r} is not a regular expression: {exc}") from exc


def check_process(known: JobStatus, role: str | None, rank: int | None) -> None:
    """Raise UsageError if the selected nodes have processes, but none of this role and rank."""
    from clusterctl.errors import UsageError
    from clusterctl.inventory import fold

    rows = [(process.role, process.rank) for process in known.processes]
    if not rows or any(role in (None, one[0]) and rank in (None, one[1]) for one in rows):
        return
    roles = sorted({one[0] for one in rows if role in (None, one[0])}) or sorted({one[0] for one in rows})
    there = ", ".join(f"{name} {fold(sorted({r for n, r in rows if n == name}))}" for name in roles)
    wanted = f"{role or 'process'}{'' if rank is None else f' {rank}'}"
    raise UsageError(f"there is no {wanted} in {run_title(known.job, known.members)}", hint=f"there: {there}")


def taking_part(job: str, members: Members, selected: Sequence[Node]) -> list[Node]:
    """Return the selected nodes that are in the run."""
    from clusterctl.errors import UsageError
    from clusterctl.inventory import nodeset

    nodes = [node for node in selected if node in members]
    if not nodes:
        absent = nodeset(node.id for node in selected)
        raise UsageError(f"{absent} not in {run_title(job, members)}", hint=f"its nodes: {nodeset(members.by_id)}")
    return nodes


def parse_since(text: str | None) -> float | None:
    """Parse `90s`, `5m`, `2h`, `1d` (ago) or an ISO date and time into seconds since the epoch."""
    from clusterctl.errors import UsageError

    if text is None:
        return None
    ago = AGO.fullmatch(text)
    if ago:
        return time.time() - float(ago[1]) * UNITS_S[ago[2]]
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise UsageError(f"--since {text!r} is not a time; write 90s, 5m, 2h, 1d or 2026-11-21T08:15") from None
