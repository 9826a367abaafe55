"""Throughput of a trainer and where its time goes: the figures of `step` and `pass` events and the line per pass."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

from clusterctl.runtime.errors import UseError
from clusterctl.runtime.supervisor_socket import SupervisorSocket, print_line

EVERY_S = 1.0


@dataclass
class MetricSums:
    """Weighted sums of one set of names since their last event."""

    sent_s: float = float("-inf")
    weight: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)
    count: int = 0

    def add(self, values: Mapping[str, float], weight: float) -> None:
        self.count += 1
        self.weight += weight
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + weight * value

    def means(self) -> dict[str, float]:
        return {name: total / self.weight if self.weight else 0.0 for name, total in self.sums.items()}


class Logbook:
    """Calls `send(means, weight)` at once for names without an event for a second, otherwise with later values.

    Thread-safe.
    """

    def __init__(self, send: Callable[[dict[str, float], float], None]) -> None:
        self._send = send
        self._groups: dict[tuple[str, ...], MetricSums] = {}
        self._lock = threading.Lock()

    def add(self, values: Mapping[str, float], weight: float, now_s: float) -> None:
        with self._lock:
            group = self._groups.setdefault(tuple(sorted(values)), MetricSums())
            group.add(values, weight)
            if now_s - group.sent_s >= EVERY_S:
                self._flush(group, now_s)

    def flush(self, now_s: float) -> None:
        """Send the values still held back; call it before the current pass changes."""
        with self._lock:
            for group in self._groups.values():
                if group.count:
                    self._flush(group, now_s)

    def _flush(self, group: MetricSums, now_s: float) -> None:
        self._send(group.means(), group.weight)
        group.sent_s, group.weight, group.count = now_s, 0.0, 0
        group.sums.clear()


_EVENT_EVERY_S = 1.0


@dataclass
class Window:
    """Sums since `began`: `wait_s` spent waiting for other trainers, `wire_s` the rest of the time spent blocked."""

    began: float
    steps: int = 0
    samples: int = 0
    wait_s: float = 0.0
    wire_s: float = 0.0
    loss_sum: float = 0.0
    loss_weight: int = 0
    losses: int = 0
    finite_losses: int = 0
    skipped: int = 0

    @property
    def loss(self) -> float | None:
        return self.loss_sum / self.loss_weight if self.loss_weight else None

    def shares(self, seconds: float) -> dict[str, float]:
        """Return the shares of `seconds` spent computing, waiting and on the wire; they add up to 1."""
        whole = max(seconds, self.wait_s + self.wire_s, 1e-9)
        wait, wire = self.wait_s / whole, self.wire_s / whole
        return {"compute": 1 - wait - wire, "wait": wait, "wire": wire}


class ProgressReporter:
    """Counts a trainer's work; reports it to the supervisor (at most once a second) and people (once a pass)."""

    def __init__(self, supervisor: SupervisorSocket, clock: Callable[[], float] = time.monotonic) -> None:
        self._supervisor = supervisor
        self._clock = clock
        self._pass = 0
        self._passes: int | None = None
        self._alive_s = float("-inf")
        self._at = {"step": 0}
        self._pushed = False
        self._logbook = Logbook(self._send_log)
        now = clock()
        self._in_pass, self._recent = Window(now), Window(now)

    def joined(self, step: int) -> None:
        """Record the step at which this trainer joined the run: one that joins late may have nothing left to push."""
        self._pushed = step > 0

    def begin_pass(self, pass_: int, passes: int | None) -> None:
        """Begin a pass of `passes` in all, None if their number is not known."""
        self.flush_log()
        self._pass, self._passes = pass_, passes
        now = self._clock()
        self._in_pass, self._recent = Window(now), Window(now)

    def blocked(self, seconds: float, held_s: float) -> None:
        """Record that a request blocked the trainer for `seconds`, of which the pservers waited `held_s` for others."""
        wait_s = held_s if held_s < seconds else seconds
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
                window.losses += 1
                window.finite_losses += math.isfinite(loss)
        self._pushed = True
        if self._clock() - self._recent.began >= _EVENT_EVERY_S:
            self.flush(step)

    def flush(self, step: int) -> None:
        """Send the figures since the last `step` event."""
        window, now = self._recent, self._clock()
        if not window.steps:
            return
        seconds = max(now - window.began, 1e-9)
        figures: dict[str, Any] = {"samples": window.samples, "samples_per_s": window.samples / seconds}
        figures.update(window.shares(seconds))
        if window.loss is not None:
            figures["loss"] = window.loss
        self._supervisor.send("step", **{"pass": self._pass}, passes=self._passes, step=step, **_rounded(figures))
        self._recent = Window(now)

    def end_pass(self, step: int) -> None:
        self.flush(step)
        window = self._in_pass
        seconds = max(self._clock() - window.began, 1e-9)
        shares = window.shares(seconds)
        loss = "" if window.loss is None else f", loss {window.loss:.4g}"
        parts = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        rate = f"{window.samples / seconds:,.0f} samples/s"
        skipped = f", {window.skipped} batches skipped" if window.skipped else ""
        line = f"pass {self._pass}: {window.steps} steps, {window.samples:,} samples, {rate}{loss}{skipped}; {parts}"
        print_line(line)
        about = {"pass": self._pass, "passes": self._passes, "step": step, "seconds": round(seconds, 3), "line": line}
        self._supervisor.send("pass", **about, **_rounded(shares))

    def not_finite(self, step: int, what: str, action: str, skipped: int) -> str:
        """Report a loss or gradient that is not finite, and the action taken; return the message."""
        text = f"{what} is not finite (pass {self._pass}, step {step})"
        about = {"what": what, "action": action, "skipped": skipped, "message": text}
        self._supervisor.send("nan", **{"pass": self._pass}, step=step, **about)
        return text

    def warn(self, text: str) -> None:
        print_line(f"warning: {text}")

    def warn_of_run(self, kind: str, text: str) -> None:
        """Print a warning, and let the lead record it as one of the run."""
        self.warn(text)
        self._supervisor.send("warning", kind=kind, message=text)

    def skipped(self, batches: int) -> None:
        """Count batches of this pass that were skipped because they are not finite."""
        self._in_pass.skipped += batches
        self._in_pass.losses += batches

    def alive(self) -> None:
        """Send a sign of life while no steps are made, at most once a second."""
        now = self._clock()
        if now - self._alive_s >= _EVENT_EVERY_S:
            self._alive_s = now
            self._supervisor.send("waiting")

    def log(self, step: int, pushes: int, numbers: Mapping[str, Any], weight: Any) -> None:
        """Record named numbers; they are sent as weighted means, at most once a second for each set of names.

        `pushes` are those made until now: in geo mode, fewer than steps.
        """
        try:
            values, share = {name: float(number) for name, number in numbers.items()}, float(weight)
        except (TypeError, ValueError) as exc:
            raise UseError(f"ps.log takes numbers, got {numbers!r}") from exc
        self._at = {"step": step} if pushes == step else {"step": step, "pushes": pushes}
        self._logbook.add(values, share, self._clock())

    def done(self, pushes: int) -> None:
        """Report that this trainer left the run after `pushes` pushes; a pserver that restarts later is informed."""
        self._supervisor.send("done", pushes=pushes, **self._learned())

    def leaving(self, pushes: int) -> None:
        """Report that this trainer leaves the run if the program's exit code is 0."""
        self._supervisor.send("leaving", pushes=pushes, **self._learned())

    def _learned(self) -> dict[str, Any]:
        """Return if this trainer pushed, and how many losses its last pass had: all, and those that are finite."""
        return {"pushed": self._pushed, "losses": [self._in_pass.losses, self._in_pass.finite_losses]}

    def flush_log(self) -> None:
        self._logbook.flush(self._clock())

    def _send_log(self, values: dict[str, float], weight: float) -> None:
        self._supervisor.send("log", **{"pass": self._pass}, **self._at, values=values, weight=weight)


def _rounded(figures: dict[str, Any]) -> dict[str, Any]:
    return {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in figures.items()}
