"""What one node tells of a run, its clock set right: the values that `why` reasons about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Message = dict[str, Any]
#: What an order of the lead brings about on every node, and what nodes say before the lead goes on: (phase, event).
AFTER = (("pservers", "spawned", "pserver"), ("trainers", "spawned", "trainer"))
BEFORE = (("trainers", "ready", "pserver"),)

NUMBER = (int, float)
TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("node", "rank", "attempt", "exit_code", "lost_node", "step", "pass"), (int,)),
    **dict.fromkeys(("t", "stalled_s", "silent_s"), NUMBER),
    **dict.fromkeys(("event", "role", "message", "phase", "tag", "endpoint", "state", "kind"), (str,)),
    **dict.fromkeys(("tail", "not_heard_of"), (list,)),
}
PROCESS = ("role", "rank")
NEEDED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("spawned", "ready", "stalled", "restarting", "step"), PROCESS),
    "exited": (*PROCESS, "exit_code", "stopping"),
    "saved": ("tag",),
    "phase": ("phase",),
}


@dataclass(frozen=True)
class Story:
    """`offset_s` is our clock minus the node's, known to `margin_s`; `answer` is what its agent says.

    `t` of events, and of lines, is by the node's clock; `at` makes it ours.
    """

    node: int
    offset_s: float
    margin_s: float
    answer: Message = field(repr=False)

    def at(self, t: float) -> float:
        """A moment of this node's clock, by ours."""
        return t + self.offset_s

    @property
    def state(self) -> str:
        return str(self.answer.get("state"))

    @property
    def events(self) -> list[Message]:
        """In the order of their time."""
        return sorted(filter(_is_sound, self.answer.get("events", ())), key=lambda event: float(event["t"]))

    def find(self, name: str, **wanted: Any) -> Iterator[Message]:
        for event in self.events:
            if event.get("event") == name and all(event.get(key) == value for key, value in wanted.items()):
                yield event

    def first(self, name: str, **wanted: Any) -> Message | None:
        return next(self.find(name, **wanted), None)

    def output(self, role: str, rank: int, attempt: int) -> list[tuple[float, str]]:
        """The last lines of an attempt, by our clock; none when the node does not tell them."""
        for output in self.answer.get("outputs", ()):
            if (output["role"], output["rank"], output["attempt"]) == (role, rank, attempt):
                return [(self.at(t), text) for t, text in output["lines"]]
        return []


def _is_sound(event: Message) -> bool:
    """Whether an event has what it must have, of the right types; a log may be damaged, and its node may lie."""
    cause = event.get("cause") or {}
    if not _fits(event) or not isinstance(cause, dict) or not _fits(cause):
        return False
    needed = {"t", "node", *NEEDED.get(event.get("event", ""), ())}
    needed_of_cause = PROCESS if cause.get("kind") == "exit" else ("node",) if cause.get("kind") == "node_lost" else ()
    return all(event.get(name) is not None for name in needed) and all(
        cause.get(name) is not None for name in needed_of_cause
    )


def _fits(event: Message) -> bool:
    return all(event.get(name) is None or _is_a(event[name], kind) for name, kind in TYPES.items())


def _is_a(value: object, kind: tuple[type, ...]) -> bool:
    if isinstance(value, list):
        return list in kind and all(isinstance(item, str | int) for item in value)
    return isinstance(value, kind) and not isinstance(value, bool)


def clock_offset(readings: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """(our clock minus theirs, how well that is known) in seconds, from (asked, their time, answered).

    The way there and back is halved; the quickest of the readings is the best one.
    """
    asked, theirs, answered = min(readings, key=lambda one: one[2] - one[0])
    return (asked + answered) / 2 - theirs, (answered - asked) / 2


def in_order(stories: Sequence[Story], lead: int) -> list[Story]:
    """The stories, with those clocks moved that contradict what must have come before what.

    A clock that somebody has set since the run shows another offset today than it had then: processes would have
    begun before the lead ordered it, or pservers been ready after the lead had heard so.
    """
    leading = next((story for story in stories if story.node == lead), None)
    if leading is None:
        return list(stories)
    return [_moved(story, leading) for story in stories]


def _moved(story: Story, lead: Story) -> Story:
    if story.node == lead.node:
        return story
    least, most = float("-inf"), float("inf")
    for phase, name, role in AFTER:
        order, done = lead.first("phase", phase=phase), story.first(name, role=role)
        if order and done:
            least = max(least, lead.at(order["t"]) - done["t"])
    for phase, name, role in BEFORE:
        order, done = lead.first("phase", phase=phase), story.first(name, role=role)
        if order and done:
            most = min(most, lead.at(order["t"]) - done["t"])
    stop = lead.first("phase", phase="stopping")
    cause = (stop or {}).get("cause") or {}
    for event in story.find("exited", stopping=False):
        if stop and cause.get("node") == story.node and _is(event, cause):
            most = min(most, lead.at(stop["t"]) - event["t"])
    slack = story.margin_s + lead.margin_s + 0.05
    if story.offset_s < least - slack:
        return replace(story, offset_s=least)
    return replace(story, offset_s=most) if story.offset_s > most + slack else story


def _is(event: Message, cause: Message) -> bool:
    return all(event.get(name) == cause.get(name) for name in ("role", "rank", "attempt"))
