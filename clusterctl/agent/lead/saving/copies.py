"""The copies of complete saves on other nodes, and the merged model on the lead's: what is made, and when. Pure.

One save is copied at a time. Of those that wait, only the newest model and the newest checkpoint are kept; the
checkpoint is next, but every fourth turn is a model's. The newest copied save of each kind stays until a newer one is
copied, so that the loss of a node never costs more than the saves since then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Optional

from clusterctl.agent.lead.actions import Action, RecordEvent, SendOrder, run_warning, warning
from clusterctl.agent.lead.saving.messages import CopiedReport, CopySaveOrder, MergeModelOrder, WrittenReport
from clusterctl.common import events
from clusterctl.common.errors import first_of

END_LIMIT_S = 60.0  # for the last copies, when all processes have ended
TELL_AFTER_S = 2.0
LIMIT_S = 1800.0  # for one save, so that a node that hangs does not keep the others from newer ones
MOST_IN_A_ROW = 3  # checkpoints that are copied while a model waits
MOST_BEHIND = 2  # saves of a kind since the last one that was copied; more are a warning, unless they are this new:
BEHIND_S = 2.0
MOST_NAMED = 4
KINDS = {True: "checkpoint", False: "model"}


class MergePolicy(NamedTuple):
    """Merge models of up to `limit_mb` with the interpreter `python`."""

    limit_mb: int
    python: str


class ResumedCheckpoint(NamedTuple):
    """The checkpoint from which a run was resumed. What a node wrote of it may be on others only, or on one node only.

    `writers` has the node that wrote each file, `holders` for each writer the nodes that have all of its files.
    """

    written: WrittenReport
    writers: Mapping[str, int]
    holders: Mapping[int, Collection[int]]


class CopyPolicy(NamedTuple):
    """`sources` has for each node those whose pieces it copies. `merge` is None if models are not merged.

    A `resumed` checkpoint is copied first.
    """

    sources: Mapping[int, Sequence[int]]
    merge: Optional[MergePolicy] = None
    resumed: Optional[ResumedCheckpoint] = None


class CopyTracker:
    """`lead` is the lead's node, which has the manifests. `newest` has the newest save of each kind that is copied: the
    kind is True for checkpoints, False for models.
    """

    def __init__(self, policy: CopyPolicy, lead: int) -> None:
        self._policy = policy
        self._lead = lead
        self._places: dict[int, str] = {}
        self._away: dict[int, str] = {}
        self._expected = 0
        self._waiting: dict[bool, WrittenReport] = {}
        self._save: WrittenReport | None = None
        self._asked: set[tuple[str, int]] = set()  # ("copy", node) or ("merge", node)
        self._failed = False
        self._bytes = 0
        self._began = 0.0
        self._end_at: float | None = None
        self._told = False
        self._warned: set[tuple[int, str]] = set()
        self._in_a_row = 0
        self._since: dict[bool, dict[str, float]] = {True: {}, False: {}}  # the times of saves after the newest copied
        self._failures: dict[bool, str] = {}  # the last one since a save of the kind was copied
        self._behind: set[bool] = set()  # the kinds with a warning of that
        self.newest: dict[bool, str] = {}
        self._copying: dict[int, set[int]] = {}  # the nodes whose pieces each node was ordered to copy
        self._holders: dict[str, dict[int, set[int]]] = {}  # of each save: who has copies of what a node wrote
        self._written: dict[str, WrittenReport] = {}  # checkpoints
        self._gone: set[int] = set()
        self._writers: dict[str, Mapping[str, int]] = {}  # of the files of a checkpoint from before this run
        self._strayed: dict[str, set[int]] = {}  # nodes that do not have what they wrote of it
        self._model: str | None = None  # the last one; its pieces are also on the nodes that have copied them
        self._model_on: set[int] = set()
        self._model_is_merged = False
        self._wanted = {node for pair in policy.sources.items() if pair[1] for node in (pair[0], *pair[1])}

    @property
    def are_made(self) -> bool:
        """False if the run makes no copies: COPIES = 1, or a single node."""
        return bool(self._wanted)

    def held(self, checkpoint: bool) -> set[str]:
        """Return the saves of a kind that must stay: the newest that is copied, and those that are to be."""
        if not self.are_made:
            return set()
        waiting = [self._waiting[checkpoint]["tag"]] if checkpoint in self._waiting else []
        if self._save is not None and self._save["checkpoint"] == checkpoint:
            waiting.append(self._save["tag"])
        return {*waiting, *([self.newest[checkpoint]] if checkpoint in self.newest else [])}

    def discard(self, tag: str) -> None:
        """Discard a damaged checkpoint: it does not count as a copied one."""
        if self.newest.get(True) == tag:
            del self.newest[True]
        self._since[True].pop(tag, None)
        self._failed |= self._save is not None and self._save["tag"] == tag
        if True in self._waiting and self._waiting[True]["tag"] == tag:
            del self._waiting[True]

    def holders(self, tag: str, node: int) -> set[int]:
        """The nodes that have copies of what a node wrote of a checkpoint."""
        return self._holders.get(tag, {}).get(node, set())

    def holders_of_file(self, tag: str, file: str) -> set[int]:
        """The nodes that have copies of a file of the checkpoint from which the run was resumed."""
        writer = self._writers.get(tag, {}).get(file)
        return set() if writer is None else self.holders(tag, writer)

    def forget(self, stay: Collection[str]) -> None:
        """Forget the checkpoints that are removed, and all models but the last."""
        self._holders = {tag: who for tag, who in self._holders.items() if tag in stay or tag == self._model}
        self._written = {tag: save for tag, save in self._written.items() if tag in stay}

    def replan(
        self, sources: Mapping[int, Sequence[int]], gone: Collection[int], tag: str | None, now: float
    ) -> list[Action]:
        """Adopt the nodes whose pieces each node copies from now on, and copy the checkpoint `tag` once more.

        What the lost nodes `gone` wrote is copied from those that have copies.
        """
        self._policy = self._policy._replace(sources=sources)
        self._gone = set(gone)
        self._wanted = {node for pair in sources.items() if pair[1] for node in (pair[0], *pair[1])}
        if self.are_made and tag in self._written:
            self._waiting.setdefault(True, self._written[tag])
        return self._next(now)

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

    def offer(self, save: WrittenReport, now: float) -> list[Action]:
        """Handle a complete save, whose manifest is in place."""
        kind, tag = save["checkpoint"], save["tag"]
        self._waiting[kind] = save
        if kind:
            self._written[tag] = save
        self._expected = max(0, self._expected - 1)
        self._since[kind][tag] = self._since[kind].pop(tag, now)
        if not kind:
            self._model, self._model_on, self._model_is_merged = tag, set(), False
        return [*self._next(now), *self._warn_if_behind(kind, now)]

    def _warn_if_behind(self, checkpoint: bool, now: float) -> list[Action]:
        """Return a warning, once for each kind, if the copies do not keep up with the saves."""
        since = self._since[checkpoint]
        count = len(since)
        if not self.are_made or count <= MOST_BEHIND or checkpoint in self._behind:
            return []
        if now < min(since.values()) + BEHIND_S:
            return []
        self._behind.add(checkpoint)
        kind, newest = KINDS[checkpoint], self.newest.get(checkpoint)
        setting = "SAVE_EVERY" if checkpoint else "SAVE_MODEL_EVERY"
        last = f"when {[*since][-1]} was saved, the last {count} {kind}s were not copied"
        last += f"; the newest copied one was {newest}" if newest else ", and none was before"
        hint = self._reason(checkpoint) or f"; to save less often, set {setting}"
        return [run_warning("copies_lag", f"copies lag behind: {last}{hint}")]

    def _reason(self, checkpoint: bool) -> str:
        why = self._failures.get(checkpoint)
        return f"; the last attempt failed: {why}" if why else ""

    def tick(self, now: float) -> list[Action]:
        """Give up nodes that do not report, so that newer saves are copied to the others."""
        behind = [
            *self._copy_resumed(now),
            *(action for kind in KINDS for action in self._warn_if_behind(kind, now)),
        ]
        if self._save is None or now < self._began + LIMIT_S:
            return behind
        nodes = ", ".join(f"node{node}" for node in sorted({node for _, node in self._asked}))
        note = warning(self._lead, f"{self._save['tag']} was not copied within {LIMIT_S / 60:.0f} min: {nodes}")
        self._asked.clear()
        self._failed = True
        return [*behind, note, *self._next(now)]

    def _copy_resumed(self, now: float) -> list[Action]:
        """Copy the checkpoint from which the run was resumed, once all nodes that take part in that are there."""
        resumed = self._policy.resumed
        if resumed is None or not self.are_made or not self._wanted <= self._places.keys():
            return []
        self._policy = self._policy._replace(resumed=None)
        tag = resumed.written["tag"]
        self._written[tag] = resumed.written
        self._writers = {tag: resumed.writers}
        self._strayed = {tag: {writer for writer, nodes in resumed.holders.items() if writer not in nodes}}
        self._holders[tag] = {writer: {*nodes} - {writer} for writer, nodes in resumed.holders.items()}
        self._waiting.setdefault(True, resumed.written)
        return self._next(now)

    def take(self, node: int, report: CopiedReport, now: float) -> list[Action]:
        """Handle the report of a node: it has carried out an order, or could not."""
        asked = (report["of"], node)
        if self._save is None or report["tag"] != self._save["tag"] or asked not in self._asked:
            return []
        self._asked.discard(asked)
        if report["of"] == "copy" and "message" not in report:
            holders = self._holders.setdefault(report["tag"], {})
            for source in self._copying.pop(node, ()):
                holders.setdefault(source, set()).add(node)
        self._bytes += report["bytes"] if report["of"] == "copy" else 0
        if self._save["tag"] == self._model and "message" not in report:
            self._model_is_merged |= report["of"] == "merge"
            self._model_on.update([node] if report["of"] == "copy" else ())
        actions = self._warn(node, report) if "message" in report else []
        return [*actions, *self._next(now)]

    def _warn(self, node: int, report: CopiedReport) -> list[Action]:
        """Return a warning, unless the save is out of date, and perhaps removed, or the reason is known."""
        assert self._save is not None
        if report["of"] == "copy":
            self._failed = True
            self._failures[self._save["checkpoint"]] = f"node{node}: {report['message']}"
        known = (node, report["message"].replace(self._save["tag"], ""))
        if self._save["checkpoint"] in self._waiting or known in self._warned:
            return []
        self._warned.add(known)
        kind = "checkpoint" if self._save["checkpoint"] else "model"
        what = "was not copied to" if report["of"] == "copy" else "was not merged on"
        return [warning(node, f"{kind} {report['tag']} {what} node{node}: {report['message']}")]

    def _next(self, now: float) -> list[Action]:
        """End the current save if nothing is missing, and begin with the next one."""
        if self._asked:
            return []
        actions = self._done(now)
        if not self._waiting:
            return actions
        self._save = self._waiting.pop(self._turn())
        self._failed, self._bytes, self._began = not self._wanted <= set(self._places), 0, now
        orders = [*self._copy_orders(self._save), *self._merge_orders(self._save)]
        self._asked = {(order.message["do"], order.node) for order in orders if order.node is not None}
        return [*actions, *orders, *([] if orders else self._next(now))]

    def _turn(self) -> bool:
        """Return the kind of save that is next: a checkpoint, unless a model has waited for several of them."""
        both = len(self._waiting) == len(KINDS)
        checkpoint = self._in_a_row < MOST_IN_A_ROW if both else next(iter(self._waiting))
        self._in_a_row = self._in_a_row + 1 if both and checkpoint else 0
        return checkpoint

    def _done(self, now: float) -> list[Action]:
        save, self._save = self._save, None
        if save is None or self._failed or not self._bytes:
            return []
        self._settle(save)
        event: events.CopiedEvent = {
            "event": "copied",
            "tag": save["tag"],
            "bytes": self._bytes,
            "in_s": round(now - self._began, 3),
        }
        if save["checkpoint"]:
            event["checkpoint"] = True
        return [RecordEvent(event)]

    def _settle(self, save: WrittenReport) -> None:
        """Note that a save is copied, so that those before it need not stay. A newer one may have its tag."""
        kind, tag = save["checkpoint"], save["tag"]
        is_replaced = kind in self._waiting and self._waiting[kind]["tag"] == tag
        if not is_replaced:
            self.newest[kind] = tag
            self._failures.pop(kind, None)
            while tag in self._since[kind]:  # and all before it
                del self._since[kind][next(iter(self._since[kind]))]

    def _copy_orders(self, save: WrittenReport) -> list[SendOrder]:
        lead = self._places.get(self._lead)
        orders = []
        for node in sorted(self._places):
            held_by = self._sources(node, save["tag"])
            if node == self._lead and not held_by:
                continue
            self._copying[node] = set(held_by)
            order: CopySaveOrder = {
                "do": "copy",
                "tag": save["tag"],
                "checkpoint": save["checkpoint"],
                "manifest": {"bytes": save["bytes"], "sha256": save["sha256"]},
                "lead": None if node == self._lead or lead is None else [self._lead, lead],
                "sources": {str(writer): self._places[holder] for writer, holder in held_by.items()},
            }
            if moved := {str(writer): holder for writer, holder in held_by.items() if writer != holder}:
                order["held_by"] = moved
            orders.append(SendOrder(order, node))
        return orders

    def _sources(self, node: int, tag: str) -> dict[int, int]:
        """The nodes that wrote what a node is to copy of a save, each with the node that has it."""
        here = [source for source in self._policy.sources.get(node, ()) if source in self._places]
        lacking = self._gone | self._strayed.get(tag, set())
        found = {source: source for source in here if source not in lacking}
        for writer in lacking & self._holders.get(tag, {}).keys():
            holder = min(self._holders[tag][writer] & self._places.keys(), default=None)
            if holder in here and holder is not None:
                found[writer] = holder
        return found

    def _merge_orders(self, save: WrittenReport) -> list[SendOrder]:
        policy = self._policy.merge
        if policy is None or save["checkpoint"]:
            return []
        order: MergeModelOrder = {
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

    def doubts(self, writers: Collection[int]) -> list[events.RunWarning]:
        """Return a warning if the last model has lost pieces, or the next loss of a node may take some.

        `writers` are the nodes that have written its pieces.
        """
        if self._model is None or (self._model_is_merged and self._lead not in self._away):
            return []
        has = {source for node in self._model_on - self._away.keys() for source in self._policy.sources.get(node, ())}
        lost = sorted((set(writers) & self._away.keys()) - has)
        if lost:
            of = f"its pieces on {first_of([f'node{node}' for node in lost], MOST_NAMED)}"
            message = f"the last model, {self._model}, cannot be completed: {of} were lost before they were copied"
            return [{"kind": "model_lost", "message": message}]
        if self.are_made and self._model in self._since[False]:
            message = f"the last model, {self._model}, is not copied: it is lost with the next node that is lost"
            return [{"kind": "model_not_copied", "message": message + self._reason(checkpoint=False)}]
        return []
