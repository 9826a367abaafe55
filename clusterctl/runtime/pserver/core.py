"""A lane of a parameter server without sockets, deadlines, files or environment: messages in, replies and saves out.

The pserver process and local mode both run this class. A lane owns disjoint pieces of the tables, and shares nothing
with other lanes. Not thread-safe: one thread calls it. The update policy turns pushes into updates: all trainers'
pushes of a step at once (sync), or each on arrival (async, ssp, geo).
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Callable

import numpy as np

from clusterctl.runtime.arrays import Floats
from clusterctl.runtime.checkpoint.writer import Save
from clusterctl.runtime.errors import BY_NAME, RefusedError, RuntimeFailure, WireError
from clusterctl.runtime.modes import CHECKPOINT
from clusterctl.runtime.pserver.asynchronous import AsyncUpdates
from clusterctl.runtime.pserver.declarations import DeclarationPoint, Declared
from clusterctl.runtime.pserver.lane_state import CopiedCut, LaneState, Output, Reply, Unset
from clusterctl.runtime.pserver.requests import ReadJob, assigned_values
from clusterctl.runtime.pserver.saves import Saver
from clusterctl.runtime.pserver.sync import SyncUpdates
from clusterctl.runtime.pserver.trainers import TrainerState
from clusterctl.runtime.pserver.updates import UpdatePolicy
from clusterctl.runtime.store.dense import DenseTable
from clusterctl.runtime.store.factory import CheckpointSource, ModelSource, TableMaker, Tables
from clusterctl.runtime.table.spec import TableSpec, spec_from_json
from clusterctl.runtime.wire import messages as wire


class ServerCore:
    """Handles the messages to one lane.

    `greeting`, and what `offer_stream` returns for the trainer, are added to every reply to a hello. `gone` are
    trainers that left the run for good, by rank, with the number of pushes they are known to have made. `readings` are
    those that have begun and whose result has not been used yet.
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
        self.offer_stream: Callable[[int], Any] | None = None
        self.readings: dict[Hashable, ReadJob] = {}
        self._declared: dict[int, TableSpec] = {}
        self._is_restored = restored is not None
        self._is_first = restored is None and state.epoch == 0
        self._maker = TableMaker(state.lane, state.layout, state.seed, state.mode, open_model, restored, state.lender)
        self._copying = state.copying
        self._unsent: list[Output] = []
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
            self._require_same_tables()
            if self._copying.keeps(message):
                return []
            outputs = self._sendable(self._handlers[message.kind](message))
            self._require_same_tables()
            return outputs
        except RuntimeFailure as failure:
            reply = error_reply(message, failure, differ=failure is self.state.declarations.failure)
            return [Reply(rank, reply)]

    def _require_same_tables(self) -> None:
        """Raise TableError once trainers are found to have declared different tables: no request is answered then."""
        if self.state.declarations.failure is not None:
            raise self.state.declarations.failure

    def do(self, task: Callable[[ServerCore], list[Output]]) -> list[Output]:
        """Return what a task returns, like a message not before copies are made that it began."""
        return self._sendable(task(self))

    def copy(self) -> list[Output]:
        """Copy a slice of the tables. After the last one, return the saves; then `go_on` has to be called."""
        if not self._copying.advance():
            return []
        made, self._unsent = self._unsent, []
        return [_after_a_pause(output, self._copying.took_s) for output in made]

    def go_on(self) -> list[Output]:
        """Handle what waited for copies to be made, or for the disk."""
        self._copying.is_paused = False
        out = [] if self._copying.holds else self.policy.trainers_changed()
        while not self._copying.holds:
            kept = self._copying.next()
            if kept is None:
                break
            out += self._handle_again(kept) if isinstance(kept, wire.Message) else kept()
        return self._sendable(out)

    def _sendable(self, outputs: list[Output]) -> list[Output]:
        """Return outputs without those that have to wait until copies are made."""
        if not self._copying.is_under_way:
            return outputs
        self._unsent += [output for output in outputs if not isinstance(output, Reply)]
        return [output for output in outputs if isinstance(output, Reply)]

    def _handle_again(self, message: wire.Message) -> list[Output]:
        """Handle a request that had to wait. One of an epoch or attempt that is over is dropped."""
        is_of_epoch = message.epoch == self.state.epoch or message.kind == wire.HELLO
        if message.attempt < self.trainers[message.rank].attempt or not is_of_epoch:
            return []
        if self._copying.keeps(message):
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
        """Record that these trainers have left the run; usually their own message says so.

        Raises TableError if one of them is found to lack tables of others: no trainer may be left to report it.
        """
        here = self._here(ranks)
        if self.state.declarations.failure is not None:
            return []  # the run is failing: nothing is saved any more
        if any(self._lacks_tables(rank) for rank in here):
            self._require_same_tables()
        return [output for rank in here for output in self._leave(self.trainers[rank])]

    def _lacks_tables(self, rank: int) -> bool:
        return self.state.lane == 0 and self.policy.check_declarations(rank)

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
        if message.kind == wire.SET and rank != 0 and not message.flags & wire.ASSIGNS:
            raise RefusedError(f"trainer {rank} sent values of a table, which only trainer 0 may do")
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
        load = message.json().get("origin") if state.lane == 0 else None
        must_open = bool(load) and self._maker.must_open(str(load))
        if must_open and not self._has_read(str(load), lambda: self._maker.saved_tables(str(load)), message):
            return []
        if message.attempt != trainer.attempt:
            trainer.tables = Declared() if message.json().get("declares") is True else None
        trainer.attempt = message.attempt
        used, step = self.policy.progress_of(message.rank)
        facts: dict[str, Any] = {
            **self.greeting,
            **({} if self.offer_stream is None else {"stream": self.offer_stream(message.rank)}),
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
            "rounds": True,
        }
        if trainer.position is not None:
            facts["position"] = trainer.position
        if trainer.state:
            facts["state"] = True
        parts = [wire.json_part(facts), *(wire.json_part({"position": at}) for at in self.trainers.positions)]
        if load is not None:
            saved = self._maker.saved_tables(str(load))
            parts += wire.bytes_parts(json.dumps(saved).encode()) if saved is not None else []
        return [Reply(message.rank, message.answer(wire.OK, epoch=state.epoch, parts=parts))]

    def _create(self, message: wire.Message) -> list[Output]:
        """Make tables, a round of them or one as older trainers declare it; without any, learn where the trainer is."""
        if self.policy.holds(message):
            return []
        facts = message.json() if message.parts else {}
        position, is_round = facts.pop("cursor", None), facts.get("round") is True
        described = [wire.json_of(part) for part in message.parts[1:]] if is_round else [facts] if facts else []
        specs = [spec_from_json(one) for one in described]
        ahead = [spec for spec in specs if spec.key not in self._declared and self._maker.must_read(spec)]
        if ahead and not self._has_read(tuple(ahead), lambda: self._maker.make_ahead(ahead), message):
            return []
        if self.state.lane == 0:
            self._record(message, [(spec.name, spec.kind) for spec in specs] + _others(facts))
        self.policy.join(message, position)
        unset = self._made(specs, message.rank)
        if is_round:
            parts = [wire.json_part({"unset": [number for number, is_unset in enumerate(unset) if is_unset]})]
        else:
            parts = [wire.json_part({"unset": True} if is_unset else {}) for is_unset in unset]
        return [Reply(message.rank, message.answer(wire.OK, parts=parts)), *self.policy.trainers_changed()]

    def _has_read(self, what: Hashable, job: Callable[[], object], message: wire.Message) -> bool:
        """Return True if a job that reads files is done, raise its error, or keep the message until it is done.

        A lane that does nothing in slices reads when it needs to.
        """
        if not self._copying.in_slices:
            return True
        reading = self.readings.get(what)
        if reading is None:
            reading = self.readings[what] = ReadJob(job)
            self._copying.begin([reading.slices()])
        if reading.is_done:
            del self.readings[what]
            reading.result()
            return True
        self._copying.keep(message)
        return False

    def _record(self, message: wire.Message, tables: list[tuple[str, str]]) -> None:
        """Record all tables that a trainer declares, also those that other lanes have."""
        trainer, place = self.trainers[message.rank], DeclarationPoint(message.step, (message.pass_, message.batch))
        declared = Declared() if trainer.tables is None else trainer.tables
        self.state.declarations.take(message.rank, declared, tables, place)

    def _made(self, specs: Iterable[TableSpec], rank: int) -> list[bool]:
        """Make tables unless they are there; return for each whether it waits for its initial values."""
        made: Tables = {}
        try:
            for spec in specs:
                known = self._declared.get(spec.key)
                if known is not None:
                    known.require_same(spec, rank)
                    continue
                made[spec.key] = self._maker.make(spec)
                self._declared[spec.key] = spec
                if spec.init.is_from_rank0 and spec.key in self._maker.initial:
                    self.state.unset[spec.key] = Unset()
        finally:
            if made:
                self.state.add(made)
        return [spec.key in self.state.unset for spec in specs]

    def _set(self, message: wire.Message) -> list[Output]:
        """Take initial values; those that others wait for may be complete then."""
        if self.policy.holds(message):
            return []
        reply = Reply(message.rank, message.answer(wire.OK))
        if message.flags & wire.ASSIGNS:
            self.state.assign(message)
            return [reply]
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
        facts, at_pass_end = message.json(), bool(message.flags & wire.END_OF_PASS)
        tag = str(facts.get("tag", ""))
        if self.state.lane == 0 and (own := assigned_values(facts)):
            self.state.declarations.check_saved(tag, message.step, message.rank, own)
            self._require_same_tables()
        gone = [wire.json_part({"gone": self._gone()})] if self.trainers.gone_from else []
        done = Reply(message.rank, message.answer(wire.OK, parts=gone))
        if message.flags & wire.REPEATED and not self._is_first:
            return [done]  # the pserver before this one may have saved it
        if self._book.ask(tag, message, at_pass_end):
            return [done]
        if at_pass_end and self.state.lane == 0 and self.trainers.active() <= self._book.asked.get(tag, set()):
            self.policy.check_declarations()
            self._require_same_tables()
        out: list[Output] = [*self._saver.due(force=False)]
        if at_pass_end:
            return [*out, done]
        self._book.wait(tag, message)
        return out

    def _buffers(self, message: wire.Message) -> list[Output]:
        for name in self.state.buffers.take(message).names:
            self.state.declarations.names.add_buffer(name)
        return [Reply(message.rank, message.answer(wire.OK))]

    def _gone(self) -> list[tuple[int, int]]:
        return sorted(self.trainers.gone_from.items())

    def _bye(self, message: wire.Message) -> list[Output]:
        if self._lacks_tables(message.rank):
            return []
        return self._leave(self.trainers[message.rank], message)

    def _farewell(self, message: wire.Message) -> Reply:
        """Answer a trainer that leaves, or waited for a save. It has to know of the newest cut."""
        return Reply(message.rank, message.answer(wire.OK, version=self.step, cut=self.policy.cuts))

    def _leave(self, trainer: TrainerState, bye: wire.Message | None = None) -> list[Output]:
        """Record that a trainer left, and answer its `bye`; when the last one leaves, save all unsaved values."""
        if self._copying.holds:
            self._copying.later(lambda: self._leave(trainer, bye))
            return []
        trainer.left, trainer.push = True, None
        out = self.policy.trainers_changed() + (self.policy.answer_held() if self.state.unset else [])
        if self._copying.holds:  # what changed has to be applied first
            self._copying.later(lambda: self._save_last(bye))
            return out
        return [*out, *self._save_last(bye)]

    def _save_last(self, bye: wire.Message | None) -> list[Output]:
        """Make the saves that are due when a trainer has left, and answer its `bye`."""
        out: list[Output] = [*self._saver.due(force=False)]
        if not self.trainers.active():
            unsaved = self._book.unsaved_tag(self.trainers, self.step) if self.state.has_values else None
            if unsaved is not None:
                self._book.ask_for_all(unsaved)
            out += self._saver.due(force=True)
        if bye is None:
            return out
        if self._book.writing:
            self._book.wait(self._book.writing[-1], bye)
            return out
        return [*out, self._farewell(bye)]

    def _probe(self, message: wire.Message) -> list[Output]:
        saves = [m for m in self._book.waiting() if m.rank == message.rank]
        held = [*(m for m in self.policy.held(message.rank) if m.rank == message.rank), *saves]
        held += self._copying.messages(message.rank, message.attempt)
        is_busy = self._copying.holds or bool(saves)
        needs_values = any(part.table in self.state.unset for m in held for part in m.parts)
        waiting = [0] if needs_values else [] if is_busy else self.policy.waited_for()
        facts: dict[str, Any] = {"held": sorted({m.request for m in held}), "waiting": waiting, "step": self.step}
        if is_busy and all(reading.is_done for reading in self.readings.values()):
            facts["saving"] = True
        return [Reply(message.rank, message.answer(wire.STATE, parts=[wire.json_part(facts)]))]


def _after_a_pause(output: Output, pause_s: float) -> Output:
    if isinstance(output, Save):
        return output._replace(pause_s=pause_s)
    if isinstance(output, CopiedCut):
        return output._replace(saves=tuple(save._replace(pause_s=pause_s) for save in output.saves))
    return output


def _others(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the tables of a round that the first lane does not have, as (name, kind)."""
    named = facts.get("others", {})
    if not isinstance(named, dict) or not all(kind in ("dense", "sparse") for kind in named.values()):
        raise WireError("the names of declared tables are malformed")
    return list(named.items())


def error_reply(message: wire.Message, failure: RuntimeFailure, *, differ: bool = False) -> wire.Message:
    name = type(failure).__name__
    known = name if name in BY_NAME else "RefusedError"
    facts = {"error": known, "message": str(failure), **({"differ": True} if differ else {})}
    return message.answer(wire.ERROR, parts=[wire.json_part(facts)])
