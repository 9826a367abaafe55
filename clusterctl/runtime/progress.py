"""How fast a trainer goes and where its time goes: the figures of `step` and `pass` events and of the line per pass."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

import numpy.typing as npt

from clusterctl.runtime.control import Control
from clusterctl.runtime.logbook import Logbook

_EVENT_EVERY_S = 1.0
_SMALL_ELEMENTS = 262_144


def say(line: str) -> None:
    """Writes a line for people to the training program's own output."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@dataclass
class Window:
    """Sums since `began`: `wait_s` held back by pservers for other trainers, `wire_s` the rest of the blocking time."""

    began: float
    steps: int = 0
    samples: int = 0
    wait_s: float = 0.0
    wire_s: float = 0.0
    loss_sum: float = 0.0
    loss_weight: int = 0

    @property
    def loss(self) -> float | None:
        return self.loss_sum / self.loss_weight if self.loss_weight else None

    def shares(self, seconds: float) -> dict[str, float]:
        """Shares of `seconds` spent computing, waiting and on the wire; they add up to 1."""
        whole = max(seconds, self.wait_s + self.wire_s, 1e-9)
        wait, wire = self.wait_s / whole, self.wire_s / whole
        return {"compute": 1 - wait - wire, "wait": wait, "wire": wire}


class Progress:
    """Counts what a trainer does and tells the supervisor (at most once a second) and people (once a pass)."""

    def __init__(self, control: Control, clock: Callable[[], float] = time.monotonic) -> None:
        self._control = control
        self._clock = clock
        self._pass = 0
        self._warned_s = float("-inf")
        self._checked_s = float("-inf")
        self._step = 0
        self._logbook = Logbook(self._send_log)
        now = clock()
        self._in_pass, self._recent = Window(now), Window(now)

    def begin_pass(self, pass_: int) -> None:
        self.flush_log()
        self._pass = pass_
        now = self._clock()
        self._in_pass, self._recent = Window(now), Window(now)

    def blocked(self, seconds: float, held_s: float) -> None:
        """A request kept the trainer for `seconds`, of which the pservers waited `held_s` for others."""
        wait_s = min(seconds, held_s)
        for window in (self._in_pass, self._recent):
            window.wait_s += wait_s
            window.wire_s += seconds - wait_s

    def stepped(self, step: int, samples: int, loss: float | None) -> None:
        for window in (self._in_pass, self._recent):
            window.steps += 1
            window.samples += samples
            if loss is not None and samples:
                window.loss_sum += loss * samples
                window.loss_weight += samples
        if self._clock() - self._recent.began >= _EVENT_EVERY_S:
            self.flush(step)

    def flush(self, step: int) -> None:
        """Sends what happened since the last `step` event."""
        window, now = self._recent, self._clock()
        if not window.steps:
            return
        seconds = max(now - window.began, 1e-9)
        figures: dict[str, Any] = {"samples": window.samples, "samples_per_s": window.samples / seconds}
        figures.update(window.shares(seconds))
        if window.loss is not None:
            figures["loss"] = window.loss
        self._control.send("step", **{"pass": self._pass}, step=step, **_rounded(figures))
        self._recent = Window(now)

    def end_pass(self, step: int) -> None:
        self.flush(step)
        window = self._in_pass
        seconds = max(self._clock() - window.began, 1e-9)
        shares = window.shares(seconds)
        loss = "" if window.loss is None else f", loss {window.loss:.4g}"
        parts = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        rate = f"{window.samples / seconds:,.0f} samples/s"
        say(f"pass {self._pass}: {window.steps} steps, {window.samples:,} samples, {rate}{loss}; {parts}")
        self._control.send("pass", **{"pass": self._pass}, step=step, seconds=round(seconds, 3), **_rounded(shares))

    def not_finite(self, step: int, what: str) -> None:
        """Warns of a loss or gradient that is not finite: an event at most once a second, a line the first time."""
        now = self._clock()
        if now - self._warned_s >= _EVENT_EVERY_S:
            self._control.send("nan", **{"pass": self._pass}, step=step, what=what)
            if self._warned_s < 0:
                say(f"warning: {what} is not finite (pass {self._pass}, step {step}); training goes on")
            self._warned_s = now

    def checks_numbers(self, arrays: Sequence[npt.NDArray[Any]]) -> bool:
        """Whether to look for NaN now: in small gradients always, in large ones about once a second."""
        now = self._clock()
        if sum([array.size for array in arrays]) > _SMALL_ELEMENTS and now - self._checked_s < _EVENT_EVERY_S:
            return False
        self._checked_s = now
        return True

    def log(self, step: int, values: dict[str, float], weight: float) -> None:
        """Notes named numbers; they go out as weighted means, at most once a second for each set of names."""
        self._step = step
        self._logbook.add(values, weight, self._clock())

    def flush_log(self) -> None:
        self._logbook.flush(self._clock())

    def _send_log(self, values: dict[str, float], weight: float) -> None:
        self._control.send("log", **{"pass": self._pass}, step=self._step, values=values, weight=weight)


def _rounded(figures: dict[str, Any]) -> dict[str, Any]:
    return {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in figures.items()}
