"""The update policy: how pushes become updates. Sync mode is in `sync`, the other modes are in `asynchronous`.

A push may come in pieces. A part of a table is applied as soon as it is complete, while the next are on the wire.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import numpy as np

from clusterctl.runtime.errors import RefusedError
from clusterctl.runtime.pserver.lane_cut import LaneCut, Moment
from clusterctl.runtime.pserver.lane_state import LaneState, Output, Reply
from clusterctl.runtime.pserver.saves import Saver
from clusterctl.runtime.store.dense import DenseTable, Weighted
from clusterctl.runtime.store.sparse import SparseGrad, SparseTable
from clusterctl.runtime.wire import messages as wire

#: Handles a request that had to wait.
HandleAgain = Callable[[wire.Message], list[Output]]

#: Per trainer, which has one for each embedding whose rows it prefetches.
_PULLS_HELD = 4_096


class UpdatePolicy:
    """The part common to both policies: requests that wait, cuts that are announced.

    `again` handles a request that had to wait.
    """

    def __init__(self, lane: LaneState, saver: Saver, again: HandleAgain) -> None:
        self.lane = lane
        self.saver = saver
        self._again_with = again
        self.cuts = 0  # announced in replies in sync: the step of the next cut, see `cuts`
        self.cut: LaneCut | None = None
        self.copied_cut = 0  # the number of the last one that this lane has copied; another thread reads it
        self.lost = 0
        self.staleness: Counter[int] = Counter()
        self.applied_s = 0.0  # seconds spent in updates of tables; other threads read it
        self._pulls: list[wire.Message] = []

    def push(self, message: wire.Message) -> list[Output]:
        raise NotImplementedError

    def defers(self, pull: wire.Message) -> bool:
        """Hold a pull that must wait for other trainers and return True; return False if it may be answered now."""
        if not self._is_unset(pull) and not self._must_wait(pull):
            return False
        others = [m for m in self._pulls if (m.rank, m.request) != (pull.rank, pull.request)]
        if sum(m.rank == pull.rank for m in others) >= _PULLS_HELD:
            raise RefusedError(f"trainer {pull.rank} has {_PULLS_HELD} pulls waiting")
        self._pulls = [*others, pull]
        return True

    def version(self, pull: wire.Message) -> int | None:
        """Return the version that answers a pull, None for the newest."""
        return None

    def held(self, rank: int) -> list[wire.Message]:
        """Return the held requests of a trainer."""
        push = self.lane.trainers[rank].push
        return [*self._pulls, *([push.message, *push.requests.values()] if push else [])]

    def waited_for(self) -> list[int]:
        """Return the trainers that others wait for."""
        raise NotImplementedError

    def progress_of(self, rank: int) -> tuple[bool, int]:
        """Return True if this lane's cursor of a trainer is valid, and the step of the trainer."""
        raise NotImplementedError

    def restore(self, step: int) -> None:
        self.lane.step = step

    def join(self, message: wire.Message, position: Any) -> None:
        """Handle a trainer that makes a table; the run may have made steps before this lane had any table."""

    def catch_up(self, rank: int, pushes: int, cursor: tuple[int, int], position: Any = None) -> None:
        """Record that a trainer has made `pushes` pushes and is at `cursor`, even if this lane missed some."""

    def announce(self, purpose: int) -> list[Output]:
        """Handle a cut that is due by the clock."""
        raise NotImplementedError

    def check_declarations(self, rank: int | None = None) -> bool:
        """Compare the tables that trainers have declared, on the first lane; in sync each step does so."""
        return False

    # Cuts outside sync, ordered by the lead.

    def hold_cut(self, number: int) -> list[Output]:
        """Begin a cut: hold new pushes back."""
        return []

    def make_cut(self, number: int, moment: Moment) -> list[Output]:
        """Apply the pushes of the cut, then copy, and go on."""
        return []

    def drop_cut(self, number: int | None = None) -> list[Output]:
        """Go on without the cut."""
        return []

    def holds(self, message: wire.Message) -> bool:
        """Hold a message back that belongs after the cut being made, and return True."""
        return False

    def trainers_changed(self) -> list[Output]:
        """Continue the work that waited for a trainer that has made a table or has left."""
        raise NotImplementedError

    def _apply_part(
        self,
        table: DenseTable,
        number: int,
        grads: Sequence[Weighted],
        total: int,
        rates: Mapping[int, float],
        *,
        in_place: bool,
    ) -> None:
        began = time.perf_counter()
        rule, rate = table.spec.rule, rates.get(table.spec.key)
        table.apply(number, grads, total, self.lane.step + 1, rule, in_place, rate)
        self.applied_s += time.perf_counter() - began

    def _apply_rows(
        self, table: SparseTable, grads: Sequence[SparseGrad], total: int, rates: Mapping[int, float]
    ) -> None:
        began = time.perf_counter()
        table.apply(grads, np.float32(total), self.lane.step, rates.get(table.spec.key))
        self.applied_s += time.perf_counter() - began

    def _is_unset(self, pull: wire.Message) -> bool:
        """Return True if a pull asks for initial values that trainer 0 has not sent yet."""
        unset = self.lane.unset and [part.table for part in pull.parts if part.table in self.lane.unset]
        if unset and self.lane.trainers[0].left:
            name = self.lane.tables[unset[0]].spec.name
            raise RefusedError(f"trainer 0 left the run and had not sent the initial values of table {name!r}")
        return bool(unset)

    def _must_wait(self, pull: wire.Message) -> bool:
        raise NotImplementedError

    def answer_held(self) -> list[Output]:
        """Answer the pulls that were held and need not wait any longer."""
        if not self._pulls:
            return []
        held, self._pulls = self._pulls, []
        return [output for pull in held for output in self._again_with(pull)]

    def _reply(self, request: wire.Message, parts: list[wire.Part], flags: int = 0) -> Reply:
        return self._reply_in(self.lane.trainers.passes, request, parts, flags)

    def _reply_in(self, passes: int, request: wire.Message, parts: list[wire.Part], flags: int = 0) -> Reply:
        """Reply with `passes` given, for many replies at once."""
        r, version = request, self.lane.step
        about = (r.rank, r.request, r.epoch, r.attempt, r.piece, passes, 0, r.step, version, 0, self.cuts, 0, flags, 1)
        return Reply(r.rank, wire.Message(wire.OK, *about, parts))

    def _repeated(self, message: wire.Message) -> Reply:
        """Answer a push that is applied already: a piece with its part, an opening with everything no piece carries."""
        if message.piece:
            table, number = self.lane.validator.repeated(message)
            parts = [self.lane.part(message.rank, table, number, table.current)]
        else:
            later = {part.table for part in message.parts if part.kind == wire.LATER}
            rest = [table for key, table in self.lane.dense.items() if key not in later]
            parts = self.lane.newest(message.rank, rest)
        return self._reply(message, parts, wire.REPEATED)
