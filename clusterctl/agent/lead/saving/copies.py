"""The copies of complete saves on other nodes, and the merged model on the lead's: what is made, and when. Pure.

One save is copied at a time. Of those that wait, only the newest model and the newest checkpoint are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from clusterctl.agent.lead.actions import Action, RecordEvent, SendOrder, warning
from clusterctl.agent.lead.saving.messages import Copied, Copy, Merge, Written
from clusterctl.common import events

END_LIMIT_S = 60.0  # for the last copies, when all processes have ended
TELL_AFTER_S = 2.0
LIMIT_S = 1800.0  # for one save, so that a node that hangs does not keep the others from newer ones


class MergePolicy(NamedTuple):
    """Merge models of up to `limit_mb` with the interpreter `python`."""

    limit_mb: int
    python: str


class CopyPolicy(NamedTuple):
    """`sources` has for each node those whose pieces it copies. `merge` is None if models are not merged."""

    sources: Mapping[int, Sequence[int]]
    merge: Optional[MergePolicy] = None  # noqa: UP045 - evaluated at run time on python 3.9


class CopyTracker:
    """`lead` is the lead's node, which has the manifests."""

    def __init__(self, policy: CopyPolicy, lead: int) -> None:
        self._policy = policy
        self._lead = lead
        self._places: dict[int, str] = {}
        self._away: dict[int, str] = {}
        self._expected = 0
        self._waiting: dict[bool, Written] = {}
        self._save: Written | None = None
        self._asked: set[tuple[str, int]] = set()  # ("copy", node) or ("merge", node)
        self._failed = False
        self._bytes = 0
        self._began = 0.0
        self._end_at: float | None = None
        self._told = False
        self._warned: set[tuple[int, str]] = set()

    @property
    def places(self) -> dict[str, str]:
        """The endpoints of the piece servers by node."""
        return {str(node): place for node, place in sorted(self._places.items())}

    def come(self, node: int, place: str | None, now: float) -> list[Action]:
        """Handle a supervisor that joins, perhaps in place of another: what that one was asked for is not done."""
        actions = self.leave(node, now) if place is not None and self._places.get(node) != place else []
        if place is not None:
            self._places[node] = place
            self._away.pop(node, None)
        return actions

    def leave(self, node: int, now: float) -> list[Action]:
        """Handle the loss of a node."""
        place = self._places.pop(node, None)
        if place is not None:
            self._away[node] = place
        lost = {one for one in self._asked if one[1] == node}
        self._failed |= bool(lost)
        self._asked -= lost
        return self._next(now)

    def back(self, node: int) -> None:
        """Handle the return of a node that was away; its supervisor is still the same."""
        if node in self._away:
            self._places[node] = self._away.pop(node)

    def expect(self) -> None:
        """Expect a save, whose manifest is being written."""
        self._expected += 1

    def offer(self, save: Written, now: float) -> list[Action]:
        """Handle a complete save, whose manifest is in place."""
        self._waiting[save["checkpoint"]] = save
        self._expected = max(0, self._expected - 1)
        return self._next(now)

    def tick(self, now: float) -> list[Action]:
        """Give up nodes that do not report, so that newer saves are copied to the others."""
        if self._save is None or now < self._began + LIMIT_S:
            return []
        nodes = ", ".join(f"node{node}" for node in sorted({node for _, node in self._asked}))
        note = warning(self._lead, f"{self._save['tag']} was not copied within {LIMIT_S / 60:.0f} min: {nodes}")
        self._asked.clear()
        self._failed = True
        return [note, *self._next(now)]

    def take(self, node: int, report: Copied, now: float) -> list[Action]:
        """Handle the report of a node: it has carried out an order, or could not."""
        asked = (report["of"], node)
        if self._save is None or report["tag"] != self._save["tag"] or asked not in self._asked:
            return []
        self._asked.discard(asked)
        self._bytes += report["bytes"] if report["of"] == "copy" else 0
        actions = self._warn(node, report) if "message" in report else []
        return [*actions, *self._next(now)]

    def _warn(self, node: int, report: Copied) -> list[Action]:
        """Return a warning, unless the save is out of date, and perhaps removed, or the reason is known."""
        assert self._save is not None
        self._failed |= report["of"] == "copy"
        known = (node, report["message"].replace(self._save["tag"], ""))
        if self._save["checkpoint"] in self._waiting or known in self._warned:
            return []
        self._warned.add(known)
        kind = "checkpoint" if self._save["checkpoint"] else "model"
        what = "was not copied to" if report["of"] == "copy" else "was not merged on"
        return [warning(node, f"{kind} {report['tag']} {what} node{node}: {report['message']}")]

    def _next(self, now: float) -> list[Action]:
        """End the current save if nothing is missing, and begin with the one that has waited longest."""
        if self._asked:
            return []
        actions = self._done(now)
        if not self._waiting:
            return actions
        self._save = self._waiting.pop(next(iter(self._waiting)))
        wanted = {node for pair in self._policy.sources.items() if pair[1] for node in (pair[0], *pair[1])}
        self._failed, self._bytes, self._began = not wanted <= set(self._places), 0, now
        orders = [*self._copy_orders(self._save), *self._merge_orders(self._save)]
        self._asked = {(order.message["do"], order.node) for order in orders if order.node is not None}
        return [*actions, *orders, *([] if orders else self._next(now))]

    def _done(self, now: float) -> list[Action]:
        save, self._save = self._save, None
        if save is None or self._failed or not self._bytes:
            return []
        event: events.Copied = {
            "event": "copied",
            "tag": save["tag"],
            "bytes": self._bytes,
            "in_s": round(now - self._began, 3),
        }
        if save["checkpoint"]:
            event["checkpoint"] = True
        return [RecordEvent(event)]

    def _copy_orders(self, save: Written) -> list[SendOrder]:
        lead = self._places.get(self._lead)
        orders = []
        for node in sorted(self._places):
            sources = {str(n): self._places[n] for n in self._policy.sources.get(node, ()) if n in self._places}
            if node == self._lead and not sources:
                continue
            order: Copy = {
                "do": "copy",
                "tag": save["tag"],
                "checkpoint": save["checkpoint"],
                "manifest": {"bytes": save["bytes"], "sha256": save["sha256"]},
                "lead": None if node == self._lead or lead is None else [self._lead, lead],
                "sources": sources,
            }
            orders.append(SendOrder(order, node))
        return orders

    def _merge_orders(self, save: Written) -> list[SendOrder]:
        policy = self._policy.merge
        if policy is None or save["checkpoint"]:
            return []
        order: Merge = {
            "do": "merge",
            "tag": save["tag"],
            "python": policy.python,
            "limit_mb": policy.limit_mb,
            "sources": {node: place for node, place in self.places.items() if node != str(self._lead)},
        }
        return [SendOrder(order, self._lead)]

    def waits(self, now: float) -> bool:
        """Return True if the end of the run has to wait, which begins with the first call."""
        self._end_at = now + END_LIMIT_S if self._end_at is None else self._end_at
        return (self._save is not None or self._expected > 0) and now < self._end_at

    def tell(self, now: float) -> list[Action]:
        """Return an event, once, if the end has waited for some time."""
        if self._told or self._save is None or self._end_at is None or now < self._end_at - END_LIMIT_S + TELL_AFTER_S:
            return []
        self._told = True
        return [RecordEvent({"event": "copying", "tag": self._save["tag"], "limit_s": END_LIMIT_S})]

    def unfinished(self) -> list[Action]:
        """Return a warning if the run ends before the last save is copied."""
        if self._save is None or self._end_at is None:
            return []
        return [warning(self._lead, f"the run ended before {self._save['tag']} was copied and merged")]
