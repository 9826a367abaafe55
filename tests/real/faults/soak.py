"""Runs under random faults for a while: `python -m real.faults.soak SECONDS SEED [ROUND]` in `tests`, as root.

Each round is one run and one storm, drawn from the seed and the number of the round; with `losses` for SECONDS, each
kind of node loses power once in each phase of a run, with and without its disk. At its end: in sync mode the model
is that of an undisturbed run, bit for bit; nothing is left on any machine; no process has more open descriptors than
before; `why` names the faults, whether the run survived them or ended because of them; and a run that has ended
continues with `--resume`.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from real.faults import storms
from real.faults.figures import Figures
from real.faults.laboratory import Laboratory, laboratory
from real.faults.machines import enough_rights
from real.faults.programs import TRAIN
from real.faults.runs import Model, assert_same, begin, conf, model_of
from real.faults.storms import Fault, Storm
from support.processes import wait_until

PASSES = 12
LONGEST_RUN_S = 150
SETTINGS: dict[str, Any] = {"NODE_GRACE_S": storms.NODE_GRACE_S, "RESTARTS": 20}
FIRST_STEP = 10
LOSSES = "losses"
SETTLED_S = 6.0  # a process that has just started is still opening files
WATCHED = (*storms.SUPERVISORS, *storms.PSERVERS, *storms.TRAINERS)


def descriptors(lab: Laboratory) -> dict[str, int]:
    """Return the number of open descriptors of each process, without those that a fault rightly brings.

    Those are the files of checkpoints, which a rollback opens, and a supervisor's socket to its piece server, which
    the first copy starts.
    """
    processes = {name: lab.find(name) for name in WATCHED}
    return {
        name: sum("/checkpoints/" not in file for file in _open_files(pid)) - _piece_servers(pid)
        for name, pid in processes.items()
    }


def _piece_servers(pid: int) -> int:
    """Return how many piece servers this process has as children: at most one, and none if it is no supervisor."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(b"piece-server" in Path(f"/proc/{child}/cmdline").read_bytes() for child in children)


def _open_files(pid: int) -> Iterator[str]:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has been closed meanwhile
            yield str(descriptor.readlink())


class Round:
    """One run under one storm."""

    def __init__(self, lab: Laboratory, storm: Storm, figures: Figures) -> None:
        self.lab, self.storm, self.figures = lab, storm, figures
        for node, machine in enumerate(lab.machines):
            machine.set_clock(3600 * storm.clock[1] if storm.clock and storm.clock[0] == node else 0)
        loss = "wait" if storm.patient else "move" if storm.moment else "fail"
        conf(lab, MODE=storm.mode, ON_NODE_LOSS=loss, COPIES=2 if storm.moment else 1, **SETTINGS)
        self.run = begin(lab, lab.dispatch(TRAIN), passes=PASSES, burdened=storm.burdened)
        self.run.open_gate()
        self._times: list[tuple[Fault, float]] = []

    def pass_through(self) -> None:
        if self.storm.moment != "starting":
            self.run.reach(FIRST_STEP)
            before = descriptors(self.lab)
        for fault in self.storm.faults:
            is_loss = bool(self.storm.moment) and fault is self.storm.faults[-1]
            if fault is self.storm.ending or (is_loss and self.storm.moment != "starting"):
                self._compare_descriptors(before)
            if is_loss:
                self._await_moment()
            at = storms.inject(self.run, fault)
            if at is None:
                return
            self._times.append((fault, at))
            self.figures.count(fault)
        if self.storm.ending is None and not self.storm.moment:
            self._compare_descriptors(before)

    def _await_moment(self) -> None:
        """Wait until a node is to be lost, or the run is over."""
        run, moment = self.run, self.storm.moment
        if moment != "starting":
            run.event("copied", node=0)
        known = len(self.lab.all_events(run.job))
        if moment == "rolling back":
            storms.inject(run, Fault("kill", "pserver1", 0.0))

        def has_come() -> bool:
            if moment == "starting":
                return any(event["phase"] == "pservers" for event in run.events("phase"))
            if moment == "finishing":
                return any(event["phase"] == "finishing" for event in run.events("phase"))
            name = {"training": "step", "rolling back": "rolled_back"}.get(moment, "saved")
            new = [event for event in self.lab.all_events(run.job)[known:] if event["event"] == name]
            return any(moment != "copying" or event.get("complete") for event in new)

        assert wait_until(lambda: storms.is_over(run) or has_come(), LONGEST_RUN_S), f"not {moment}"

    def _compare_descriptors(self, before: dict[str, int]) -> None:
        """Assert that all processes are back and soon have no more descriptors than before, unless the run ends."""
        seen: dict[str, int] = {}

        def observe() -> bool:
            with contextlib.suppress(AssertionError, FileNotFoundError):  # a process is missing right now
                seen.update(descriptors(self.lab))
                return True
            return False

        def more() -> dict[str, tuple[int, int]]:
            return {name: (before[name], seen[name]) for name in WATCHED if seen[name] > before[name]}

        assert wait_until(lambda: storms.is_over(self.run) or observe(), 40), self.lab.leftovers()
        fine = wait_until(lambda: storms.is_over(self.run) or (observe() and not more()), SETTLED_S)
        assert fine, more()

    def end(self, expected: Model) -> None:
        """Check everything that must hold afterwards."""
        if self.storm.moment:  # it may be resumed, by the attached start
            self.run.starting.communicate(timeout=2 * LONGEST_RUN_S)
        self.lab.wait_for_end(self.run.job, LONGEST_RUN_S)
        self._measure(time.time())
        self.lab.heal_network()
        self.lab.boot()
        self.run.starting.communicate(timeout=180)
        ended_by = self.storm.ending if self._times and self._times[-1][0] is self.storm.ending else None
        off = any(fault.name in ("power-off", "lose-disk") for fault, _ in self._times)
        self.lab.assert_nothing_remains(half_written=not off)
        state = self.lab.status(self.run.job)["state"]
        self.figures.runs[state] += 1
        assert state in (storms.KINDS[ended_by.name].ends if ended_by else {"succeeded"}), state
        self._check_why(state, ended_by)
        if state != "succeeded":
            self._resume()
        self._check_model(expected)

    def _measure(self, over: float) -> None:
        events = self.lab.all_events(self.run.job)
        for fault, at in self._times:
            self.figures.measure(fault, at, events, over, ends=fault is self.storm.ending)

    def _check_why(self, state: str, ended_by: Fault | None) -> None:
        why = self.lab.run("why", self.run.job, "--json").json()
        cause = why["cause"]
        if state == "stopped":
            assert cause is None or cause["kind"] == "stopped", cause
        elif ended_by is not None and state != "succeeded":
            assert cause is not None, why
            assert cause["node"] in ended_by.nodes, cause
            assert ended_by.name != "fill-disk" or "No space left" in json.dumps(cause), cause
        else:
            assert cause is None, cause
            reported = {f"{one['role']}{one['rank']}" for one in why["before"] if one["role"]}
            restarted = {f"{event['role']}{event['rank']}" for event in self.run.events("restarting")}
            killed = {fault.target for fault, _ in self._times if fault.name in ("kill", "kill-two")} & restarted
            is_known = int(why["run"]) == 1 and all(fault.name != "lose-disk" for fault, _ in self._times)
            assert killed <= reported or not is_known, f"{killed} were killed, and why reports {reported}"

    def _resume(self) -> None:
        self.lab.run("stop", self.run.job)
        again = begin(self.lab, self.run.job, "--resume", run="0002", passes=PASSES, burdened=self.storm.burdened)
        again.ends("succeeded", 0, LONGEST_RUN_S)

    def _check_model(self, expected: Model) -> None:
        disk_is_lost = any(fault.name == "lose-disk" for fault, _ in self._times)
        model = model_of(self.lab, self.run.job, may_lack_logs=disk_is_lost)
        if self.storm.mode == "sync":
            assert_same(model, expected)
        else:
            assert np.abs(model["w"] - np.arange(4)).max() < 1.5, model["w"]  # pushes may be lost

    def story(self) -> str:
        return self.lab.story(self.run.job)


def undisturbed(lab: Laboratory) -> Model:
    conf(lab, **SETTINGS)
    run = begin(lab, lab.dispatch(TRAIN), passes=PASSES)
    run.succeeds()
    return model_of(lab, run.job)


def soak(seconds: str, seed: str, first: int, directory: Path) -> Figures:
    """Raise AssertionError with the story of a round that failed and the command that repeats it."""
    figures = Figures()
    with laboratory(directory, len(storms.NODES), seed) as lab:
        lab.directory = directory / "work"
        expected = undisturbed(lab)
        losses = storms.losses() if seconds == LOSSES else []
        end, number = time.monotonic() + (0.0 if losses else float(seconds)), first
        while number < len(losses) or time.monotonic() < end or number == first:
            storm = losses[number] if losses else storms.draw(f"{seed}/{number}")
            say(f"round {number}: {storm}")
            lab.boot()
            one = Round(lab, storm, figures)
            try:
                one.pass_through()
                one.end(expected)
            except Exception as exc:
                say("\n".join(figures.lines()))
                story = f"{one.story()}\nround {number} of seed {seed} failed: {exc!r}"
                again = f"SECONDS={LOSSES if losses else 1} SEED={seed} ROUND={number}"
                raise AssertionError(f"{story}\nrepeat it: make soak {again}") from exc
            lab.end_everything()
            lab.ok("prune", "--keep", "0", "--older-than", "0h", "--yes")  # the disks have room for a hundred jobs
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
            figures = soak(seconds, seed, int(first), Path(directory))
        except AssertionError as exc:
            sys.exit(str(exc))
    say("\n".join(figures.lines()))
    say(json.dumps({"seed": seed, "injected": figures.injected, "runs": figures.runs}))


if __name__ == "__main__":
    main(*sys.argv[1:])
