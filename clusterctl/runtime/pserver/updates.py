"""How pushes become updates: what all modes have in common. Sync mode is in `sync`, the others are in `asynchronous`.

A push may come in pieces; a part of a table is applied as soon as it is complete, while the next ones are on the wire.
"""

from __future__ import annotations

from collections import Counter
from typing import Callable

from clusterctl.runtime.errors import RefusedError
from clusterctl.runtime.pserver.lane_state import LaneState, Output, Reply
from clusterctl.runtime.pserver.saves import Saver
from clusterctl.runtime.wire import messages as wire

#: Answers a pull that had to wait.
AnswerPull = Callable[[wire.Message], list[Output]]

#: Of each trainer; it has one for each embedding whose rows it asks for ahead.
_PULLS_HELD = 4_096


class UpdatePolicy:
    """What both ways have in common: pulls that wait, saves that are announced.

    `answer_pull` answers a pull that had to wait.
    """

    def __init__(self, lane: LaneState, saver: Saver, answer_pull: AnswerPull) -> None:
        self.lane = lane
        self.saver = saver
        self._answer_pull = answer_pull
        #: What replies tell of checkpoints: in sync the step at which the next one is made, else how many were due.
        self.cuts = 0
        self.cuts_made = 0
        self.lost = 0
        self.staleness: Counter[int] = Counter()
        self._pulls: list[wire.Message] = []

    def push(self, message: wire.Message) -> list[Output]:
        raise NotImplementedError

    def cut(self, message: wire.Message) -> list[Output]:
        """A trainer has stopped for checkpoint number `message.cut`."""
        raise NotImplementedError

    def defers(self, pull: wire.Message) -> bool:
        """Holds a pull that must wait, until others have pushed; False for one that may be answered now."""
        if not self._must_wait(pull):
            return False
        others = [m for m in self._pulls if (m.rank, m.request) != (pull.rank, pull.request)]
        if sum(m.rank == pull.rank for m in others) >= _PULLS_HELD:
            raise RefusedError(f"trainer {pull.rank} has {_PULLS_HELD} pulls waiting")
        self._pulls = [*others, pull]
        return True

    def version(self, pull: wire.Message) -> int | None:
        """The version that a pull is answered with, None for the newest."""
        return None

    def held(self, rank: int) -> list[wire.Message]:
        """The requests of a trainer that are here and wait for something."""
        push = self.lane.trainers[rank].push
        return [*self._pulls, *([push.message, *push.asked.values()] if push else [])]

    def waited_for(self) -> list[int]:
        """Trainers for whom others wait."""
        raise NotImplementedError

    def progress_of(self, rank: int) -> tuple[bool, int]:
        """Whether the cursor that this lane has of a trainer means anything; and the step that the trainer is at."""
        raise NotImplementedError

    def restore(self, step: int) -> None:
        self.lane.step = step

    def join(self, message: wire.Message) -> None:
        """A trainer makes a table: it, or the run, may have taken steps elsewhere before this lane had any."""

    def catch_up(self, rank: int, pushes: int, cursor: tuple[int, int]) -> None:
        """A trainer has made so many pushes, and is at `cursor`, whether that is known here or not."""

    def announce(self) -> None:
        """Makes a checkpoint due, by the clock."""

    def trainers_changed(self) -> list[Output]:
        """A trainer has made a table, or has left: others may have waited for it."""
        raise NotImplementedError

    def _must_wait(self, pull: wire.Message) -> bool:
        raise NotImplementedError

    def _answer_held(self) -> list[Output]:
        if not self._pulls:
            return []
        held, self._pulls = self._pulls, []
        return [output for pull in held for output in self._answer_pull(pull)]

    def _reply(self, request: wire.Message, parts: list[wire.Part], flags: int = 0) -> Reply:
        return self._reply_in(self.lane.trainers.passes, request, parts, flags)

    def _reply_in(self, passes: int, request: wire.Message, parts: list[wire.Part], flags: int = 0) -> Reply:
        """Where many are answered at once: `passes` is the same for all of them."""
        r, after = request, (0, self.cuts, 0, flags, 1, parts)
        about = (r.rank, r.request, r.epoch, r.attempt, r.piece, passes, 0, r.step, self.lane.step)
        return Reply(r.rank, wire.Message(wire.OK, *about, *after))

    def _repeated(self, message: wire.Message) -> Reply:
        """The answer to what is applied already: a piece brings its part, an opening all that no piece brings."""
        if message.piece:
            table, number = self.lane.validator.repeated(message)
            parts = [self.lane.part(message.rank, table, number, table.current)]
        else:
            later = {part.table for part in message.parts if part.kind == wire.LATER}
            parts = self.lane.newest(message.rank, [key for key in sorted(self.lane.tables) if key not in later])
        return self._reply(message, parts, wire.REPEATED)
