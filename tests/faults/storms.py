"""Random faults, drawn from a seed: what is done to a run, when, and what must come of it."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from faults.laboratory import EVERYBODY
from faults.runs import Run
from support.processes import wait_until

NODES, PSERVERS, TRAINERS = 4, 2, 3
BORNE_S = 2.5  # well below half of NODE_GRACE_S: after a cut, TCP may need as long again
MOST_FAULTS = 4
FATAL = 0.3  # of all runs end by a fault that no run survives


@dataclass(frozen=True)
class Fault:
    """`after_s` the one before it; `target` is a process or a machine; `for_s` and `amount` where it has such."""

    name: str
    target: str
    after_s: float
    for_s: float = 0.0
    amount: float = 0.0

    def __str__(self) -> str:
        more = [f"for {self.for_s:.1f} s"] * bool(self.for_s) + [f"{self.amount:.3g}"] * bool(self.amount)
        return " ".join([f"after {self.after_s:.1f} s:", self.name, self.target, *more])


@dataclass(frozen=True)
class Storm:
    mode: str
    faults: tuple[Fault, ...]

    @property
    def fatal(self) -> Fault | None:
        last = self.faults[-1]
        return last if last.name in DEADLY else None


def kill(run: Run, fault: Fault) -> None:
    run.lab.kill(fault.target)


def _is_there(run: Run, target: str) -> bool:
    try:
        return run.lab.find(target) > 0
    except AssertionError:
        return False


def pause(run: Run, fault: Fault) -> None:
    with run.lab.paused(fault.target):
        time.sleep(fault.for_s)


def cut(run: Run, fault: Fault) -> None:
    run.lab.cut(fault.target)
    _mend_after(run, fault)


def cut_out(run: Run, fault: Fault) -> None:
    run.lab.rule(fault.target, EVERYBODY, loss=1)
    _mend_after(run, fault)


def cut_in(run: Run, fault: Fault) -> None:
    run.lab.rule(EVERYBODY, fault.target, loss=1)
    _mend_after(run, fault)


def lose_frames(run: Run, fault: Fault) -> None:
    run.lab.rule(EVERYBODY, EVERYBODY, loss=fault.amount)
    _mend_after(run, fault)


def delay(run: Run, fault: Fault) -> None:
    run.lab.rule(EVERYBODY, fault.target, delay_s=fault.amount)
    _mend_after(run, fault)


def make_thin(run: Run, fault: Fault) -> None:
    run.lab.rule(fault.target, EVERYBODY, bytes_per_s=fault.amount)
    _mend_after(run, fault)


def _mend_after(run: Run, fault: Fault) -> None:
    if fault.for_s:
        time.sleep(fault.for_s)
        run.lab.mend()


def restart_sshd(run: Run, fault: Fault) -> None:
    machine = run.lab.machines[number(fault.target)]
    machine.stop_sshd(sessions=True)
    machine.start_sshd()


def kill_control(run: Run, fault: Fault) -> None:
    run.starting.send_signal(signal.SIGKILL)


def power_off(run: Run, fault: Fault) -> None:
    run.lab.machines[number(fault.target)].power_off()


def number(target: str) -> int:
    return int(target.lstrip("abcdefghijklmnopqrstuvwxyz"))


def _borne_s(chance: random.Random) -> dict[str, float]:
    return {"for_s": chance.uniform(0.3, BORNE_S)}


Draw = Callable[[random.Random], dict[str, Any]]
#: By name: what does it, what it is done to, and its numbers. A run survives these.
BEARABLE: dict[str, tuple[Callable[[Run, Fault], None], tuple[str, ...], Draw]] = {
    "kill": (kill, ("trainer", "trainer", "pserver"), lambda chance: {}),
    "pause": (pause, ("trainer", "pserver", "supervisor"), _borne_s),
    "cut": (cut, ("node",), _borne_s),
    "cut-out": (cut_out, ("node",), _borne_s),
    "cut-in": (cut_in, ("node",), _borne_s),
    "lose-frames": (lose_frames, ("all",), lambda c: {"for_s": c.uniform(1, 4), "amount": c.uniform(0.01, 0.08)}),
    "delay": (delay, ("node",), lambda c: {"for_s": c.uniform(1, 4), "amount": c.uniform(0.002, 0.03)}),
    "make-thin": (make_thin, ("node",), lambda c: {"for_s": c.uniform(1, 4), "amount": c.uniform(1e6, 4e6)}),
    "restart-sshd": (restart_sshd, ("node",), lambda chance: {}),
    "kill-control": (kill_control, ("control",), lambda chance: {}),
}
#: These end it.
DEADLY: dict[str, tuple[Callable[[Run, Fault], None], tuple[str, ...], Draw]] = {
    "kill-supervisor": (kill, ("supervisor",), lambda chance: {}),
    "cut-for-long": (cut, ("node",), lambda chance: {}),
    "power-off": (power_off, ("node",), lambda chance: {}),
}
PROCESSES = ("trainer", "pserver", "supervisor")
OFTEN = {"kill": 4}
COUNTS = {"trainer": TRAINERS, "pserver": PSERVERS, "supervisor": NODES, "node": NODES}


def draw(seed: str) -> Storm:
    """The same for the same seed."""
    chance = random.Random(seed)
    mode = chance.choice(["sync", "async"])
    faults = [_draw_one(chance, BEARABLE) for _ in range(chance.randint(1, MOST_FAULTS))]
    if chance.random() < FATAL:
        faults.append(_draw_one(chance, DEADLY))
    return Storm(mode, tuple(faults))


def _draw_one(chance: random.Random, table: dict[str, Any]) -> Fault:
    name = chance.choice([name for name in sorted(table) for _ in range(OFTEN.get(name, 1))])
    _, kinds, numbers = table[name]
    kind = chance.choice(kinds)
    target = f"{kind}{chance.randrange(COUNTS[kind])}" if kind in COUNTS else kind
    return Fault(name, target, chance.uniform(0.2, 2.0), **numbers(chance))


def inject(run: Run, fault: Fault) -> float:
    """The time of day at which it was done; a process may be about to begin again, and is waited for."""
    time.sleep(fault.after_s)
    if fault.target.startswith(PROCESSES):
        assert wait_until(lambda: _is_there(run, fault.target), 40), f"no {fault.target}"
    at = time.time()
    act = (BEARABLE | DEADLY)[fault.name][0]
    act(run, fault)
    return at
