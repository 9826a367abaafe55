"""`clusterctl prune`."""

from __future__ import annotations

import sys
from collections import Counter

from clusterctl.api.logs import AGO, UNITS_S
from clusterctl.api.nodes import prune as prune_nodes
from clusterctl.cli.console import human_bytes, plural
from clusterctl.cli.invocation import Invocation
from clusterctl.errors import UsageError
from clusterctl.inventory import fold
from clusterctl.prune import OldJob, PrunePlan

HEADINGS = ("job", "state", "runs", "size", "output", "last used", "nodes")
WHY = {"runs": "running", "newest": "among the newest", "young": "recently used"}


def prune(invocation: Invocation, *, keep: int, older_than: str, yes: bool, plan: bool) -> None:
    older_than_s = parse_age(older_than)

    def confirm(found: PrunePlan) -> bool:
        _show(invocation, found)
        return not found.is_empty and not plan and (yes or _ask(invocation, found))

    with invocation.cluster() as cluster:
        pruned = prune_nodes(cluster, confirm, keep=keep, older_than_s=older_than_s)
        invocation.console.finish(pruned.document, pruned.problem)
        if pruned.removed:
            invocation.console.say(f"removed {_summary(pruned.plan)}")


def parse_age(text: str) -> float:
    """Parse `90s`, `5m`, `2h` or `7d` into seconds."""
    age = AGO.fullmatch(text)
    if not age:
        raise UsageError(f"--older-than {text!r} is not an age", hint="write 12h or 7d")
    return float(age[1]) * UNITS_S[age[2]]


def human_age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit} ago"
    return "now"


def _show(invocation: Invocation, plan: PrunePlan) -> None:
    if invocation.console.json:
        return
    if plan.going:
        invocation.console.table(HEADINGS, [_cells(job) for job in plan.going], ("runs",))
    if plan.content:
        invocation.console.say(_content_line(plan))
    reasons = Counter(WHY[job.keep] for job in plan.jobs if job.keep)
    kept = ", ".join(f"{count} {why}" for why, count in reasons.items())
    if not plan.going and not plan.content:
        invocation.console.say("nothing to remove" + (f"; jobs kept: {kept}" if kept else ""))
    elif kept:
        invocation.console.say(f"jobs kept: {kept}")


def _cells(job: OldJob) -> list[str]:
    output = human_bytes(job.output_bytes) if job.output_bytes else ""
    return [job.job, job.state, str(job.runs), human_bytes(job.bytes), output, human_age(job.age_s), fold(job.nodes)]


def _content_line(plan: PrunePlan) -> str:
    counts = Counter(item.kind for item in plan.content)
    kinds = ", ".join(plural(count, kind) for kind, count in counts.items())
    size = human_bytes(sum(item.bytes for item in plan.content))
    return f"unused: {kinds}, {size} on nodes {fold(node for item in plan.content for node in item.nodes)}"


def _summary(plan: PrunePlan) -> str:
    parts = [plural(len(plan.going), "job")] if plan.going else []
    parts += [plural(len(plan.content), "unused item")] if plan.content else []
    return f"{' and '.join(parts)}: {human_bytes(plan.bytes)}"


def _ask(invocation: Invocation, plan: PrunePlan) -> bool:
    if invocation.console.json or not sys.stdin.isatty():
        hint = "prune --yes removes without asking; prune --plan only shows the list"
        message = f"would remove {_summary(plan)}; cannot ask for confirmation (no terminal, or --json)"
        raise UsageError(message, hint=hint)
    if any(job.output_bytes for job in plan.going):
        invocation.console.say("this deletes outputs too; to save them first: clusterctl collect JOB")
    answer = input(f"Remove {_summary(plan)}? [y/N] ")
    agreed = answer.strip().lower() in ("y", "yes")
    if not agreed:
        invocation.console.say("nothing was removed")
    return agreed
