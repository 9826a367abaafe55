"""The state that a lane keeps of each trainer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from clusterctl.runtime.pserver.declarations import Declared, TrainerProgress
from clusterctl.runtime.pserver.requests import NOT_TOLD, Push
from clusterctl.runtime.wire import messages as wire


@dataclass
class TrainerState:
    """The state that a lane keeps of one trainer. `push` is the push that is not, or not entirely, applied yet.

    `declared` means that it made a table on this lane, and so pushes to it. `samples` are those of the open pass,
    `pass_samples` those of the last complete one; `sharded` means that it takes its share of the batches
    that all trainers read. `position` is the value of `ps.cursor` that came with its last push; `state` means that it
    had a state of its own then, which it writes for the cuts that have this push. `tables` are those that its newest
    attempt has declared, `pushed_with` those of the attempt that made its last push, as the first lane of the run knows
    them; None if it does not say.
    """

    attempt: int = 0
    passes: int = 0
    pushed: int = 0
    cursor: tuple[int, int] = (0, 0)
    left: bool = False
    declared: bool = False
    newest_pull: int = 0
    push: Push | None = None
    samples: int = 0
    pass_samples: int = 0
    sharded: bool = False
    position: Any = None
    state: bool = False
    tables: Declared | None = None
    pushed_with: Declared | None = None

    @property
    def begun(self) -> int:
        """Its pushes, with the one that is not entirely applied yet."""
        return self.pushed + (self.push is not None)

    @property
    def is_awaited(self) -> bool:
        """True if its push of the current step has not arrived."""
        return self.push is None and not self.left

    def record(self, applied: Push) -> None:
        """Count a push that was applied."""
        push = applied.message
        self.push = None
        if applied.position is not NOT_TOLD:
            self.position = applied.position
        self.state = applied.state
        self.pushed_with = applied.declared
        self.pushed += 1
        self.cursor = (push.pass_, push.batch + 1)
        self.samples += push.samples
        self.sharded = bool(push.flags & wire.SHARDED)
        if push.flags & wire.LAST_OF_PASS:
            self.passes = max(self.passes, push.pass_ + 1)
            self.cursor = (push.pass_ + 1, 0)
            self.samples, self.pass_samples = 0, self.samples

    def describe_loss(self, rank: int, pass_: int) -> str:
        """Return a message about the samples that are lost when the run continues without this trainer."""
        of = f" of {self.pass_samples:,}" if self.pass_samples else ""
        done = f"the run continues without trainer {rank}, which gave {self.samples:,}{of} samples of pass {pass_}"
        if self.sharded:
            return f"{done}: the rest of its share of this pass is lost; the others share later passes"
        a_pass = f"{self.pass_samples:,} samples a pass" if self.pass_samples else "its samples"
        return f"{done}: the rest, and {a_pass} from then on, are lost, since they were on its node only"

    def to_json(self, rank: int) -> dict[str, Any]:
        """Return the trainer's cursor for checkpoints."""
        pass_, batch = self.cursor
        at = {"rank": rank, "step": self.pushed, "pass": pass_, "batch": batch}
        position = {} if self.position is None else {"position": self.position}
        state = {"state": True} if self.state and not self.left else {}  # one that has left writes it no more
        return {**at, "passes": self.passes, "left": self.left, **position, **state}


@dataclass
class TrainerStates:
    """All trainers of the run, by ascending rank.

    `positions` are those of the trainers of an earlier run, if it had another number of them, until each of ours has
    one of its own; `resized` means that there was another number. `gone_from` has the trainers that left for good, with
    the first pass in which the others read their share.
    """

    by_rank: dict[int, TrainerState] = field(default_factory=dict)
    positions: list[Any] = field(default_factory=list)
    resized: bool = False
    gone_from: dict[int, int] = field(default_factory=dict)

    def __getitem__(self, rank: int) -> TrainerState:
        return self.by_rank[rank]

    def active(self) -> set[int]:
        return {rank for rank, trainer in self.by_rank.items() if not trainer.left}

    def reached(self) -> dict[int, TrainerProgress]:
        """Return what each trainer that has pushed, and says what it declares, has declared, and how far it is."""
        by_rank = self.by_rank.items()
        return {r: TrainerProgress(m.pushed_with, m.pushed, m.cursor) for r, m in by_rank if m.pushed_with is not None}

    @property
    def passes(self) -> int:
        """Passes ended by all trainers that have not left."""
        here = [m.passes for m in self.by_rank.values() if not m.left]
        return min(here) if here else self.most_passes

    @property
    def most_passes(self) -> int:
        return max((m.passes for m in self.by_rank.values()), default=0)

    def have_begun(self, pass_: int) -> bool:
        """Return True if a trainer has pushed in a pass, and not ended it."""
        return any(m.cursor[0] == pass_ and m.cursor[1] > 0 for m in self.by_rank.values())

    @property
    def slowest(self) -> int:
        """The fewest pushes of any trainer that has not left; one that has not connected yet counts as 0.

        When all have left, the most of any, so that a trainer that restarts at its very end is not too far ahead.
        """
        here = [m.pushed for m in self.by_rank.values() if not m.left]
        return min(here) if here else max((m.pushed for m in self.by_rank.values()), default=0)

    def cursors(self) -> tuple[dict[str, Any], ...]:
        """Return the cursors of all trainers, by rank; the first also has what concerns all of them."""
        cursors = [trainer.to_json(rank) for rank, trainer in sorted(self.by_rank.items())]
        if self.positions and any(cursor.get("position") is None for cursor in cursors):
            cursors[0]["positions"] = self.positions
        if self.gone_from:
            cursors[0]["gone"] = sorted(self.gone_from.items())
        return tuple(cursors)

    def restore(self, cursors: list[dict[str, Any]], step: int) -> None:
        """Continue from a checkpoint's cursors; with another number of trainers the interrupted pass restarts."""
        same = len(cursors) == len(self.by_rank)
        own = [cursor.get("position") for cursor in cursors]
        inherited = list(cursors[0].get("positions", ())) if None in own else []
        if same:
            self.positions = inherited
            self.gone_from = {int(rank): int(at) for rank, at in cursors[0].get("gone", ())}
        else:
            self.resized = True
            self.positions = [one for one in own if one is not None] + inherited
        pass_ = min((int(c["pass"]) for c in cursors), default=0)
        for rank, trainer in self.by_rank.items():
            at = cursors[rank] if same else {"step": step, "pass": pass_, "batch": 0, "passes": pass_}
            trainer.pushed, trainer.passes = int(at["step"]), int(at["passes"])
            trainer.cursor = (int(at["pass"]), int(at["batch"]))
            trainer.position = at.get("position")
            trainer.state = bool(at.get("state"))
