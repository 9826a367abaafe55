"""What is no failure by itself, but may lead to one: who stands still, who left the others alone, wrong numbers."""

from __future__ import annotations

from clusterctl.observe.why.errno_and_signals import NUMBERS, Diagnosis
from clusterctl.observe.why.evidence import Evidence, Incident
from clusterctl.observe.why.exceptions import of_chain
from clusterctl.observe.why.exits import HALTED, LEFT, STALLED, WAIT_FOR_EACH_OTHER
from clusterctl.observe.why.node_report import Message, Story
from clusterctl.observe.why.tracebacks import excerpt, raised

ALONE_S = 3.0  # for so long nobody else got on


def stall(story: Story, event: Message) -> Incident:
    """A process that gave no sign of life, with the exception that it wrote before, in a thread or one that it bore."""
    key = {"role": event["role"], "rank": event["rank"]}
    attempt = int(event.get("attempt") or 1)
    message = str(event.get("message") or "stands still")
    t = story.at(event["t"])
    lines = story.output(event["role"], event["rank"], attempt).lines
    chain = raised([text for _, text in lines])
    met = of_chain(chain) if chain else Diagnosis("stalled")
    words = f"it had met {met.error}" if met.error else ""
    advice = HALTED if event.get("halted") else STALLED
    return Incident(
        "stalled",
        t - float(event.get("stalled_s") or 0),
        t,
        story.node,
        message,
        Diagnosis("stalled", words, advice, met.error, met.where),
        attempt=attempt,
        lines=tuple(excerpt(lines)),
        forgiven=any(one["t"] > event["t"] and one.get("over") for one in story.find("stalled", **key)),
        **key,
    )


def standstill(story: Story, event: Message) -> Incident:
    """All wait for each other, by the word of the lead."""
    over = any(one["t"] > event["t"] and one.get("over") for one in story.find("standstill"))
    t = story.at(event["t"])
    onset = t - float(event.get("stalled_s") or 0)
    said = Diagnosis("stalled", "", WAIT_FOR_EACH_OTHER)
    return Incident("stalled", onset, t, None, str(event.get("message") or "the run stands still"), said, forgiven=over)


def has_left(evidence: Evidence, story: Story, event: Message) -> bool:
    """Whether a trainer ended well amid its steps, without leaving the run, and nobody else got on from then."""
    about = {name: event.get(name) for name in ("role", "rank", "attempt")}
    amid = event.get("role") == "trainer" and not event.get("pushes") and story.first("step", **about)
    if not amid or event.get("exit_code") or event.get("stopping"):
        return False
    t, stories = story.at(event["t"]), evidence.stories.values()
    until = evidence.ended_t or max(one.at(one.answer.get("now", 0.0)) for one in stories)
    steps = [one.at(step["t"]) for one in stories for step in one.find("step", role="trainer")]
    begun = {one["rank"] for other in stories for one in other.find("spawned", role="trainer")}
    done = {one["rank"] for other in stories for one in other.find("exited", role="trainer", exit_code=0)}
    return until - t > ALONE_S and max(steps) < t + ALONE_S / 2 and bool(begun - done)


def leaving(story: Story, event: Message) -> Incident:
    t = story.at(event["t"])
    attempt = int(event.get("attempt") or 1)
    return Incident(
        "left",
        t,
        t,
        story.node,
        f"{event.get('message')} in the midst of its training, and the others waited for it",
        Diagnosis("left_early", "", LEFT),
        event["role"],
        event["rank"],
        attempt,
        exit_code=0,
        lines=tuple(excerpt(story.output(event["role"], event["rank"], attempt).lines)),
    )


def nan(story: Story, event: Message) -> Incident:
    t = story.at(event["t"])
    at = f" (pass {event['pass']}, step {event['step']:,})" if event.get("step") is not None else ""
    message = f"{event['what']} is not finite" if event.get("what") else event.get("message") or "NaN or infinity"
    return Incident(
        "nan",
        t,
        t,
        story.node,
        f"{message}{at}",
        Diagnosis("not_finite", "", NUMBERS),
        event.get("role"),
        event.get("rank"),
        int(event.get("attempt") or 1),
        forgiven=event.get("action") == "skipped",
    )
