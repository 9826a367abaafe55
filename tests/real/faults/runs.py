"""Runs in the laboratory: node0 has the lead and a pserver, node1 a pserver and trainer 0, node2 and node3 trainers."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.runtime import load_model
from real.faults.laboratory import Event, Laboratory
from real.faults.programs import PASSES, TRAIN

Model = dict[str, Any]


@dataclass
class Run:
    """An attached start in progress. Its trainers wait before step 100 until `open_gate`."""

    lab: Laboratory
    job: str
    starting: subprocess.Popen[str]
    gate: Path
    run: str = "0001"

    def open_gate(self) -> None:
        self.gate.unlink(missing_ok=True)

    def reach(self, step: int) -> None:
        """Wait until a checkpoint of this step or a later one is complete."""
        saved = {"event": "saved", "checkpoint": True, "complete": True}
        self.lab.wait_for(self.job, lambda event: saved.items() <= event.items() and event["step"] >= step, self.run)

    def event(self, name: str, **values: object) -> Event:
        """Wait for an event with this name and these values on any node and return it."""
        wanted = {"event": name, **values}
        return self.lab.wait_for(self.job, lambda event: wanted.items() <= event.items(), self.run)

    def events(self, name: str) -> list[Event]:
        return [event for event in self.lab.all_events(self.job, self.run) if event["event"] == name]

    def cause(self) -> Event:
        """Return the cause of the failure as recorded by the lead."""
        cause: Event = self.event("ended", node=0)["cause"]
        return cause

    def ends(self, state: str, code: int, deadline_s: float = 180, *, half_written: bool = True) -> str:
        """Let the run end in this state with nothing left on any machine; return the output of `start`.

        Without `half_written`, files that a machine was writing when it was switched off may be left.
        """
        self.open_gate()
        out, err = self.starting.communicate(timeout=deadline_s)
        self.lab.wait_for_end(self.job)
        story = f"{out}\n{err}\n{self.lab.story(self.job, self.run)}"
        assert self.starting.returncode == code, story
        assert self.lab.status(self.job)["state"] == state, story
        self.lab.assert_nothing_remains(half_written=half_written)
        return out + err

    def succeeds(self) -> str:
        return self.ends("succeeded", 0)

    def fails(self) -> str:
        return self.ends("failed", 1)


def conf(lab: Laboratory, **settings: Any) -> None:
    lab.conf(**{"PSERVERS": 2, "TRAINERS": lab.hosts[1:], "SAVE_EVERY": 20, "RESTARTS": 3, **settings})


def dispatch(lab: Laboratory, **settings: Any) -> str:
    conf(lab, **settings)
    return lab.dispatch(TRAIN)


def begin(
    lab: Laboratory,
    job: str,
    *options: str,
    run: str = "0001",
    passes: int = PASSES,
    burdened: bool = False,
) -> Run:
    gate = lab.directory / "gate"
    gate.touch()
    arguments = [str(passes), str(gate), *["burdened"] * burdened]
    starting = lab.popen("start", "--job_workspace", job, *options, "--", *arguments)
    return Run(lab, job, starting, gate, run)


def start(lab: Laboratory, **settings: Any) -> Run:
    return begin(lab, dispatch(lab, **settings))


def resume(lab: Laboratory, job: str) -> Run:
    return begin(lab, job, "--resume", run="0002")


def model_of(lab: Laboratory, job: str, *, may_lack_logs: bool = False) -> Model:
    """Collect the model of a job. With `may_lack_logs` some of its machines are off, or have lost their disks."""
    collected = lab.run("collect", job, "-o", f"home-{job}")
    assert collected.code == 0 or (may_lack_logs and collected.code == 3), collected.err
    return load_model(lab.directory / f"home-{job}" / "model")


def assert_same(model: Model, expected: Model) -> None:
    """Assert that two models are identical bit for bit."""
    assert sorted(model) == sorted(expected) == ["e", "w", "wide"]
    for name in ("w", "wide"):
        assert model[name].tobytes() == expected[name].tobytes(), name
    assert [array.tobytes() for array in model["e"]] == [array.tobytes() for array in expected["e"]]
