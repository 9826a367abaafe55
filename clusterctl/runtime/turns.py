"""How pushes become updates: what all modes have in common, and sync mode. The other modes are in `each`.

A push may come in pieces; a part of a table is applied as soon as it is complete, while the next ones are on the wire.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from clusterctl.runtime import wire
from clusterctl.runtime.errors import RefusedError
from clusterctl.runtime.members import Output, Reply, Save
from clusterctl.runtime.pushes import Push
from clusterctl.runtime.sparse import SparseTable
from clusterctl.runtime.tables import DenseTable, Floats, Weighted

if TYPE_CHECKING:
    from clusterctl.runtime.core import ServerCore


class Turns:
    """What both ways have in common: pulls that wait, saves that are announced."""

    def __init__(self, core: ServerCore) -> None:
        self.core = core
        self.step = 0
        #: What replies tell of checkpoints: in sync the step at which the next one is made, else how many were due.
        self.cuts = 0
        self.staleness: Counter[int] = Counter()
        self._pulls: list[wire.Message] = []

    def push(self, message: wire.Message) -> list[Output]:
        raise NotImplementedError

    def must_wait(self, pull: wire.Message) -> bool:
        raise NotImplementedError

    def version(self, pull: wire.Message) -> int | None:
        return None

    def stable(self, values: Floats) -> Floats:
        """`values` as they may be sent: nothing may change them before they have left."""
        return values

    def hold(self, pull: wire.Message) -> None:
        others = [m for m in self._pulls if (m.rank, m.request) != (pull.rank, pull.request)]
        self._pulls = [*others, pull]

    def held(self, rank: int) -> list[wire.Message]:
        """The requests of a trainer that are here and wait for something."""
        push = self.core.members[rank].push
        return [*self._pulls, *([push.message, *push.asked.values()] if push else [])]

    def waited_for(self) -> list[int]:
        """Trainers whose push of the current step has not come."""
        return []

    def next_step(self, rank: int) -> int:
        return self.core.members[rank].pushed

    def restore(self, step: int) -> None:
        self.step = step

    def join_late(self, message: wire.Message) -> None:
        """A trainer makes a table: it, or the run, may have taken steps elsewhere before this lane had any."""

    def cut(self, message: wire.Message) -> list[Output]:
        raise RefusedError("a sync job makes its checkpoints between steps")

    def announce(self) -> None:
        """Makes a checkpoint due, by the clock."""

    def pass_ended(self, moment: Save) -> list[Output]:
        """A checkpoint at the end of a pass is due; `moment` has copies made just now."""
        return []

    def someone_left(self) -> list[Output]:
        return []

    def _answer_held(self) -> list[Output]:
        held, self._pulls = self._pulls, []
        return [output for pull in held for output in self.core.handle_held(pull)]

    def _reply(self, request: wire.Message, parts: list[wire.Part], flags: int = 0) -> Reply:
        core = self.core
        fields = {"version": self.step, "pass_": core.members.passes, "cut": self.cuts, "flags": flags, "parts": parts}
        return Reply(request.rank, request.answer(wire.OK, **fields))

    def values(self, rank: int, table: DenseTable, run: Floats) -> list[wire.Part]:
        """`run`, the lane's run of a table, as the parts of a reply."""
        return [self._part(rank, table, number, run) for number in range(table.parts)]

    def _part(self, rank: int, table: DenseTable, number: int, run: Floats) -> wire.Part:
        """A part of `run` for a trainer: where it is in shared memory, or what it holds."""
        core, (start, stop) = self.core, table.bounds(number)
        key, values, offset = table.spec.key, run[start:stop], table.start + start
        position = None if core.lender is None else core.lender.position(rank, core.lane, key, values)
        if position is not None:
            return wire.Part(wire.DENSE, values, key, offset, position)
        if core.half:
            with np.errstate(over="ignore"):
                return wire.Part(wire.DENSE16, values.astype(np.float16), key, offset)
        return wire.Part(wire.DENSE, self.stable(values), key, offset)

    def _repeated(self, message: wire.Message) -> Reply:
        """The answer to what is applied already: a piece brings its part, an opening all that no piece brings."""
        if message.piece:
            table, number = self.core.reader.repeated(message)
            parts = [self._part(message.rank, table, number, table.current)]
        else:
            later = {part.table for part in message.parts if part.kind == wire.LATER}
            parts = self._newest(message.rank, [key for key in sorted(self.core.tables) if key not in later])
        return self._reply(message, parts, wire.REPEATED)

    def _newest(self, rank: int, keys: list[int]) -> list[wire.Part]:
        """The newest values of dense tables, as far as this lane has them."""
        dense = [table for key in keys if isinstance(table := self.core.tables.get(key), DenseTable)]
        return [part for table in dense for part in self.values(rank, table, table.current)]


class AllTogether(Turns):
    """Sync: step `t` is applied when every trainer that has not left has pushed it.

    Gradients are merged by ascending rank, weighted by samples. A part whose gradients have come from all who push
    the table is applied at once; the step is done when all parts are.
    """

    def __init__(self, core: ServerCore) -> None:
        super().__init__(core)
        self._due_cuts: set[int] = set()
        self._began = False
        self._total = 0
        self._left_over: dict[int, set[int]] = {}  # parts of dense tables that are not applied yet, in this step

    def push(self, message: wire.Message) -> list[Output]:
        member = self.core.members[message.rank]
        if message.step < self.step:
            return [self._repeated(message)]
        if message.step > self.step or member.left:
            raise RefusedError(
                f"trainer {message.rank} pushes step {message.step}, pserver {self.core.pserver} is at {self.step}"
            )
        if message.piece:
            return self._piece(message)
        return self._open(message)

    def must_wait(self, pull: wire.Message) -> bool:
        return pull.version != wire.NEWEST and pull.version > self.step

    def version(self, pull: wire.Message) -> int | None:
        if pull.version == wire.NEWEST:
            return None
        if pull.version < self.step - 1:
            raise RefusedError(
                f"trainer {pull.rank} pulls version {pull.version}, pserver {self.core.pserver} is at {self.step}"
            )
        return pull.version

    def waited_for(self) -> list[int]:
        return [rank for rank, m in self.core.members.by_rank.items() if not m.left and m.push is None]

    def next_step(self, rank: int) -> int:
        return self.step

    def join_late(self, message: wire.Message) -> None:
        if not self.core.tables:
            self.step = max(self.step, message.step)

    def announce(self) -> None:
        """Trainers hear of it at the end of this step, and tell all lanes with their next push."""
        self.cuts = self.step + 2

    def pass_ended(self, moment: Save) -> list[Output]:
        return [self.core.checkpoint(self.step, moment)]

    def someone_left(self) -> list[Output]:
        return self._advance()

    def _open(self, message: wire.Message) -> list[Output]:
        member = self.core.members[message.rank]
        push = self.core.reader.opening(message)
        if member.push is not None and not self._replaces(member.push, push):
            member.push.message.request = message.request  # the first one counts, the newest is answered
            return []
        member.push = push
        if message.cut > self.step:
            self._due_cuts.add(message.cut)
        return self._advance()

    def _replaces(self, earlier: Push, push: Push) -> bool:
        """Whether a successor's push stands in for that of a trainer that died; not once parts of it are applied."""
        if earlier.message.attempt == push.message.attempt:
            return False
        if not self._began:
            return True
        if earlier.announces() != push.announces():
            raise RefusedError(
                f"attempt {push.message.attempt} of trainer {push.message.rank} pushes other things in step "
                f"{self.step} than attempt {earlier.message.attempt} did: the program does not repeat itself"
            )
        return False

    def _piece(self, message: wire.Message) -> list[Output]:
        push = self.core.members[message.rank].push
        if push is None:
            return []  # its opening got lost: the trainer will ask, and send both again
        key, number, grad = self.core.reader.piece(message, push)
        if push.samples == 0:
            return [self._reply(message, [])]
        table = self.core.tables[key]
        assert isinstance(table, DenseTable)
        if self._began and number not in self._left_over.get(key, set()):
            return [self._reply(message, [self._part(message.rank, table, number, table.previous)], wire.REPEATED)]
        message.parts = []
        push.asked[key, number] = message
        push.dense.setdefault(key, {})[number] = grad
        if not self._began:
            return []
        return self._apply(key, number) + self._finish_if_done()

    def _advance(self) -> list[Output]:
        """Begins the step once all trainers' pushes have opened."""
        pushes = self._pushes()
        if self._began:
            out = [
                o for key in list(self._left_over) for n in sorted(self._left_over[key]) for o in self._apply(key, n)
            ]
            return out + self._finish_if_done()
        if not pushes or self.waited_for():
            return []
        out = self.core.due_saves(force=True)
        self._began = True
        self._total = sum(push.samples for push in pushes)
        weighty = [push for push in pushes if push.samples]
        keys = sorted({key for push in weighty for key in [*push.dense, *push.later]})
        tables = {key: self.core.tables[key] for key in keys}
        self._left_over = {key: set(range(t.parts)) for key, t in tables.items() if isinstance(t, DenseTable)}
        self._apply_rows(weighty)
        for key in keys:
            for number in sorted(self._left_over[key]):
                out += self._apply(key, number)
        return out + self._finish_if_done()

    def _pushes(self) -> list[Push]:
        return [m.push for _, m in sorted(self.core.members.by_rank.items()) if m.push is not None]

    def _apply_rows(self, pushes: list[Push]) -> None:
        for key, table in sorted(self.core.tables.items()):
            grads = [push.sparse[key] for push in pushes if key in push.sparse]
            if isinstance(table, SparseTable) and (grads or table.spec.retention is not None):
                table.apply(grads, np.float32(self._total), self.step)

    def _apply(self, key: int, number: int) -> list[Output]:
        """Applies a part if all gradients of it are there; answers the pieces that brought them."""
        concerned = [p for p in self._pushes() if p.samples and (key in p.dense or key in p.later)]
        grads: list[Weighted] = [(p.weight, p.dense[key][number]) for p in concerned if number in p.dense.get(key, {})]
        if len(grads) < len(concerned):
            return []
        table = self.core.tables[key]
        assert isinstance(table, DenseTable)
        table.apply(number, grads, self._total, self.step + 1, table.spec.rule, in_place=False)
        self._left_over[key].discard(number)
        out: list[Output] = []
        for push in concerned:
            del push.dense[key][number]
            request = push.asked.pop((key, number), None)
            if request is not None:
                fresh = self._part(request.rank, table, number, table.previous)  # `finish` makes it the current one
                out.append(self._reply(request, [fresh]))
        return out

    def _finish_if_done(self) -> list[Output]:
        if not self._began or any(self._left_over.values()):
            return []
        changed, self._left_over, self._began = sorted(self._left_over), {}, False
        for key in changed:
            table = self.core.tables[key]
            assert isinstance(table, DenseTable)
            table.finish(self.step)
        self.step += 1
        pushes = self._pushes()
        for push in pushes:
            self.core.members[push.message.rank].note(push.message)
        out = self._make_cuts()
        for push in pushes:
            rest = [key for key in changed if key not in push.later]
            out.append(self._reply(push.message, self._newest(push.message.rank, rest)))
        return out + self._answer_held()

    def _make_cuts(self) -> list[Output]:
        every = self.core.save_every
        due = self.step in self._due_cuts or (every is not None and every.is_step(self.step))
        self._due_cuts.discard(self.step)
        return [self.core.checkpoint(self.step)] if due else []
