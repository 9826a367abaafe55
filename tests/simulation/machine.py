"""Simulated machines: power, clocks, disks, and the processes on them."""

from __future__ import annotations

import itertools
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clusterctl.agent.event_loop import EventLoop, Timer
from clusterctl.agent.lead.connection import GONE
from clusterctl.agent.lead.lease import HeldLease
from clusterctl.common.procfs import Identity
from clusterctl.common.run_spec import RunSpec
from simulation.disk import Disk
from simulation.network import Connection, Listener, Network, Socket

if TYPE_CHECKING:
    from simulation.program import Program
    from simulation.world import World

LEAD_PORT = 7164
END_POLL_S = 0.1
TICK_S = 1e-6  # no call happens at once
EPOCH = 1.8e9  # when it all begins
SYNC_S = 5.0  # a kernel writes files to the disk after at most so long
Key = tuple[str, int]


class Process:
    """A process on a machine. What happens to one that is stopped, or whose machine is frozen, happens later."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.dead = False
        self.stopped = False
        self.sockets: list[Socket] = []
        self._pending: deque[Callable[[], None]] = deque()
        machine.everything[self] = None

    def call(self, work: Callable[[], None]) -> None:
        if self.dead:
            return
        self._pending.append(work)
        if len(self._pending) == 1:
            self._work()

    def _work(self) -> None:
        """Do what has happened, in its order."""
        world = self.machine.world
        while self._pending and not (self.dead or self.stopped or self.machine.frozen):
            before, world.current = world.current, self.machine
            try:
                self._pending[0]()
            finally:
                world.current = before
            self._pending.popleft()

    def after(self, delay_s: float, work: Callable[[], None]) -> None:
        self.machine.world.time.after(max(delay_s, TICK_S) / self.machine.rate, lambda: self.call(work))

    def resume(self) -> None:
        """Do what has waited, unless something else stops it."""
        if self._pending:
            self.machine.world.time.after(self.machine.world.lot.uniform(0, 0.05), self._work)

    def end(self) -> None:
        """End it; its kernel closes its connections."""
        if not self.dead:
            self.dead = True
            self.machine.everything.pop(self, None)
            for socket in self.sockets:
                socket.close()


class Loop(EventLoop):
    """The event loop of a simulated process."""

    def __init__(self, process: Process, network: Network) -> None:
        self.process = process
        self.machine = process.machine
        self.now = process.machine.monotonic
        self._network = network
        self._stopped = False

    def watch(self, source: Any, call: Callable[[], None], events: int = 1) -> None:
        if isinstance(source, Listener):
            source.on_connected = call

    def unwatch(self, source: Any) -> None:
        pass

    def on_signals(self, numbers: Any, call: Callable[[int], None]) -> None:
        pass

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        timer = Timer(call)

        def fire() -> None:
            if timer.call is not None and not self._stopped:
                timer.call()

        self.process.after(delay_s, fire)
        return timer

    def connect(self, address: tuple[str, int], limit_s: float, done: Callable[[Any, int], None]) -> Any:
        self._network.connect(self.process, address, limit_s, done)

    def stop(self) -> None:
        self._stopped = True
        self.process.end()


class Machine:
    """Machine `number`; those of the nodes come first. Its clocks run at `rate`, in their seconds per second."""

    def __init__(self, world: World, number: int, rate: float) -> None:
        self.world = world
        self.number = number
        self.rate = rate
        self.is_on = True
        self.frozen = False
        self.boots = 0
        self.woken_t = -1e9
        self.disk = Disk(dispatched=True)
        self.lockers: set[Process] = set()  # who has opened the lock of the job
        self.everything: dict[Process, None] = {}  # in the order of their starts
        self.programs: dict[int, Program] = {}
        self.codes: dict[int, int] = {}
        self.listeners: dict[int, Listener] = {}
        self.keys: dict[str, str] = {}  # the public keys of its processes
        self.allowed: dict[str, Mapping[str, str]] = {}  # by process: the public keys of the others
        self.supervisor: SupervisorProcess | None = None
        self.guardian: GuardianProcess | None = None
        self._offset = world.lot.uniform(0, 1e6)
        self._ahead_s = world.lot.choice((0.0, 0.0, -3600.0, 3600.0))
        self._suspended_s = 0.0
        self._pids = itertools.count(100)

    def boottime(self) -> float:
        return self._offset + self.rate * self.world.time.now

    def monotonic(self) -> float:
        return self.boottime() - self._suspended_s

    def wall(self) -> float:
        """The time of day by its clock, which nobody sets."""
        return EPOCH + self._ahead_s + self.rate * self.world.time.now

    def pid(self) -> int:
        return next(self._pids)

    @property
    def is_locked(self) -> bool:
        """True if a start, a supervisor or a guardian holds the lock of the job."""
        return any(not process.dead for process in self.lockers)

    # Faults.

    def power_off(self, *, lose_disk: bool) -> None:
        self.is_on = self.frozen = False
        for process in list(self.everything):
            process.dead = True
        self.everything.clear()
        self.programs.clear()
        self.listeners.clear()
        self.lockers.clear()
        self.supervisor = None
        for run in self.disk.runs.values():
            run.lose_unsynced(self.wall() - self.world.lot.uniform(0, SYNC_S))
        if lose_disk:
            self.disk, self.keys = Disk(dispatched=False), {}

    def power_on(self) -> None:
        if not self.is_on:
            self.is_on, self.boots = True, self.boots + 1
            self._offset -= self.boottime()
            self._suspended_s = 0.0
            self.world.network.look()
            self.world.booted(self)

    def freeze(self, seconds: float, *, suspends: bool) -> None:
        """Stop everything on it, its kernel included; a monotonic clock does not count the time of a suspension."""
        if self.frozen or not self.is_on:
            return
        self.frozen, boots = True, self.boots

        def thaw() -> None:
            if self.boots == boots and self.is_on:
                self.frozen, self.woken_t = False, self.world.time.now
                self._suspended_s += seconds * self.rate if suspends else 0.0
                self.world.network.look()
                for process in list(self.everything):
                    process.resume()

        self.world.time.after(seconds, thaw)

    def stop(self, process: Process, seconds: float) -> None:
        """SIGSTOP and, later, SIGCONT."""
        process.stopped = True

        def go_on() -> None:
            process.stopped = False
            process.resume()

        self.world.time.after(seconds, go_on)

    # Processes of the run.

    def spawn(self, program: Program) -> None:
        self.programs[program.pid] = program

    def signal(self, pid: int, number: int) -> None:
        if pid in self.programs:
            self.programs[pid].signal(number)

    def exited(self, program: Program, code: int) -> None:
        if self.programs.pop(program.pid, None) is None:
            return
        program.end()
        self.codes[program.pid] = code
        if self.supervisor is not None:
            self.supervisor.child_ended()

    def find(self, environments: Sequence[Mapping[str, str]]) -> list[Identity]:
        found = (program for program in self.programs.values() if any(map(program.matches, environments)))
        return [Identity(program.pid, program.pid, "boot") for program in found]


class SupervisorProcess(Process):
    """A real supervisor. `new` if it replaces one that is gone."""

    def __init__(self, machine: Machine, spec: RunSpec, *, new: bool = False) -> None:
        super().__init__(machine)
        self.spec = spec
        self.loop = Loop(self, machine.world.network)
        self.supervisor: Any = None
        assert machine.supervisor is None, "two supervisors"
        machine.supervisor = self
        machine.lockers.add(self)
        self.call(lambda: self._begin(new))

    def _begin(self, new: bool) -> None:
        listener = Listener(self, LEAD_PORT) if self.spec.leads else None
        self.supervisor = self.machine.world.make_supervisor(self.machine, self.spec, self.loop, new=new)
        self.supervisor.begin(listener)
        if self.spec.leads:
            self.machine.world.runs[self.spec.run].watch(self.supervisor.lead._lead)

    def signal(self, number: int) -> None:
        self.call(lambda: self.supervisor._on_signal(number))

    def child_ended(self) -> None:
        self.signal(signal.SIGCHLD)

    def end(self) -> None:
        super().end()
        guardian = self.machine.guardian
        if guardian is not None:
            guardian.call(lambda: guardian.receive(b""))
        if self.machine.supervisor is self:
            self.machine.supervisor = None


class GuardianProcess(Process):
    """A guardian, as `supervisor.guardian` and `lead.lease.losses` make it."""

    def __init__(self, machine: Machine, grace_s: float) -> None:
        super().__init__(machine)
        self.pid = machine.pid()
        self.was_killed = False
        machine.guardian = self
        machine.lockers.add(self)
        assert machine.supervisor is not None
        self._lead = machine.supervisor.spec.lead
        self._grace_s = grace_s
        self._lease = HeldLease()
        self._look()

    def poll(self) -> int | None:
        return -9 if self.dead else None

    def receive(self, data: bytes) -> None:
        """Handle what the supervisor writes, or its end."""
        if self._lease.has_left or self._lease.has_died:
            return
        self._lease.receive(data)
        if self._lease.has_left:
            self.end()
        elif self._lease.has_died:
            self._signal(signal.SIGTERM)
            self.after(self._grace_s, lambda: self._signal(signal.SIGKILL))
            self._report_death()
            self._end_when_done()
        else:
            self._act()

    def _look(self) -> None:
        if not (self._lease.has_left or self._lease.has_died):
            self._act()
            self.after(self._lease.next_look_s(self.machine.boottime()), self._look)

    def _act(self) -> None:
        if self._lease.expired(self.machine.boottime()):
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for pid in list(self.machine.programs):
            self.machine.signal(pid, number)

    def _end_when_done(self) -> None:
        if self.machine.programs:
            self.after(END_POLL_S, self._end_when_done)
        else:
            self.after(5.0, self.end)

    def _report_death(self) -> None:
        if self._lead is None:
            return
        network = self.machine.world.network

        def connected(sock: Socket, error: int) -> None:
            if error == 0:
                connection = Connection(Loop(self, network), sock, lambda connection, node: None, lambda frame: None)
                connection.send(GONE)

        network.connect(self, (self._lead.host, self._lead.port), 5.0, connected)
