"""The processes of nodes that are lost for good: when they may start elsewhere, where, and from what."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Callable

from clusterctl.agent.lead.actions import Action, Policy, RecordEvent, SendOrder, run_warning
from clusterctl.agent.lead.failure_detector import FailureDetector
from clusterctl.agent.lead.process_table import ProcessTable, name_of
from clusterctl.agent.lead.restart_policy import Key
from clusterctl.agent.lead.saving.copies import CopyPolicy
from clusterctl.agent.lead.saving.saves import SaveTracker
from clusterctl.common.errors import first_of
from clusterctl.common.events import EndCause, MovedEvent, RejoinedEvent
from clusterctl.common.placement import NoPlaceError, copy_plan, holders_of, names_by_node, place, stranded_trainers
from clusterctl.common.run_spec import MemberPlace

MOST_NAMED = 4


class CannotMoveError(Exception):
    """Processes cannot start elsewhere; the message says why."""


class Moves:
    """Decides for the state machine, whose process table, detector and saves it changes."""

    def __init__(
        self,
        policy: Policy,
        table: ProcessTable,
        detector: FailureDetector,
        saves: SaveTracker,
        copies: CopyPolicy | None,
    ) -> None:
        self._policy = policy
        self._table = table
        self._detector = detector
        self._saves = saves
        self._holders = holders_of(copies.sources if copies else {})
        self._lost: dict[int, tuple[float, EndCause]] = {}  # when their processes move, and why

    def lose(self, node: int, cause: EndCause) -> None:
        """Give a node up."""
        self._detector.lost.add(node)
        self._lost[node] = (self._detector.fenced_at(node), cause)

    def is_pending(self, node: int) -> bool:
        """True if a node is lost, and its processes have not moved yet."""
        return node in self._lost

    def take_back(self, node: int, now: float) -> list[Action]:
        """Let a node whose processes have moved be there for others."""
        self._detector.take_back(node, now)
        back: RejoinedEvent = {"event": "rejoined", "node": node, "message": "it is a spare now"}
        return [RecordEvent(back), *self._plan_copies(now)]

    @property
    def too_few(self) -> str:
        """Why the run may not go on without the nodes that are lost; empty if it may."""
        gone, members = len(self._detector.lost), len(self._detector.nodes)
        if 2 * gone <= members or self._policy.on_node_loss != "move":
            return ""
        return f"only {members - gone} of {members} nodes are left, and the others could continue the run without them"

    def forget(self) -> None:
        """Move nothing any more: the run is being stopped."""
        self._lost.clear()

    def due(self, now: float) -> dict[int, EndCause]:
        """Return the nodes on which none of their processes can be left by now: the guardian there has ended them."""
        return {node: self._lost.pop(node)[1] for node, (at, _) in list(self._lost.items()) if now >= at}

    def stranded(self, keys: Collection[Key]) -> dict[Key, str]:
        """Return the trainers that may start nowhere because of their shards, and why."""
        return stranded_trainers(keys, self._table.node_of, self._here, self._holders)

    def leave(self, trainers: Mapping[Key, str], lost: Mapping[int, EndCause]) -> list[Action]:
        """Continue without stranded trainers of `lost` nodes. Raises CannotMoveError."""
        names = first_of([name_of(key) for key in sorted(trainers)], MOST_NAMED)
        why = "; ".join(sorted({*trainers.values()}))
        if self._policy.whole or not self._table.of_role("trainer") - {*trainers}:
            raise CannotMoveError(f"{names} cannot move: {why}")
        message = f"the run continues without {names}: {why}"
        left = give_up(trainers, self._table, self._saves, lambda key: lost[self._table.node_of[key]]["message"])
        return [*left, run_warning("trainers_left", message, min(lost))]

    def move(self, keys: Collection[Key], lost: Mapping[int, EndCause], now: float, *, back: bool) -> list[Action]:
        """Put processes of `lost` nodes on others, and plan copies anew. Raises CannotMoveError.

        With `back` all go back to a checkpoint: the newest one of which the nodes that are left have all files.
        """
        if self.too_few:
            raise CannotMoveError(self.too_few)
        missing = self._saves.checkpoints.lose(self._detector.lost) if back else []
        try:
            placed = place(keys, self._table.node_of, self._here, self._holders)
        except NoPlaceError as exc:
            raise CannotMoveError(f"its processes cannot move: {exc}") from exc
        if missing:
            named = first_of(missing, MOST_NAMED)
            raise CannotMoveError(f"no node has {named}, of the newest checkpoint that could be gone back to")
        events = self._table.move(placed)
        moved: list[Action] = [RecordEvent(event) for event in events]
        for node, cause in lost.items():
            from_here = [one for one in events if one["from_node"] == node]
            moved.append(_warning(node, cause, from_here, self._detector.silent_s(node, now)))
        self._saves.move({self._table.node_of[key] for key in self._table.of_role("pserver")})
        self._detector.idle -= set(placed.values())
        return [*moved, *self._plan_copies(now)]

    @property
    def _here(self) -> list[MemberPlace]:
        return [one for one in self._policy.members if one.node in self._detector.here - self._detector.absent]

    def _plan_copies(self, now: float) -> list[Action]:
        """Let the pieces be copied anew between the nodes that are left, so that the next one may be lost, too."""
        members = [one.node for one in self._here]
        machines = {one.node: one.machine or str(one.node) for one in self._here}
        originals = sorted(set(self._table.node_of.values()) & set(members))
        plan = copy_plan(originals, members, machines, self._policy.copies)
        sources = {int(node): nodes for node, nodes in plan.items()}
        self._holders = holders_of(sources)
        newest = self._saves.checkpoints.newest
        return self._saves.copies.replan(sources, self._detector.lost, newest.tag if newest else None, now)


def give_up(
    trainers: Collection[Key], table: ProcessTable, saves: SaveTracker, why: Callable[[Key], str]
) -> list[Action]:
    """Let the run continue without these trainers."""
    table.give_up(trainers)
    losses = [RecordEvent(table.lost(key, why(key))) for key in sorted(trainers)]
    return [*losses, SendOrder({"do": "shrink", "ranks": sorted(table.gone)}), *saves.leave(table.gone)]


def _warning(node: int, cause: EndCause, events: Sequence[MovedEvent], lost_s: float) -> RecordEvent:
    """The warning that a run has survived the loss of a node."""
    names = names_by_node({name_of((event["role"], event["rank"])): event["node"] for event in events})
    moved = "; ".join(f"{some} moved to node{at}" for at, some in sorted(names.items()))
    message = f"node{node} was lost: {cause['why']}; {moved or 'no process had to move'}"
    return run_warning("node_lost", message, node, lost_s)
