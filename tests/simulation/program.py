"""The programs of a simulated run: pservers that count steps in sync mode, and trainers that push.

A model is the chain of its steps: its name tells who has contributed to each of them.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from clusterctl.common.manifest import checkpoint_tag, piece_name
from clusterctl.common.procfs import Identity
from simulation.disk import digest_of
from simulation.machine import Key, Machine, Process, SupervisorProcess

if TYPE_CHECKING:
    from clusterctl.agent.supervisor.child import Child

STEPS, SAVE_EVERY = 12, 3
MODEL = "pass-00000"
RETRY_S = 0.5
LOAD_LIMIT_S = 20.0
Answer = Callable[[int], None]


class Program(Process):
    """A process of the run. It ends `term_s` after TERM, if at all."""

    def __init__(self, machine: Machine, parent: SupervisorProcess, child: Child) -> None:
        super().__init__(machine)
        self.pid = machine.pid()
        self.parent = parent
        self.child = child
        self.key: Key = (child.role, child.rank)
        self.attempt = child.attempt
        self.spec = parent.supervisor.spec
        self.public = machine.keys.get(child.name, "")
        self.term_s = machine.world.lot.choice((0.0, 0.1, 0.1, None))
        machine.spawn(self)

    def identity(self) -> Identity:
        return Identity(self.pid, self.pid, "boot")

    def matches(self, environment: Mapping[str, str]) -> bool:
        mine = {"CLUSTERCTL_ROLE": self.key[0], "CLUSTERCTL_RANK": str(self.key[1])}
        mine["CLUSTERCTL_ATTEMPT"] = str(self.attempt)
        return all(environment.get(name, value) == value for name, value in mine.items())

    def signal(self, number: int) -> None:
        if number == signal.SIGKILL:
            self.machine.exited(self, -number)
        elif self.term_s is not None:
            self.after(self.term_s, lambda: self.exit(-number))

    def exit(self, code: int) -> None:
        self.machine.exited(self, code)

    def report(self, event: str, **facts: Any) -> None:
        """Send a message to the supervisor that has started it."""
        self.parent.call(lambda: self.child._on_message(self.child, {"event": event, **facts}))

    def obey(self, command: Mapping[str, Any]) -> None:
        """Handle a message of the supervisor."""


class Pserver(Program):
    def __init__(self, machine: Machine, parent: SupervisorProcess, child: Child) -> None:
        super().__init__(machine, parent, child)
        self.step, self.model = 0, ""
        self.allow = set(machine.allowed.get(child.name, {}))
        self.stored = machine.disk.runs[self.spec.run]
        recover, saving = self.spec.recover, self.spec.saving
        self._left = {int(rank) for rank in (recover.left or {})} if recover else set()
        self._pushes: dict[int, tuple[int, Answer]] = {}
        self._port = 10_000 + self.pid
        self._tag = recover.tag if recover else saving.resume.tag if saving.resume else None
        self._sources = recover.sources if recover else saving.sources
        self.after(machine.world.lot.uniform(0.02, 0.4), self._load)

    @property
    def file(self) -> str:
        return piece_name(self.key[1])

    def _load(self, waited_s: float = 0.0) -> None:
        if self._tag is not None:
            piece = self._piece()
            if piece is None:
                if waited_s > LOAD_LIMIT_S:
                    self.exit(1)
                self.after(RETRY_S, lambda: self._load(waited_s + RETRY_S))
                return
            step, _, self.model = piece.partition(":")
            self.step = int(step)
        self.machine.world.servers[f"host{self.machine.number}:{self._port}"] = self
        self.report("ready", ports=[self._port])

    def _piece(self) -> str | None:
        """Return the piece of the checkpoint, from this disk or from that of a node that the lead has named."""
        assert self._tag is not None
        name, network = (self._tag, self.file), self.machine.world.network
        pieces = self._sources.pieces if self._sources else ()
        named = {node for one in pieces if one.file == self.file for node in one.nodes}
        for number in [self.machine.number, *sorted(named)]:
            other = network.machines[number]
            stored = other.disk.runs.get(self.spec.run)
            if network.answers(self.machine, other) and stored is not None and name in stored.pieces:
                return stored.pieces[name]
        return None

    def receive(self, push: Mapping[str, Any], answer: Answer) -> None:
        """Handle a push, or a question for the step if it has none. Who is not allowed gets no answer."""
        if push["public"] not in self.allow:
            return
        if push["step"] <= self.step:
            answer(self.step)
        elif push["step"] == self.step + 1 and push["attempt"] >= self._pushes.get(push["rank"], (0, answer))[0]:
            self._pushes[push["rank"]] = (push["attempt"], answer)
            self._apply()

    def _apply(self) -> None:
        if not self._pushes.keys() >= set(range(self.spec.training.trainers)) - self._left:
            return
        self.step += 1
        attempts = {rank: attempt for rank, (attempt, _) in sorted(self._pushes.items())}
        self.model = self.machine.world.runs[self.spec.run].applied(self, attempts)
        pending, self._pushes = self._pushes, {}
        if self.step % SAVE_EVERY == 0:
            self._save(checkpoint_tag(self.step), checkpoint=True)
        for _, answer in pending.values():
            answer(self.step)

    def _save(self, tag: str, *, checkpoint: bool, then: Callable[[], None] = lambda: None) -> None:
        content = f"{self.step}:{self.model}"
        rank, step = self.key[1], self.step

        def written() -> None:
            self.stored.pieces[tag, self.file] = content
            self.stored.copied.discard((tag, self.file))
            receipt = {"tag": tag, "file": self.file, "pass": 0, "step": step, "seed": 0, "mode": "sync", "bytes": 1}
            more = {
                "pserver": rank,
                "pservers": self.spec.training.pservers,
                "tables": {},
                "sha256": digest_of(content),
            }
            kind = {"checkpoint": True, "trainers": self.spec.training.trainers, "steps": []} if checkpoint else {}
            self.report("saved", **receipt, **more, **kind)
            then()

        self.after(self.machine.world.lot.uniform(0.0, 0.3), written)

    def obey(self, command: Mapping[str, Any]) -> None:
        if command["cmd"] == "keys":
            self.allow = set(command["allow"])
        elif command["cmd"] in ("lost", "left"):
            self._left |= set(command["ranks"])
            self._apply()
        elif command["cmd"] == "finish":
            self._save(MODEL, checkpoint=False, then=lambda: self.exit(0))


class Trainer(Program):
    def __init__(self, machine: Machine, parent: SupervisorProcess, child: Child) -> None:
        super().__init__(machine, parent, child)
        self._servers = list(parent.supervisor._launcher._pservers)
        self.after(machine.world.lot.uniform(0.02, 0.4), self._begin)

    def _begin(self) -> None:
        steps: dict[str, int] = {}

        def joined(server: str, step: int) -> None:
            steps[server] = step
            if len(steps) == len(self._servers):
                self.report("step", step=min(steps.values()))
                self._go_on(min(steps.values()))

        for server in self._servers:
            self._ask(server, 0, lambda step, server=server: joined(server, step))

    def _go_on(self, done: int) -> None:
        if done >= STEPS:
            self.report("done", pushes=done, pushed=True, losses=[1, 1])
            self.exit(0)
        else:
            self.after(self.machine.world.lot.uniform(0.02, 0.5), lambda: self._push(done + 1))

    def _push(self, step: int) -> None:
        applied: set[str] = set()

        def answered(server: str) -> None:
            applied.add(server)
            if len(applied) == len(self._servers):
                self._go_on(step)

        for server in self._servers:
            self._ask(server, step, lambda _, server=server: answered(server))

    def _ask(self, server: str, step: int, done: Answer) -> None:
        """Send a push until it is answered."""
        world = self.machine.world
        network, is_done = world.network, False
        push = {"public": self.public, "rank": self.key[1], "attempt": self.attempt, "step": step}

        def attempt() -> None:
            other = world.servers.get(server)
            if is_done or other is None:
                return
            if not other.dead and network.reaches(self.machine, other.machine):
                work = lambda: other.receive(push, lambda step: answer(other, step))  # noqa: E731
                world.time.after(network.latency_s(), lambda: other.call(work))
            self.after(RETRY_S, attempt)

        def answer(other: Pserver, step: int) -> None:
            if network.reaches(other.machine, self.machine):
                world.time.after(network.latency_s(), lambda: self.call(lambda: settle(step)))

        def settle(step: int) -> None:
            nonlocal is_done
            if not is_done:
                is_done = True
                done(step)

        attempt()
