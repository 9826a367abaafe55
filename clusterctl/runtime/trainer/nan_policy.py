"""ON_NAN: "warn", "fail" or "skip" for losses, gradients and received values that are not finite."""

from __future__ import annotations

import time
from typing import Callable

from clusterctl.runtime.arrays import Floats, is_finite
from clusterctl.runtime.errors import NotFiniteError
from clusterctl.runtime.trainer.packing import Gradient
from clusterctl.runtime.trainer.progress import ProgressReporter

_SMALL_ELEMENTS = 262_144
_INFINITY = float("inf")
_CHECK_EVERY_S = 1.0
_REPORT_EVERY_S = 1.0
_TOO_LARGE = 'values beyond 65504 are infinite in float16; use WIRE = "float32"'
_REMEDY = 'try a smaller learning rate or clip=clip_by_norm(5.0); ON_NAN = "skip" skips such batches'


class NanPolicy:
    """Checks every batch of a trainer; with "warn", large gradients only about once a second.

    `half` means that gradients and values are sent as float16, in which 65520 is infinite. Then received values are
    checked, too: `took` notes them, and `check_taken` reports them or raises; "skip" skips the batches that have them.
    """

    def __init__(
        self,
        policy: str,
        rank: int,
        half: bool,
        progress: ProgressReporter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy = policy
        self.skipped = 0
        self._rank = rank
        self._half = half
        self._progress = progress
        self._clock = clock
        self._checked_s = self._reported_s = float("-inf")
        #: Received values that are not finite: tables, and for a dense one the place; rows are those of this batch.
        self._unsound: dict[tuple[str, int | None], None] = {}
        self._news: str | None = None

    def begin_batch(self) -> None:
        """Forget rows that were pulled before this batch."""
        for key in [key for key in self._unsound if key[1] is None]:
            del self._unsound[key]

    def took(self, table: str, values: Floats, place: int | None = None) -> None:
        """Note received values of a table, float32: rows, or those of a dense table at `place`."""
        if not self._half:
            return
        if is_finite(values):
            if place is not None:
                self._unsound.pop((table, place), None)
            return
        self._unsound[table, place] = None
        self._news = self._news or table

    def check_taken(self, step: int) -> None:
        """Report received values that are not finite. Raises NotFiniteError if ON_NAN is "fail"."""
        table, self._news = self._news, None
        if table is None or self.policy == "skip":
            return
        if self.policy == "fail":
            raise NotFiniteError(self._progress.not_finite(step, self._received(table), "failed", 0), remedy=_TOO_LARGE)
        self._report(step, self._received(table), "warned", f"training continues; {_TOO_LARGE}")

    def _received(self, table: str) -> str:
        return f"a float16 value of table {table!r} received by trainer {self._rank}"

    def admits(
        self,
        step: int,
        gradient: Gradient,
        loss: float | None = None,
        *,
        batches: int = 1,
        as_sent: bool = True,
        noun: str = "gradient",
    ) -> bool:
        """Return True if a batch (or several merged into one) may be pushed. Raises NotFiniteError if ON_NAN is "fail".

        `as_sent` means that the gradient will be sent as it is, not merged with others first.
        """
        if self.policy == "skip" and self._unsound:
            what = self._received(next(iter(self._unsound))[0])
        elif loss is not None and not abs(loss) < _INFINITY:
            what = f"the loss of trainer {self._rank}"
        elif self.policy == "warn" and not self._is_due(gradient):
            return True
        else:
            name = gradient.not_finite(self._half and as_sent)
            if name is None:
                return True
            what = f"the {noun} of table {name!r} of trainer {self._rank}"
        if self.policy == "warn":
            self._report(step, what, "warned", "training continues")
            return True
        if self.policy == "fail":
            self._fail(step, what)
        self.skipped += batches
        self._progress.skipped(batches)
        self._report(
            step, what, "skipped", "the batch is skipped" if batches == 1 else f"{batches} batches are skipped"
        )
        return False

    def _is_due(self, gradient: Gradient) -> bool:
        size = sum([array.size for array in gradient.arrays()])
        if size <= _SMALL_ELEMENTS:
            return size > 0
        now = self._clock()
        if now - self._checked_s < _CHECK_EVERY_S:
            return False
        self._checked_s = now
        return True

    def _report(self, step: int, what: str, action: str, outcome: str) -> None:
        """Send an event at most once a second, and print a line the first time."""
        now = self._clock()
        if now - self._reported_s < _REPORT_EVERY_S:
            return
        text = self._progress.not_finite(step, what, action, self.skipped)
        if self._reported_s < 0:
            self._progress.warn(f"{text}; {outcome}")
        self._reported_s = now

    def _fail(self, step: int, what: str) -> None:
        raise NotFiniteError(self._progress.not_finite(step, what, "failed", 0), remedy=_REMEDY)
