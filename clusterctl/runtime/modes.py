"""How trainers follow the training mode, when a model is saved by default, and the tags that saves may have."""

from __future__ import annotations

from typing import NamedTuple

from clusterctl.common.manifest import is_tag
from clusterctl.common.modes import Mode, SaveInterval
from clusterctl.runtime.errors import UseError

#: Pushes of one trainer that may be in flight. Except in async, its next values depend on the answer. half-async is
#: async but for this: Paddle's HalfAsyncCommunicator, whose barrier is between the threads of one trainer, not between
#: trainers.
WINDOWS = {"sync": 1, "async": 4, "half-async": 1, "ssp": 1, "geo": 1}

#: How often a model is saved, unless SAVE_MODEL_EVERY says otherwise.
EACH_PASS = SaveInterval("pass", 1)


def parse_mode(text: str) -> Mode:
    """Return a mode of a run's spec or of a pserver. Raises UseError if it is unknown."""
    try:
        return Mode.parse(text)
    except ValueError:
        raise UseError(
            f"mode {text!r} is unknown", remedy='use "sync", "async", "half-async", "ssp(4)" or "geo(25)"'
        ) from None


def check_tag(tag: str) -> str:
    """Return a tag that is safe as a directory name. Raises UseError otherwise."""
    if not is_tag(tag):
        raise UseError(
            f"tag {tag!r} is invalid",
            remedy="use up to 100 letters, digits and ._- , not starting with a dot",
        )
    return tag


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
