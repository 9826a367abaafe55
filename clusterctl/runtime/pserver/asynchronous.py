"""Async, ssp and geo: each push is applied on arrival."""

from __future__ import annotations

import numpy as np

from clusterctl.runtime.arrays import Floats
from clusterctl.runtime.errors import RefusedError
from clusterctl.runtime.modes import WINDOWS, Every
from clusterctl.runtime.pserver.cuts import CHECKPOINT, MODEL
from clusterctl.runtime.pserver.lane_state import LaneState, Output
from clusterctl.runtime.pserver.requests import Push
from clusterctl.runtime.pserver.saves import Saver
from clusterctl.runtime.pserver.updates import AnswerPull, UpdatePolicy
from clusterctl.runtime.store.dense import DenseTable
from clusterctl.runtime.store.sparse import SparseTable
from clusterctl.runtime.wire import messages as wire


class AsyncUpdates(UpdatePolicy):
    """Applies each push on arrival.

    A trainer's pushes are applied in order: one that comes too early is not answered, and the trainer sends it again
    after the lost one. The staleness of a push is the number of pushes that other trainers made since its values were
    current.

    In ssp, a trainer gets values only while it is not too far ahead of the slowest. One that has stopped for a
    checkpoint holds no other back, because the checkpoint needs them all: the others get values early, stop too, and
    get newer ones when they may continue.
    """

    def __init__(self, lane: LaneState, saver: Saver, answer_pull: AnswerPull) -> None:
        super().__init__(lane, saver, answer_pull)
        self._window = WINDOWS[lane.mode.name]
        self._ahead: dict[int, Push] = {}  # ssp: applied, and answered when the trainer may continue
        self._cut_requests: dict[int, wire.Message] = {}
        self._cuts_done: dict[int, wire.Message] = {}  # ssp: answered when the trainer may continue
        self._stops: dict[int, int] = {}  # by rank, the newest checkpoint that it has stopped for, on whatever lane
        self._saved_at = {CHECKPOINT: -1, MODEL: -1}
        self._announced: dict[int, float] = {}  # by purpose, the steps or passes when a cut was announced for it
        self._pending = 0  # what cuts were announced for that are not made yet
        counted = lane.cut_schedule.by_purpose().items() if lane.lane == 0 else ()
        self._counted = {purpose: every for purpose, every in counted if every.unit != "s"}

    def push(self, message: wire.Message) -> list[Output]:
        trainer = self.lane.trainers[message.rank]
        if message.step < trainer.pushed:
            return self._again(message)
        if trainer.left or message.step > trainer.pushed + self._window:
            raise RefusedError(f"trainer {message.rank} pushes its step {message.step}, {trainer.pushed} is next")
        if message.step > trainer.pushed:
            return []
        out = self._piece(message) if message.piece else self._open(message)
        push = trainer.push
        if push is not None and len(push.applied) == sum(push.later.values()):
            out += self._complete(push)
        return out

    def waited_for(self) -> list[int]:
        trainers = self.lane.trainers
        if self.lane.mode.name != "ssp":
            return []
        return [rank for rank, m in trainers.by_rank.items() if not m.left and m.pushed == trainers.slowest]

    def held(self, rank: int) -> list[wire.Message]:
        ahead = [self._ahead[rank].message] if rank in self._ahead else []
        return [*super().held(rank), *ahead, *self._cut_requests.values(), *self._cuts_done.values()]

    def restore(self, step: int) -> None:
        self.lane.step = step
        self._saved_at = dict.fromkeys(self._saved_at, step)
        self._announced = {purpose: self._count(every) for purpose, every in self._counted.items()}

    def progress_of(self, rank: int) -> tuple[bool, int]:
        trainer = self.lane.trainers[rank]
        return trainer.declared, trainer.pushed

    def join(self, message: wire.Message) -> None:
        trainer = self.lane.trainers[message.rank]
        if not trainer.declared:
            self.catch_up(message.rank, message.step, (message.pass_, message.batch))
            self.cuts = max(self.cuts, message.cut)
            self.cuts_made = max(self.cuts_made, message.cut)
        trainer.declared = True
        self._note_stop(message)

    def catch_up(self, rank: int, pushes: int, cursor: tuple[int, int]) -> None:
        """Skip a trainer's pushes that this lane does not know. After a restart they are lost with the old process."""
        missing = self._move(rank, pushes, cursor)
        if self.lane.epoch > 0:
            self.lost += missing
            self.lane.step += missing

    def _move(self, rank: int, pushes: int, cursor: tuple[int, int]) -> int:
        """Advance a trainer to where it is; return the number of its pushes that this lane does not have."""
        trainer = self.lane.trainers[rank]
        missing = max(0, pushes - trainer.pushed)
        if missing:
            trainer.pushed, trainer.cursor = pushes, cursor
            trainer.passes = max(trainer.passes, cursor[0])
        return missing

    def announce(self, purpose: int) -> None:
        self._pending |= purpose
        number, _ = self.lane.cut_schedule.decode(self.cuts)
        self.cuts = self.lane.cut_schedule.encode(number + 1, self._pending)

    def forget_requests(self, rank: int) -> None:
        self._cut_requests.pop(rank, None)
        self._cuts_done.pop(rank, None)
        self._stops.pop(rank, None)

    def _note_stop(self, message: wire.Message) -> None:
        self._stops[message.rank] = max(message.cut, self._stops.get(message.rank, 0))

    def cut(self, message: wire.Message) -> list[Output]:
        """Record that a trainer stopped for a checkpoint, which is made when all have."""
        if not self.lane.trainers[message.rank].declared:  # it has no table here yet, and pushes to the others only
            self._move(message.rank, message.step, (message.pass_, message.batch))
        self.cuts = max(self.cuts, message.cut)
        self._note_stop(message)
        if not self.lane.tables and self.lane.lane != 0:  # nothing to save; trainers of an older version stop elsewhere
            self.cuts_made = max(self.cuts_made, message.cut)
            return [self._reply(message, [])]
        requests = self._cuts_done if message.cut <= self.cuts_made else self._cut_requests
        requests[message.rank] = message
        return self.trainers_changed()

    def trainers_changed(self) -> list[Output]:
        return [*self._make_cut(), *self._release()]

    def _must_wait(self, pull: wire.Message) -> bool:
        return self._is_held_back(pull.rank)

    def _make_cut(self) -> list[Output]:
        requests = self._cut_requests
        out: list[Output] = []
        if requests and self.lane.trainers.active() <= set(requests):
            self.cuts_made = max(self.cuts_made, *(message.cut for message in requests.values()))
            out = self._save_at(max(message.version for message in requests.values()))
        for rank in [rank for rank, message in requests.items() if message.cut <= self.cuts_made]:
            self._cuts_done[rank] = requests.pop(rank)
        return out

    def _save_at(self, step: int) -> list[Output]:
        """Save what the trainers have stopped for, unless it is saved already: they may stop twice without a push."""
        purpose = 0
        for request in self._cut_requests.values():
            purpose |= self.lane.cut_schedule.decode(request.cut)[1]
        self._pending &= ~purpose
        for one, saved_at in self._saved_at.items():
            if purpose & one and step > saved_at:
                self._saved_at[one] = step
            else:
                purpose &= ~one
        return self.saver.at_cut(step, purpose)

    def _open(self, message: wire.Message) -> list[Output]:
        trainer = self.lane.trainers[message.rank]
        push = self.lane.validator.opening(message)
        if not push.samples:
            push.later, push.sparse, push.dense = {}, {}, {}
        if trainer.push is None:
            self._apply_opening(push)
        else:  # applied pieces stay applied; a successor announces which others will come
            push.applied = {piece for piece in trainer.push.applied if piece[0] in push.later}
        push.sparse, push.dense = {}, {}
        trainer.push = push
        return []

    def _apply_opening(self, push: Push) -> None:
        for key, table in sorted(self.lane.tables.items()):
            grads = [push.sparse[key]] if key in push.sparse else []
            if isinstance(table, SparseTable) and (grads or table.spec.retention is not None):
                self._apply_rows(table, grads, 1)
        for key, parts in sorted(push.dense.items()):
            for number, values in parts.items():
                self._apply(key, number, values)

    def _piece(self, message: wire.Message) -> list[Output]:
        push = self.lane.trainers[message.rank].push
        if push is None:
            return []  # its opening was lost: the trainer will probe, and send both again
        key, number, grad = self.lane.validator.piece(message, push)
        if (key, number) in push.applied:
            return [self._reply(message, self._piece_values(message.rank, key, number), wire.REPEATED)]
        self._apply(key, number, grad)
        push.applied.add((key, number))
        return [self._reply(message, self._piece_values(message.rank, key, number))]

    def _apply(self, key: int, number: int, grad: Floats) -> None:
        table = self.lane.tables[key]
        assert isinstance(table, DenseTable)
        self._apply_part(table, number, [(np.float32(1), grad)], 1, in_place=True)

    def _piece_values(self, rank: int, key: int, number: int) -> list[wire.Part]:
        """Return the new values for the reply to a piece. In ssp they come with the reply to the opening instead."""
        table = self.lane.tables[key]
        assert isinstance(table, DenseTable)
        if self.lane.mode.name == "ssp":
            return []
        return [self.lane.part(rank, table, number, table.current)]

    def _complete(self, push: Push) -> list[Output]:
        trainers, rank = self.lane.trainers, push.message.rank
        if push.message.version <= self.lane.step:
            self.staleness[self.lane.step - push.message.version] += 1
        trainers[rank].record(push.message)
        self.lane.step += 1
        self._announce_if_due()
        self._ahead[rank] = push
        return self._release()

    def _release(self) -> list[Output]:
        """Answer the trainers that may continue, or may at least stop for a checkpoint."""
        out: list[Output] = []
        for rank in [rank for rank in self._ahead if not self._is_held_back(rank)]:
            push = self._ahead.pop(rank)
            sent = () if self.lane.mode.name == "ssp" else push.later
            keys = [key for key in sorted(self.lane.tables) if key not in sent]
            out.append(self._reply(push.message, self.lane.newest(rank, keys)))
        for rank, message in list(self._cuts_done.items()):
            if not self._is_ahead(rank):
                keys = sorted(self.lane.tables) if self.lane.mode.name == "ssp" else []
                out.append(self._reply(self._cuts_done.pop(rank), self.lane.newest(rank, keys)))
            elif self._has_to_stop_again(message):
                out.append(self._reply(self._cuts_done.pop(rank), [], wire.STOP_AGAIN))
        return [*out, *self._answer_held()]

    def _again(self, message: wire.Message) -> list[Output]:
        """Answer a repeat of an applied push with the newest values, or keep it until the trainer may have them."""
        waiting = self._ahead.get(message.rank)
        if waiting is not None and waiting.message.step == message.step and message.piece == 0:
            waiting.message.request = message.request
            return []
        if self.lane.mode.name != "ssp":
            return [self._repeated(message)]
        keys = [] if message.piece else sorted(self.lane.tables)  # in ssp replies to pieces have no values
        return [self._reply(message, self.lane.newest(message.rank, keys), wire.REPEATED)]

    def _is_ahead(self, rank: int) -> bool:
        return self.lane.mode.name == "ssp" and self._is_too_far_from(rank, self.lane.trainers.active())

    def _is_held_back(self, rank: int) -> bool:
        """Return True if a trainer is too far ahead of one that does not wait for it to stop for a checkpoint.

        One that stopped for a newer checkpoint than it did waits for it, perhaps on another lane.
        """
        if not self._is_ahead(rank):
            return False
        own = self._stops.get(rank, 0)
        waiting = {other for other, stop in self._stops.items() if stop > own}
        return self._is_too_far_from(rank, self.lane.trainers.active() - waiting - set(self._cut_requests))

    def _is_too_far_from(self, rank: int, others: set[int]) -> bool:
        """On lane 0, which all use, every trainer counts; on the others those that have made a table there."""
        trainers = self.lane.trainers
        pushed = trainers[rank].pushed
        theirs = [trainers[o].pushed for o in others if self.lane.lane == 0 or trainers[o].declared]
        return pushed - min(theirs, default=pushed) > self.lane.mode.bound

    def _has_to_stop_again(self, stopped: wire.Message) -> bool:
        """Return True if those that a trainer is too far ahead of wait for it to stop for a newer checkpoint."""
        due = max((self._stops.get(other, 0) for other in self.lane.trainers.active()), default=0)
        return due > stopped.cut and not self._is_held_back(stopped.rank)

    def _announce_if_due(self) -> None:
        for purpose, every in self._counted.items():
            done = self._count(every)
            if done // every.n > self._announced.get(purpose, 0) // every.n:
                self._announced[purpose] = done
                self.announce(purpose)

    def _count(self, every: Every) -> int:
        return self.lane.trainers.passes if every.unit == "pass" else self.lane.trainers.slowest
