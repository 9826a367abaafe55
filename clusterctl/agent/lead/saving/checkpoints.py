"""The lead's view of models and checkpoints: which pieces are missing, which checkpoints stay. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from clusterctl.agent.lead.actions import (
    Action,
    DropManifests,
    DropModelManifests,
    RecordEvent,
    SendOrder,
    WriteManifest,
)
from clusterctl.agent.lead.messages import RecoveryPoint
from clusterctl.agent.lead.saving.copies import CopyTracker
from clusterctl.agent.lead.saving.cuts import CHECKPOINT, cut_dropped, names_of
from clusterctl.agent.lead.saving.messages import DropModelsOrder, KeepOrder, KeptReport, LoggedReport, SavedReport
from clusterctl.common import events
from clusterctl.common.manifest import is_scheduled_tag, pass_of
from clusterctl.common.run_spec import KeepBest, PieceSource


class PendingSave:
    """The receipts of a save: of all pservers, and of the trainers whose state belongs to it."""

    def __init__(self) -> None:
        self._pieces: dict[int, SavedReport] = {}
        self._states: dict[int, SavedReport] = {}
        self._awaited: set[int] = set()

    def add(self, receipt: SavedReport) -> None:
        """Add a receipt. Pservers say which states belong to the save; one that was restarted may miss some."""
        if receipt.get("role") == "trainer":
            self._states[receipt["rank"]] = receipt
        else:
            self._pieces[receipt["rank"]] = receipt
            self._awaited.update(receipt.get("states", ()))

    def has_pieces(self, pservers: int) -> bool:
        return len(self._pieces) >= pservers

    @property
    def missing(self) -> list[int]:
        """The trainers that have not written their state, by rank."""
        return sorted(self._awaited - self._states.keys())

    @property
    def pieces(self) -> list[SavedReport]:
        return [self._pieces[rank] for rank in sorted(self._pieces)]

    @property
    def states(self) -> list[SavedReport]:
        """The states that belong to the save, by trainer."""
        return [self._states[rank] for rank in sorted(self._awaited)]


MOST_LOGS = 1_000  # of a trainer: a cut is complete long before it logs this often


class CheckpointTracker:
    """A model or checkpoint is complete when every pserver has written its piece, and every trainer whose state belongs
    to it has written that; the retentions decide which stay, and also the `copies`: until a newer save is copied, the
    newest copied one does.

    `settled` are the saves, as (checkpoint, tag), that are complete or void since the caller has last cleared it.
    `void` is the tag of the last checkpoint that will never be complete.
    """

    def __init__(self, retention: CheckpointRetention, models: ModelRetention, copies: CopyTracker) -> None:
        self._retention = retention
        self._models = models
        self._copies = copies
        self._pending: dict[tuple[bool, str], PendingSave] = {}
        self._absent: set[int] = set()  # trainers that write no more
        self._contents: dict[str, list[SavedReport]] = {}  # of the complete checkpoints of this run
        self.settled: list[tuple[bool, str]] = []
        self.void: str | None = None
        self.not_finite: dict[str, str] = {}  # tables with such values, with the first tag that has them

    def take(self, message: SavedReport, pservers: int) -> list[Action]:
        """Handle a receipt: a pserver has written its piece, or a trainer its state."""
        key = (bool(message.get("checkpoint")), message["tag"])
        self._pending.setdefault(key, PendingSave()).add(message)
        for table in message.get("not_finite", ()):
            self.not_finite.setdefault(table, message["tag"])
        return self._settle(key, pservers)

    def leave(self, ranks: Collection[int], pservers: int) -> list[Action]:
        """Handle the end of trainers: checkpoints that lack their states are void."""
        self._absent.update(ranks)
        return [action for key in list(self._pending) for action in self._settle(key, pservers)]

    def come_back(self, rank: int) -> None:
        """Expect the states of a trainer again."""
        self._absent.discard(rank)

    def _settle(self, key: tuple[bool, str], pservers: int) -> list[Action]:
        """Complete a save, or drop it if what it lacks will not come."""
        (checkpoint, tag), save = key, self._pending[key]
        lost = sorted(self._absent.intersection(save.missing))
        if not save.has_pieces(pservers) or (save.missing and not lost):
            return []
        del self._pending[key]
        self.settled.append(key)
        if lost:
            self.void = tag if checkpoint else self.void
            return [cut_dropped(CHECKPOINT, f"{names_of(lost)} ended before the state was written", lost)]
        if checkpoint:
            self._contents[tag] = [*save.pieces, *save.states]
            return [WriteManifest(tag, save.pieces, checkpoint, save.states)]
        step = save.pieces[-1].get("step")
        self._models.add(tag, step or 0)
        saved = RecordEvent({"event": "saved", "tag": tag, "step": step, "complete": True})
        return [WriteManifest(tag, save.pieces), saved]

    def _drop_models(self) -> list[Action]:
        tags = self._models.drop(self._retention.best, self._held(checkpoint=False))
        order: DropModelsOrder = {"do": "drop_models", "tags": tags}
        return [DropModelManifests(tags), SendOrder(order)] if tags else []

    def keep(self, message: KeptReport) -> list[Action]:
        """Handle a complete checkpoint, whose manifest is in place: older ones may go."""
        tag = message["tag"]
        stay = self._retention.add(
            CompleteCheckpoint(tag, message["step"], message["steps"]), self._held(checkpoint=True)
        )
        event: events.SavedEvent = {
            "event": "saved",
            "tag": tag,
            "step": message["step"],
            "complete": True,
            "checkpoint": True,
        }
        return [RecordEvent(event), *self._keep(stay), *self._drop_models()]

    def _keep(self, stay: Sequence[str]) -> list[Action]:
        """Remove all checkpoints before the newest but those that stay."""
        newest = self._retention.newest
        self._contents = {
            tag: files
            for tag, files in self._contents.items()
            if tag in stay or newest is None or (files[0].get("step") or 0) > newest.step
        }
        self._copies.forget(stay)
        order: KeepOrder = {"do": "keep", "tags": stay, "newest": stay[-1], "alone": self._are_enough}
        return [DropManifests(stay, stay[-1]), SendOrder(order)]

    @property
    def _are_enough(self) -> bool:
        """True if those of older runs may go: not before a checkpoint of this run is copied."""
        return self._retention.full and (not self._copies.are_made or True in self._copies.newest)

    def _held(self, *, checkpoint: bool) -> set[str]:
        """Return the saves of a kind that stay for the sake of copies. Those from before this run may be copied."""
        first = self._models.first if not checkpoint else self._retention.first
        is_needed = self._copies.are_made and checkpoint not in self._copies.newest
        return {*self._copies.held(checkpoint), *(first if is_needed else ())}

    def release(self) -> list[Action]:
        """Handle a model that is in place, or a save that is copied or never will be: older ones may go."""
        stay = self._retention.trim(self._held(checkpoint=True))
        return [*(self._keep(stay) if stay else []), *self._drop_models()]

    @property
    def newest(self) -> CompleteCheckpoint | None:
        """The newest complete checkpoint, perhaps the one from which the run was resumed."""
        return self._retention.newest

    def log(self, message: LoggedReport) -> None:
        """Record a value of the KEEP_BEST metric that a trainer logged."""
        self._retention.log(message["rank"], LoggedValue(message["step"], message["value"], message["weight"]))

    def discard(self, tag: str) -> bool:
        """Discard a damaged checkpoint. Return False if a resumed run has none left: it must not begin anew."""
        self._retention.discard(tag)
        self._copies.discard(tag)
        return self._retention.newest is not None or not self._retention.resumed

    def discard_newest(self) -> bool:
        """Discard the newest checkpoint as `discard` does; also return False if there is none."""
        newest = self._retention.newest
        return newest is not None and self.discard(newest.tag)

    def lose(self, gone: Collection[int]) -> list[str]:
        """Discard the checkpoints of which no node has all files any more, now that these nodes are `gone`.

        Return the files of the newest one that are lost if none is left, else an empty list.
        """
        lost: list[str] = []
        while (newest := self._retention.newest) is not None:
            before = {one.file: one.nodes for one in self.files(newest.tag)}
            missing = [one.file for one in self.files(newest.tag, gone) if not one.nodes]
            if not missing:
                return []
            lost = lost or [f"{file} of {newest.tag} (it was on {_named(before[file])})" for file in missing]
            self.discard(newest.tag)
        return lost

    def files(self, tag: str, gone: Collection[int] = ()) -> list[PieceSource]:
        """The files of a complete checkpoint, and the nodes that have them and are not `gone`."""
        files = [
            PieceSource(
                one["file"], one["bytes"], one["sha256"], (one["node"], *self._copies.holders(tag, one["node"]))
            )
            for one in self._contents.get(tag, ())
        ]
        if not files and tag in self._retention.first:
            files = [
                one.replace(nodes=(*one.nodes, *self._copies.holders_of_file(tag, one.file)))
                for one in self._retention.files
            ]
        return [one.replace(nodes=tuple(sorted({*one.nodes} - {*gone}))) for one in files]

    def go_back(self, *, forget_logs: bool) -> RecoveryPoint:
        """Roll back to the newest checkpoint (`tag`, `step`) or the beginning. Pieces of incomplete ones are void, and
        with `forget_logs` the values logged since.
        """
        self._pending.clear()
        self._absent.clear()
        self.not_finite.clear()
        newest = self._retention.newest
        step = newest.step if newest else 0
        if forget_logs:
            self._retention.forget_after(step)
        return {"tag": newest.tag if newest else None, "step": step}


def _named(nodes: Collection[int]) -> str:
    return " and ".join(f"node{node}" for node in nodes)


class LoggedValue(NamedTuple):
    step: int
    value: float
    weight: float


class CompleteCheckpoint(NamedTuple):
    """A complete checkpoint; `steps` are those of the trainers by rank, if each has its own."""

    tag: str
    step: int
    steps: Sequence[int] = ()


class CheckpointRetention:
    """`first` is the checkpoint from which the run was resumed: it stays until newer ones replace it. `files` are its
    files, as far as they matter. `held` are tags that stay in addition.
    """

    def __init__(
        self,
        keep: int,
        best: KeepBest | None = None,
        first: CompleteCheckpoint | None = None,
        files: Sequence[PieceSource] = (),
    ) -> None:
        self._keep = keep
        self._best = best
        self._known: list[CompleteCheckpoint] = [first] if first else []
        self.resumed = first is not None
        self.first = {first.tag} if first else set()
        self.files = tuple(files)
        self._scores: dict[str, float | None] = {}
        self._logs: dict[int, list[LoggedValue]] = {}

    def log(self, rank: int, logged: LoggedValue) -> None:
        """Add a value of the metric, in the order in which the trainer logged them."""
        if self._best is not None and math.isfinite(logged.value) and logged.weight > 0:
            logs = self._logs.setdefault(rank, [])
            logs.append(logged)
            del logs[:-MOST_LOGS]

    def add(self, new: CompleteCheckpoint, held: Collection[str] = ()) -> list[str]:
        """Add a complete checkpoint. Return the tags that stay, the newest last."""
        self._known = sorted([*(k for k in self._known if k.tag != new.tag), new], key=lambda known: known.step)
        if self._best is not None:
            self._settle(self._known[-2:])  # the one before, too: a value for it may have arrived later
        self.trim(held)
        return [k.tag for k in self._known]

    def trim(self, held: Collection[str] = ()) -> list[str]:
        """Forget the checkpoints that need not stay. Return the tags of the others if there are any such."""
        before, stay, best = self._known, self._known[-self._keep :], self._find_best()
        self._known = [k for k in before if k in stay or k.tag == best or k.tag in held]
        return [k.tag for k in self._known] if len(self._known) < len(before) else []

    @property
    def newest(self) -> CompleteCheckpoint | None:
        """The checkpoint from which a run continues if it rolls back."""
        return self._known[-1] if self._known else None

    @property
    def best(self) -> CompleteCheckpoint | None:
        """The best checkpoint by the metric of KEEP_BEST."""
        tag = self._find_best()
        return next((known for known in self._known if known.tag == tag), None)

    def discard(self, tag: str) -> None:
        """Discard a damaged checkpoint."""
        self._known = [known for known in self._known if known.tag != tag]

    def forget_after(self, step: int) -> None:
        """Forget values logged after a step: they will be logged again."""
        self._logs = {rank: [at for at in logs if at.step <= step] for rank, logs in self._logs.items()}

    @property
    def full(self) -> bool:
        """True if there are enough checkpoints that those of older runs are not needed."""
        return len(self._known) >= self._keep and self._best is None

    def _settle(self, newest: Sequence[CompleteCheckpoint]) -> None:
        for known in newest:
            score = self._score(known)
            if score is not None or known.tag not in self._scores:
                self._scores[known.tag] = score
        for rank, logs in self._logs.items():
            at = self._last_at(rank, newest[0])
            del logs[: at or 0]

    def _score(self, known: CompleteCheckpoint) -> float | None:
        """The mean, by weight, of the last value that each trainer logged at or before the cut."""
        values = [self._logs[rank][at] for rank in self._logs if (at := self._last_at(rank, known)) is not None]
        weight = sum(logged.weight for logged in values)
        return sum(logged.value * logged.weight for logged in values) / weight if weight else None

    def _last_at(self, rank: int, known: CompleteCheckpoint) -> int | None:
        step = known.steps[rank] if rank < len(known.steps) else known.step
        return max((at for at, logged in enumerate(self._logs[rank]) if logged.step <= step), default=None)

    def _find_best(self) -> str | None:
        """The tag of the best checkpoint, the newest among equals."""
        scored = [(self._scores[k.tag], k) for k in self._known if self._scores.get(k.tag) is not None]
        if self._best is None or not scored:
            return None
        sign = 1 if self._best.direction == "max" else -1
        return max(scored, key=lambda pair: (sign * (pair[0] or 0.0), pair[1].step))[1].tag


class ModelRetention:
    """KEEP_MODELS: the newest models stay, and the one of the best checkpoint. None keeps all.

    `models` are complete already, by tag with their steps: a resumed run has those of the run before. What the program
    saved under a tag of its own is never dropped.
    """

    def __init__(self, keep: int | None, models: Mapping[str, int] = MappingProxyType({})) -> None:
        self._keep = keep
        self._steps = {tag: step for tag, step in models.items() if is_scheduled_tag(tag)}
        self.first = set(self._steps)

    def add(self, tag: str, step: int) -> None:
        """Add a complete model."""
        if is_scheduled_tag(tag):
            self._steps[tag] = step

    def drop(self, best: CompleteCheckpoint | None, held: Collection[str] = ()) -> list[str]:
        """Return the tags of the models to remove, oldest first, and forget them. Those `held` stay."""
        tags = sorted(self._steps, key=lambda tag: (self._steps[tag], pass_of(tag) is not None, len(tag), tag))
        if self._keep is None:
            return []
        own = [tag for tag in tags if best is not None and self._steps[tag] <= best.step][-1:]
        gone = [tag for tag in tags[: -self._keep] if tag not in own and tag not in held]
        for tag in gone:
            del self._steps[tag]
        return gone
