"""A cut outside sync, on one lane: which pushes it still takes before it copies its tables, and what waits meanwhile.

On the lead's word all lanes hold new pushes back, and report how many they have of each trainer, begun ones included.
The highest counts of any lane are those of the cut: every lane takes the pushes up to them, copies, and goes on. No
trainer is asked, and none notices but by answers that come a little later.
"""

from __future__ import annotations

from typing import NamedTuple

from clusterctl.runtime.pserver.trainers import TrainerStates
from clusterctl.runtime.wire import messages as wire


class Moment(NamedTuple):
    """What a cut is, which the lead decides: the pushes of each trainer in it, by rank, the job's step and the passes
    that have ended by then, and what is saved (see `cuts`)."""

    counts: tuple[int, ...]
    step: int
    passes: int
    purpose: int


class LaneCut:
    """A cut that a lane has not copied yet. `counts` are the pushes that it takes of each trainer, by rank.

    `moment` is None until the lead has decided. `moved` is set by each message that brings the cut nearer, and
    `copying` while the tables are copied; another thread reads both.
    """

    def __init__(self, number: int, trainers: TrainerStates) -> None:
        self.number = number
        self.counts = tuple(trainer.begun for _, trainer in sorted(trainers.by_rank.items()))
        self.moment: Moment | None = None
        self.moved = False
        self.copying = False
        self._trainers = trainers
        self._held: dict[tuple[int, int, int, int], wire.Message] = {}

    def settle(self, moment: Moment) -> None:
        """Take what the lead has decided."""
        self.moment, self.counts = moment, moment.counts

    def hold(self, message: wire.Message) -> bool:
        """Hold a message back if it belongs after the cut: a push beyond its counts, a table or its first values."""
        if message.kind == wire.PUSH and message.step < self.counts[message.rank]:
            self.moved = True
            return False
        number = message.piece if message.kind == wire.PUSH else message.request
        self._held[message.rank, message.kind, message.step, number] = message
        return True

    def held(self) -> list[wire.Message]:
        return list(self._held.values())

    def take_held(self, *, up_to_cut: bool) -> list[wire.Message]:
        """Return the messages that waited, in the order in which they came, and hold them no longer.

        With `up_to_cut` only the pushes before the cut.
        """
        ready = {
            key: message
            for key, message in self._held.items()
            if not up_to_cut or (message.kind == wire.PUSH and message.step < self.counts[message.rank])
        }
        for key in ready:
            del self._held[key]
        return list(ready.values())

    def missing(self) -> list[int]:
        """Return the ranks of the trainers of which pushes before the cut have not arrived.

        One that has made no table on this lane sends it none, and one that has left sends no more.
        """
        if self.moment is None:
            return []
        by_rank = self._trainers.by_rank.items()
        return [rank for rank, at in by_rank if at.declared and not at.left and at.pushed < self.counts[rank]]
