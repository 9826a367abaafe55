"""Machines on their own network, with `clusterctl` on one more of them, and the faults to inject between them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from clusterctl.cluster import FIRST_LINE
from real.faults.machines import DIES_WITH_US, Cable, Disks, Machine, Place
from real.faults.switch import enter_network
from support.openssh import make_key
from support.processes import Proc, kill_all, wait_until
from support.site import GRACE_S, Site, events_in

NETWORK = "10.77.0"
CONTROL = "control"
EVERYBODY = "*"
PROGRAM = (sys.executable, "-m", "clusterctl")
Event = dict[str, Any]


class Laboratory(Site):
    """`machines` are the nodes; `clusterctl` runs on `control`, with the files and processes of this program."""

    def __init__(self, directory: Path, n: int, seed: str) -> None:
        names = [f"node{index}" for index in range(n)]
        self.top = directory
        self.rules: dict[str, dict[str, float]] = {}
        self._commands: list[subprocess.Popen[str]] = []
        (directory / "disks").mkdir()
        (directory / "work").mkdir()
        self._identity = make_key(directory / "client")
        self.disks = Disks(directory / "disks", names)
        self.cable = Cable(directory, seed)
        self.machines = [self._machine(name, 11 + index) for index, name in enumerate(names)]
        self.control = self._machine(CONTROL, 1)
        (directory / "ssh_config").write_text("")
        (directory / "known_hosts").write_text("".join(map(_known, self.machines)))
        paths = {"IDENTITY_FILE": self._identity}
        paths.update(KNOWN_HOSTS=directory / "known_hosts", SSH_CONFIG=directory / "ssh_config")
        super().__init__(directory / "work", directory, [machine.place.address for machine in self.machines], paths)

    def _machine(self, name: str, number: int) -> Machine:
        mac = f"02:00:00:00:00:{number:02x}"
        place = Place(name, f"{NETWORK}.{number}", mac, self.top / name, self.top / "disks" / name)
        return Machine(place, self.disks, self.cable, None if name == CONTROL else self._identity.with_suffix(".pub"))

    def boot(self) -> None:
        """Switch on all machines that are off."""
        for machine in [self.control, *self.machines]:
            if not machine.is_on:
                machine.boot()

    def close(self) -> None:
        for machine in [self.control, *self.machines]:
            machine.power_off()
        self.cable.close()
        self.disks.close()

    # The interface of Site.

    def home(self, node: int) -> Path:
        return self.disks.seen(self.machines[node].home)

    def popen(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        program = (*DIES_WITH_US, *options.pop("program", PROGRAM))
        command = super().popen(*args, program=program, preexec_fn=partial(enter_network, self.control.pid), **options)
        self._commands.append(command)
        return command

    def leftovers(self) -> list[Proc]:
        return [proc for machine in self.machines for proc in machine.processes()]

    def end_everything(self) -> None:
        """Remove everything that a test has left, including commands on the control machine."""
        for command in self._commands:
            if command.poll() is None:
                command.kill()
                command.communicate()
        self._commands.clear()
        kill_all(proc.pid for proc in self.leftovers())
        for machine in self.machines:
            if machine.remains():
                machine.tidy()

    def conf(self, **settings: Any) -> Path:
        return super().conf(**{"NODE_GRACE_S": 4, "GRACE_S": GRACE_S, "COPIES": 1, "MODEL_ON_LEAD_MB": 0, **settings})

    # Processes.

    def find(self, name: str) -> int:
        """Return the pid, in our namespace, of `trainer1`, `pserver0`, `supervisor2` or `guardian3`.

        Raises AssertionError if there is no such process.
        """
        role, number = name.rstrip("0123456789"), int(name[len(name.rstrip("0123456789")) :])
        if role in ("supervisor", "guardian"):
            pids = [p.pid for p in self.machines[number].processes() if f" {role} " in p.command]
        else:
            pids = [p.pid for p in self.leftovers() if _is_process(p.pid, role, number)]
        assert pids, f"no {name} among {self.leftovers()}"
        return min(pids)

    def kill(self, name: str, signum: int = signal.SIGKILL) -> None:
        os.kill(self.find(name), signum)

    @contextlib.contextmanager
    def paused(self, name: str) -> Iterator[int]:
        """Send SIGSTOP, and SIGCONT at the end."""
        pid = self.find(name)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield pid
        finally:
            os.kill(pid, signal.SIGCONT)

    # The network: rules for frames in one direction, by names of machines.

    def rule(self, source: str, target: str, **rule: float) -> None:
        """Add a rule for frames from `source` to `target`; either may be "*"."""
        names = [machine.place.name for machine in [*self.machines, self.control]]
        for a in names if source == EVERYBODY else [source]:
            for b in names if target == EVERYBODY else [target]:
                if a != b:
                    self.rules[f"{a}>{b}"] = {**self.rules.get(f"{a}>{b}", {}), **rule}
        self.cable.send(rules=self.rules)

    def cut(self, name: str) -> None:
        """Cut a machine off in both directions."""
        self.rule(name, EVERYBODY, loss=1)
        self.rule(EVERYBODY, name, loss=1)

    def heal_network(self) -> None:
        """Remove all rules."""
        self.rules.clear()
        self.cable.send(rules=self.rules)

    # Events.

    def run_dir(self, job: str, node: int, run: str = "0001") -> Path:
        return self.job_dir(job, node) / ".clusterctl" / "runs" / run

    def events(self, job: str, node: int = 0, run: str = "0001") -> list[Event]:
        """Return the events that a node has recorded; `at` is their true time."""
        with contextlib.suppress(FileNotFoundError):
            events = events_in(self.run_dir(job, node, run) / "events.jsonl")
            return [{**event, "at": event["t"] - self.machines[node].clock_off_s} for event in events]
        return []

    def all_events(self, job: str, run: str = "0001") -> list[Event]:
        events = [event for node in range(len(self.machines)) for event in self.events(job, node, run)]
        return sorted(events, key=lambda event: event["at"])

    def wait_for(
        self, job: str, wanted: Callable[[Event], object], run: str = "0001", deadline_s: float = 180
    ) -> Event:
        """Wait for a wanted event on any node and return the first one."""
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            for event in self.all_events(job, run):
                if wanted(event):
                    return event
            time.sleep(0.2)  # it reads all events
        raise AssertionError(f"did not happen within {deadline_s} s:\n{self.story(job, run)}")

    def story(self, job: str, run: str = "0001") -> str:
        """Return the events and logs of a run, for failure messages."""
        omitted = ("step", "pass", "saved", "ready", "usage")
        lines = [json.dumps(event)[:400] for event in self.all_events(job, run) if event["event"] not in omitted]
        logs = [path for node in range(len(self.machines)) for path in (self.job_dir(job, node) / "log").glob("*.log")]
        return "\n".join([*lines, *(f"{path}:\n{path.read_text(errors='replace')[-1000:]}" for path in logs)])

    def wait_for_end(self, job: str, deadline_s: float = 180) -> None:
        """Wait for a moment when nothing of a job is running on any machine. A command that follows it may go on."""

        def left() -> list[Proc]:
            return [proc for proc in self.leftovers() if FIRST_LINE not in proc.command]

        assert wait_until(lambda: not left(), deadline_s), f"{left()}\n{self.story(job)}"

    def wait_for_silence(self, node: int, deadline_s: float = 180) -> None:
        """Wait until no program of a run is running on a machine; its supervisor may still be alive."""

        def working() -> list[Proc]:
            return [proc for proc in self.machines[node].processes() if _works(proc.pid)]

        assert wait_until(lambda: not working(), deadline_s), working()

    def assert_nothing_remains(self, *, half_written: bool = True) -> None:
        """Assert that no process, port, socket, shared memory or temporary file is left on any machine.

        Without `half_written`, a machine that was switched off may have files that were being written then.
        """
        assert wait_until(lambda: not self.leftovers()), self.leftovers()

        def found() -> dict[str, list[str]]:
            remains = {machine.place.name: machine.remains(half_written=half_written) for machine in self.machines}
            return {name: left for name, left in remains.items() if left}

        assert wait_until(lambda: not found()), found()


def _known(machine: Machine) -> str:
    key = (machine.place.directory / "host_key.pub").read_text().split()[:2]
    return f"{machine.place.address} {' '.join(key)}\n"


def _works(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"CLUSTERCTL_ROLE=" in Path(f"/proc/{pid}/environ").read_bytes()
    return False


def _is_process(pid: int, role: str, rank: int) -> bool:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return f"CLUSTERCTL_ROLE={role}".encode() in words and f"CLUSTERCTL_RANK={rank}".encode() in words
    return False


@contextlib.contextmanager
def laboratory(directory: Path, n: int = 4, seed: str = "0") -> Iterator[Laboratory]:
    lab = Laboratory(directory, n, seed)
    try:
        lab.boot()
        yield lab
    finally:
        lab.close()
