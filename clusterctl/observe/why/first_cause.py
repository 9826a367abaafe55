"""The first cause among all that went wrong: pure reasoning over incidents.

What the run survived is none. What only follows from another (it complains of a process that had failed, its node was
lost) is none. Of the others the one that began first is it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from clusterctl.observe.why.evidence import Evidence, Incident
from clusterctl.observe.why.incidents import incidents
from clusterctl.observe.why.node_report import Message, Story, in_order

STOPS_WITHIN_S = 3.0  # a lead that went on for longer after something bore it
CLEARLY_S = 1.0  # who was stopped as late as that had been there
LATE_S = 5.0  # a process may notice a dead peer before the peer's supervisor notes it: a core is written first
NAMED_LATE_S = 60.0  # a peer that is named is to blame even if it was given up only later
CONTRIBUTE = ("stalled", "nan", "left")  # no failures by themselves
NODES = ("node_lost",)
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
    """`cause` is None when nothing failed. `then` followed from it or came after it, `before` was survived, `alike` are
    the others that failed in the same way, `open` is what goes on now (a stall, a silent node).
    """

    cause: Incident | None
    then: tuple[Incident, ...] = ()
    before: tuple[Incident, ...] = ()
    alike: tuple[Incident, ...] = ()
    open: tuple[Incident, ...] = ()
    notes: tuple[str, ...] = ()
    stopped: int = 0
    not_heard_of: tuple[int, ...] | None = None
    checkpoint: Message | None = None
    pass_: int | None = None
    step: int | None = None
    ended_t: float | None = None


def explain(stories: Sequence[Story], lead: int, silent: Mapping[int, str], state: str) -> Explanation:
    """What led to `state`, by what the nodes tell; `silent` are those that tell nothing, with the reason."""
    evidence = Evidence(in_order(stories, lead), lead, silent)
    found = [replace(one, forgiven=one.forgiven or _borne(evidence, one)) for one in incidents(evidence)]
    over = state not in ("starting", "running", "succeeded") or evidence.stop is not None
    fatal = [one for one in found if not one.forgiven and one.kind not in CONTRIBUTE] if over else []
    signs = [one for one in found if not one.forgiven and one.kind in CONTRIBUTE]
    blamed = [sign for sign in signs if any(_leads_to(sign, one) for one in fatal)]
    first = _first(evidence, [*fatal, *blamed])
    known = _what_is_known(evidence)
    borne = [one for one in found if one.forgiven]
    if first is None:
        bad = [one for one in (borne if over else found) if one not in signs and not one.awaited]
        return replace(known, before=tuple(bad), open=(*[one for one in found if one.awaited], *signs))
    series = [one for one in borne if one.onset < first.onset and one.process == first.process]
    series = [one for one in series if _is_alike(one, first)]
    idle = [one for one in signs if one not in blamed]
    left = idle if first.kind == "stopped" else []
    rest = [one for one in fatal if one is not first and not any(_is_its_end(stall, one) for stall in (first, *blamed))]
    alike = tuple(one for one in rest if _is_alike(one, first))
    return replace(
        known,
        cause=_in_full(first, series, rest),
        then=tuple(one for one in [*rest, *blamed] if one not in alike and one is not first),
        before=tuple(one for one in [*borne, *idle] if one not in [*series, *left] and one.onset <= first.t),
        open=tuple(left),
        alike=alike,
        notes=tuple(_notes(evidence, first, alike)),
    )


def _is_its_end(stall: Incident, other: Incident) -> bool:
    """Whether `other` is the kill of a process for having stood still."""
    same = other.process == stall.process and other.diagnosis.kind == "stalled"
    return stall.kind == "stalled" and other.kind not in CONTRIBUTE and same


def _is_alike(one: Incident, other: Incident) -> bool:
    return one.process is not None and one.signature == other.signature


def _in_full(first: Incident, series: Sequence[Incident], rest: Sequence[Incident]) -> Incident:
    """With how often it had come before, and what it led its process to say."""
    lines = first.lines or next((one.lines for one in rest if first.process and one.process == first.process), ())
    since = series[0].onset if series else None
    return replace(first, lines=lines, times=1 + len(series), since=since)


def _borne(evidence: Evidence, one: Incident) -> bool:
    """Whether the lead, which hears of every failure at once, went on all the same."""
    if one.kind in (*CONTRIBUTE, "time_limit", "stopped") or evidence.stop_t is None:
        return False
    if one.node == evidence.cause.get("node") and one.process in (None, _process(evidence.cause)):
        return False
    if one.kind in NODES and one.node == evidence.lead_node:  # it cannot have heard of that
        return False
    return evidence.stop_t - one.t > STOPS_WITHIN_S


def _process(cause: Message) -> str | None:
    return f"{cause['role']}{cause['rank']}" if cause.get("role") else None


def _first(evidence: Evidence, candidates: Sequence[Incident]) -> Incident | None:
    """The earliest that no other one explains; where the clocks cannot tell, the one that the lead heard first."""
    roots = [one for one in candidates if not any(_leads_to(other, one) for other in candidates)]
    roots = sorted(roots or candidates, key=lambda one: one.onset)
    if not roots:
        return None
    near = [one for one in roots if one.onset - roots[0].onset <= _doubt_s(evidence, roots[0], one)]
    told = _process(evidence.cause)
    return next((one for one in near if told and one.process == told), roots[0])


def _doubt_s(evidence: Evidence, one: Incident, other: Incident) -> float:
    """How far the clocks of two nodes may be from what we take them for."""
    if one.node == other.node:
        return 0.0
    margins = [evidence.stories[i.node].margin_s for i in (one, other) if i.node in evidence.stories]
    return sum(margins) + 0.002


def _leads_to(one: Incident, other: Incident) -> bool:
    """Whether `other` is nothing but a consequence of `one`."""
    if one.kind == "left":
        stands = other.kind == "time_limit" or other.diagnosis.kind == "stalled"
        return stands and one.onset <= other.t
    if other.kind == "time_limit":
        return one.kind == "stalled"
    if one is other or other.kind in (*NODES, *CONTRIBUTE, "stopped"):
        return False
    if one.kind in CONTRIBUTE and one.process == other.process:
        return one.onset <= other.t and (one.kind == "stalled" or _is_of_numbers(one, other))
    if one.kind in NODES and other.node == one.node:
        return one.onset <= other.t
    return one.kind != "nan" and other.diagnosis.about_peer and _is_blamed(one, other)


def _is_of_numbers(one: Incident, other: Incident) -> bool:
    """Whether a process ended because of numbers that were not finite: it says so, or ended right after them."""
    soon = other.t - one.onset < LATE_S and not other.diagnosis.signal
    return other.kind == "exit" and (other.diagnosis.kind == "not_finite" or soon)


def _is_blamed(one: Incident, other: Incident) -> bool:
    """Whether a process that complains of peers means `one`."""
    if one.process == other.process and one.node == other.node:
        return False
    if one.diagnosis.about_peer and (one.onset, one.process or "") >= (other.onset, other.process or ""):
        return False
    if not other.peers:
        return one.onset <= other.t + LATE_S
    named = one.process in other.peers or (one.kind in NODES and f"node{one.node}" in other.peers)
    chain = one.diagnosis.about_peer and one.onset <= other.t
    return (named and one.onset <= other.t + NAMED_LATE_S) or chain


def _notes(evidence: Evidence, cause: Incident, alike: Sequence[Incident]) -> list[str]:
    """What sets the node of the cause apart from the others."""
    story = evidence.stories.get(cause.node) if cause.node is not None else None
    if story is None:
        return []
    notes = []
    if evidence.cause.get("failures") and cause.process == _process(evidence.cause):
        notes.append("as often as RESTARTS allows, it was started again")
    pythons = {node: one.answer.get("python") for node, one in evidence.stories.items()}
    mine = pythons.get(story.node)
    others = {python for node, python in pythons.items() if node != story.node and python}
    if mine and others and mine not in others and cause.diagnosis.kind in ("import_error", "syntax_error", "exception"):
        notes.append(f"the Python of node{story.node} is {mine}, that of the others {', '.join(sorted(others))}")
    if cause.diagnosis.kind in ENVIRONMENT and cause.role and not alike:
        well = _did_well(evidence, cause)
        if well:
            notes.append(f"only there: {well} other {cause.role}{'s' * (well > 1)} did not fail in this way")
    elif alike and cause.diagnosis.kind in ENVIRONMENT:
        notes.append("it is not about one node")
    free = story.answer.get("free_bytes")
    if cause.diagnosis.kind == "no_space" and free is not None:
        notes.append(f"where ROOT_DIR is, node{story.node} has {free / 1e9:.1f} GB free now")
    skew = abs(story.offset_s)
    if skew > 2.0:
        notes.append(f"the clock of node{story.node} is {skew:,.0f} s {'behind' if story.offset_s > 0 else 'ahead'}")
    return notes


def _did_well(evidence: Evidence, cause: Incident) -> int:
    """How many other processes of its role got past where it failed: they got on, or lived clearly longer."""
    lives = [life for story in evidence.stories.values() for life in _lives(story) if life.role == cause.role]
    its = [life.seconds for life in lives if (life.rank, life.attempt) == (cause.rank, cause.attempt)]
    well = {life.rank for life in lives if life.worked or (its and life.seconds > max(its) + CLEARLY_S)}
    return len(well - {cause.rank})


class Life(NamedTuple):
    """One attempt of a process, from its start to its end; `worked`: it made steps, or its supervisor says so."""

    role: str
    rank: int
    attempt: int
    seconds: float
    worked: bool


def _lives(story: Story) -> Iterator[Life]:
    for event in story.find("exited"):
        about = {name: event.get(name) for name in ("role", "rank", "attempt")}
        began = story.first("spawned", **about)
        if began is not None:
            worked = bool(event.get("worked")) or story.first("step", **about) is not None
            yield Life(event["role"], event["rank"], event.get("attempt") or 1, event["t"] - began["t"], worked)


def _what_is_known(evidence: Evidence) -> Explanation:
    """How far the run was, what was stopped, where it can go on."""
    events = [event for story in evidence.stories.values() for event in story.events]
    steps = [event for event in events if event["event"] == "step" and event.get("step") is not None]
    saved = [e for e in events if e["event"] == "saved" and e.get("complete") and e.get("checkpoint")]
    ends = [story.at(e["t"]) for story in evidence.stories.values() for e in story.find("ended")]
    told = [e["not_heard_of"] for e in events if e["event"] == "ended" and "not_heard_of" in e]
    last_attempts = [e for e in events if e["event"] == "exited" and e.get("stopping")]
    return Explanation(
        None,
        stopped=len({(e["role"], e["rank"]) for e in last_attempts}),
        not_heard_of=tuple(told[-1]) if told else None,
        checkpoint=max(saved, key=lambda e: e.get("step") or 0, default=None),
        pass_=max((e["pass"] for e in steps if e.get("pass") is not None), default=None),
        step=max((e["step"] for e in steps), default=None),
        ended_t=min(ends, default=None),
    )
