"""Sync mode: a step is one update from all trainers' pushes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from clusterctl.runtime.checkpoint.writer import Save
from clusterctl.runtime.errors import RefusedError
from clusterctl.runtime.pserver.lane_state import LaneState, Output
from clusterctl.runtime.pserver.requests import Opening, Push
from clusterctl.runtime.pserver.saves import Saver
from clusterctl.runtime.pserver.trainers import TrainerState
from clusterctl.runtime.pserver.updates import HandleAgain, UpdatePolicy
from clusterctl.runtime.store.dense import DenseTable, Weighted
from clusterctl.runtime.wire import messages as wire

_LONG_S = 3.0  # a wait that is reported
_MOST_NAMED = 4


class SyncStep:
    """The step being applied: `pushes` of all trainers, by rank, and the parts still to apply.

    By dense table, `concerned` has the pushes with a gradient of it, and `left_over` the numbers of its parts that are
    not applied yet. `rates` are the learning rates that replace those of rules, by table: the lowest rank's.
    """

    def __init__(self, pushes: list[Push], tables: Mapping[int, DenseTable], *, has_assigned: bool = False) -> None:
        self.pushes = pushes
        self.total = sum([push.message.samples for push in pushes])
        self.weighty = [push for push in pushes if push.message.samples]
        self.rates = self.weighty[0].rates if self.weighty else {}
        self.concerned: dict[int, list[Push]] = {}
        for push in self.weighty:
            for key in {**push.dense, **push.later} if push.later else push.dense:
                self.concerned.setdefault(key, []).append(push)
        for key, table in tables.items() if has_assigned else ():
            if table.assigned is not None:
                self.concerned.setdefault(key, [])
        self.left_over = {key: set(range(tables[key].parts)) for key in sorted(self.concerned)}

    def continue_with(self, pushes: list[Push]) -> None:
        """Continue with these pushes only: the trainers of the others have left."""
        self.pushes = pushes
        self.concerned = {key: [p for p in concerned if p in pushes] for key, concerned in self.concerned.items()}


class SyncUpdates(UpdatePolicy):
    """Applies step `t` when every trainer that has not left has pushed it.

    Gradients are merged by ascending rank, weighted by samples. A part is applied as soon as its gradients have arrived
    from all trainers that push the table; the step is done when all parts are.
    """

    def __init__(self, lane: LaneState, saver: Saver, again: HandleAgain) -> None:
        super().__init__(lane, saver, again)
        self._due_cuts: dict[int, int] = {}  # by step, what they are for
        self._schedule = lane.cut_schedule.by_purpose()
        self._missing: TrainerState | None = None
        self._expect_all()
        self._now: SyncStep | None = None  # once all trainers' pushes have opened
        self._opened_s = time.monotonic()  # when the last push did

    def push(self, message: wire.Message) -> list[Output]:
        trainer, step = self.lane.trainers.by_rank[message.rank], self.lane.step
        if message.step < step:
            return [self._repeated(message)]
        if message.step > step or trainer.left:
            raise RefusedError(
                f"trainer {message.rank} pushed step {message.step}, pserver {self.lane.pserver} is at {self.lane.step}"
            )
        return self._piece(message) if message.piece else self._open(trainer, message)

    def version(self, pull: wire.Message) -> int | None:
        if pull.version == wire.NEWEST:
            return None
        if pull.version < self.lane.step - 1:
            raise RefusedError(
                f"trainer {pull.rank} pulled version {pull.version}, pserver {self.lane.pserver} is at {self.lane.step}"
            )
        return pull.version

    def waited_for(self) -> list[int]:
        return [rank for rank, trainer in self.lane.trainers.by_rank.items() if trainer.is_awaited]

    def long_wait(self) -> dict[str, Any]:
        """Return facts for `step` events if trainers have waited for pushes of others for some seconds. Thread-safe.

        `awaits` are the ranks of the first of the `awaited` trainers; the others are `waiting`, for `awaits_s` seconds.
        """
        awaited, for_s = self.waited_for(), time.monotonic() - self._opened_s
        waiting = sum(trainer.push is not None for trainer in self.lane.trainers.by_rank.values())
        if not awaited or not waiting or for_s < _LONG_S or self.lane.copying.holds:
            return {}
        facts = {"awaits": awaited[:_MOST_NAMED], "awaited": len(awaited), "waiting": waiting}
        return {**facts, "awaits_s": round(for_s, 1)}

    def progress_of(self, rank: int) -> tuple[bool, int]:
        return bool(self.lane.tables) or self.lane.lane == 0, self.lane.step  # lane 0 gets all pushes

    def join(self, message: wire.Message, position: Any) -> None:
        if not self.lane.tables:
            self.lane.step = max(self.lane.step, message.step)

    def announce(self, purpose: int) -> list[Output]:
        """Announce the cut with the replies of this step; trainers send it to all lanes with their next push.

        One that was announced before, and that no push has passed, is not replaced: a trainer that is started again
        may still owe it its state.
        """
        at, others = self.lane.cut_schedule.decode(self.cuts)
        if self.cuts and at >= self.lane.step and not purpose & ~others:
            return []
        due = self.lane.step + 2
        self.cuts = self.lane.cut_schedule.encode(due, purpose | others if at == due else purpose)
        return []

    def trainers_changed(self) -> list[Output]:
        """Apply updates that waited for a trainer that left; its complete pushes count."""
        now = self._now
        if now is None:
            return self._advance()
        now.continue_with(self._pushes())
        waiting = [(key, number) for key, numbers in now.left_over.items() for number in sorted(numbers)]
        return [output for part in waiting for output in self._apply(now, *part)] + self._finish_if_done(now)

    def _must_wait(self, pull: wire.Message) -> bool:
        return pull.version != wire.NEWEST and pull.version > self.lane.step

    def _open(self, trainer: TrainerState, message: wire.Message) -> list[Output]:
        push = self.lane.validator.opening(message)
        if trainer.push is not None and not self._replaces(trainer.push, push):
            trainer.push.message.request = message.request  # the first push counts, the newest request is answered
            return []
        trainer.push, push.declared = push, trainer.tables
        self._opened_s = time.monotonic()
        if message.cut:
            at, purpose = self.lane.cut_schedule.decode(message.cut)
            if at > self.lane.step:
                self._due_cuts[at] = self._due_cuts.get(at, 0) | purpose
        return self._advance()

    def _replaces(self, earlier: Push, push: Push) -> bool:
        """Return True if a successor's push replaces that of a trainer that died; False once the step has begun."""
        if earlier.message.attempt == push.message.attempt:
            return False
        if self._now is None:
            return True
        if earlier.announces() != push.announces():
            raise RefusedError(
                f"attempt {push.message.attempt} of trainer {push.message.rank} pushed something else in step "
                f"{self.lane.step} than attempt {earlier.message.attempt}: the program is not deterministic"
            )
        return False

    def _piece(self, message: wire.Message) -> list[Output]:
        push = self.lane.trainers[message.rank].push
        if push is None:
            return []  # its opening was lost: the trainer will probe, and send both again
        key, number, grad = self.lane.validator.piece(message, push)
        if push.samples == 0:
            return [self._reply(message, [])]
        table, now = self.lane.dense[key], self._now
        if now is not None and number not in now.left_over.get(key, ()):
            return [self._reply(message, [self.lane.part(message.rank, table, number, table.previous)], wire.REPEATED)]
        message.parts = []
        push.requests[key, number] = message
        push.dense.setdefault(key, {})[number] = grad
        return [] if now is None else self._apply(now, key, number) + self._finish_if_done(now)

    def _advance(self) -> list[Output]:
        """Begin the step once all trainers' pushes have opened."""
        pushes = [] if self._is_incomplete() else self._pushes()
        if not pushes or (self.lane.lane == 0 and self._differ(pushes)):
            return []
        out: list[Output] = [*self.saver.due(force=True)] if self.saver.book.asked else []
        if self.lane.copying.holds:
            return out  # `trainers_changed` is called afterwards
        opening = None if self.lane.sparse or self.lane.has_assigned else pushes[0].opening
        if opening is not None and all(push.opening is opening for push in pushes):
            return out + self._apply_alike(pushes, opening)
        now = self._now = SyncStep(pushes, self.lane.dense, has_assigned=self.lane.has_assigned)
        for key, table in self.lane.sparse.items():
            grads = [push.sparse[key] for push in now.weighty if key in push.sparse]
            if grads or table.spec.retention is not None:
                self._apply_rows(table, grads, now.total, now.rates)
        for key in now.left_over:
            for number in range(self.lane.dense[key].parts):
                out += self._apply(now, key, number)
        return out + self._finish_if_done(now)

    def _differ(self, pushes: list[Push]) -> bool:
        """Return True if trainers have declared different tables by the end of the step, or assigned different values
        before it; then it is not made.
        """
        first = pushes[0].declared
        declared = None if first is None else first.sum
        if any(push.declared is not None and push.declared.sum != declared for push in pushes):
            of_all = {push.message.rank: push.declared for push in pushes}
            self.lane.declarations.check_step(self.lane.step + 1, of_all)
        if any(push.assigned for push in pushes):
            assigned = {push.message.rank: push.assigned for push in pushes}
            late = [rank for rank, push in zip(assigned, pushes) if not push.samples or self._begins_a_pass(rank)]
            self.lane.declarations.check_assigned(self.lane.step + 1, assigned, late)
        return self.lane.declarations.failure is not None

    def _begins_a_pass(self, rank: int) -> bool:
        """Return True if a trainer's last push ended a pass: others may have gone on, and assigned values since."""
        trainer = self.lane.trainers.by_rank[rank]
        return trainer.pushed > 0 and trainer.cursor[1] == 0

    def _apply_alike(self, pushes: list[Push], opening: Opening) -> list[Output]:
        """Make the step of pushes that have the same short tables and nothing else: what `SyncStep` would come to."""
        began = time.perf_counter()
        total = sum([push.message.samples for push in pushes])
        weighty = [push for push in pushes if push.message.samples]
        tables = opening.tables if weighty else ()
        for table in tables:
            grads = [(push.weight, push.dense[table.key][0]) for push in weighty]
            table.apply(0, grads, total, self.lane.step + 1, table.spec.rule, False)
        self.applied_s += time.perf_counter() - began
        return self._finish(pushes, tables)

    def _is_incomplete(self) -> bool:
        """Return True if a push is missing. It is called for every push, so it checks each trainer once per step."""
        missing = self._missing
        while missing is not None and (missing.push is not None or missing.left):
            self._missing = missing = next(self._not_looked_at, None)
        return missing is not None

    def _expect_all(self) -> None:
        """Begin a step, in which the push of every trainer is missing."""
        self._not_looked_at = iter(self.lane.trainers.by_rank.values())
        self._missing = next(self._not_looked_at, None)

    def _pushes(self) -> list[Push]:
        return [m.push for m in self.lane.trainers.by_rank.values() if m.push is not None]

    def _apply(self, now: SyncStep, key: int, number: int) -> list[Output]:
        """Apply a part if all its gradients have arrived; answer the pieces that brought them."""
        concerned = now.concerned[key]
        grads: list[Weighted] = []
        for push in concerned:
            parts = push.dense.get(key)
            grad = None if parts is None else parts.get(number)
            if grad is None:
                return []
            grads.append((push.weight, grad))
        table = self.lane.dense[key]
        if grads:
            self._apply_part(table, number, grads, now.total, now.rates, in_place=False)
        else:
            table.keep(number)
        now.left_over[key].discard(number)
        out: list[Output] = []
        for push in concerned:
            del push.dense[key][number]
            request = push.requests.pop((key, number), None) if push.requests else None
            if request is not None:
                # `finish` makes this the current one
                fresh = self.lane.part(request.rank, table, number, table.previous, has_last=True)
                out.append(self._reply(request, [fresh]))
        return out

    def _finish_if_done(self, now: SyncStep) -> list[Output]:
        if any(now.left_over.values()):
            return []
        self._now = None
        return self._finish(now.pushes, [self.lane.dense[key] for key in now.left_over])

    def _finish(self, pushes: list[Push], tables: Sequence[DenseTable]) -> list[Output]:
        """End the step, which has changed `tables`, and answer its pushes."""
        lane = self.lane
        for table in tables:
            table.finish(lane.step)
        lane.step += 1
        lane.has_assigned = False
        for push in pushes:
            lane.trainers.by_rank[push.message.rank].record(push)
        self._expect_all()
        out = [*self._make_cuts(), *self._answers(pushes, tables)]
        return out + self.answer_held() if self._pulls else out

    def _answers(self, pushes: list[Push], tables: Sequence[DenseTable]) -> list[Output]:
        """Answer pushes with the new values of tables. Parts that several trainers get are encoded once."""
        lane, out = self.lane, list[Output]()
        passes, for_all = lane.trainers.passes, lane.are_sent(tables)
        same: wire.Parts | None = None
        for push in pushes:
            if push.later:
                rest = [table for table in tables if table.key not in push.later]
                fresh = lane.newest(push.message.rank, rest, has_last=True)
            elif same is None or not for_all:
                fresh = same = lane.newest(push.message.rank, tables, has_last=True)
            else:
                fresh = same
            out.append(self._reply_in(passes, push.message, fresh))
        return out

    def _make_cuts(self) -> list[Save]:
        if not self._due_cuts and not self._schedule:
            return []
        step = self.lane.step
        purpose = self._due_cuts.pop(step, 0) if self._due_cuts else 0
        for one, every in self._schedule.items():
            purpose |= one if every.is_step(step) else 0
        return self.saver.at_cut(step, purpose) if purpose else []
