"""Histories: what happens to the machines of a run, drawn from a seed, until the run has ended."""

from __future__ import annotations

import random
from typing import Any

from simulation.agents import AgentProcess, Sshd
from simulation.machine import GuardianProcess, Machine, SupervisorProcess
from simulation.stand_ins import simulated
from simulation.world import NODE_GRACE_S, World, planned

CHAOS_S = 25.0
EARLY_S = 8.0  # before the end of most runs
LEAD_LOST = 0.7  # the share of the runs with keepers in which the first machine is hit, at least
STOPPED = 0.1  # the share of the runs that are stopped
WAIT_S = 60.0
#: ON_NODE_LOSS and ON_TRAINER_LOSS
LOSSES = (*[("move", "fail")] * 6, ("move", "shrink"), ("wait", "fail"), ("fail", "fail"), ("fail", "shrink"))
END_S = 12 * NODE_GRACE_S + 120.0  # nodes look for a lost lead for 10 x NODE_GRACE_S


class History:
    """One job of 3 to 7 machines. With `only_lead` nothing happens but a power cut on the first of them."""

    def __init__(self, seed: str, *, only_lead: bool = False) -> None:
        self.lot = lot = random.Random(seed)
        nodes = lot.randint(3, 7)
        loss = LOSSES[0] if only_lead else lot.choice(LOSSES)
        spares = lot.choice((0, 0, 1)) if loss[0] == "move" else 0
        able = nodes - spares
        counts = (lot.randint(1, able), lot.randint(1, able), spares)
        copies = lot.choice((2, 3) if only_lead else (1, 2, 2, 3))
        job = planned(nodes, *counts, copies=copies, restarts=lot.choice((0, 3)), loss=loss)
        self._keepers = lot.choice((0, 0, 1, 1, 2, 3)) if loss[0] == "move" and not only_lead else int(only_lead)
        self._only_lead = only_lead
        self.world = World(lot, *job, others=min(self._keepers, 1 if only_lead else lot.choice((0, 1, 2))))

    @property
    def end(self) -> str:
        """The state in which the last run has ended; "lost" if it has lost its lead."""
        ends = self.world.runs[max(self.world.runs)].ends
        return str(ends[0]["state"]) if ends else "lost"

    def play(self) -> None:
        """Play it to the end. Raises AssertionError if something does not hold."""
        with simulated(self.world):
            try:
                self._play()
            finally:
                self.world.close()

    def _play(self) -> None:
        world, lot = self.world, self.lot
        world.begin()
        for machine in world.machines[-self._keepers :] if self._keepers else ():
            world.keep(machine)
        if self._only_lead:
            world.time.after(lot.uniform(0.0, EARLY_S), lambda: self._power_off(world.machines[0]))
        else:
            self._draw()
        world.time.pass_until(CHAOS_S)
        self._mend()
        world.time.after(WAIT_S, self._stop_run)  # what waits for a node waits for ever
        while world.time.now < CHAOS_S + END_S and not self._is_over():
            world.time.pass_until(world.time.now + 1.0)
        assert world.is_over, "the run does not end"
        world.time.pass_until(world.time.now + 2 * NODE_GRACE_S)
        world.check_end()
        if self._only_lead:
            self._check_resumed()

    def _check_resumed(self) -> None:
        """The keeper has resumed the run, unless its only checkpoints were not copied yet."""
        seen = {event["event"] for _, _, event in self.world.events}
        assert self.end == "succeeded" or ("saved" in seen and "copied" not in seen), "it was not resumed"

    def _draw(self) -> None:
        """Draw what happens."""
        time, lot = self.world.time, self.lot
        for _ in range(lot.choice((0, 1, 1, 2, 3, 5, 8))):
            time.after(lot.uniform(0.0, CHAOS_S), self._happen)
        if self._keepers and lot.random() < LEAD_LOST:
            time.after(lot.uniform(0.0, EARLY_S), lambda: self._happen(self.world.machines[0]))
        if lot.random() < STOPPED:
            time.after(lot.uniform(0.0, CHAOS_S), self._stop_run)

    def _is_over(self) -> bool:
        """True if nobody does anything any more. A keeper that does not reach enough nodes waits for ever."""
        keep = any(not (keeper.has_ended or keeper.dead) for keeper in self.world.keepers)
        return self.world.is_over and not (keep and self.world.time.now < CHAOS_S + 2 * WAIT_S)

    def _mend(self) -> None:
        """Let nothing happen any more."""
        self.world.network.cut.clear()
        self.world.network.look()

    def _stop_run(self) -> None:
        """`clusterctl stop`, on every machine that is on."""
        self._tell("stop", 0)
        for machine in self.world.nodes:
            if machine.is_on:
                AgentProcess(machine, None, {"op": "stop"})

    def _happen(self, machine: Machine | None = None) -> None:
        if machine is None:
            machine = self.lot.choice(self.world.machines if self.lot.random() < 0.2 else self.world.machines[1:])
            some = (self._power_off, self._kill, self._kill, self._freeze, self._stop, self._cut, self._cut, self._part)
            what = self.lot.choice(some)
        else:
            what = self.lot.choice((self._power_off, self._power_off, self._freeze, self._stop, self._cut, self._part))
        self._tell(what.__name__, machine.number)
        what(machine)

    def _tell(self, *words: Any) -> None:
        event = {"event": "happens", "what": words}
        self.world.events.append((self.world.time.now, int(words[1]), event))

    def _power_off(self, machine: Machine) -> None:
        machine.power_off(lose_disk=self.lot.random() < 0.5)
        if self.lot.random() < 0.5:
            self.world.time.after(self.lot.uniform(1.0, 20.0), lambda: self._boot(machine))

    def _boot(self, machine: Machine) -> None:
        """Switch it on again; perhaps somebody lets it rejoin."""
        machine.power_on()
        if self.lot.random() < 0.7:
            self.world.time.after(self.lot.uniform(0.5, 5.0), lambda: self._rejoin(machine))

    def _rejoin(self, machine: Machine) -> None:
        run = machine.disk.runs.get(machine.disk.newest)
        if machine.is_on and run is not None and not run.spec.leads and not run.ended and not machine.is_locked:
            self._tell("rejoin", machine.number)
            SupervisorProcess(machine, run.spec, new=True)

    def _kill(self, machine: Machine) -> None:
        """Kill a process: the supervisor, its guardian, or a program."""
        processes = [one for one in machine.everything if not (machine.frozen or isinstance(one, Sshd))]
        if processes:
            victim = self.lot.choice(processes)
            self._tell("killed", machine.number, type(victim).__name__, getattr(victim, "key", ""))
            if victim in machine.programs.values():
                machine.exited(victim, -9)  # type: ignore[arg-type]
            else:
                victim.end()
                if isinstance(victim, GuardianProcess):
                    victim.was_killed = True
                if machine.supervisor is not None:
                    machine.supervisor.child_ended()

    def _freeze(self, machine: Machine) -> None:
        machine.freeze(self.lot.uniform(0.5, 4 * NODE_GRACE_S), suspends=self.lot.random() < 0.5)

    def _stop(self, machine: Machine) -> None:
        if machine.supervisor is not None:
            machine.stop(machine.supervisor, self.lot.uniform(0.5, 3 * NODE_GRACE_S))

    def _cut(self, machine: Machine) -> None:
        """Cut a machine off from another one or from all, in one direction or both."""
        others = [one for one in self.world.machines if one is not machine]
        some = others if self.lot.random() < 0.6 else [self.lot.choice(others)]
        ways = self.lot.choice(("out", "in", "both", "both"))
        out = {(machine.number, one.number) for one in some} if ways != "in" else set()
        into = {(one.number, machine.number) for one in some} if ways != "out" else set()
        self._interrupt(out | into)

    def _part(self, machine: Machine) -> None:
        side = {one.number for one in self.world.machines if self.lot.random() < 0.4} | {machine.number}
        others = {one.number for one in self.world.machines} - side
        self._interrupt({pair for a in side for b in others for pair in ((a, b), (b, a))})

    def _interrupt(self, pairs: set[tuple[int, int]]) -> None:
        network = self.world.network
        network.cut |= pairs

        def heal() -> None:
            network.cut -= pairs
            network.look()

        self.world.time.after(self.lot.uniform(0.5, 3 * NODE_GRACE_S), heal)
