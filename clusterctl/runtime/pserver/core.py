"""A lane of a parameter server without sockets, deadlines, files or environment: messages in, replies and saves out.

The pserver process and local mode both run this class. A lane owns disjoint pieces of the tables, and shares nothing
with other lanes. Not thread-safe: one thread calls it. The update policy turns pushes into updates: all trainers'
pushes of a step at once (sync), or each on arrival (async, ssp, geo).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Callable

import numpy as np

from clusterctl.runtime.arrays import Floats
from clusterctl.runtime.cuts import CHECKPOINT
from clusterctl.runtime.errors import BY_NAME, RefusedError, RuntimeFailure, WireError
from clusterctl.runtime.pserver.asynchronous import AsyncUpdates
from clusterctl.runtime.pserver.lane_state import LaneState, Output, Reply, Unset
from clusterctl.runtime.pserver.saves import Saver
from clusterctl.runtime.pserver.sync import SyncUpdates
from clusterctl.runtime.pserver.trainers import TrainerState
from clusterctl.runtime.pserver.updates import UpdatePolicy
from clusterctl.runtime.store.dense import DenseTable
from clusterctl.runtime.store.factory import CheckpointSource, ModelSource, TableMaker
from clusterctl.runtime.table.spec import TableSpec, spec_from_json
from clusterctl.runtime.wire import messages as wire


class ServerCore:
    """Handles the messages to one lane.

    `greeting` is added to every reply to a hello. `gone` are trainers that left the run for good, by rank, with the
    number of pushes they are known to have made.
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
        self._is_first = restored is None and state.epoch == 0
        self._maker = TableMaker(state.lane, state.layout, state.seed, state.mode, open_model, restored, state.lender)
        self._saver = Saver(state)
        self._book = self._saver.book
        policy_class = SyncUpdates if state.mode.name == "sync" else AsyncUpdates
        self.policy: UpdatePolicy = policy_class(state, self._saver, self._handle_again)
        if restored is not None:
            self.trainers.restore(restored.cursors, restored.step)
            self.policy.restore(restored.step)
        self.trainers.gone_from = {rank: at for rank, at in self.trainers.gone_from.items() if rank in (gone or {})}
        for rank, pushes in (gone or {}).items():
            self.policy.catch_up(rank, pushes, self.trainers[rank].cursor)
            if rank not in self.trainers.gone_from:
                self._redistribute(rank)
            self.trainers[rank].left = True
        self._handlers: dict[int, Callable[[wire.Message], list[Output]]] = {
            wire.HELLO: self._hello,
            wire.CREATE: self._create,
            wire.PULL: self._pull,
            wire.PUSH: self.policy.push,
            wire.SET: self._set,
            wire.PROBE: self._probe,
            wire.SAVE: self._save,
            wire.BYE: self._bye,
            wire.BUFFERS: self._buffers,
        }

    def handle(self, rank: int, message: wire.Message) -> list[Output]:
        """Handle a message from the connection whose key belongs to trainer `rank`. Its errors become error replies."""
        try:
            self._admit(rank, message)
            if message.kind == wire.PULL:
                self._drop_stale_positions(message)
            return self._handlers[message.kind](message)
        except RuntimeFailure as failure:
            return [Reply(rank, error_reply(message, failure))]

    def _handle_again(self, message: wire.Message) -> list[Output]:
        """Handle a request that had to wait. One of an epoch or attempt that is over is dropped."""
        if message.attempt < self.trainers[message.rank].attempt or message.epoch != self.state.epoch:
            return []
        try:
            return self._handlers[message.kind](message)
        except RuntimeFailure as failure:
            return [Reply(message.rank, error_reply(message, failure))]

    def saved(self, tag: str) -> list[Output]:
        """Answer the requests that waited for the file of `tag`, which is in place."""
        return [self._farewell(m) for m in self._book.finish(tag)]

    def begin_epoch(self, epoch: int) -> list[Output]:
        """Start a new epoch, as other processes restart: messages of earlier epochs are refused from now on."""
        self.state.epoch = epoch
        return self.policy.drop_cut()

    def drop(self, ranks: Iterable[int]) -> list[Output]:
        """Continue the run without these trainers."""
        here = self._here(ranks)
        held = self.policy.drop_cut() if here else []  # of what it sent to all lanes, none may be refused on some
        for rank in here:
            self._redistribute(rank)
        return [*held, *self.leave(here)]

    def leave(self, ranks: Iterable[int]) -> list[Output]:
        """Record that these trainers have left the run; usually their own message says so."""
        return [output for rank in self._here(ranks) for output in self._leave(self.trainers[rank])]

    def _here(self, ranks: Iterable[int]) -> list[int]:
        return [rank for rank in ranks if rank in self.trainers.by_rank and not self.trainers[rank].left]

    def _redistribute(self, rank: int) -> None:
        """Let the others read a trainer's share from the next pass that no trainer can have started."""
        self.trainers.gone_from[rank] = self.trainers.most_passes + 1

    def request_cut(self, purpose: int = CHECKPOINT) -> list[Output]:
        """Handle a cut that is due by the clock."""
        return self.policy.announce(purpose)

    @property
    def step(self) -> int:
        """Steps applied (sync), or pushes of all trainers (other modes)."""
        return self.state.step

    def _admit(self, rank: int, message: wire.Message) -> None:
        trainer = self.trainers.by_rank.get(rank)
        if trainer is None or message.rank != rank:
            raise RefusedError(f"a message claims to be from trainer {message.rank}; its key belongs to trainer {rank}")
        if message.kind not in self._handlers:
            raise RefusedError(f"trainer {rank} sent a message of kind {message.kind}, which is not a request")
        if message.kind not in (wire.HELLO, wire.PROBE) and message.epoch != self.state.epoch:
            raise RefusedError(
                f"trainer {rank} sent a message of epoch {message.epoch}, the job is in epoch {self.state.epoch}"
            )
        if message.kind == wire.SET and rank != 0:
            raise RefusedError(f"trainer {rank} sent initial values, which only trainer 0 may do")
        if message.attempt < trainer.attempt:
            raise RefusedError(f"attempt {message.attempt} of trainer {rank} was replaced by attempt {trainer.attempt}")
        if message.attempt > trainer.attempt and message.kind not in (wire.HELLO, wire.PROBE):
            raise RefusedError(f"attempt {message.attempt} of trainer {rank} has not sent a hello")

    def _drop_stale_positions(self, pull: wire.Message) -> None:
        """Ignore the memory offered by a late copy of an earlier pull: it may be in use for something else by now."""
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
            "resized": self.trainers.resized,
        }
        if trainer.position is not None:
            facts["position"] = trainer.position
        if trainer.state:
            facts["state"] = True
        parts = [wire.json_part(facts), *(wire.json_part({"position": at}) for at in self.trainers.positions)]
        if state.lane == 0 and (load := message.json().get("origin")) is not None:
            saved = self._maker.saved_tables(str(load))
            parts += wire.bytes_parts(json.dumps(saved).encode()) if saved is not None else []
        return [Reply(message.rank, message.answer(wire.OK, epoch=state.epoch, parts=parts))]

    def _create(self, message: wire.Message) -> list[Output]:
        """Make a table; without one, only learn where the trainer is."""
        if self.policy.holds(message):
            return []
        facts = message.json() if message.parts else {}
        position = facts.pop("cursor", None)
        spec = spec_from_json(facts) if facts else None
        self.policy.join(message, position)
        if spec is None:
            return [Reply(message.rank, message.answer(wire.OK)), *self.policy.trainers_changed()]
        declared = self._declared.get(spec.key)
        if declared is None:
            self.state.add(spec.key, self._maker.make(spec))
            declared = self._declared[spec.key] = spec
            if spec.init.is_from_rank0 and spec.key in self._maker.initial:
                self.state.unset[spec.key] = Unset()
        declared.require_same(spec, message.rank)
        answer: dict[str, Any] = {"initial": spec.load is not None and spec.key in self._maker.initial}
        if spec.key in self.state.unset:
            answer["unset"] = True
        reply = Reply(message.rank, message.answer(wire.OK, parts=[wire.json_part(answer)]))
        return [reply, *self.policy.trainers_changed()]

    def _set(self, message: wire.Message) -> list[Output]:
        """Take initial values; those that others wait for may be complete then."""
        if self.policy.holds(message):
            return []
        reply = Reply(message.rank, message.answer(wire.OK))
        return [reply, *(self.policy.answer_held() if self.state.fill(message) else [])]

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

    def _rows_part(self, rank: int, request: wire.Part, rows: Floats) -> wire.Part:
        if self.state.lender is not None and request.position is not None:
            room = self.state.lender.room(rank, request.position, rows.nbytes)
            if room is not None:
                room[:] = rows.reshape(-1).view(np.uint8)
                return wire.Part(wire.ROWS, rows, request.table, 0, request.position)
        return wire.Part(wire.ROWS16 if self.state.half else wire.ROWS, rows, request.table)

    def _save(self, message: wire.Message) -> list[Output]:
        tag, at_pass_end = str(message.json().get("tag", "")), bool(message.flags & wire.END_OF_PASS)
        gone = [wire.json_part({"gone": self._gone()})] if self.trainers.gone_from else []
        done = Reply(message.rank, message.answer(wire.OK, parts=gone))
        if message.flags & wire.REPEATED and not self._is_first:
            return [done]  # the pserver before this one may have saved it
        if self._book.ask(tag, message, at_pass_end):
            return [done]
        out: list[Output] = [*self._saver.due(force=False)]
        if at_pass_end:
            return [*out, done]
        self._book.wait(tag, message)
        return out

    def _buffers(self, message: wire.Message) -> list[Output]:
        self.state.buffers.take(message)
        return [Reply(message.rank, message.answer(wire.OK))]

    def _gone(self) -> list[tuple[int, int]]:
        return sorted(self.trainers.gone_from.items())

    def _bye(self, message: wire.Message) -> list[Output]:
        out = self._leave(self.trainers[message.rank])
        if self._book.writing:
            self._book.wait(self._book.writing[-1], message)
            return out
        return [*out, self._farewell(message)]

    def _farewell(self, message: wire.Message) -> Reply:
        """Answer a trainer that leaves, or waited for a save. It has to know of the newest cut."""
        return Reply(message.rank, message.answer(wire.OK, version=self.step, cut=self.policy.cuts))

    def _leave(self, trainer: TrainerState) -> list[Output]:
        """Record that a trainer left; when the last one leaves, save all unsaved values."""
        trainer.left, trainer.push = True, None
        out = self.policy.trainers_changed() + (self.policy.answer_held() if self.state.unset else [])
        out += self._saver.due(force=False)
        if not self.trainers.active():
            unsaved = self._book.unsaved_tag(self.trainers, self.step) if self.state.has_values else None
            if unsaved is not None:
                self._book.ask_for_all(unsaved)
            out += self._saver.due(force=True)
        return out

    def _probe(self, message: wire.Message) -> list[Output]:
        held = [m for m in [*self.policy.held(message.rank), *self._book.waiting()] if m.rank == message.rank]
        needs_values = any(part.table in self.state.unset for m in held for part in m.parts)
        waiting = [0] if needs_values else self.policy.waited_for()
        facts = {"held": sorted({m.request for m in held}), "waiting": waiting, "step": self.step}
        return [Reply(message.rank, message.answer(wire.STATE, parts=[wire.json_part(facts)]))]


def error_reply(message: wire.Message, failure: RuntimeFailure) -> wire.Message:
    name = type(failure).__name__
    known = name if name in BY_NAME else "RefusedError"
    return message.answer(wire.ERROR, parts=[wire.json_part({"error": known, "message": str(failure)})])
