"""Runs under random faults for a while: `python -m faults.soak SECONDS SEED [ROUND]` in `tests`, as root.

Each round is one run and one storm, drawn from the seed and the round's number. At its end: in sync mode the model is
that of an undisturbed run, to the bit; nothing is left on any machine; supervisors have as many descriptors as before;
and when the last fault was a deadly one, `why` names what it was done to, and the run goes on with `--resume`.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from faults import storms
from faults.laboratory import Event, Laboratory, laboratory
from faults.machines import enough_rights
from faults.programs import TRAIN
from faults.runs import Model, assert_same, begin, conf, model_of
from faults.storms import Fault, Storm
from support.processes import wait_until

PASSES = 10
LONGEST_RUN_S = 150
SETTINGS: dict[str, Any] = {"NODE_GRACE_S": 10, "RESTARTS": 20}
FIRST_STEP = 10


@dataclass
class Figures:
    """How often each fault was injected, and seconds until it was noticed, and until training went on or all ended."""

    injected: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    noticed_s: dict[str, list[float]] = field(default_factory=dict)
    recovered_s: dict[str, list[float]] = field(default_factory=dict)

    def add(self, fault: Fault, noticed_s: float | None, recovered_s: float | None) -> None:
        for table, value in ((self.noticed_s, noticed_s), (self.recovered_s, recovered_s)):
            if value is not None:
                table.setdefault(_kind(fault), []).append(value)

    def lines(self) -> list[str]:
        found = [f"{sum(self.injected.values())} faults in {sum(self.runs.values())} runs: {dict(self.runs)}"]
        for kind, count in sorted(self.injected.items()):
            words = [_spread(name, table.get(kind)) for name, table in self._tables()]
            found.append(f"  {kind:<24} {count:>4}  {'  '.join(words)}".rstrip())
        return found

    def _tables(self) -> list[tuple[str, dict[str, list[float]]]]:
        return [("noticed", self.noticed_s), ("recovered", self.recovered_s)]


def _kind(fault: Fault) -> str:
    return f"{fault.name} {fault.target.rstrip('0123456789')}"


def _spread(name: str, values: list[float] | None) -> str:
    if not values:
        return ""
    return f"{name} after {statistics.median(values):.2f} s (at most {max(values):.2f})"


def descriptors(lab: Laboratory) -> dict[str, int]:
    """How many of them each supervisor has open."""
    pids = {f"supervisor{node}": lab.find(f"supervisor{node}") for node in range(storms.NODES)}
    return {name: len(list(Path(f"/proc/{pid}/fd").iterdir())) for name, pid in pids.items()}


class Round:
    """One run under one storm."""

    def __init__(self, lab: Laboratory, storm: Storm, figures: Figures) -> None:
        self.lab, self.storm, self.figures = lab, storm, figures
        conf(lab, MODE=storm.mode, **SETTINGS)
        self.run = begin(lab, lab.dispatch(TRAIN), passes=PASSES)
        self._times: list[tuple[Fault, float]] = []

    def pass_through(self) -> None:
        self.run.reach(FIRST_STEP)
        before = descriptors(self.lab)
        for fault in self.storm.faults:
            if fault is self.storm.fatal:
                self._compare_descriptors(before)
            if self._is_over():
                break
            self._times.append((fault, storms.inject(self.run, fault)))
            self.figures.injected[_kind(fault)] += 1
        else:
            if self.storm.fatal is None:
                self._compare_descriptors(before)

    def _is_over(self) -> bool:
        return any(event["event"] == "ended" for event in self.lab.events(self.run.job))

    def _compare_descriptors(self, before: dict[str, int]) -> None:
        """When all processes run again, unless the run has ended by then."""
        wait_until(lambda: self._is_over() or self._same(before), 40)
        assert self._is_over() or self._same(before), f"descriptors: {before}, then {descriptors(self.lab)}"

    def _same(self, before: dict[str, int]) -> bool:
        try:
            return descriptors(self.lab) == before
        except (AssertionError, FileNotFoundError):  # a supervisor that ends right now
            return False

    def end(self, expected: Model) -> None:
        """Everything that must hold afterwards."""
        self._wait()
        fatal = self.storm.fatal if self._times[-1][0] is self.storm.fatal else None
        self._measure(time.time())
        self.lab.mend()
        self.lab.boot()
        self.run.starting.communicate(timeout=60)
        self.lab.assert_nothing_remains()
        state = self.lab.status(self.run.job)["state"]
        self.figures.runs[state] += 1
        if fatal is None:
            assert state == "succeeded", state
        else:
            self._check_failure(fatal, state)
        self._check_model(expected)

    def _wait(self) -> None:
        wait_until(lambda: not self.lab.leftovers(), LONGEST_RUN_S)
        assert not self.lab.leftovers(), f"still running after {LONGEST_RUN_S} s: {self.lab.leftovers()}"

    def _check_failure(self, fatal: Fault, state: str) -> None:
        node = storms.number(fatal.target)
        assert state in ("failed", "lost"), state
        why = self.lab.run("why", self.run.job)
        assert f"node{node}" in why.out, f"why does not name node{node}:\n{why.out}\n{why.err}"
        self.lab.run("stop", self.run.job)
        resumed = begin(self.lab, self.run.job, "--resume", run="0002", passes=PASSES)
        resumed.ends("succeeded", 0, LONGEST_RUN_S)

    def _check_model(self, expected: Model) -> None:
        model = model_of(self.lab, self.run.job)
        if self.storm.mode == "sync":
            assert_same(model, expected)
        else:
            assert np.abs(model["w"] - np.arange(4)).max() < 1.5, model["w"]

    def _measure(self, over: float) -> None:
        events = self.lab.all_events(self.run.job)
        for fault, at in self._times:
            later = [event for event in events if event["t"] > at]
            if fault.name == "kill":
                self.figures.add(fault, *_restart_times(fault, at, later))
            elif fault.name in storms.DEADLY:
                lost = next((event["t"] for event in later if event["event"] == "lost"), None)
                self.figures.add(fault, lost - at if lost else None, over - at)

    def story(self) -> str:
        return self.lab.told(self.run.job)


def _restart_times(fault: Fault, at: float, later: list[Event]) -> tuple[float | None, float | None]:
    """Until the lead has decided, and until the first step of the process that comes next, or of its trainers."""
    who = {"role": fault.target.rstrip("0123456789"), "rank": storms.number(fault.target)}
    decided = _first(later, lambda event: event["event"] == "restarting" and who.items() <= event.items())
    spawned = _first(later, lambda event: event["event"] == "spawned" and who.items() <= event.items())
    if decided is None or spawned is None:
        return None, None
    went_on = _first(
        later,
        lambda event: (
            event["event"] == "step"
            and event["t"] > spawned["t"]
            and (who["role"] == "pserver" or who.items() <= event.items())
        ),
    )
    return decided["t"] - at, went_on["t"] - at if went_on else None


def _first(events: list[Event], wanted: Callable[[Event], bool]) -> Event | None:
    return next((event for event in events if wanted(event)), None)


def undisturbed(lab: Laboratory) -> Model:
    conf(lab, **SETTINGS)
    run = begin(lab, lab.dispatch(TRAIN), passes=PASSES)
    run.succeeds()
    return model_of(lab, run.job)


def soak(seconds: float, seed: str, first: int, directory: Path) -> Figures:
    """Raises AssertionError with the story of the round that went wrong, and what repeats it."""
    figures = Figures()
    with laboratory(directory, storms.NODES, seed) as lab:
        lab.directory = directory / "work"
        expected = undisturbed(lab)
        end, number = time.monotonic() + seconds, first
        while time.monotonic() < end or number == first:
            storm = storms.draw(f"{seed}/{number}")
            say(f"round {number}: {storm.mode}; {'; '.join(map(str, storm.faults))}")
            lab.boot()
            one = Round(lab, storm, figures)
            try:
                one.pass_through()
                one.end(expected)
            except (AssertionError, OSError) as exc:
                told = f"{one.story()}\nround {number} of seed {seed} went wrong: {exc}"
                raise AssertionError(f"{told}\nrepeat it: make soak SECONDS=1 SEED={seed} ROUND={number}") from exc
            number += 1
    return figures


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(seconds: str = "60", seed: str = "", first: str = "0") -> None:
    if reason := enough_rights():
        sys.exit(f"the soak {reason}")
    seed = seed or str(int(time.time()))
    say(f"seed {seed}")
    with tempfile.TemporaryDirectory(prefix="clusterctl-soak-") as directory:
        try:
            figures = soak(float(seconds), seed, int(first), Path(directory))
        except AssertionError as exc:
            sys.exit(str(exc))
    say("\n".join(figures.lines()))
    say(json.dumps({"seed": seed, "injected": figures.injected, "runs": figures.runs}))


if __name__ == "__main__":
    main(*sys.argv[1:])
