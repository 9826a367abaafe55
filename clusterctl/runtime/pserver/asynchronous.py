"""Async, ssp and geo: each push is applied on arrival."""

from __future__ import annotations

from typing import Any

import numpy as np

from clusterctl.runtime.arrays import Floats
from clusterctl.runtime.errors import RefusedError
from clusterctl.runtime.modes import CHECKPOINT, WINDOWS
from clusterctl.runtime.pserver.lane_cut import LaneCut, Moment
from clusterctl.runtime.pserver.lane_state import CopiedCut, DueCut, HeldCut, LaneState, Output
from clusterctl.runtime.pserver.requests import Push
from clusterctl.runtime.pserver.saves import Saver
from clusterctl.runtime.pserver.updates import HandleAgain, UpdatePolicy
from clusterctl.runtime.wire import messages as wire

_ONE = np.float32(1)


class AsyncUpdates(UpdatePolicy):
    """Applies each push on arrival.

    A trainer's pushes are applied in order: one that comes too early is not answered, and the trainer sends it again
    after the lost one. The staleness of a push is the number of pushes that other trainers made since its values were
    current. In ssp, a trainer gets values only while it is not too far ahead of the slowest.

    While a cut is made, what belongs after it waits, see `LaneCut`.
    """

    def __init__(self, lane: LaneState, saver: Saver, again: HandleAgain) -> None:
        super().__init__(lane, saver, again)
        self._window = WINDOWS[lane.mode.name]
        self._ahead: dict[int, Push] = {}  # ssp: applied, and answered when the trainer may continue
        counted = lane.cut_schedule.by_purpose().items() if lane.lane == 0 else ()
        self._counted = {purpose: every for purpose, every in counted if every.unit != "s"}
        self._due_at: dict[int, int] = {}  # by purpose, the lane's step when a cut was last due
        self._due_pass: dict[int, int] = {}  # the same in passes

    def push(self, message: wire.Message) -> list[Output]:
        trainer = self.lane.trainers.by_rank[message.rank]
        if message.step < trainer.pushed:
            return self._again(message)
        if trainer.left or message.step > trainer.pushed + self._window:
            raise RefusedError(f"trainer {message.rank} pushes its step {message.step}, {trainer.pushed} is next")
        if self.holds(message) or message.step > trainer.pushed:
            return []
        out = self._piece(message) if message.piece else self._open(message)
        push = trainer.push
        if push is not None and (not push.later or len(push.applied) == sum(push.later.values())):
            out += self._complete(push)
        return out

    def waited_for(self) -> list[int]:
        trainers = self.lane.trainers
        if self.lane.mode.name != "ssp":
            return []
        return [rank for rank, m in trainers.by_rank.items() if not m.left and m.pushed == trainers.slowest]

    def held(self, rank: int) -> list[wire.Message]:
        ahead = [self._ahead[rank].message] if rank in self._ahead else []
        return [*super().held(rank), *ahead, *(self.cut.held() if self.cut else [])]

    def restore(self, step: int) -> None:
        self.lane.step = step
        self._due_at = dict.fromkeys(self.lane.cut_schedule.by_purpose(), step)
        self._due_pass = dict.fromkeys(self._counted, self.lane.trainers.passes)

    def progress_of(self, rank: int) -> tuple[bool, int]:
        trainer = self.lane.trainers[rank]
        return trainer.declared, trainer.pushed

    def join(self, message: wire.Message, position: Any) -> None:
        self.catch_up(message.rank, message.step, (message.pass_, message.batch), position)
        self.lane.trainers[message.rank].declared = True

    def catch_up(self, rank: int, pushes: int, cursor: tuple[int, int], position: Any = None) -> None:
        """Skip a trainer's pushes that this lane does not know. After a restart they are lost with the old process.

        They may also be older than the trainer's first table on this lane, in this attempt.
        """
        trainer = self.lane.trainers[rank]
        missing = max(0, pushes - trainer.pushed)
        if missing:
            trainer.pushed, trainer.cursor, trainer.push = pushes, cursor, None
            trainer.passes = max(trainer.passes, cursor[0])
            trainer.position = position
        if self.lane.epoch > 0 and not trainer.declared:
            self.lost += missing
            self.lane.step += missing

    # Cuts

    def announce(self, purpose: int) -> list[Output]:
        """Report that a cut is due by the clock, unless no push was made since the last one."""
        if self.lane.step <= self._due_at.get(purpose, 0):
            return []
        self._due_at[purpose] = self.lane.step
        return [DueCut(purpose)]

    def hold_cut(self, number: int) -> list[Output]:
        out = self.drop_cut()
        self.cut = LaneCut(number, self.lane.trainers)
        begun = sum(trainer.push is not None for trainer in self.lane.trainers.by_rank.values())
        return [*out, HeldCut(number, self.cut.counts, self.lane.step + begun, self.lane.trainers.passes)]

    def make_cut(self, number: int, moment: Moment) -> list[Output]:
        if self.cut is None or self.cut.number != number:
            return []
        self.cut.settle(moment)
        before = [output for message in self.cut.take_held(up_to_cut=True) for output in self._again_with(message)]
        return [*before, *self._copy_if_complete()]

    def drop_cut(self, number: int | None = None) -> list[Output]:
        """Go on without the cut (of this number, if one is given), unless it is copied already."""
        if self.cut is None or number not in (None, self.cut.number):
            return []
        waiting, self.cut = self.cut.take_held(up_to_cut=False), None
        return [output for message in waiting for output in self._again_with(message)]

    def holds(self, message: wire.Message) -> bool:
        return self.cut is not None and self.cut.hold(message)

    def trainers_changed(self) -> list[Output]:
        return [*self._copy_if_complete(), *self._release()]

    def _copy_if_complete(self) -> list[Output]:
        """Copy the tables once all pushes of the cut are applied, and go on."""
        cut = self.cut
        if cut is None or cut.moment is None or cut.missing():
            return []
        if self.lane.lane == 0 and self.check_declarations():
            return []
        cut.copying = True
        saves = self.saver.copies(cut.moment.step, cut.moment.passes, cut.moment.purpose)
        self.copied_cut = cut.number
        if cut.moment.purpose & CHECKPOINT:  # replies tell trainers with state of their own
            self.cuts = self.lane.cut_schedule.encode(cut.moment.step, CHECKPOINT)
        copied = CopiedCut(cut.number, tuple(saves), sum(self.lane.set_tables()) % 2**63)
        return [copied, *self.drop_cut()]

    def check_declarations(self, rank: int | None = None) -> bool:
        """Compare the tables that trainers have declared; if one leaves, only it and those that have left can lack any.

        Return True if they differ.
        """
        trainers, reached = self.lane.trainers, self.lane.trainers.reached()
        ranks = [one for one in reached if rank is None or one == rank or trainers[one].left]
        self.lane.declarations.check_progress(reached, ranks)
        return self.lane.declarations.failure is not None

    def _due(self) -> list[Output]:
        """Return the cuts that are due by steps or passes. Steps are all trainers' pushes, divided by their number."""
        out: list[Output] = []
        for purpose, every in self._counted.items():
            if every.unit == "step":
                pushes = self.lane.step - self._due_at.get(purpose, 0)
                is_due = pushes >= every.n * len(self.lane.trainers.active())
            else:
                passes = self.lane.trainers.passes
                is_due = passes // every.n > self._due_pass.get(purpose, 0) // every.n
                self._due_pass[purpose] = passes
            if is_due:
                self._due_at[purpose] = self.lane.step
                out.append(DueCut(purpose))
        return out

    # Pushes

    def _must_wait(self, pull: wire.Message) -> bool:
        return self._is_ahead(pull.rank, pull.step)

    def _open(self, message: wire.Message) -> list[Output]:
        trainer = self.lane.trainers[message.rank]
        push = self.lane.validator.opening(message)
        if not push.samples:
            push.later, push.sparse, push.dense = {}, {}, {}
        if trainer.push is None:
            self._apply_opening(push)
        else:  # applied pieces stay applied; a successor announces which others will come
            push.applied = {piece for piece in trainer.push.applied if piece[0] in push.later}
        push.sparse, push.dense, push.declared = {}, {}, trainer.tables
        trainer.push = push
        return []

    def _apply_opening(self, push: Push) -> None:
        for key, table in self.lane.sparse.items():
            grads = [push.sparse[key]] if key in push.sparse else []
            if grads or table.spec.retention is not None:
                self._apply_rows(table, grads, 1, push.rates)
        for key, parts in sorted(push.dense.items()):
            for number, values in parts.items():
                self._apply(push, key, number, values)

    def _piece(self, message: wire.Message) -> list[Output]:
        push = self.lane.trainers[message.rank].push
        if push is None:
            return []  # its opening was lost: the trainer will probe, and send both again
        key, number, grad = self.lane.validator.piece(message, push)
        if (key, number) in push.applied:
            return [self._reply(message, self._piece_values(message.rank, key, number), wire.REPEATED)]
        self._apply(push, key, number, grad)
        push.applied.add((key, number))
        return [self._reply(message, self._piece_values(message.rank, key, number))]

    def _apply(self, push: Push, key: int, number: int, grad: Floats) -> None:
        self._apply_part(self.lane.dense[key], number, [(_ONE, grad)], 1, push.rates, in_place=True)

    def _piece_values(self, rank: int, key: int, number: int) -> list[wire.Part]:
        """Return the new values for the reply to a piece. In ssp they come with the reply to the opening instead."""
        if self.lane.mode.name == "ssp":
            return []
        table = self.lane.dense[key]
        return [self.lane.part(rank, table, number, table.current)]

    def _complete(self, push: Push) -> list[Output]:
        trainers, rank = self.lane.trainers, push.message.rank
        if push.message.version <= self.lane.step:
            self.staleness[self.lane.step - push.message.version] += 1
        trainers[rank].record(push)
        self.lane.step += 1
        self._ahead[rank] = push
        due = self._due() if self._counted else []
        return [*due, *self._release(), *self._copy_if_complete()]

    def _release(self) -> list[Output]:
        """Answer the trainers that may continue."""
        out: list[Output] = []
        for rank in [rank for rank in self._ahead if not self._is_ahead(rank)]:
            push = self._ahead.pop(rank)
            sent = () if self.lane.mode.name == "ssp" else push.later
            tables = [table for key, table in self.lane.dense.items() if key not in sent]
            out.append(self._reply(push.message, self.lane.newest(rank, tables)))
        return [*out, *self.answer_held()]

    def _again(self, message: wire.Message) -> list[Output]:
        """Answer a repeat of an applied push with the newest values, or keep it until the trainer may have them."""
        waiting = self._ahead.get(message.rank)
        if waiting is not None and waiting.message.step == message.step and message.piece == 0:
            waiting.message.request = message.request
            return []
        if self.lane.mode.name != "ssp":
            return [self._repeated(message)]
        tables = [] if message.piece else self.lane.dense.values()  # in ssp replies to pieces have no values
        return [self._reply(message, self.lane.newest(message.rank, tables), wire.REPEATED)]

    def _is_ahead(self, rank: int, at: int | None = None) -> bool:
        """Return True if a trainer is too far ahead of the slowest in ssp, with `at` when it has made so many pushes.

        A trainer that was restarted may repeat a push that this lane has and another lacks. On lane 0, which all use,
        every trainer counts; on the others those that have made a table there.
        """
        if self.lane.mode.name != "ssp":
            return False
        trainers = self.lane.trainers
        pushed = trainers[rank].pushed if at is None else min(at, trainers[rank].pushed)
        theirs = [trainers[o].pushed for o in trainers.active() if self.lane.lane == 0 or trainers[o].declared]
        return pushed - min(theirs, default=pushed) > self.lane.mode.bound
