"""A supervisor in any order of orders, exits, failures, losses and stops: nothing of its run is ever left behind.

The supervisor is the real one; its clock, its processes, its files and the lead are simulated.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.agent.event_loop import EventLoop
from clusterctl.agent.lead.lease import GOODBYE
from clusterctl.agent.supervisor import guardian, launcher, orphans, supervisor
from clusterctl.agent.supervisor.child import Child
from clusterctl.agent.supervisor.orphans import LIMIT_S
from clusterctl.agent.supervisor.supervisor import Supervisor
from clusterctl.common.paths import JobPaths
from clusterctl.common.procfs import Identity
from unit.agent.specs import make_spec

GRACE_S = 5.0
END_S = 3 * GRACE_S + 2 * LIMIT_S  # a restart under way, then the end: TERM, KILL and the leftovers of both
Key = tuple[str, int]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SimulatedLoop(EventLoop):
    """An event loop whose time passes only in `advance`."""

    def __init__(self) -> None:
        self.clock = Clock()
        super().__init__(self.clock)

    def watch(self, source: Any, call: Callable[[], None], events: int = 1) -> None:
        pass

    def on_signals(self, numbers: Any, call: Callable[[int], None]) -> None:
        pass

    def advance(self, seconds: float, then: Callable[[], None]) -> None:
        """Let time pass from timer to timer; call `then` after each."""
        until = self.clock.now + seconds
        while not self._stopped and self._timers and self._timers[0][0] <= until:
            self.clock.now = max(self.clock.now, self._timers[0][0])
            call = self._timers.pop(0)[2].call
            self._timers.sort()
            if call is not None:
                call()
            then()
        self.clock.now = max(self.clock.now, until)
        then()


class Process:
    """A process, or a helper in a session of its own. It ends `term_s` after TERM, if at all; `key` is its child's."""

    def __init__(self, pid: int, key: Key, attempt: int, term_s: float | None, *, helper: bool) -> None:
        self.pid = pid
        self.key = key
        self.attempt = attempt
        self.term_s = term_s
        self.helper = helper
        self.ends_at: float | None = None
        self.code = 0

    def identity(self) -> Identity:
        return Identity(self.pid, self.pid, "boot")

    def matches(self, environment: Mapping[str, str]) -> bool:
        mine = {"CLUSTERCTL_ROLE": self.key[0], "CLUSTERCTL_RANK": str(self.key[1])}
        mine["CLUSTERCTL_ATTEMPT"] = str(self.attempt)
        return all(environment.get(name, value) == value for name, value in mine.items())


class Machine:
    """The processes of the run on one node. Each takes its time to end on TERM from `term_s`."""

    def __init__(self, now: Clock, term_s: Iterator[float | None]) -> None:
        self.now = now
        self.processes: dict[int, Process] = {}
        self.codes: dict[int, int] = {}
        self.may_spawn = True
        self._term_s = term_s
        self._pids = itertools.count(1_000_000)

    def spawn(self, child: SimulatedChild) -> Process:
        key = (child.role, child.rank)
        assert self.may_spawn, "a process starts after the stop"
        assert not [p for p in self.processes.values() if p.key == key], f"two generations of {key}"
        for helper in (True, False):
            process = Process(next(self._pids), key, child.attempt, next(self._term_s), helper=helper)
            self.processes[process.pid] = process
        return process

    def signal(self, pid: int, number: int) -> None:
        process = self.processes.get(pid)
        if process is None:
            return
        if number == signal.SIGKILL:
            self._end_at(process, self.now(), -number)
        elif process.term_s is not None:
            self._end_at(process, self.now() + process.term_s, -number)

    def exit(self, pid: int, code: int) -> None:
        """Let a process end on its own. Its helper stays."""
        if pid in self.processes:
            self._end_at(self.processes[pid], self.now(), code)

    def _end_at(self, process: Process, at: float, code: int) -> None:
        if process.ends_at is None or at < process.ends_at:
            process.ends_at, process.code = at, code

    def pass_time(self) -> bool:
        """End the processes whose time has come; return True if a child of the supervisor ended."""
        over = [p for p in self.processes.values() if p.ends_at is not None and p.ends_at <= self.now()]
        for process in over:
            del self.processes[process.pid]
            self.codes[process.pid] = process.code
        return bool(over)

    def find(self, environments: Sequence[Mapping[str, str]]) -> list[Identity]:
        return [p.identity() for p in self.processes.values() if any(map(p.matches, environments))]


class SimulatedChild(Child):
    """A child whose process is one of `machine`."""

    machine: Machine

    def start(self, *_: Any) -> None:
        self.identity = self.machine.spawn(self).identity()
        self.state = "starting"

    @property
    def alive(self) -> bool:
        return self.identity is not None and self.exit_code is None

    @property
    def pid(self) -> int | None:
        return self.identity.pid if self.alive and self.identity else None

    def poll(self) -> bool:
        if self.pid is None or self.pid not in self.machine.codes:
            return False
        self.exit_code = self.machine.codes[self.pid]
        return True

    def signal(self, number: int) -> None:
        if self.pid is not None:
            self.machine.signal(self.pid, number)

    def send(self, message: Mapping[str, Any]) -> None:
        if message.get("cmd") == "finish" and self.pid is not None:
            self.machine.exit(self.pid, 0)

    def report(self, event: str, **facts: Any) -> None:
        self._on_message(self, {"event": event, **facts})


class Lead:
    """The lead, as far as a supervisor sees it: it gets reports, and the orders come from the test."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.reports: list[Mapping[str, Any]] = []
        self.is_away = False

    def send(self, report: Mapping[str, Any]) -> None:
        self.reports.append(report)
        if report["do"] == "idle":
            assert not self.machine.processes, "idle, with processes left"

    def let_go(self) -> None:
        pass


class World:
    """One supervisor of two pservers and two trainers, on a node without the lead."""

    def __init__(self, directory: Path, machine: Machine, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.machine = machine
        self.epoch = 0
        self.is_stopped = False
        self.attempts: dict[Key, int] = {(role, rank): 1 for role in ("pserver", "trainer") for rank in range(2)}
        argv = ["python3"]
        processes = [
            {"role": role, "rank": rank, "index": rank, "argv": argv, "ours": True} for role, rank in self.attempts
        ]
        lead = {"host": "127.0.0.2", "port": 7164}
        spec = make_spec(node=1, members=[0, 1], processes=processes, grace_s=GRACE_S, lead=lead, engine="clusterctl")
        self.supervisor = Supervisor(JobPaths(directory).run("0001"), spec, -1, self.loop)
        self.supervisor.begin(None)
        self.lead: Lead = self.supervisor.lead  # type: ignore[assignment]

    @property
    def children(self) -> list[SimulatedChild]:
        return self.supervisor.children  # type: ignore[return-value]

    def settle(self) -> None:
        while self.machine.pass_time():
            self.supervisor._on_signal(signal.SIGCHLD)

    def order(self, do: str, **facts: Any) -> None:
        if not self.loop._stopped:
            self.lead.is_away = False
            self.supervisor._on_order({"do": do, **facts})  # type: ignore[arg-type,misc]
            self.settle()

    # Moves; `lot` chooses among what is possible.

    def spawn(self, lot: int) -> None:
        role = ("pserver", "trainer")[lot % 2]
        self.order("spawn", role=role, epoch=self.epoch, pservers=[], endpoints={})

    def up(self, lot: int) -> None:
        starting = [child for child in self.children if child.state == "starting" and child.alive]
        if starting:
            child = starting[lot % len(starting)]
            child.report(*(("ready",) if child.serves else ("step",)), **({"ports": [7164]} if child.serves else {}))

    def again(self, lot: int) -> None:
        keys = [key for number, key in enumerate(self.attempts) if lot >> number & 1 or lot % 3 == 0]
        self.epoch += 1
        for key in keys:
            self.attempts[key] += 1
        attempts = {f"{role}{rank}": self.attempts[role, rank] for role, rank in keys}
        recover = {"tag": None, "step": 0, "left": {}}
        self.order("again", epoch=self.epoch, attempts=attempts, in_s=float(lot % 2), recover=recover)

    def respawn(self, lot: int) -> None:
        role, rank = key = [key for key in self.attempts if key[0] == "trainer"][lot % 2]
        self.attempts[key] += 1
        about = {"role": role, "rank": rank, "attempt": self.attempts[key], "in_s": float(lot % 2)}
        self.order("respawn", **about, pservers=[], endpoints={})

    def exit(self, lot: int) -> None:
        live = [child.pid for child in self.children if child.pid is not None]
        if live:
            self.machine.exit(live[lot % len(live)], (0, 1, -9)[lot // 7 % 3])
            self.settle()

    def finish(self, lot: int) -> None:
        self.order("finish", epoch=self.epoch)

    def stop(self, lot: int) -> None:
        self.is_stopped, self.machine.may_spawn = True, False
        self.order("stop", cause=None)

    def term(self, lot: int) -> None:
        self.is_stopped, self.machine.may_spawn = True, False
        self.supervisor._on_signal(signal.SIGTERM)
        self.settle()

    def lose_lead(self, lot: int) -> None:
        self.is_stopped, self.machine.may_spawn = True, False
        self.supervisor._on_lead_lost("no message from the lead", 30.0, None)
        self.settle()

    def end(self, lot: int) -> None:
        """End the run as a lead does that has given up waiting for this node."""
        self.stop(lot)
        self.order("end", state="failed", cause=None)

    def lead_away(self, lot: int) -> None:
        self.lead.is_away = True
        self.supervisor._on_lead_away("no message from the lead", 2.0)
        self.settle()

    def wait(self, lot: int) -> None:
        self.loop.advance((0.01, 0.06, 0.5, 1.1, GRACE_S)[lot % 5], self.settle)

    def to_the_end(self) -> None:
        """Order a stop as the lead does, and the end once this node is idle."""
        if not self.is_stopped:
            self.stop(0)
        limit = self.loop.now() + END_S
        while not self.loop._stopped and self.loop.now() < limit:
            self.loop.advance(0.5, self.settle)
            if any(report["do"] == "idle" and report["stopping"] for report in self.lead.reports):
                self.order("end", state="stopped", cause=None)


MOVES = (
    *("spawn", "up", "again", "respawn", "exit", "wait") * 3,
    *("finish", "stop", "term", "end", "lose_lead", "lead_away"),
)
TERM_S = st.sampled_from((0.0, 0.0, 2.0, None))


def stub(*_: object, **__: object) -> SimpleNamespace:
    """A part of the supervisor that does nothing."""
    names = "record forward heartbeat count_killed write_state take_over receive keep log show_stacks close release"
    return SimpleNamespace(**dict.fromkeys(names.split(), lambda *_: None), ports={})


@contextmanager
def simulated(machine: Machine) -> Iterator[list[int]]:
    """Put simulations in place of everything outside of the supervisor; yield both ends of its lifelines."""
    lifelines: list[int] = []

    def spawn_guardian(*_: object, leased: bool) -> tuple[Any, int]:
        lifelines.extend(os.pipe())
        return SimpleNamespace(pid=2, poll=lambda: None), lifelines[-1]

    with ExitStack() as stack:
        for module, name, stand_in in (
            (supervisor, "Child", type("ChildOfThisMachine", (SimulatedChild,), {"machine": machine})),
            (supervisor, "EventLog", stub),
            (supervisor, "CheckpointKeeper", stub),
            (supervisor, "Watchdog", stub),
            (supervisor, "write_json", lambda *_: None),
            (supervisor, "reap_orphans", lambda *_: None),
            (supervisor, "LeadClient", lambda *_: Lead(machine)),
            (guardian, "spawn", spawn_guardian),
            (launcher, "ReservedPorts", stub),
            (orphans, "find_by_environments", machine.find),
            (orphans, "descendants", lambda *_: {}),
            (orphans, "send_signal", lambda process, number: machine.signal(process.pid, number)),
        ):
            stack.enter_context(mock.patch.object(module, name, stand_in))
        try:
            yield lifelines
        finally:
            for fd in lifelines:
                os.close(fd)


@settings(max_examples=60)
@given(
    moves=st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 1000)), max_size=40),
    term_s=st.lists(TERM_S, min_size=1, max_size=12),
)
def test_a_supervisor_leaves_nothing_behind(moves: list[tuple[str, int]], term_s: list[float | None]) -> None:
    loop = SimulatedLoop()
    machine = Machine(loop.clock, itertools.cycle(term_s))
    with simulated(machine) as lifelines:
        world = World(Path("JOB"), machine, loop)
        for name, lot in moves:
            getattr(world, name)(lot)
        world.to_the_end()
        states = {child.name: child.state for child in world.children}
        assert loop._stopped, f"the supervisor does not end: {states}"
        os.set_blocking(lifelines[0], False)
        with suppress(BlockingIOError):  # without a goodbye the guardian ends the rest
            assert os.read(lifelines[0], 99) != GOODBYE + b"\n" or not machine.processes, states
        assert not machine.processes or "end" in dict(moves), states
