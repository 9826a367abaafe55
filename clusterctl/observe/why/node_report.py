"""One node's account of a run, with its clock corrected: the values that `why` reasons about."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypedDict

from clusterctl.cluster.answers import names_process
from clusterctl.common.schema import Count, Moment, fits

#: The fields that `why` reads from events and from the causes in them.
Facts = TypedDict(
    "Facts",
    {
        "node": Count | None,
        "rank": Count | None,
        "attempt": Count | None,
        "lost_node": Count | None,
        "step": Count | None,
        "pass": Count | None,
        "failures": Count | None,
        "t": Moment | None,
        "stalled_s": Moment | None,
        "silent_s": Moment | None,
        "closed_s": Moment | None,
        "paused_s": Moment | None,
        "seen": Moment | None,
        "event": str | None,
        "role": str | None,
        "message": str | None,
        "phase": str | None,
        "tag": str | None,
        "endpoint": str | None,
        "state": str | None,
        "kind": str | None,
        "why": str | None,
        "reason": str | None,
        "limit": str | None,
        "errno": str | None,
        "command": str | None,
        "path": str | None,
        "unfinished": str | None,
        "uncaught": str | None,
        "exit_code": int | None,
        "tail": list[str] | None,
        "peers": list[str] | None,
        "not_heard_of": list[Count] | None,
        "ours": list[Count] | None,
    },
    total=False,
)
PROCESS = ("role", "rank")
NEEDED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("spawned", "ready", "stalled", "restarting", "step", "held"), PROCESS),
    "exited": (*PROCESS, "exit_code", "stopping"),
    "saved": ("tag",),
    "phase": ("phase",),
}
CAUSES_NEED: Mapping[str, tuple[str, ...]] = {"exit": PROCESS, "node_lost": ("node",)}


class Departure(NamedTuple):
    """The silent end of a supervisor. `seen` is when it was last alive, by its node's clock, if known."""

    seen: float | None
    rebooted: bool


@dataclass(frozen=True)
class ProcessLog:
    """Lines of a process's log, with their times. `ours` are the indexes of those that clusterctl wrote."""

    lines: Sequence[tuple[float, str]] = ()
    ours: Collection[int] = ()

    def since(self, t: float) -> ProcessLog:
        kept = [at for at, line in enumerate(self.lines) if line[0] >= t]
        ours = set(self.ours)
        return ProcessLog([self.lines[at] for at in kept], [new for new, at in enumerate(kept) if at in ours])

    @property
    def own(self) -> list[str]:
        """The lines of the program itself."""
        return [text for _, text in self._own]

    @property
    def times(self) -> list[float]:
        """The times of the program's own lines."""
        return [t for t, _ in self._own]

    @property
    def _own(self) -> list[tuple[float, str]]:
        ours = set(self.ours)
        return [line for at, line in enumerate(self.lines) if at not in ours]


@dataclass(frozen=True)
class NodeReport:
    """One node's account of a run, from its agent's `answer`. `offset_s` is our clock minus the node's, +-`margin_s`.

    Times of events and lines are by the node's clock; `at` converts them to ours.
    """

    node: int
    offset_s: float
    margin_s: float
    answer: dict[str, Any] = field(repr=False)

    def at(self, t: float) -> float:
        """Convert a time of this node's clock to ours."""
        return t + self.offset_s

    @property
    def state(self) -> str:
        return str(self.answer.get("state"))

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """The events in order of time, without those that were written on behalf of a supervisor that was gone."""
        sound = (event for event in self.answer.get("events", ()) if _is_sound(event) and not event.get("late"))
        return sorted(sound, key=lambda event: float(event["t"]))

    @cached_property
    def is_closed(self) -> bool:
        """True if a `stop` ended the run on behalf of a supervisor that was gone."""
        return any(_is_sound(event) and event.get("late") for event in self.answer.get("events", ()))

    def departure(self, t: float) -> Departure | None:
        """The silent end of the supervisor that was running at `t`, by this node's clock; None if it had none."""
        another = next((event for event in self.find("took_over") if event["t"] > t), None)
        if another is not None:
            return Departure(another.get("seen"), bool(another.get("rebooted")))
        if self.state == "lost" or self.is_closed or self.answer.get("booted"):
            return Departure(self.answer.get("seen"), bool(self.answer.get("booted")))
        return None

    def find(self, name: str, **wanted: Any) -> Iterator[dict[str, Any]]:
        for event in self.events:
            if event.get("event") == name and all(event.get(key) == value for key, value in wanted.items()):
                yield event

    def first(self, name: str, **wanted: Any) -> dict[str, Any] | None:
        return next(self.find(name, **wanted), None)

    def output(self, role: str, rank: int, attempt: int) -> ProcessLog:
        """The last lines of an attempt, by our clock; empty if the node did not send them."""
        for output in self.answer.get("outputs", ()):
            if (output["role"], output["rank"], output["attempt"]) == (role, rank, attempt):
                return ProcessLog([(self.at(t), text) for t, text in output["lines"]], output["ours"])
        return ProcessLog()


def _is_sound(event: dict[str, Any]) -> bool:
    """Return True if an event has its required fields in the right shapes. A log may be damaged, a node hostile."""
    cause = event.get("cause") or {}
    if not fits(Facts, event) or not fits(Facts, cause):
        return False
    if not (names_process(event) and names_process(cause)):
        return False
    needed = ("t", "node", "event", *NEEDED.get(event.get("event") or "", ()))
    return _has(event, needed) and _has(cause, CAUSES_NEED.get(cause.get("kind") or "", ()))


def _has(value: dict[str, Any], names: Sequence[str]) -> bool:
    return all(value.get(name) is not None for name in names)
