"""Cuts: moments at which all lanes save, and what is saved at them.

In sync a cut is a step, announced with the replies of an earlier one; its number on the wire may say what is saved.
In the other modes the lead orders them, see `pserver.lane_cut`.
"""

from __future__ import annotations

from typing import NamedTuple

from clusterctl.common.modes import SaveInterval

#: What a cut is for: any of these, added.
CHECKPOINT, MODEL = 1, 2


class CutSchedule(NamedTuple):
    """What is saved at cuts, and when: checkpoints, and models if they are saved by steps or seconds.

    If models are, the number of a cut of sync on the wire also has its purpose; otherwise every cut is a checkpoint.
    Either way a later cut has a higher number.
    """

    checkpoints: SaveInterval | None
    models: SaveInterval

    def timed(self) -> dict[int, float]:
        """Return the purposes that are due by the clock, with their intervals in seconds."""
        return {purpose: every.n for purpose, every in self.by_purpose().items() if every.unit == "s"}

    def by_purpose(self) -> dict[int, SaveInterval]:
        checkpoints = {} if self.checkpoints is None else {CHECKPOINT: self.checkpoints}
        return {**checkpoints, **({MODEL: self.models} if self.has_models else {})}

    @property
    def has_models(self) -> bool:
        """True if models are saved at cuts; those of passes are saved when all trainers have requested them."""
        return self.models.unit in ("step", "s")

    def encode(self, number: int, purpose: int) -> int:
        return number << 2 | purpose if self.has_models else number

    def decode(self, cut: int) -> tuple[int, int]:
        """Return the number and the purpose of a cut."""
        return (cut >> 2, cut & (CHECKPOINT | MODEL)) if self.has_models else (cut, CHECKPOINT)
