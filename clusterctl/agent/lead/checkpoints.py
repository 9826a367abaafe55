"""What a run has saved, as its lead knows it: pieces that are still missing, checkpoints that stay. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from clusterctl.agent.lead.actions import Action, DropManifests, RecordEvent, SendOrder, WriteManifest

Message = dict[str, Any]
MOST_LOGS = 1_000  # of a trainer: a cut is complete long before it has logged so much again


class CheckpointTracker:
    """Models and checkpoints become whole when every pserver has written its piece; `retention` says which stay."""

    def __init__(self, retention: CheckpointRetention) -> None:
        self._retention = retention
        self._receipts: dict[tuple[bool, str], dict[int, Message]] = {}

    def take(self, message: Message, pservers: int) -> list[Action]:
        """A pserver has written its piece."""
        tag, checkpoint = message["tag"], bool(message.get("checkpoint"))
        receipts = self._receipts.setdefault((checkpoint, tag), {})
        receipts[message["rank"]] = message
        if len(receipts) < pservers:
            return []
        whole = [receipts[rank] for rank in sorted(receipts)]
        del self._receipts[checkpoint, tag]
        if checkpoint:
            return [WriteManifest(tag, whole, checkpoint)]
        return [WriteManifest(tag, whole), _note(message)]

    def keep(self, message: Message) -> list[Action]:
        """The manifest of a checkpoint is in place: older ones may go."""
        tag = message["tag"]
        stay = self._retention.add(Known(tag, message["step"], message["steps"]))
        order = {"do": "keep", "tags": stay, "newest": stay[-1], "alone": self._retention.full}
        return [_note(message, checkpoint=True), DropManifests(stay, stay[-1]), SendOrder(order)]

    def log(self, message: Message) -> None:
        """A trainer logged what KEEP_BEST goes by."""
        self._retention.log(message["rank"], Logged(message["step"], message["value"], message["weight"]))

    def discard(self, tag: str) -> None:
        """A checkpoint turned out to be damaged."""
        self._retention.discard(tag)

    def go_back(self, *, forget_logs: bool) -> Message:
        """Processes begin again, from the newest checkpoint (`tag`, `step`) or the beginning; pieces on the way are
        void, and with `forget_logs` what was logged since."""
        self._receipts.clear()
        newest = self._retention.newest
        step = newest.step if newest else 0
        if forget_logs:
            self._retention.forget_after(step)
        return {"tag": newest.tag if newest else None, "step": step}


def _note(message: Message, **more: bool) -> RecordEvent:
    return RecordEvent({"event": "saved", "tag": message["tag"], "step": message.get("step"), "complete": True, **more})


class Best(NamedTuple):
    """KEEP_BEST: the checkpoint with the highest ("max") or lowest ("min") value of what trainers log as `name`."""

    name: str
    direction: str


class Logged(NamedTuple):
    step: int
    value: float
    weight: float


class Known(NamedTuple):
    """A complete checkpoint; `steps` are those of the trainers by rank, where they have steps of their own."""

    tag: str
    step: int
    steps: Sequence[int] = ()


class CheckpointRetention:
    """`first` is the checkpoint from which the run was resumed: it stays until newer ones take its place."""

    def __init__(self, keep: int, best: Best | None = None, first: Known | None = None) -> None:
        self._keep = keep
        self._best = best
        self._known: list[Known] = [first] if first else []
        self._scores: dict[str, float | None] = {}
        self._logs: dict[int, list[Logged]] = {}

    def log(self, rank: int, logged: Logged) -> None:
        """What a trainer logged of the metric; in the order in which it did."""
        if self._best is not None and math.isfinite(logged.value) and logged.weight > 0:
            logs = self._logs.setdefault(rank, [])
            logs.append(logged)
            del logs[:-MOST_LOGS]

    def add(self, new: Known) -> list[str]:
        """A checkpoint is complete: the tags that stay, the newest last."""
        self._known = sorted([*(k for k in self._known if k.tag != new.tag), new], key=lambda known: known.step)
        if self._best is not None:
            self._settle(self._known[-2:])  # the one before again: a word about it may have come after it
        stay = self._known[-self._keep :]
        best = self._find_best()
        self._known = [k for k in self._known if k in stay or k.tag == best]
        return [k.tag for k in self._known]

    @property
    def newest(self) -> Known | None:
        """From where a run goes on when it must go back."""
        return self._known[-1] if self._known else None

    def discard(self, tag: str) -> None:
        """A checkpoint turned out to be damaged."""
        self._known = [known for known in self._known if known.tag != tag]

    def forget_after(self, step: int) -> None:
        """What was logged after a step will be logged again."""
        self._logs = {rank: [at for at in logs if at.step <= step] for rank, logs in self._logs.items()}

    @property
    def full(self) -> bool:
        """Whether as many are here as should be, and none of an older run is needed."""
        return len(self._known) >= self._keep and self._best is None

    def _settle(self, newest: Sequence[Known]) -> None:
        for known in newest:
            score = self._score(known)
            if score is not None or known.tag not in self._scores:
                self._scores[known.tag] = score
        for rank, logs in self._logs.items():
            at = self._last_at(rank, newest[0])
            del logs[: at or 0]

    def _score(self, known: Known) -> float | None:
        """The mean, by weight, of the last value that each trainer logged at or before the cut."""
        values = [self._logs[rank][at] for rank in self._logs if (at := self._last_at(rank, known)) is not None]
        weight = sum(logged.weight for logged in values)
        return sum(logged.value * logged.weight for logged in values) / weight if weight else None

    def _last_at(self, rank: int, known: Known) -> int | None:
        step = known.steps[rank] if rank < len(known.steps) else known.step
        return max((at for at, logged in enumerate(self._logs[rank]) if logged.step <= step), default=None)

    def _find_best(self) -> str | None:
        """Of equals the newest."""
        scored = [(self._scores[k.tag], k) for k in self._known if self._scores.get(k.tag) is not None]
        if self._best is None or not scored:
            return None
        sign = 1 if self._best.direction == "max" else -1
        return max(scored, key=lambda pair: (sign * (pair[0] or 0.0), pair[1].step))[1].tag
