"""A pserver's part in cuts outside sync: the lead's orders go to its lanes, and one report of them all to the lead."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterctl.runtime.pserver.core import ServerCore
from clusterctl.runtime.pserver.lane_cut import Moment
from clusterctl.runtime.pserver.lane_state import Copied, CutOutput, Due, Held, Output
from clusterctl.runtime.pserver.lanes import Lane, Server

PATIENCE_S = 5.0  # for the next push of a cut


@dataclass
class _PendingCut:
    number: int
    held: dict[int, Held] = field(default_factory=dict)
    copied: dict[int, Copied] = field(default_factory=dict)


class CutPart:
    """Carries out the lead's orders with the lanes of `server`. Thread-safe.

    The orders are "hold" (new pushes back, and report how many each trainer has made), "make" (apply those of the cut,
    and copy), "write" (the copies) and "drop". `send(phase, facts)` reports to the lead: "due", "held", "made", or
    "failed" if no push of the cut has come for `patience_s`; then the lanes go on without it. With None only a call of
    `look` gives a cut up.

    In sync there is one order, "announce": a cut is due. The report "announced" says at which step it is made.
    """

    def __init__(
        self, server: Server, send: Callable[[str, dict[str, Any]], None], patience_s: float | None = PATIENCE_S
    ) -> None:
        self._server = server
        self._send = send
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._now: _PendingCut | None = None
        self._timer: threading.Timer | None = None

    def order(self, order: str, number: int, facts: dict[str, Any]) -> None:
        """Carry out an order of the lead about the cut `number`; one about an earlier cut is ignored."""
        with self._lock:
            if order == "announce":
                self._announce(number)
            elif order == "hold":
                self._now = _PendingCut(number)
                self._look_later(number)
                self._submit(lambda core: core.policy.hold_cut(number))
            elif self._now is None or self._now.number != number:
                return
            elif order == "make":
                moment = Moment(tuple(facts["counts"]), facts["step"], facts["passes"], facts["purpose"])
                self._look_later(number)
                self._submit(lambda core: core.policy.make_cut(number, moment))
            elif order == "write":
                self._write(self._now)
                self._now = None
            elif order == "drop":
                self._drop(number)

    def _announce(self, number: int) -> None:
        """Announce a cut of sync: trainers take it from the first lane of the run, which all of them use."""

        def announce(core: ServerCore) -> list[Output]:
            out = core.request_cut()
            self._send("announced", {"cut": number, "step": core.state.cut_schedule.decode(core.policy.cuts)[0]})
            return out

        for lane in self._server.lanes:
            if lane.core.state.lane == 0:
                lane.submit(announce)

    def reset(self) -> None:
        """Forget the cut: a new epoch has begun, and the lanes have dropped it."""
        with self._lock:
            self._forget()

    def take(self, lane: Lane, output: CutOutput) -> None:
        """Take what a lane has to say about a cut; called in its thread."""
        with self._lock:
            if isinstance(output, Due):
                self._send("due", {"purpose": output.purpose})
                return
            now, number = self._now, lane.core.state.lane
            if now is None or now.number != output.cut:
                return
            if isinstance(output, Held):
                now.held[number] = output
                if len(now.held) == len(self._server.lanes):
                    self._send("held", {"cut": now.number, **_progress(list(now.held.values()))})
                return
            now.copied[number] = output
            if len(now.copied) == len(self._server.lanes):
                self._stop_timer()
                sums = [now.copied[n].table_sum for n in sorted(now.copied)]
                self._send("made", {"cut": now.number, "table_sums": sums})

    def _submit(self, task: Callable[[ServerCore], Any]) -> None:
        for lane in self._server.lanes:
            lane.submit(task)

    def _drop(self, number: int) -> None:
        self._forget()
        self._submit(lambda core: core.policy.drop_cut(number))

    def _forget(self) -> None:
        self._now = None
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self, number: int) -> None:
        self._stop_timer()
        if self._patience_s is None:
            return
        self._timer = threading.Timer(self._patience_s, self.look, [number])
        self._timer.daemon = True
        self._timer.start()

    def look(self, number: int) -> None:
        """Give the cut `number` up unless it has come nearer since the last look."""
        with self._lock:
            if self._now is None or self._now.number != number or len(self._now.copied) == len(self._server.lanes):
                return
            policies = [lane.core.policy for lane in self._server.lanes]
            waiting = [policy.cut for policy in policies if policy.cut is not None and policy.cut.number == number]
            copies = sum(policy.copied_cut == number for policy in policies)
            if copies > len(self._now.copied) or any(cut.moved or cut.copying for cut in waiting):
                for cut in waiting:
                    cut.moved = False
                self._look_later(number)
                return
            missing = sorted({rank for cut in waiting for rank in cut.missing()})
            self._drop(number)
            self._send("failed", {"cut": number, "waits_for": missing})

    def _write(self, now: _PendingCut) -> None:
        parts = [now.copied[number].saves for number in sorted(now.copied)]
        for saves in zip(*parts):
            self._server.write(saves)


def _progress(lanes: Sequence[Held]) -> dict[str, Any]:
    """Return the pushes of each trainer that any lane has, and the step and passes of one that has them all."""
    counts = [max(of_one) for of_one in zip(*(lane.counts for lane in lanes))]
    step = max(lane.step + sum(counts) - sum(lane.counts) for lane in lanes)
    return {"counts": counts, "step": step, "passes": max(lane.passes for lane in lanes)}
