"""The warnings of a run: each is recorded once, as soon as it is known, and all of them at its end. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clusterctl.agent.lead.actions import Action, RecordEvent
from clusterctl.common.events import EndedEvent, RunWarning, WarnedEvent

MOST_WARNINGS = 20
MOST_CHARACTERS = 500
MOST_OF_KIND = 40  # characters


def run_warning(kind: str, message: str, node: int | None = None) -> RecordEvent:
    """A warning of the run, about `node` if it is about one. `RunWarnings` drops one that is known already."""
    event: WarnedEvent = {"event": "warned", "kind": kind[:MOST_OF_KIND], "message": message[:MOST_CHARACTERS]}
    if node is not None:
        event["subject"] = node
    return RecordEvent(event)


class RunWarnings:
    """The warnings of a run so far; `known` are those of a supervisor before this one."""

    def __init__(self, known: Sequence[RunWarning] = ()) -> None:
        self._known: list[RunWarning] = [{"kind": one["kind"], "message": one["message"]} for one in known]

    def take(self, actions: Iterable[Action]) -> list[Action]:
        """Return the lead's actions without repeated warnings, and with all warnings in the event of the end."""
        return [kept for action in actions if (kept := self._taken(action)) is not None]

    def _taken(self, action: Action) -> Action | None:
        if not isinstance(action, RecordEvent):
            return action
        if action.event["event"] == "warned":
            warning: RunWarning = {"kind": action.event["kind"], "message": action.event["message"]}
            return action if self._add(warning) else None
        return RecordEvent(self._with_all(action.event)) if action.event["event"] == "ended" else action

    def _add(self, warning: RunWarning) -> bool:
        if warning in self._known or len(self._known) >= MOST_WARNINGS:
            return False
        self._known.append(warning)
        return True

    def _with_all(self, ended: EndedEvent) -> EndedEvent:
        own = ended.get("warnings", ())
        if not own and not self._known:
            return ended
        return {**ended, "warnings": [*self._known, *(one for one in own if one not in self._known)]}
