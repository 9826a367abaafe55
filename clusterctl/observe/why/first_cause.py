"""The first cause among all that went wrong: pure reasoning over incidents.

Incidents that the run survived are never the cause. Nor are those that only follow from another one: a process that
complains about a failed peer, or whose node was lost. Of the rest, the earliest is the cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from clusterctl.observe.why import errno_and_signals as missing_modules
from clusterctl.observe.why.clocks import in_order, wrong_clock
from clusterctl.observe.why.evidence import Evidence, Incident
from clusterctl.observe.why.incidents import incidents
from clusterctl.observe.why.node_report import NodeReport

STOPS_WITHIN_S = 3.0  # if the lead continued for longer after an incident, the run survived it
CLEARLY_S = 1.0  # a process that lived longer by this got past the point of failure
LATE_S = 5.0  # a peer may notice a dead process before its supervisor does: the core is written first
NAMED_LATE_S = 60.0  # a peer that is named is to blame even if its failure was recorded later
CONTRIBUTE = ("stalled", "nan", "left")  # not failures in themselves
NODES = ("node_lost",)
NOT_OF_NUMBERS = ("KeyError", "AttributeError", "NameError", "TypeError")  # exceptions that no value of a number causes
ENVIRONMENT = (
    "import_error",
    "missing_library",
    "wrong_library",
    "missing_file",
    "missing_program",
    "permission",
    "no_space",
    "syntax_error",
    "illegal_instruction",
    "exception",
)


@dataclass(frozen=True)
class Explanation:
    """The conclusion about a run. `cause` is None when nothing failed.

    `then` are incidents that followed from the cause or came after it, `before` those that the run survived, `alike`
    processes that failed the same way, and `open` conditions that persist: a stall, a silent node.
    """

    cause: Incident | None
    then: tuple[Incident, ...] = ()
    before: tuple[Incident, ...] = ()
    alike: tuple[Incident, ...] = ()
    open: tuple[Incident, ...] = ()
    notes: tuple[str, ...] = ()
    stopped: int = 0
    not_heard_of: tuple[int, ...] | None = None
    checkpoint: dict[str, Any] | None = None
    pass_: int | None = None
    step: int | None = None
    ended_t: float | None = None


def explain(reports: Sequence[NodeReport], lead: int, silent: Mapping[int, str], state: str) -> Explanation:
    """Explain how the run came to `state`. `silent` are the nodes that did not answer, with the reason."""
    evidence = Evidence(in_order(reports, lead), lead, silent)
    known = [replace(one, forgiven=one.forgiven or _survived(evidence, one)) for one in incidents(evidence)]
    over = state not in ("starting", "running", "succeeded") or evidence.stop is not None
    ended = [one for one in known if not one.latent]
    fatal = [one for one in ended if not one.forgiven and one.kind not in CONTRIBUTE] if over else []
    signs = [one for one in known if not one.forgiven and one.kind in CONTRIBUTE]
    blamed = [sign for sign in signs if any(_leads_to(sign, one) for one in fatal)]
    first = _first(evidence, [*fatal, *blamed])
    latent = [one for one in known if one.latent and not one.forgiven and first is not None and _leads_to(one, first)]
    if latent:
        fatal = [*fatal, *latent]
        first = _first(evidence, [*fatal, *blamed])
    progress = _progress(evidence)
    survived = [one for one in ended if one.forgiven]
    ends = [one for one in survived if any(_is_its_end(stall, one) for stall in survived)]
    survived = [one for one in survived if one not in ends]
    if first is None:
        bad = [one for one in (survived if over else ended) if one not in [*signs, *ends] and not one.awaited]
        return replace(progress, before=tuple(bad), open=(*[one for one in known if one.awaited], *signs))
    series = [one for one in survived if one.onset < first.onset and one.process == first.process]
    series = [one for one in series if _is_identical(one, first)]
    idle = [one for one in signs if one not in blamed]
    left = idle if first.kind == "stopped" else []
    rest = [one for one in fatal if one is not first and not any(_is_its_end(stall, one) for stall in (first, *blamed))]
    alike = tuple(one for one in rest if _is_identical(one, first))
    return replace(
        progress,
        cause=_with_advice(evidence, _in_full(first, series, rest)),
        then=tuple(one for one in [*rest, *blamed] if one not in alike and one is not first),
        before=tuple(one for one in [*survived, *idle] if one not in [*series, *left] and one.onset <= first.t),
        open=tuple(left),
        alike=alike,
        notes=tuple(_notes(evidence, first, alike)),
    )


def _is_its_end(stall: Incident, other: Incident) -> bool:
    """Return True if `other` is the end of a process that was killed because of this stall."""
    same = other.process == stall.process and other.diagnosis.kind == "stalled"
    return stall.kind == "stalled" and other.kind not in CONTRIBUTE and same and other.attempt == stall.attempt


def _is_identical(one: Incident, other: Incident) -> bool:
    return one.process is not None and one.signature == other.signature


def _in_full(first: Incident, series: Sequence[Incident], rest: Sequence[Incident]) -> Incident:
    """The cause with the count of its earlier occurrences, and with its process's output."""
    lines = first.lines or next((one.lines for one in rest if first.process and one.process == first.process), ())
    since = series[0].onset if series else None
    return replace(first, lines=lines, times=1 + len(series), since=since)


def _with_advice(evidence: Evidence, cause: Incident) -> Incident:
    """The cause with better advice, if the requirements of the job explain why a module was missing."""
    found = _missing_module(evidence, cause)
    return replace(cause, diagnosis=replace(cause.diagnosis, advice=found.advice)) if found else cause


def _missing_module(evidence: Evidence, cause: Incident) -> missing_modules.ModuleAdvice | None:
    report = evidence.reports.get(cause.node) if cause.node is not None else None
    return missing_modules.find(cause.diagnosis, report.answer) if report else None


def _survived(evidence: Evidence, one: Incident) -> bool:
    """Return True if the lead, which is informed of every failure at once, let the run continue."""
    if one.kind in (*CONTRIBUTE, "time_limit", "stopped") or evidence.stop_t is None:
        return False
    if one.node == evidence.cause.get("node") and one.process in (None, _process(evidence.cause)):
        return False
    if one.kind in NODES and one.node == evidence.lead_node:  # the lead cannot have been informed
        return False
    return evidence.stop_t - one.t > STOPS_WITHIN_S


def _process(cause: dict[str, Any]) -> str | None:
    return f"{cause['role']}{cause['rank']}" if cause.get("role") else None


def _first(evidence: Evidence, candidates: Sequence[Incident]) -> Incident | None:
    """The earliest incident not explained by another; the lead's choice if the clocks are not precise enough."""
    roots = [one for one in candidates if not any(_leads_to(other, one) for other in candidates)]
    roots = sorted(roots or candidates, key=lambda one: one.onset)
    if not roots:
        return None
    near = [one for one in roots if one.onset - roots[0].onset <= _doubt_s(evidence, roots[0], one)]
    chosen = _process(evidence.cause)  # by the lead
    return next((one for one in near if chosen and one.process == chosen), roots[0])


def _doubt_s(evidence: Evidence, one: Incident, other: Incident) -> float:
    """The error of the difference between the clocks of two incidents' nodes, in seconds."""
    if one.node == other.node:
        return 0.0
    unseen_s = max(0.0, (one.until or one.onset) - one.onset)  # between its last sign of life and its end
    margins = [evidence.reports[i.node].margin_s for i in (one, other) if i.node in evidence.reports]
    return sum(margins) + unseen_s + 0.002


def _leads_to(one: Incident, other: Incident) -> bool:
    """Return True if `other` is only a consequence of `one`."""
    if one.kind == "left":
        stalled = other.kind == "time_limit" or other.diagnosis.kind == "stalled"
        return stalled and one.onset <= other.t
    if other.kind == "time_limit":
        return one.kind == "stalled"
    if one is other or other.kind in (*NODES, *CONTRIBUTE, "stopped"):
        return False
    if one.kind in CONTRIBUTE and one.process == other.process:
        return one.onset <= other.t and (_is_of_stall(other) if one.kind == "stalled" else _is_of_numbers(one, other))
    if one.kind in NODES and other.node == one.node:
        return one.onset <= other.t
    return one.kind != "nan" and other.diagnosis.about_peer and _is_blamed(one, other)


def _is_of_stall(other: Incident) -> bool:
    """Return True if a stalled process was killed, by anyone: one that exits by itself had gone on."""
    return other.kind != "exit" or other.diagnosis.kind == "stalled" or other.exit_code is None or other.exit_code < 0


def _is_of_numbers(one: Incident, other: Incident) -> bool:
    """Return True if a process ended because of numbers that are not finite: it reports them, or ended right after.

    An exception that has another reason of its own, such as a missing file, is not blamed on them.
    """
    known, error = other.diagnosis, (other.diagnosis.error or "").partition(":")[0]
    soon = other.t - one.onset < LATE_S and not known.signal
    unclear = not known.error or (known.kind == "exception" and error not in NOT_OF_NUMBERS)
    return other.kind == "exit" and (known.kind == "not_finite" or (soon and unclear))


def _is_blamed(one: Incident, other: Incident) -> bool:
    """Return True if a process that complains about peers means `one`."""
    if one.process == other.process and one.node == other.node:
        return False
    if one.diagnosis.about_peer and (one.onset, one.process or "") >= (other.onset, other.process or ""):
        return False
    if not other.peers:
        return one.onset <= other.t + (0.0 if one.until is not None else LATE_S)
    named = one.process in other.peers or (one.kind in NODES and f"node{one.node}" in other.peers)
    chain = one.diagnosis.about_peer and one.onset <= other.t
    return (named and one.onset <= other.t + NAMED_LATE_S) or chain


def _notes(evidence: Evidence, cause: Incident, alike: Sequence[Incident]) -> list[str]:
    """Facts that set the node of the cause apart from the others."""
    report = evidence.reports.get(cause.node) if cause.node is not None else None
    if report is None:
        return []
    notes = []
    failures = evidence.cause.get("failures")
    if failures and cause.process == _process(evidence.cause):
        notes.append(f"restarted {_times(failures - 1)}, the RESTARTS limit")
    missing = _missing_module(evidence, cause)
    if missing:
        notes.append(missing.note)
    pythons = {node: one.answer.get("python") for node, one in evidence.reports.items()}
    mine = pythons.get(report.node)
    others = {python for node, python in pythons.items() if node != report.node and python}
    if mine and others and mine not in others and cause.diagnosis.kind in ("import_error", "syntax_error", "exception"):
        notes.append(f"Python is {mine} on node{report.node}, but {', '.join(sorted(others))} on the others")
    if cause.diagnosis.kind in ENVIRONMENT and cause.role and not alike:
        well = _did_well(evidence, cause)
        if well:
            notes.append(f"only here: {well} other {cause.role}{'s' * (well > 1)} did not fail this way")
    elif alike and cause.diagnosis.kind in ENVIRONMENT:
        notes.append("not specific to one node")
    free = report.answer.get("free_bytes")
    if cause.diagnosis.kind == "no_space" and report.answer.get("free_inodes") == 0:
        notes.append(f"node{report.node} has no inodes left on the disk of ROOT_DIR: there are too many files on it")
    elif cause.diagnosis.kind == "no_space" and free is not None:
        notes.append(f"node{report.node} has {free / 1e9:.1f} GB free now on the disk of ROOT_DIR")
    wrong = wrong_clock(report, evidence.reports.values())
    return [*notes, wrong] if wrong else notes


def _did_well(evidence: Evidence, cause: Incident) -> int:
    """Count the other processes of its role that got past the point of failure: they made steps or lived longer."""
    attempts = [one for report in evidence.reports.values() for one in _attempts(report) if one.role == cause.role]
    its = [one.seconds for one in attempts if (one.rank, one.attempt) == (cause.rank, cause.attempt)]
    well = {one.rank for one in attempts if one.worked or (its and one.seconds > max(its) + CLEARLY_S)}
    return len(well - {cause.rank})


class EndedAttempt(NamedTuple):
    """One attempt of a process, from start to end. `worked`: it made steps, or its supervisor reports so."""

    role: str
    rank: int
    attempt: int
    seconds: float
    worked: bool


def _attempts(report: NodeReport) -> Iterator[EndedAttempt]:
    for event in report.find("exited"):
        about = {name: event.get(name) for name in ("role", "rank", "attempt")}
        began = report.first("spawned", **about)
        if began is not None:
            worked = bool(event.get("worked")) or report.first("step", **about) is not None
            seconds = event["t"] - began["t"]
            yield EndedAttempt(event["role"], event["rank"], event.get("attempt") or 1, seconds, worked)


def _times(count: int) -> str:
    return f"{count} time{'s' * (count != 1)}"


def _progress(evidence: Evidence) -> Explanation:
    """An explanation without a cause: the run's progress, the processes stopped, and the checkpoint to resume from."""
    events = [event for report in evidence.reports.values() for event in report.events]
    steps = [event for event in events if event["event"] == "step" and event.get("step") is not None]
    saved = [e for e in events if e["event"] == "saved" and e.get("complete") and e.get("checkpoint")]
    ends = [report.at(e["t"]) for report in evidence.reports.values() for e in report.find("ended")]
    missing = [e["not_heard_of"] for e in events if e["event"] == "ended" and "not_heard_of" in e]
    last_attempts = [e for e in events if e["event"] == "exited" and e.get("stopping")]
    return Explanation(
        None,
        stopped=len({(e["role"], e["rank"]) for e in last_attempts}),
        not_heard_of=tuple(missing[-1]) if missing else None,
        checkpoint=max(saved, key=lambda e: e.get("step") or 0, default=None),
        pass_=max((e["pass"] for e in steps if e.get("pass") is not None), default=None),
        step=max((e["step"] for e in steps), default=None),
        ended_t=min(ends, default=None),
    )
