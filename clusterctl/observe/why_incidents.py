"""What went wrong in a run, as the events of its nodes tell: one incident for each thing, on one clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from clusterctl.observe.why_evidence import Evidence, Incident
from clusterctl.observe.why_nodes import lost_nodes
from clusterctl.observe.why_story import Message, Story
from clusterctl.observe.why_words import NUMBERS, WAIT_FOR_EACH_OTHER, Diagnosis, diagnose

SHOWN_LINES = 20


def incidents(evidence: Evidence) -> list[Incident]:
    """Everything that went wrong, in the order in which it began."""
    found = [one for story in evidence.stories.values() for one in _of_node(evidence, story)]
    found += lost_nodes(evidence)
    found += _of_lead(evidence, found)
    return sorted(found, key=lambda one: (one.onset, one.t))


def _of_node(evidence: Evidence, story: Story) -> Iterator[Incident]:
    for event in story.events:
        name = event.get("event")
        if name == "exited" and _went_wrong(evidence, event):
            yield of_exit(evidence, story, event)
        elif name == "stalled" and not event.get("over"):
            yield _of_stall(story, event)
        elif name == "standstill" and not event.get("over"):
            yield _of_standstill(story, event)
        elif name == "nan":
            yield _of_nan(story, event)


def _went_wrong(evidence: Evidence, event: Message) -> bool:
    if event.get("stopping"):
        return False
    if event["exit_code"]:
        return True
    serves = event.get("role") != "trainer"
    return (serves and _granted(evidence, event)) or _names(evidence.cause, event)


def _names(cause: Message, event: Message) -> bool:
    keys = ("role", "rank", "attempt")
    return cause.get("kind") == "exit" and all(cause.get(key) == event.get(key) for key in keys)


def _granted(evidence: Evidence, event: Message) -> bool:
    """Whether it was, or was to be, started again, or the others went on without it."""
    key = {"role": event.get("role"), "rank": event.get("rank")}
    attempt = int(event.get("attempt") or 1)
    told = [*evidence.lead.find("restarting", **key), *evidence.lead.find("lost", **key)] if evidence.lead else []
    if any(int(one.get("attempt") or attempt + 1) > attempt for one in told):
        return True
    return any(
        int(one.get("attempt") or 1) > attempt for s in evidence.stories.values() for one in s.find("spawned", **key)
    )


def of_exit(evidence: Evidence, story: Story | None, event: Message, t: float | None = None) -> Incident:
    """A process that ended; without a `story` of its node, as the lead tells it."""
    role, rank, attempt = event["role"], event["rank"], int(event.get("attempt") or 1)
    t = story.at(event["t"]) if story and t is None else t or 0.0
    lines = story.output(role, rank, attempt) if story else []
    lines = lines or [(t, line) for line in event.get("tail") or ()]
    texts = [text for _, text in lines]
    oom, stalled = bool(event.get("oom")), bool(event.get("stalled"))
    said = diagnose(event.get("exit_code"), texts, oom=oom, stalled=stalled)
    told = " ".join([said.error or "", *(texts[-3:] if said.about_peer else ())])
    return Incident(
        "exit",
        t,
        t,
        event.get("node", story.node if story else None),
        str(event.get("message", "")),
        said,
        role,
        rank,
        attempt,
        event.get("exit_code"),
        tuple(lines[-SHOWN_LINES:]),
        evidence.peers_in(told, f"{role}{rank}") if said.about_peer else frozenset(),
        _granted(evidence, event),
    )


def _of_stall(story: Story, event: Message) -> Incident:
    key = {"role": event["role"], "rank": event["rank"]}
    over = any(one["t"] > event["t"] and one.get("over") for one in story.find("stalled", **key))
    t = story.at(event["t"])
    advice = "the stacks of its threads are in its log: they show where it stands; ON_STALL says what is done"
    output = story.output(event["role"], event["rank"], int(event.get("attempt") or 1))
    return Incident(
        "stalled",
        t - float(event.get("stalled_s") or 0),
        t,
        story.node,
        str(event.get("message") or "stands still"),
        Diagnosis("stalled", "", advice),
        attempt=int(event.get("attempt") or 1),
        lines=tuple(output[-SHOWN_LINES:]),
        forgiven=over,
        **key,
    )


def _of_standstill(story: Story, event: Message) -> Incident:
    over = any(one["t"] > event["t"] and one.get("over") for one in story.find("standstill"))
    t = story.at(event["t"])
    onset = t - float(event.get("stalled_s") or 0)
    said = Diagnosis("stalled", "", WAIT_FOR_EACH_OTHER)
    return Incident("stalled", onset, t, None, str(event.get("message") or "the run stands still"), said, forgiven=over)


def _of_nan(story: Story, event: Message) -> Incident:
    t = story.at(event["t"])
    what = event.get("message") or f"{event.get('what', 'a number')} is not finite"
    at = f" (pass {event['pass']}, step {event['step']:,})" if event.get("step") is not None else ""
    return Incident(
        "nan",
        t,
        t,
        story.node,
        f"{what}{'' if 'step' in str(what) else at}",
        Diagnosis("not_finite", "", NUMBERS),
        event.get("role"),
        event.get("rank"),
        int(event.get("attempt") or 1),
        forgiven=event.get("action") == "skipped",
    )


def _of_lead(evidence: Evidence, found: Sequence[Incident]) -> Iterator[Incident]:
    """Causes that no node's own events tell."""
    cause, t = evidence.cause, evidence.ended_t
    kind = cause.get("kind")
    if kind == "exit" and not any(_names(cause, _key(one)) for one in found if one.kind == "exit"):
        yield of_exit(evidence, evidence.stories.get(cause.get("node", -1)), cause, t)
    elif kind == "node":
        yield _of_failure(evidence, cause, t)
    elif kind in ("time_limit", "stopped"):
        advice = "TIME_LIMIT_S is how long a run may take" if kind == "time_limit" else ""
        yield Incident(kind, t, t, None, str(cause.get("message")), Diagnosis(kind, "", advice))
    elif kind == "stalled":
        yield Incident("failure", t, t, None, str(cause.get("message")), Diagnosis(kind, "", WAIT_FOR_EACH_OTHER))


def _key(one: Incident) -> Message:
    return {"role": one.role, "rank": one.rank, "attempt": one.attempt}


def _of_failure(evidence: Evidence, cause: Message, t: float) -> Incident:
    """Something that a supervisor could not do."""
    message = str(cause.get("message"))
    story = evidence.stories.get(cause.get("node", -1))
    noted = next((e for e in story.find("log", level="error") if e.get("message") == message), None) if story else None
    t = story.at(noted["t"]) if story and noted else t
    tail: list[Any] = cause.get("tail") or []
    said = diagnose(None, [message])
    if said.kind == "exit":
        said = diagnose(None, tail) if tail else Diagnosis("node")
    return Incident(
        "failure",
        t,
        t,
        cause.get("node"),
        message,
        said,
        cause.get("role"),
        cause.get("rank"),
        int(cause.get("attempt") or 1),
        lines=tuple((t, line) for line in tail),
    )
