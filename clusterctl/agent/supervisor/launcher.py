"""Starts the processes of a node: their ports, their environment, and the check that they are up."""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Callable

from clusterctl.agent.lead.messages import Whereabouts
from clusterctl.agent.node.ports import ReservedPorts, is_listening
from clusterctl.agent.supervisor.child import Child, process_of
from clusterctl.agent.supervisor.exits import TIMED_OUT, system_error
from clusterctl.agent.supervisor.run_context import RunContext
from clusterctl.agent.supervisor.trainer_in_view import command_before
from clusterctl.common.engines import ENGINES, Endpoints, ports_of
from clusterctl.common.events import FailureFacts
from clusterctl.common.files import write_json
from clusterctl.common.paths import PACKAGE_ROOT
from clusterctl.common.process_environment import LaunchFacts, environment, inherited
from clusterctl.common.run_spec import Limits, RunSpec

RUNNING_AFTER_S = 1.0  # a program that never sends a message counts as running after this time
READY_LIMIT_S = 60.0
LISTENS_LIMIT_S = 180.0  # foreign programs may take long to load
LISTEN_POLL_S = 0.1


class Launcher:
    """Starts the processes of one node. Raises OSError if no port is free."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._spec = context.spec
        self._engine = ENGINES[context.spec.training.engine]
        self._cores = len(os.sched_getaffinity(0))
        self._pservers: tuple[str, ...] = ()
        self._endpoints: Endpoints = {}
        self._ports = self._choose_ports(context.spec.epoch)

    def _choose_ports(self, epoch: int) -> ReservedPorts:
        engine = self._spec.training.engine
        names = [name for process in self._spec.processes for name in ports_of(engine, process)]
        first = self._spec.ports.pserver_port or self._spec.ports.port
        return ReservedPorts(self._spec.address, first, names, shared=epoch == 0)

    def adopt(self, spec: RunSpec) -> None:
        """Start processes by this spec from now on."""
        self._spec = spec

    def choose_ports_again(self, epoch: int) -> None:
        """Choose new ports before all processes restart. Raises OSError if no port is free."""
        self._ports.close()
        self._ports = self._choose_ports(epoch)

    def release_ports(self) -> None:
        self._ports.close()

    def has_port(self, child: Child) -> bool:
        """Return True if the program should listen on a port that we chose."""
        return child.name in self._ports.ports

    def endpoints(self) -> Endpoints:
        """The endpoints where the programs of this node will listen, by process."""
        return {name: self.endpoint(port) for name, port in self._ports.ports.items()}

    def endpoint(self, port: int) -> str:
        """Return HOST:PORT for a port of this node."""
        host = self._spec.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def update_endpoints(self, known: Whereabouts) -> None:
        """Adopt the endpoints of the processes on all nodes."""
        self._pservers, self._endpoints = tuple(known["pservers"]), known["endpoints"]
        if pieces := known.get("pieces"):
            try:
                write_json(self._context.run.peers, dict(pieces), durable=False)
            except OSError as exc:
                self._context.fail(f"cannot write {self._context.run.peers}: {exc.strerror}", None, system_error(exc))

    def start(self, child: Child) -> None:
        if child.attempt > 1:  # the program does not seem to share the port with us
            for name in ports_of(self._spec.training.engine, child.plan):
                self._ports.release(name)
        try:
            child.start(
                Path(self._spec.cwd) if self._spec.cwd else self._context.run.job.dir,
                self._context.run.job.log,
                lambda fd: self._environment(child, fd),
                time.time(),
                limiter(self._spec.limits),
                self._before(child),
            )
        except OSError as exc:
            child.state = "failed"
            command = child.plan.argv[0]
            facts: FailureFacts = {**system_error(exc), "command": command}
            self._context.fail(f"cannot start {command!r}: {exc.strerror or exc}", child, facts)
            return
        self._context.record({"event": "spawned", "pid": child.identity.pid if child.identity else None}, child)
        if child.role == "pserver" and child.plan.ours:
            self._context.loop.after(READY_LIMIT_S, lambda: self._expect_ready(child))
        elif child.role == "pserver" and self._engine.listens:
            self._await_listening(child, self._context.loop.now() + LISTENS_LIMIT_S)
        elif child.role == "pserver":
            self.ready(child, [self._ports.ports[child.name]])
        else:
            self._context.loop.after(RUNNING_AFTER_S, lambda: self.running(child))

    def _before(self, child: Child) -> list[str]:
        """Return the command that begins a trainer away from its shards, in a directory with the copies."""
        copies = self._spec.shard_copies
        if self._spec.cwd or not copies or child.role != "trainer" or child.rank not in copies.trainers:
            return []
        return command_before(self._context.run, child.rank, copies.patterns)

    def _environment(self, child: Child, control_fd: str) -> dict[str, str]:
        facts = LaunchFacts(
            str(self._context.run.job.dir),
            PACKAGE_ROOT,
            self._cores,
            self._pservers,
            control_fd,
            inherited(os.environ),
            self._endpoints,
            child.attempt,
        )
        return environment(self._spec, child.plan, facts)

    def _expect_ready(self, child: Child) -> None:
        if child.state == "starting" and child.alive and not self._context.is_over():
            self._context.fail(f"did not become ready within {READY_LIMIT_S:.0f} s", child, TIMED_OUT)

    def _await_listening(self, child: Child, deadline: float) -> None:
        """Wait until a program that sends no messages listens, and so is ready."""
        port = self._ports.ports[child.name]
        if child.state != "starting" or not child.alive or self._context.is_over():
            return
        if is_listening(port, os.geteuid()):
            self.ready(child, [port])
        elif self._context.loop.now() > deadline:
            message = f"did not listen on {self.endpoint(port)} within {LISTENS_LIMIT_S:.0f} s"
            self._context.fail(message, child, TIMED_OUT)
        else:
            self._context.loop.after(LISTEN_POLL_S, lambda: self._await_listening(child, deadline))

    def ready(self, child: Child, ports: Sequence[int]) -> None:
        endpoint = self.endpoint(ports[0])
        child.state, child.worked = "ready", True
        child.progress["ports"] = list(ports)
        self._context.record({"event": "ready", "endpoint": endpoint}, child)
        self._context.send({"do": "ready", **process_of(child), "endpoint": endpoint})

    def running(self, child: Child) -> None:
        if child.state == "starting" and child.exit_code in (None, 0):
            child.state = "running"
            self._context.send({"do": "running", **process_of(child)})


MEGABYTE = 1_000_000
MOST_FILES = 65_536  # some programs try every descriptor up to the limit


def allow_open_files() -> None:
    """Raise the limit of open files to what this account may have, within reason, for this process and its children.

    The usual 1,024 are too few for a lead of a thousand nodes, to which strangers may connect, too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _at_most(resource.RLIMIT_NOFILE, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limiter(limits: Limits) -> Callable[[], None] | None:
    """The function that sets these limits in a new process between fork and exec; None if there are none.

    Raises OSError for more open files than this node allows.
    """
    wanted = dict(_wanted(limits))
    if not wanted:
        return None

    def limit() -> None:
        for kind, number in wanted.items():
            resource.setrlimit(kind, (number, number))

    return limit


def _wanted(limits: Limits) -> Iterator[tuple[int, int]]:
    memory, files = limits.memory_limit_mb, limits.open_files
    if memory is not None:
        yield resource.RLIMIT_AS, _at_most(resource.RLIMIT_AS, memory * MEGABYTE)
    if files is not None:
        most = _at_most(resource.RLIMIT_NOFILE, files)
        if most < files:
            words = f"OPEN_FILES = {files} is more than this node allows, {most} (ulimit -Hn)"
            raise OSError(errno.EPERM, words)
        yield resource.RLIMIT_NOFILE, files


def _at_most(kind: int, number: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return number if hard == resource.RLIM_INFINITY else min(number, hard)
