"""The lead's settings and decisions. Values only: `state_machine` makes them, `server` carries them out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Optional, Union

from clusterctl.agent.lead.messages import Order
from clusterctl.agent.lead.saving.messages import SavedReport
from clusterctl.common.answers import SaveOutcome
from clusterctl.common.events import EndedEvent, Event, RunWarning, WarnedEvent
from clusterctl.common.run_spec import MemberPlace


class Policy(NamedTuple):
    """The response to failures.

    `restarts` is the limit within an hour, by role. `on_trainer_loss` ("fail", "shrink" or "wait") applies when a
    trainer has reached it, and `on_node_loss` ("fail", "wait" or "move") when a node is lost; "shrink" applies to nodes
    with trainers only, too. Processes move to the `members`, which keep `copies` of each piece, with the original;
    trainers whose shards are on no other member are given up instead. With `together`, pushes are applied together, so
    all processes roll back when a pserver is lost. With `whole`, processes can only restart all at once. `time_limit_s`
    is for the whole run. With `standstill_fails`, a run whose processes all wait for each other fails.
    """

    restarts: Mapping[str, int] = MappingProxyType({})
    on_trainer_loss: str = "fail"
    on_node_loss: str = "fail"
    members: Sequence[MemberPlace] = ()
    copies: int = 1
    together: bool = True
    whole: bool = False
    time_limit_s: Optional[float] = None
    standstill_fails: bool = False


class SendOrder(NamedTuple):
    """Send an order to a node's supervisor, or to all (None)."""

    message: Order
    node: Optional[int] = None


class RecordEvent(NamedTuple):
    """Record an event in the lead's log."""

    event: Event


class WriteManifest(NamedTuple):
    """Every pserver has written its piece of `tag`: write the manifest. For a checkpoint, report `kept` then.

    `states` are the receipts of the trainers whose states belong to it.
    """

    tag: str
    receipts: Sequence[SavedReport]
    checkpoint: bool = False
    states: Sequence[SavedReport] = ()


class DropManifests(NamedTuple):
    """Delete the manifests of checkpoints before `newest`, except those that `stay`. Nodes then remove the pieces."""

    stay: Sequence[str]
    newest: str


class DropModelManifests(NamedTuple):
    """Delete the manifests of these models. Nodes then remove the pieces."""

    tags: Sequence[str]


class AnswerSave(NamedTuple):
    """Answer a request of the user for a checkpoint."""

    request: int
    answer: SaveOutcome


class Finish(NamedTuple):
    """The run has ended."""

    state: str


ManifestAction = Union[WriteManifest, DropManifests, DropModelManifests]
Action = Union[SendOrder, RecordEvent, ManifestAction, AnswerSave, Finish]


def warning(node: int, message: str) -> RecordEvent:
    """A warning about a node."""
    return RecordEvent({"event": "log", "level": "warning", "subject": node, "message": message})


MOST_WARNINGS = 20
MOST_CHARACTERS = 500
MOST_OF_KIND = 40  # characters


def run_warning(kind: str, message: str, node: int | None = None, lost_s: float | None = None) -> RecordEvent:
    """A warning of the run. `RunWarnings` drops one that is known already.

    `node`: the node that it is about, if any. `lost_s`: of a node that was lost, the seconds since its last message.
    """
    event: WarnedEvent = {"event": "warned", "kind": kind[:MOST_OF_KIND], "message": message[:MOST_CHARACTERS]}
    if node is not None:
        event["subject"] = node
    if lost_s is not None:
        event["lost_s"] = round(lost_s, 1)
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
