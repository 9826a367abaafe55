"""Random faults drawn from a seed: the action, its time, and its acceptable outcomes."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from real.faults.laboratory import EVERYBODY
from real.faults.runs import Run
from support.processes import wait_until

NODES = ("node0", "node1", "node2", "node3")  # node0 leads
PSERVERS = ("pserver0", "pserver1")
TRAINERS = ("trainer0", "trainer1", "trainer2")
SUPERVISORS = ("supervisor0", "supervisor1", "supervisor2", "supervisor3")
GUARDIANS = ("guardian0", "guardian1", "guardian2", "guardian3")
NODE_GRACE_S = 10
SURVIVED_S = 5.0  # well below NODE_GRACE_S
MOST_FAULTS = 4
PATIENT = 0.25  # of all runs wait for lost nodes
MOVING = 0.6  # of the other runs have a last fault that loses a node, and outlive it
FATAL = 0.35  # of the rest have a last fault that may end them
#: When a node is lost that a run outlives.
MOMENTS = ("starting", "training", "saving", "copying", "rolling back", "finishing")
OFF = 0.2  # of all runs have a machine with a wrong clock
BURDENED = 0.3  # of all runs have trainers that end slowly and have helpers in sessions of their own


@dataclass(frozen=True)
class Fault:
    """A fault `after_s` seconds after the previous one. `target` is a process or a machine; the rest is optional.

    `other` is a second process, hit `amount` seconds after the first one.
    """

    name: str
    target: str
    after_s: float
    for_s: float = 0.0
    amount: float = 0.0
    other: str = ""

    def __str__(self) -> str:
        more = [f"for {self.for_s:.1f} s"] * bool(self.for_s) + [f"{self.amount:.3g}"] * bool(self.amount)
        return " ".join(
            [f"after {self.after_s:.1f} s:", self.name, self.target, *([self.other] * bool(self.other)), *more]
        )

    @property
    def number(self) -> int:
        """The number of its process or machine."""
        return number_of(self.target)

    @property
    def nodes(self) -> set[int]:
        """The nodes that are lost by it."""
        if not self.other:
            return {self.number}
        return {number_of(target) for target in (self.target, self.other) if target in SUPERVISORS}

    @property
    def leaves_orphans(self) -> bool:
        """True if nobody is left on a node to end the helpers of its processes: `stop` does."""
        both = {self.target, self.other}
        return any(both == {f"supervisor{node}", f"guardian{node}"} for node in self.nodes)


def number_of(target: str) -> int:
    return int(target.lstrip("abcdefghijklmnopqrstuvwxyz"))


@dataclass(frozen=True)
class Storm:
    """The faults of a run. `clock`: a machine and the hours its clock is ahead. `patient`: it waits for lost nodes.

    `burdened`: its trainers take a second to end, and have helpers in sessions of their own. `moment`: when the last
    fault loses a node, which the run outlives, on other nodes or resumed on them; "" if it need not.
    """

    mode: str
    patient: bool
    clock: tuple[int, int] | None
    faults: tuple[Fault, ...]
    burdened: bool = False
    moment: str = ""

    @property
    def ending(self) -> Fault | None:
        last = self.faults[-1]
        return last if last.name in ENDING and not self.moment else None

    def __str__(self) -> str:
        clock = [f"node{self.clock[0]} is {self.clock[1]:+} h off"] if self.clock else []
        about = self.mode + ", waits" * self.patient + ", with helpers" * self.burdened
        about += f", a node is lost while {self.moment}" * bool(self.moment)
        return "; ".join([about, *clock, *map(str, self.faults)])


def kill(run: Run, fault: Fault) -> None:
    run.lab.kill(fault.target)


def kill_two(run: Run, fault: Fault) -> None:
    run.lab.kill(fault.target)
    time.sleep(fault.amount)
    _kill_if_there(run, fault.other)
    if fault.leaves_orphans:
        time.sleep(NODE_GRACE_S)
        stop(run, fault)


def pause_one_and_kill_another(run: Run, fault: Fault) -> None:
    with contextlib.suppress(ProcessLookupError), run.lab.paused(fault.target):  # a rollback may end it meanwhile
        time.sleep(fault.amount)
        _kill_if_there(run, fault.other)
        time.sleep(fault.for_s)


def kill_and_stop(run: Run, fault: Fault) -> None:
    run.lab.kill(fault.target)
    time.sleep(fault.amount)
    stop(run, fault)


def _kill_if_there(run: Run, target: str) -> None:
    with contextlib.suppress(AssertionError, ProcessLookupError):  # it is being replaced because of the first one
        run.lab.kill(target)


def pause(run: Run, fault: Fault) -> None:
    with run.lab.paused(fault.target):
        time.sleep(fault.for_s)


def cut(run: Run, fault: Fault) -> None:
    run.lab.cut(fault.target)
    _heal_after(run, fault)


def cut_out(run: Run, fault: Fault) -> None:
    run.lab.rule(fault.target, EVERYBODY, loss=1)
    _heal_after(run, fault)


def cut_in(run: Run, fault: Fault) -> None:
    run.lab.rule(EVERYBODY, fault.target, loss=1)
    _heal_after(run, fault)


def lose_frames(run: Run, fault: Fault) -> None:
    run.lab.rule(EVERYBODY, EVERYBODY, loss=fault.amount)
    _heal_after(run, fault)


def delay(run: Run, fault: Fault) -> None:
    run.lab.rule(EVERYBODY, fault.target, delay_s=fault.amount)
    _heal_after(run, fault)


def make_thin(run: Run, fault: Fault) -> None:
    run.lab.rule(fault.target, EVERYBODY, bytes_per_s=fault.amount)
    _heal_after(run, fault)


def _heal_after(run: Run, fault: Fault) -> None:
    if fault.for_s:
        time.sleep(fault.for_s)
        run.lab.heal_network()


def restart_sshd(run: Run, fault: Fault) -> None:
    machine = run.lab.machines[fault.number]
    machine.stop_sshd(sessions=True)
    machine.start_sshd()


def kill_control(run: Run, fault: Fault) -> None:
    run.starting.send_signal(signal.SIGKILL)


def power_off(run: Run, fault: Fault) -> None:
    run.lab.machines[fault.number].power_off()


def lose_disk(run: Run, fault: Fault) -> None:
    power_off(run, fault)
    run.lab.machines[fault.number].empty_disk()


def fill_disk(run: Run, fault: Fault) -> None:
    machine = run.lab.machines[fault.number]
    machine.fill_disk()
    time.sleep(fault.for_s)
    machine.free_disk()


def stop(run: Run, fault: Fault) -> None:
    stopped = run.lab.run("stop", run.job, "--json")
    assert stopped.code == 0, stopped
    assert stopped.json()["survivors"] == 0, stopped


def cut_until_lost(run: Run, fault: Fault) -> None:
    def act() -> None:
        run.lab.cut(fault.target)

    if _lose(run, fault, act):
        run.lab.wait_for_silence(fault.number)
        run.lab.heal_network()
        _wait_until_back(run, fault)
    run.lab.heal_network()


def power_off_and_on(run: Run, fault: Fault) -> None:
    lost = _lose(run, fault, lambda: power_off(run, fault))
    run.lab.boot()
    if lost:
        _rejoin(run, fault)


def kill_and_rejoin(run: Run, fault: Fault) -> None:
    if _lose(run, fault, lambda: run.lab.kill(f"supervisor{fault.number}")):
        _rejoin(run, fault)


def _lose(run: Run, fault: Fault, act: Callable[[], None]) -> bool:
    """Run `act` and return True once the lead has lost the node, or False if the run ended before."""
    before = _count(run, "lost", fault)
    act()
    assert wait_until(lambda: is_over(run) or _count(run, "lost", fault) > before), "the node was not reported lost"
    return not is_over(run)


def _rejoin(run: Run, fault: Fault) -> None:
    run.lab.ok("start", "--rejoin", "--only", fault.target, "--job_workspace", run.job)
    _wait_until_back(run, fault)


def _wait_until_back(run: Run, fault: Fault) -> None:
    wanted = _count(run, "lost", fault)
    assert wait_until(lambda: is_over(run) or _count(run, "rejoined", fault) >= wanted), "the node has not rejoined"


def _count(run: Run, name: str, fault: Fault) -> int:
    """Return how many events of this name the lead has recorded about a node."""
    events = [event for event in run.lab.events(run.job) if event["event"] == name and "role" not in event]
    return len([event for event in events if event["node"] == fault.number])


def is_over(run: Run) -> bool:
    return any(run.events("ended"))


Draw = Callable[[random.Random], dict[str, float]]


def _no_numbers(chance: random.Random) -> dict[str, float]:
    return {}


def _survived_s(chance: random.Random) -> dict[str, float]:
    return {"for_s": chance.uniform(0.3, SURVIVED_S)}


def _within_a_second(chance: random.Random) -> dict[str, float]:
    return {"amount": chance.uniform(0.0, 1.0)}


def _paused_within_a_second(chance: random.Random) -> dict[str, float]:
    return {**_within_a_second(chance), "for_s": chance.uniform(0.0, SURVIVED_S - 1.0)}


@dataclass(frozen=True)
class Kind:
    """A kind of fault: its action, targets and random numbers, and the states in which the run may end.

    `others`: a second process is drawn from these.
    """

    act: Callable[[Run, Fault], None]
    targets: tuple[str, ...]
    draw: Draw = _no_numbers
    ends: frozenset[str] = frozenset({"succeeded"})
    weight: int = 1
    others: tuple[str, ...] = ()


WORKERS = (*TRAINERS, *PSERVERS, *GUARDIANS)
LOST = frozenset({"failed", "lost"})
#: Faults that every run survives.
SURVIVED: dict[str, Kind] = {
    "kill": Kind(kill, (*TRAINERS, *TRAINERS, *PSERVERS, *PSERVERS, *GUARDIANS), weight=4),
    "kill-two": Kind(kill_two, WORKERS, _within_a_second, weight=2, others=WORKERS),
    "pause-and-kill": Kind(
        pause_one_and_kill_another, (*WORKERS, *SUPERVISORS), _paused_within_a_second, weight=2, others=WORKERS
    ),
    "pause": Kind(pause, (*TRAINERS, *PSERVERS, *SUPERVISORS), _survived_s),
    "cut": Kind(cut, NODES, _survived_s),
    "cut-out": Kind(cut_out, NODES, _survived_s),
    "cut-in": Kind(cut_in, NODES, _survived_s),
    "lose-frames": Kind(lose_frames, ("all",), lambda c: {"for_s": c.uniform(1, 4), "amount": c.uniform(0.01, 0.08)}),
    "delay": Kind(delay, NODES, lambda c: {"for_s": c.uniform(1, 4), "amount": c.uniform(0.002, 0.03)}),
    "make-thin": Kind(make_thin, NODES, lambda c: {"for_s": c.uniform(1, 4), "amount": c.uniform(1e6, 4e6)}),
    "restart-sshd": Kind(restart_sshd, NODES),
    "kill-control": Kind(kill_control, ("control",)),
}
#: Further faults that a patient run survives.
WAITED: dict[str, Kind] = {
    "cut-until-lost": Kind(cut_until_lost, NODES[1:]),
    "power-off-and-on": Kind(power_off_and_on, NODES[1:]),
    "kill-and-rejoin": Kind(kill_and_rejoin, NODES[1:]),
}
#: Faults that may end a run; always the last of a storm.
ENDING: dict[str, Kind] = {
    "kill-supervisor": Kind(kill, SUPERVISORS, ends=LOST),
    "kill-supervisor-and-another": Kind(
        kill_two, SUPERVISORS, _within_a_second, LOST | {"stopped"}, 2, (*WORKERS, *SUPERVISORS)
    ),
    "kill-and-stop": Kind(kill_and_stop, (*WORKERS, *SUPERVISORS), _within_a_second, LOST | {"stopped"}, 2),
    "pause-for-long": Kind(pause, SUPERVISORS, lambda chance: {"for_s": NODE_GRACE_S + 6.0}, LOST),
    "cut-for-long": Kind(cut, NODES, ends=LOST),
    "power-off": Kind(power_off, NODES, ends=LOST),
    "fill-disk": Kind(
        fill_disk, NODES, lambda chance: {"for_s": chance.uniform(0.5, 6)}, frozenset({"failed", "succeeded"}), 2
    ),
    "stop": Kind(stop, ("all",), ends=frozenset({"stopped"})),
}
#: Faults that lose a node for good, or for so long that its processes run elsewhere.
LOSING: dict[str, Kind] = {
    "kill-supervisor": Kind(kill, SUPERVISORS),
    "pause-for-long": Kind(pause, SUPERVISORS, lambda chance: {"for_s": NODE_GRACE_S + 6.0}),
    "cut-for-long": Kind(cut, NODES),
    "power-off": Kind(power_off, NODES, weight=2),
    "lose-disk": Kind(lose_disk, NODES, weight=2),
}
KINDS = {**SURVIVED, **WAITED, **LOSING, **ENDING}


def draw(seed: str) -> Storm:
    """Draw a storm; the same seed always gives the same one."""
    chance = random.Random(seed)
    mode, patient = chance.choice(["sync", "async"]), chance.random() < PATIENT
    clock = (chance.randrange(len(NODES)), chance.choice([-1, 1])) if chance.random() < OFF else None
    if not patient and chance.random() < MOVING:
        moment = chance.choice(MOMENTS)
        kept = {name: kind for name, kind in SURVIVED.items() if name != "kill-control"}  # that is the keeper
        before = [_draw_one(chance, kept) for _ in range(0 if moment == "starting" else chance.randint(0, 2))]
        loss = replace(_draw_one(chance, LOSING), after_s=chance.uniform(0.0, 0.3))
        return Storm(mode, patient, clock, (*before, loss), chance.random() < BURDENED, moment)
    faults = [_draw_one(chance, SURVIVED) for _ in range(chance.randint(1, MOST_FAULTS))]
    if patient:
        faults.insert(chance.randint(0, len(faults)), _draw_one(chance, WAITED))
    elif chance.random() < FATAL:
        faults.append(_draw_one(chance, ENDING))
    return Storm(mode, patient, clock, tuple(faults), chance.random() < BURDENED)


def losses() -> list[Storm]:
    """Return a storm for each moment and each kind of node that loses power then, with and without its disk."""
    faults = [Fault(name, node, 0.0) for name in ("power-off", "lose-disk") for node in NODES[:3]]
    return [Storm("sync", False, None, (fault,), moment=moment) for moment in MOMENTS for fault in faults]


def _draw_one(chance: random.Random, table: dict[str, Kind]) -> Fault:
    name = chance.choice([name for name in sorted(table) for _ in range(table[name].weight)])
    kind = table[name]
    after_s = chance.choice([0.0, chance.uniform(0.2, 2.0), chance.uniform(0.2, 2.0)])
    target = chance.choice(kind.targets)
    others = [other for other in kind.others if other != target]
    return Fault(name, target, after_s, **kind.draw(chance), other=chance.choice(others) if others else "")


def inject(run: Run, fault: Fault) -> float | None:
    """Inject a fault; return its time, or None if the run has ended. Wait for a target that is restarting."""
    time.sleep(fault.after_s)
    is_process = fault.target in (*TRAINERS, *PSERVERS, *SUPERVISORS, *GUARDIANS)
    while True:
        if is_process:
            assert wait_until(lambda: is_over(run) or _exists(run, fault.target), 40), f"no {fault.target}"
        if is_over(run):
            return None
        at = time.time()
        try:
            KINDS[fault.name].act(run, fault)
        except (AssertionError, ProcessLookupError):
            if is_process and not _exists(run, fault.target):  # it ended, or another restart began, during the search
                continue
            raise
        return at


def _exists(run: Run, target: str) -> bool:
    try:
        return run.lab.find(target) > 0
    except AssertionError:
        return False
