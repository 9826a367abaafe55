"""Stand-ins for the parts of the operating system that supervisors and leads use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from clusterctl.agent.lead import client, lease, server
from clusterctl.agent.lead.actions import DropManifests, WriteManifest
from clusterctl.agent.supervisor import child_messages, exits, fence, guardian, launcher, orphans, supervisor
from clusterctl.agent.supervisor.child import Child, process_of
from clusterctl.api import keep
from clusterctl.common.curve_keys import peer_keys
from clusterctl.common.manifest import build_manifest
from clusterctl.common.paths import RunPaths
from clusterctl.launch import keys as launch_keys
from clusterctl.observe.why import report as why_report
from simulation.keepers import await_end
from simulation.machine import GuardianProcess, Machine
from simulation.network import Connection
from simulation.program import Program, Pserver, Trainer

if TYPE_CHECKING:
    from simulation.world import World

PIECES_PORT = 9000
COPY_LIMIT_S = 5.0


class SimulatedChild(Child):
    """A child whose process is a program on the machine of its supervisor."""

    _program: Program | None = None

    def start(self, *_: Any, **__: Any) -> None:
        loop: Any = self._loop
        kind = Pserver if self.serves else Trainer
        self._program = kind(loop.machine, loop.process, self)
        loop.machine.world.spawned(self._program)
        self.identity, self.state = self._program.identity(), "starting"

    @property
    def alive(self) -> bool:
        return self._program is not None and self.exit_code is None

    @property
    def pid(self) -> int | None:
        return self._program.pid if self.alive and self._program else None

    def poll(self) -> bool:
        codes = self._loop.machine.codes  # type: ignore[attr-defined]
        if self.pid is None or self.pid not in codes:
            return False
        self.exit_code = codes[self.pid]
        return True

    def signal(self, number: int) -> None:
        if self.pid is not None:
            self._loop.machine.signal(self.pid, number)  # type: ignore[attr-defined]

    def send(self, message: Mapping[str, Any]) -> None:
        if self.alive and self._program is not None:
            program = self._program
            program.call(lambda: program.obey(message))


class Keys:
    """Stands in for `ProcessKeys`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def known(self, names: Iterable[str]) -> dict[str, str]:
        return {name: self._machine.keys[name] for name in names if name in self._machine.keys}

    def renew(self, names: Iterable[str]) -> None:
        for name in names:
            self._machine.keys[name] = self._machine.world.new_key()

    def complete(self, name: str, publics: Mapping[str, str]) -> None:
        self._machine.allowed[name] = peer_keys(name, publics).get("allow", {})


class Checkpoints:
    """Stands in for `CheckpointKeeper`."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._machine: Machine = context.loop.machine
        self._run = context.run.run
        self._stored = self._machine.disk.runs[self._run]

    def change_manifests(self, action: Any) -> None:
        if isinstance(action, WriteManifest):
            manifest = build_manifest(self._machine.world.job, self._run, list(action.receipts))
            assert manifest is not None, f"{action.tag} lacks pieces"
            self._stored.manifests[action.tag] = manifest
            self._machine.world.runs[self._run].wrote(action)
            if action.checkpoint:
                self._context.send({"do": "kept", "tag": action.tag, "step": action.receipts[0]["step"], "steps": []})
            about = {"tag": action.tag, "checkpoint": action.checkpoint, "bytes": 1, "sha256": "0" * 64}
            self._context.send({"do": "written", **about})
        elif isinstance(action, DropManifests):
            self._drop(self._stored.manifests, action.stay, action.newest, lambda tag: tag)

    def carry_out(self, order: Mapping[str, Any]) -> None:
        if order["do"] == "keep":
            for files, tag_of in ((self._stored.pieces, lambda name: name[0]), (self._stored.copies, str)):
                self._drop(files, order["tags"], order["newest"], tag_of)
            for number, run in self._machine.disk.runs.items():
                if order["alone"] and number < self._run:
                    run.pieces, run.manifests, run.copies = {}, {}, {}

    @staticmethod
    def _drop(files: dict[Any, Any], stay: Iterable[str], newest: str, tag_of: Any) -> None:
        for name in list(files):
            if tag_of(name).startswith("step-") and tag_of(name) not in stay and tag_of(name) < newest:
                del files[name]

    def complete_models(self) -> dict[str, int]:
        return {}

    def report(self, child: Child, event: Mapping[str, Any]) -> None:
        raise AssertionError("no program reports cuts")

    log = report


class Pieces:
    """Stands in for `PieceServerProcess`: it copies from disk to disk, where the network lets it."""

    port = PIECES_PORT
    pid = None

    def __init__(self, context: Any) -> None:
        self._context = context
        self._machine: Machine = context.loop.machine
        self._run = context.run.run
        self._stored = self._machine.disk.runs[self._run]

    def carry_out(self, order: Mapping[str, Any], waited_s: float = 0.0) -> None:
        step_s = self._machine.world.lot.uniform(0.05, 0.6)
        self._context.loop.after(step_s, lambda: self._try(order, waited_s + step_s))

    def _try(self, order: Mapping[str, Any], waited_s: float) -> None:
        found = self._find(order) if order["do"] == "copy" else {}
        if found is None and waited_s < COPY_LIMIT_S:
            self.carry_out(order, waited_s)
            return
        report = {"do": "copied", "tag": order["tag"], "of": order["do"], "bytes": len(found or ())}
        if found is None:
            report["message"] = "a piece was not reached"
        self._stored.pieces.update(found or {})
        self._stored.copied.update(found or ())
        self._machine.world.runs[self._run].copying[self._machine.number, order["tag"]] = list(found or ())
        self._context.send(report)

    def _find(self, order: Mapping[str, Any]) -> dict[tuple[str, str], str] | None:
        world, tag = self._machine.world, order["tag"]
        lead = world.runs[self._run].lead_machine
        manifests = lead.disk.runs[self._run].manifests if self._run in lead.disk.runs else {}
        if not self._reaches(lead) or tag not in manifests:
            return None
        self._stored.copies[tag] = manifests[tag]
        found = {}
        for writer, place in order["sources"].items():
            holder = world.network.machines[int(place.partition(":")[0].removeprefix("host"))]
            there = holder.disk.runs[self._run].pieces if self._run in holder.disk.runs else {}
            for name in [(tag, one["file"]) for one in manifests[tag]["files"] if one["node"] == int(writer)]:
                if not self._reaches(holder) or name not in there:
                    return None
                found[name] = there[name]
        return found

    def _reaches(self, other: Machine) -> bool:
        return self._machine.world.network.answers(self._machine, other)

    def poll(self) -> None:
        pass

    def close(self) -> None:
        pass


class Log:
    """Stands in for `EventLog`."""

    def __init__(self, machine: Machine, run: RunPaths) -> None:
        self._machine = machine
        self._run = run.run
        self.warnings: list[Any] = []

    def record(self, event: Mapping[str, Any], child: Child | None = None) -> None:
        about = process_of(child) if child else {}
        line = {"t": self._machine.wall(), "node": self._machine.number, **event, **about}
        stored = self._machine.disk.runs[self._run]
        stored.events.append(line)
        stored.ended = line if event["event"] == "ended" else stored.ended
        self._machine.world.runs[self._run].recorded(self._machine, line)

    def forward(self, event: Mapping[str, Any], child: Child) -> None:
        pass

    heartbeat = write_state = take_over = count_killed = lambda self: None


class Operating:
    """Stands in for the modules `os` and `time`: lifelines are guardians."""

    CLOCK_BOOTTIME = 7

    def __init__(self, world: World) -> None:
        self._world = world

    def set_blocking(self, fd: Any, flag: bool) -> None:
        pass

    def write(self, guardian: GuardianProcess, data: bytes) -> int:
        if guardian.dead:
            raise BrokenPipeError
        guardian.call(lambda: guardian.receive(data))
        return len(data)

    def close(self, guardian: GuardianProcess) -> None:
        pass

    def clock_gettime(self, clock: int) -> float:
        return self._world.here.boottime()

    def time(self) -> float:
        return self._world.here.wall()

    def monotonic(self) -> float:
        return self._world.here.monotonic()

    def sleep(self, seconds: float) -> None:
        assert self._world.thread is not None
        self._world.thread.sleep(seconds)


def _nothing(*_: Any, **__: Any) -> Any:
    """A part that does nothing."""
    names = "look receive carry_out release close claim rmtree answer"
    return SimpleNamespace(**dict.fromkeys(names.split(), lambda *_, **__: {}), ports={})


@contextmanager
def simulated(world: World) -> Iterator[None]:
    """Put the simulations in place."""

    def spawn_guardian(*arguments: Any, leased: bool) -> tuple[GuardianProcess, GuardianProcess]:
        process = GuardianProcess(world.here, arguments[2])
        return process, process

    system, launch_start = Operating(world), import_module("clusterctl.launch.start")
    context = SimpleNamespace(wrap_socket=lambda sock, **_: sock)
    with ExitStack() as stack:
        for module, name, stand_in in (
            (supervisor, "Child", SimulatedChild),
            (supervisor, "EventLog", lambda run, *_: Log(world.here, run)),
            (supervisor, "CheckpointKeeper", Checkpoints),
            (supervisor, "PieceServerProcess", Pieces),
            (supervisor, "ProcessKeys", lambda *_: Keys(world.here)),
            (supervisor, "Watchdog", _nothing),
            (supervisor, "LockWatch", _nothing),
            (supervisor, "reason_to_stop", lambda *_: None),
            (supervisor, "signal_from_outside", lambda *_: None),
            (exits, "OomKills", _nothing),
            (supervisor, "reap_orphans", lambda *_: None),
            (supervisor, "remove_half_written", lambda *_: None),
            (supervisor, "shutil", _nothing()),
            (supervisor, "write_json", world.write_spec),
            (launcher, "write_json", lambda *_, **__: None),
            (launcher, "ReservedPorts", _nothing),
            (guardian, "spawn", spawn_guardian),
            (orphans, "find_by_environments", lambda wanted: world.here.find(wanted)),  # noqa: PLW0108 - another machine each time
            (orphans, "descendants", lambda *_: {}),
            (orphans, "send_signal", lambda process, number: world.here.signal(process.pid, number)),
            *((module, "os", system) for module in (lease, fence)),
            *((module, "time", system) for module in (lease, supervisor, child_messages, launcher)),
            *((module, "time", system) for module in (keep, why_report, launch_start)),
            (keep, "random", world.lot),
            (keep, "await_end", await_end),
            (keep, "explain", lambda *_: None),
            (launch_start, "quick", lambda *_, **__: []),
            (launch_keys, "make_keys", lambda launch: {node.id: {} for node in launch.nodes}),
            (server, "manifest_bytes", world.manifest_bytes),
            (client, "run_context", lambda *_, **__: context),
            (server, "run_context", lambda *_, **__: context),
            (client, "LeadConnection", Connection),
            (server, "LeadConnection", Connection),
            (server, "SaveDoor", _nothing),
        ):
            stack.enter_context(mock.patch.object(module, name, stand_in))
        yield
