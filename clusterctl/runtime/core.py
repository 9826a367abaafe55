"""The parameter server without sockets, clock, files or environment: messages in, replies and saves out.

The ZeroMQ process and local mode drive this very class. Not thread-safe: one thread calls it. After `handle` or
`saved` returned a `Save`, the caller writes the files and calls `saved` before it hands in the next message, so
that a save sees exactly one version.

In sync mode the step `t` is applied when every trainer that has not left has pushed `t`: gradients merged by
ascending rank, weighted by samples. In async mode each push is applied on arrival, and its staleness is counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Callable

import numpy as np

from clusterctl.runtime import wire
from clusterctl.runtime.errors import ModelError, RefusedError, RuntimeFailure, TableError, UseError
from clusterctl.runtime.members import Member, ModelSource, Output, Reply, Save, error_reply
from clusterctl.runtime.pushes import Push, answer_pull, dense_parts, read_push
from clusterctl.runtime.saving import SaveBook
from clusterctl.runtime.sparse import SparseTable
from clusterctl.runtime.spec import TableSpec, spec_from_json
from clusterctl.runtime.tables import DenseTable, Table, Tables


@dataclass
class ServerCore:
    pserver: int
    pservers: int
    trainers: int
    seed: int = 0
    mode: str = "sync"
    open_model: Callable[[str], ModelSource] | None = None
    epoch: int = 0
    step: int = 0
    tables: Tables = field(default_factory=dict)
    staleness: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        if self.mode not in ("sync", "async"):
            raise UseError(f"mode {self.mode!r} is not available in this version", remedy='use "sync" or "async"')
        self._members = {rank: Member() for rank in range(self.trainers)}
        self._pulls: list[wire.Message] = []
        self._book = SaveBook()
        self._models: dict[str, ModelSource] = {}
        self._initial: set[int] = set()
        self._handlers = {
            wire.HELLO: self._hello,
            wire.CREATE: self._create,
            wire.PULL: self._pull,
            wire.PUSH: self._push if self.mode == "sync" else self._push_async,
            wire.PROBE: self._probe,
            wire.SAVE: self._save,
            wire.BYE: self._bye,
        }

    def handle(self, rank: int, message: wire.Message) -> list[Output]:
        """What follows from a message of the trainer whose key says `rank`. A trainer's errors are answered."""
        try:
            self._admit(rank, message)
            return self._handlers[message.kind](message)
        except RuntimeFailure as failure:
            return [Reply(rank, error_reply(message, failure))]

    def saved(self, tag: str) -> list[Output]:
        """The files of `tag` are in place: answers who waited for them, and goes on with what the save held up."""
        out: list[Output] = [Reply(m.rank, m.answer(wire.OK)) for m in self._book.finish(tag, self.step)]
        return out + self._advance()

    @property
    def passes(self) -> int:
        """Passes that all trainers still here have ended."""
        return min([m.passes for m in self._members.values() if not m.left], default=self._most_passes())

    def active(self) -> set[int]:
        return {rank for rank, member in self._members.items() if not member.left}

    def missing(self) -> list[int]:
        """Trainers whose push of the current step has not come."""
        return [rank for rank, member in self._members.items() if not member.left and member.pending is None]

    def _most_passes(self) -> int:
        return max((m.passes for m in self._members.values()), default=0)

    def _admit(self, rank: int, message: wire.Message) -> None:
        if rank not in self._members or message.rank != rank:
            raise RefusedError(f"a message says it is of trainer {message.rank}, its key belongs to trainer {rank}")
        if message.kind not in self._handlers:
            raise RefusedError(f"trainer {rank} sent a message of kind {message.kind}, which is not a request")
        member = self._members[rank]
        if message.kind != wire.HELLO and message.epoch != self.epoch:
            raise RefusedError(f"trainer {rank} speaks in epoch {message.epoch}, the job is in epoch {self.epoch}")
        if message.attempt < member.attempt:
            raise RefusedError(f"attempt {message.attempt} of trainer {rank} was replaced by attempt {member.attempt}")
        if message.attempt > member.attempt and message.kind not in (wire.HELLO, wire.PROBE):
            raise RefusedError(f"attempt {message.attempt} of trainer {rank} has not said hello")

    def _hello(self, message: wire.Message) -> list[Output]:
        member, info = self._members[message.rank], message.json()
        if info.get("trainers") != self.trainers:
            raise RefusedError(
                f"trainer {message.rank} counts {info.get('trainers')} trainers, this pserver {self.trainers}"
            )
        if member.left:
            raise RefusedError(f"trainer {message.rank} had already left this run")
        member.attempt = message.attempt
        facts: dict[str, Any] = {
            "pserver": self.pserver,
            "pservers": self.pservers,
            "mode": self.mode,
            "seed": self.seed,
            "step": self.step if self.mode == "sync" else member.pushed,
            "passes": self.passes,
            "pass": member.cursor[0],
            "batch": member.cursor[1],
        }
        return [self._reply(message.answer(wire.OK, epoch=self.epoch, parts=[wire.json_part(facts)]))]

    def _create(self, message: wire.Message) -> list[Output]:
        spec = spec_from_json(message.json())
        table = self.tables.get(spec.key)
        if table is None:
            table = self.tables[spec.key] = self._make(spec)
        table.spec.require_same(spec, message.rank)
        facts = {"initial": spec.key in self._initial}
        return [self._reply(message.answer(wire.OK, parts=[wire.json_part(facts)]))]

    def _make(self, spec: TableSpec) -> Table:
        """A table of initial values, or of those in the saved model that the spec names."""
        try:
            if spec.kind == "dense":
                table: Table = DenseTable(spec, self.pserver, self.pservers, self.seed)
            else:
                table = SparseTable(spec, self.seed)
            if spec.load is not None and not self._load(table, spec.load):
                self._initial.add(spec.key)
        except MemoryError as exc:
            raise TableError(f"table {spec.name!r} does not fit into the memory of pserver {self.pserver}") from exc
        return table

    def _load(self, table: Table, path: str) -> bool:
        """Fills a table from the saved model at `path`; False when the model does not have it."""
        if self.open_model is None:
            raise ModelError(f"pserver {self.pserver} cannot load {path}")
        try:
            source = self._models.get(path) or self._models.setdefault(path, self.open_model(path))
            if isinstance(table, DenseTable):
                values = source.dense(table.spec, table.start, table.stop)
                if values is not None:
                    table.current[:] = values
                return values is not None
            rows = source.sparse(table.spec, self.pserver, self.pservers)
            if rows is not None:
                table.put(*rows)
            return rows is not None
        except (OSError, ValueError, KeyError) as exc:
            raise ModelError(f"pserver {self.pserver}: table {table.spec.name!r} of {path} is damaged ({exc})") from exc

    def _pull(self, message: wire.Message) -> list[Output]:
        if self.mode == "async" or message.version == wire.NEWEST:
            return [self._answer_pull(message, None)]
        if message.version > self.step:
            self._pulls = [m for m in self._pulls if m.rank != message.rank]
            self._pulls.append(message)
            return []
        if message.version < self.step - 1:
            raise RefusedError(
                f"trainer {message.rank} pulls version {message.version}, pserver {self.pserver} is at {self.step}"
            )
        return [self._answer_pull(message, message.version)]

    def _answer_pull(self, message: wire.Message, version: int | None) -> Reply:
        parts = answer_pull(message, self.tables, (self.pserver, self.pservers), version)
        if self.mode == "async":
            parts = [wire.Part(p.kind, p.array.copy(), p.table, p.offset) for p in parts]
        return self._reply(message.answer(wire.OK, step=self.step, version=self.step, parts=parts))

    def _push(self, message: wire.Message) -> list[Output]:
        member = self._members[message.rank]
        if message.step < self.step:
            return [self._pushed(message, sorted(self.tables), wire.REPEATED)]
        if message.step > self.step or member.left:
            raise RefusedError(
                f"trainer {message.rank} pushes step {message.step}, pserver {self.pserver} is at {self.step}"
            )
        push = read_push(message, self.tables, (self.pserver, self.pservers), float(message.samples))
        if member.pending is not None:
            member.pending.message.request = message.request  # a repeat: the first one counts, the newest is answered
            return []
        member.pending = push
        return self._advance()

    def _advance(self) -> list[Output]:
        """Saves what is due, else applies the step if it is whole, else waits."""
        if self._book.writing:
            return []
        whole = not self.missing() and any(m.pending for m in self._members.values())
        due = self._book.due(self.active(), force=whole)
        if due:
            return [Save(tag, self.step, max(0, self._most_passes() - 1)) for tag in due]
        return self._apply() if whole else []

    def _apply(self) -> list[Output]:
        pushes = [m.pending for _, m in sorted(self._members.items()) if m.pending is not None]
        weighty = [push for push in pushes if push.samples > 0]
        changed = self._merge(weighty, sum(push.samples for push in weighty))
        self.step += 1
        for push in pushes:
            member = self._members[push.message.rank]
            member.pending = None
            member.note(push.message)
        out: list[Output] = [self._pushed(p.message, changed, 0) for p in pushes]
        held, self._pulls = self._pulls, []
        for pull in held:
            out += self.handle(pull.rank, pull)
        return out

    def _merge(self, pushes: list[Push], total: int) -> list[int]:
        """Applies one step's gradients, ordered by rank; returns the keys of the dense tables that changed."""
        changed = []
        with np.errstate(all="ignore"):
            for key, table in sorted(self.tables.items()):
                if isinstance(table, SparseTable):
                    sparse = [p.sparse[key] for p in pushes if key in p.sparse]
                    if any(len(grad.ids) for grad in sparse):
                        table.apply(sparse, np.float32(total), self.step)
                    continue
                dense = [p.dense[key] for p in pushes if key in p.dense]
                if dense:
                    table.apply(dense, np.float32(total), self.step)
                    changed.append(key)
        return changed

    def _pushed(self, message: wire.Message, tables: list[int], flags: int) -> Reply:
        parts: list[wire.Part] = []
        for key in tables:
            table = self.tables[key]
            if isinstance(table, DenseTable):
                parts += dense_parts(table, None, copy=self.mode == "async")
        fields = {
            "step": self.step,
            "version": self.step,
            "pass_": self.passes,
            "flags": flags,
            "parts": parts,
        }
        return self._reply(message.answer(wire.OK, **fields))

    def _push_async(self, message: wire.Message) -> list[Output]:
        member = self._members[message.rank]
        if message.step < member.pushed:
            return [self._pushed(message, sorted(self.tables), wire.REPEATED)]
        if message.step > member.pushed or member.left:
            raise RefusedError(f"trainer {message.rank} pushes its step {message.step}, {member.pushed} is next")
        push = read_push(message, self.tables, (self.pserver, self.pservers), 1.0)
        if message.version <= self.step:
            self.staleness[self.step - message.version] += 1
        self._merge([push] if push.samples else [], total=1)
        self.step += 1
        member.note(message)
        return [self._pushed(message, sorted(self.tables), 0)]

    def _save(self, message: wire.Message) -> list[Output]:
        tag = str(message.json().get("tag", ""))
        if self._book.ask(tag, message, at_pass_end=bool(message.flags & wire.END_OF_PASS)):
            return [self._reply(message.answer(wire.OK))]
        out = self._advance()
        if any(isinstance(o, Save) and o.tag == tag for o in out) or not message.flags & wire.END_OF_PASS:
            self._book.wait(tag, message)
            return out
        return [*out, self._reply(message.answer(wire.OK))]

    def _bye(self, message: wire.Message) -> list[Output]:
        member = self._members[message.rank]
        member.left, member.pending = True, None
        out = self._advance()
        if not self.active() and not self._book.writing and self._book.saved_step != self.step:
            tag = self._book.unfinished_pass(self._most_passes())
            self._book.ask(tag, message, at_pass_end=False)
            out += self._advance()
        if self._book.writing:
            self._book.wait(self._book.writing[-1], message)
            return out
        return [*out, self._reply(message.answer(wire.OK))]

    def _probe(self, message: wire.Message) -> list[Output]:
        asked = message.version
        pending = self._members[message.rank].pending
        requests = {pending.message.request} if pending else set()
        requests |= {m.request for m in [*self._pulls, *self._book.waiting()] if m.rank == message.rank}
        facts = {"held": asked in requests, "waiting": self.missing(), "step": self.step}
        return [self._reply(message.answer(wire.STATE, parts=[wire.json_part(facts)]))]

    def _reply(self, message: wire.Message) -> Reply:
        return Reply(message.rank, message)
