"""A lane of a parameter server without sockets, deadlines, files or environment: messages in, replies and saves out.

The ZeroMQ process and local mode drive this very class. A lane owns disjoint pieces of the tables, and shares nothing
with other lanes. Not thread-safe: one thread calls it. How pushes become updates is in `updates`: all trainers' pushes
of a step at once (sync), or each on arrival (async, ssp, geo).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Callable

import numpy as np

from clusterctl.runtime.arrays import Floats
from clusterctl.runtime.errors import BY_NAME, RefusedError, RuntimeFailure, WireError
from clusterctl.runtime.pserver.asynchronous import AsyncUpdates
from clusterctl.runtime.pserver.lane_state import LaneState, Output, Reply
from clusterctl.runtime.pserver.saves import Saver
from clusterctl.runtime.pserver.sync import SyncUpdates
from clusterctl.runtime.pserver.trainers import TrainerState
from clusterctl.runtime.pserver.updates import UpdatePolicy
from clusterctl.runtime.store.dense import DenseTable
from clusterctl.runtime.store.factory import CheckpointSource, ModelSource, TableMaker
from clusterctl.runtime.table.spec import TableSpec, spec_from_json
from clusterctl.runtime.wire import messages as wire


class ServerCore:
    """What follows from each message to a lane; `state` is what the lane knows.

    `greeting` goes into every reply to a hello. `gone` are trainers without which the run goes on, by rank, with the
    pushes that they are known to have made.
    """

    def __init__(
        self,
        state: LaneState,
        open_model: Callable[[str], ModelSource] | None = None,
        restored: CheckpointSource | None = None,
        gone: Mapping[int, int] | None = None,
    ) -> None:
        self.state = state
        self.trainers = state.trainers
        self.tables = state.tables
        self.greeting: dict[str, Any] = {}
        self._declared: dict[int, TableSpec] = {}
        self._is_restored = restored is not None
        self._maker = TableMaker(state.lane, state.layout, state.seed, state.mode, open_model, restored, state.lender)
        self._saver = Saver(state)
        self._book = self._saver.book
        policy_class = SyncUpdates if state.mode.name == "sync" else AsyncUpdates
        self.policy: UpdatePolicy = policy_class(state, self._saver, self._pull_again)
        if restored is not None:
            self.trainers.restore(restored.cursors, restored.step)
            self.policy.restore(restored.step)
        self.gone_from: dict[int, int] = {}  # by rank, the first pass in which others take over what it would have read
        for rank, pushes in (gone or {}).items():
            self.policy.catch_up(rank, pushes, self.trainers[rank].cursor)
            self._go_on_without(rank)
            self.trainers[rank].left = True
        self._handlers: dict[int, Callable[[wire.Message], list[Output]]] = {
            wire.HELLO: self._hello,
            wire.CREATE: self._create,
            wire.PULL: self._pull,
            wire.PUSH: self.policy.push,
            wire.PROBE: self._probe,
            wire.SAVE: self._save,
            wire.BYE: self._bye,
            wire.CUT: self.policy.cut,
        }

    def handle(self, rank: int, message: wire.Message) -> list[Output]:
        """What follows from a message of the trainer whose key says `rank`. A trainer's errors are answered."""
        try:
            self._admit(rank, message)
            if message.kind == wire.PULL:
                self._distrust_places(message)
            return self._handlers[message.kind](message)
        except RuntimeFailure as failure:
            return [Reply(rank, error_reply(message, failure))]

    def _pull_again(self, pull: wire.Message) -> list[Output]:
        """As `handle`, for a pull that came before and had to wait; nobody waits for that of a trainer that died."""
        if pull.attempt < self.trainers[pull.rank].attempt:
            return []
        try:
            return self._pull(pull)
        except RuntimeFailure as failure:
            return [Reply(pull.rank, error_reply(pull, failure))]

    def saved(self, tag: str) -> list[Output]:
        """The file of `tag` is in place: answers who waited for it."""
        return [Reply(m.rank, m.answer(wire.OK)) for m in self._book.finish(tag)]

    def begin_epoch(self, epoch: int) -> list[Output]:
        """Others begin again: what was said before is refused from now on."""
        self.state.epoch = epoch
        return []

    def drop(self, ranks: Iterable[int]) -> list[Output]:
        """The run goes on without these trainers."""
        out: list[Output] = []
        for rank in ranks:
            if rank in self.trainers.by_rank and not self.trainers[rank].left:
                self._go_on_without(rank)
                out += self._leave(self.trainers[rank])
        return out

    def _go_on_without(self, rank: int) -> None:
        """Whoever begins the pass after the one that may have begun has heard of it before."""
        self.gone_from[rank] = self.trainers.most_passes + 1

    def request_cut(self) -> None:
        """A checkpoint is due by the clock: trainers hear of it with the next replies."""
        self.policy.announce()

    @property
    def step(self) -> int:
        """Steps applied (sync), or pushes of all trainers (other modes)."""
        return self.state.step

    def _admit(self, rank: int, message: wire.Message) -> None:
        trainer = self.trainers.by_rank.get(rank)
        if trainer is None or message.rank != rank:
            raise RefusedError(f"a message says it is of trainer {message.rank}, its key belongs to trainer {rank}")
        if message.kind not in self._handlers:
            raise RefusedError(f"trainer {rank} sent a message of kind {message.kind}, which is not a request")
        if message.kind != wire.HELLO and message.epoch != self.state.epoch:
            raise RefusedError(
                f"trainer {rank} speaks in epoch {message.epoch}, the job is in epoch {self.state.epoch}"
            )
        if message.attempt < trainer.attempt:
            raise RefusedError(f"attempt {message.attempt} of trainer {rank} was replaced by attempt {trainer.attempt}")
        if message.attempt > trainer.attempt and message.kind not in (wire.HELLO, wire.PROBE):
            raise RefusedError(f"attempt {message.attempt} of trainer {rank} has not said hello")

    def _distrust_places(self, pull: wire.Message) -> None:
        """A copy of an earlier pull may come late, when the memory that it was lent has another use: it gets none."""
        trainer = self.trainers[pull.rank]
        if pull.request <= trainer.newest_pull:
            pull.parts = [part._replace(position=None) for part in pull.parts]
        trainer.newest_pull = max(trainer.newest_pull, pull.request)

    def _hello(self, message: wire.Message) -> list[Output]:
        state, trainer, counted = self.state, self.trainers[message.rank], message.json().get("trainers")
        if counted != state.trainer_count:
            raise RefusedError(f"trainer {message.rank} counts {counted} trainers, this pserver {state.trainer_count}")
        trainer.attempt = message.attempt
        used, step = self.policy.progress_of(message.rank)
        facts: dict[str, Any] = {
            **self.greeting,
            "shared": None if state.lender is None else state.lender.greeting(message.rank),
            "pserver": state.pserver,
            "pservers": state.layout.pservers,
            "lanes": [state.layout.dense, state.layout.sparse],
            "mode": str(state.mode),
            "seed": state.seed,
            "half": state.half,
            "key_cache": state.key_cache,
            "restored": self._is_restored,
            "used": used,
            "left": trainer.left,
            "gone": self._gone(),
            "step": step,
            "version": self.step,
            "passes": self.trainers.passes,
            "pass": trainer.cursor[0],
            "batch": trainer.cursor[1],
            "cut": self.policy.cuts,
            "cuts_made": self.policy.cuts_made,
        }
        return [Reply(message.rank, message.answer(wire.OK, epoch=state.epoch, parts=[wire.json_part(facts)]))]

    def _create(self, message: wire.Message) -> list[Output]:
        spec = spec_from_json(message.json())
        self.policy.join(message)
        declared = self._declared.get(spec.key)
        if declared is None:
            self.tables[spec.key] = self._maker.make(spec)
            declared = self._declared[spec.key] = spec
        declared.require_same(spec, message.rank)
        facts = {"initial": spec.key in self._maker.initial}
        reply = Reply(message.rank, message.answer(wire.OK, parts=[wire.json_part(facts)]))
        return [reply, *self.policy.trainers_changed()]

    def _pull(self, message: wire.Message) -> list[Output]:
        if self.policy.defers(message):
            return []
        parts = self._answer_pull(message)
        step = self.step
        return [Reply(message.rank, message.answer(wire.OK, version=step, cut=self.policy.cuts, parts=parts))]

    def _answer_pull(self, message: wire.Message) -> list[wire.Part]:
        version = self.policy.version(message)
        brief = [(p.table, p.array.tobytes()) for p in message.parts if p.kind in (wire.DENSE, wire.SAME)]
        if len(set(brief)) < len(brief):
            raise WireError("a pull asks for the same values twice")
        out: list[wire.Part] = []
        for part in message.parts:
            table = self.state.validator.table(part.table)
            if isinstance(table, DenseTable):
                if part.kind != wire.DENSE:
                    raise WireError(f"a pull of table {table.spec.name!r} asks for the wrong kind of part")
                out += self.state.parts(message.rank, table, table.at(version))
            else:
                rows = table.pull(self.state.validator.ids(table, part, message.rank), version)
                out.append(self._rows_part(message.rank, part, rows))
        return out

    def _rows_part(self, rank: int, asked: wire.Part, rows: Floats) -> wire.Part:
        if self.state.lender is not None and asked.position is not None:
            room = self.state.lender.room(rank, asked.position, rows.nbytes)
            if room is not None:
                room[:] = rows.reshape(-1).view(np.uint8)
                return wire.Part(wire.ROWS, rows, asked.table, 0, asked.position)
        return wire.Part(wire.ROWS16 if self.state.half else wire.ROWS, rows, asked.table)

    def _save(self, message: wire.Message) -> list[Output]:
        tag, at_pass_end = str(message.json().get("tag", "")), bool(message.flags & wire.END_OF_PASS)
        gone = [wire.json_part({"gone": self._gone()})] if self.gone_from else []
        done = Reply(message.rank, message.answer(wire.OK, parts=gone))
        if self._book.ask(tag, message, at_pass_end):
            return [done]
        out = self._saver.due(force=False)
        if at_pass_end:
            return [*out, done]
        self._book.wait(tag, message)
        return out

    def _gone(self) -> list[tuple[int, int]]:
        return sorted(self.gone_from.items())

    def _bye(self, message: wire.Message) -> list[Output]:
        out = self._leave(self.trainers[message.rank])
        if self._book.writing:
            self._book.wait(self._book.writing[-1], message)
            return out
        return [*out, Reply(message.rank, message.answer(wire.OK))]

    def _leave(self, trainer: TrainerState) -> list[Output]:
        """Nothing more comes of a trainer; what only the last one knew of is saved."""
        trainer.left, trainer.push = True, None
        out = self.policy.trainers_changed()
        out += self._saver.due(force=False)
        if not self.trainers.active():
            if self.tables and self._book.saved_step != self.step:
                self._book.ask_for_all(self._book.unfinished_pass(self.trainers.most_passes))
            out += self._saver.due(force=True)
        return out

    def _probe(self, message: wire.Message) -> list[Output]:
        held = {m.request for m in [*self.policy.held(message.rank), *self._book.waiting()] if m.rank == message.rank}
        facts = {"held": sorted(held), "waiting": self.policy.waited_for(), "step": self.step}
        return [Reply(message.rank, message.answer(wire.STATE, parts=[wire.json_part(facts)]))]


def error_reply(message: wire.Message, failure: RuntimeFailure) -> wire.Message:
    name = type(failure).__name__
    known = name if name in BY_NAME else "RefusedError"
    return message.answer(wire.ERROR, parts=[wire.json_part({"error": known, "message": str(failure)})])
