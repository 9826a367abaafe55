"""How pushes become updates: what all modes have in common. Sync mode is in `together`, the others are in `each`.

A push may come in pieces; a part of a table is applied as soon as it is complete, while the next ones are on the wire.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from clusterctl.runtime.arrays import Floats
from clusterctl.runtime.checkpoint.writer import Save
from clusterctl.runtime.errors import RefusedError
from clusterctl.runtime.pserver.trainers import Output, Reply
from clusterctl.runtime.store.dense import DenseTable
from clusterctl.runtime.wire import messages as wire

if TYPE_CHECKING:
    from clusterctl.runtime.pserver.core import ServerCore


#: Of each trainer; it has one for each embedding whose rows it asks for ahead.
_PULLS_HELD = 4_096


class Turns:
    """What both ways have in common: pulls that wait, saves that are announced."""

    def __init__(self, core: ServerCore) -> None:
        self.core = core
        self.step = 0
        #: What replies tell of checkpoints: in sync the step at which the next one is made, else how many were due.
        self.cuts = 0
        self.cuts_made = 0
        self.lost = 0
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
        if sum(m.rank == pull.rank for m in others) >= _PULLS_HELD:
            raise RefusedError(f"trainer {pull.rank} has {_PULLS_HELD} pulls waiting")
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

    def is_used_by(self, rank: int) -> bool:
        """Whether the cursor that this lane has of a trainer means anything."""
        return bool(self.core.tables)

    def join_late(self, message: wire.Message) -> None:
        """A trainer makes a table: it, or the run, may have taken steps elsewhere before this lane had any."""

    def catch_up(self, rank: int, pushes: int, cursor: tuple[int, int]) -> None:
        """A trainer has made so many pushes, and is at `cursor`, whether that is known here or not."""

    def cut(self, message: wire.Message) -> list[Output]:
        raise RefusedError("a sync job makes its checkpoints between steps")

    def announce(self) -> None:
        """Makes a checkpoint due, by the clock."""

    def pass_ended(self, moment: Save) -> list[Output]:
        """A checkpoint at the end of a pass is due; `moment` has copies made just now."""
        return []

    def someone_joined(self) -> list[Output]:
        """A trainer has made a table: others may have waited for it."""
        return []

    def someone_left(self) -> list[Output]:
        return []

    def _answer_held(self) -> list[Output]:
        if not self._pulls:
            return []
        held, self._pulls = self._pulls, []
        return [output for pull in held for output in self.core.handle_held(pull)]

    def _reply(self, request: wire.Message, parts: list[wire.Part], flags: int = 0) -> Reply:
        return self._reply_in(self.core.members.passes, request, parts, flags)

    def _reply_in(self, passes: int, request: wire.Message, parts: list[wire.Part], flags: int = 0) -> Reply:
        """Where many are answered at once: `passes` is the same for all of them."""
        r, after = request, (0, self.cuts, 0, flags, 1, parts)
        about = (r.rank, r.request, r.epoch, r.attempt, r.piece, passes, 0, r.step, self.step)
        return Reply(r.rank, wire.Message(wire.OK, *about, *after))

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
        parts: list[wire.Part] = []
        for key in keys:
            table = self.core.tables.get(key)
            if isinstance(table, DenseTable):
                parts += self.values(rank, table, table.current)
        return parts
