"""Pservers and trainers for tests: real ZeroMQ sockets, in threads of this process or as separate processes."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import select
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zmq

from clusterctl.agent.lead.actions import Action, RecordEvent, SendOrder
from clusterctl.agent.lead.saving.cuts import CutCoordinator
from clusterctl.common.run_spec import RunSpec
from clusterctl.runtime.environment import Environment
from clusterctl.runtime.pserver.core import ServerCore
from clusterctl.runtime.pserver.lanes import Lane
from clusterctl.runtime.pserver.process import PServer
from clusterctl.runtime.supervisor_socket import SupervisorSocket
from clusterctl.runtime.trainer.link import Link
from clusterctl.runtime.trainer.session import Session
from clusterctl.runtime.trainer.zmq_link import RemoteLink
from clusterctl.runtime.wire import messages as wire
from support.processes import wait_until

RUN = "0001"
DEADLINE_S = 180.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_job(
    root: Path, pservers: int, trainers: int, *, mode: str = "sync", security: str = "none", **spec: Any
) -> Path:
    """Create a job directory as supervisors leave it: spec.json, and keys when security is "curve"."""
    run_dir = root / ".clusterctl" / "runs" / RUN
    (run_dir / "keys").mkdir(parents=True, exist_ok=True)
    facts: dict[str, Any] = {"v": 1, "job": "JOB", "run": RUN, "node": 0, "mode": mode, "seed": 7, "trainers": trainers}
    facts.update(pservers=pservers, port=free_port(), security=security, node_grace_s=30, load=None)
    facts.update(spec)
    (run_dir / "spec.json").write_text(json.dumps(facts))
    if security == "curve":
        write_keys(run_dir / "keys", pservers, trainers)
    return root


def write_keys(directory: Path, pservers: int, trainers: int) -> None:
    pairs = {("pserver", p): zmq.curve_keypair() for p in range(pservers)}
    pairs.update({("trainer", t): zmq.curve_keypair() for t in range(trainers)})
    allow = {pairs["trainer", t][0].decode(): f"trainer-{t}" for t in range(trainers)}
    servers = [pairs["pserver", p][0].decode() for p in range(pservers)]
    for (role, rank), (public, secret) in pairs.items():
        extra: dict[str, Any] = {"allow": allow} if role == "pserver" else {"servers": servers}
        keys = {"public": public.decode(), "secret": secret.decode(), **extra}
        (directory / f"{role}-{rank}.json").write_text(json.dumps(keys))


def environment(root: Path, role: str, rank: int, addresses: tuple[str, ...] = (), attempt: int = 1) -> Environment:
    spec = RunSpec.from_json(json.loads((root / ".clusterctl" / "runs" / RUN / "spec.json").read_text()))
    trainers, seed = spec.training.trainers, spec.training.seed
    return Environment(role, rank, trainers, "JOB", RUN, root, root / "output", seed, spec, attempt, addresses, None)


def ask(link: Link, message: wire.Message, lane: int = 0) -> wire.Message:
    """Return the reply of a lane to one request; raise the error if it answers with one."""
    replies: list[wire.Message] = []
    link.post(lane, message, replies.append)
    link.wait(lambda: bool(replies))
    return replies[0]


class TestLead:
    """What the lead does about cuts: its real coordinator, in a thread, between the pservers and their orders."""

    __test__ = False

    def __init__(self, pservers: int, order: Callable[[int, dict[str, Any]], None]) -> None:
        self.coordinator = CutCoordinator(range(pservers), pservers)
        self.dropped: list[dict[str, Any]] = []
        self._receipts: Counter[tuple[bool, str]] = Counter()
        self._pservers = pservers
        self._order = order
        self._lock = threading.Lock()
        self._unanswered = 0  # reports
        self._reports: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def hear(self, rank: int, event: str, facts: dict[str, Any]) -> None:
        """Take an event of a pserver. Thread-safe."""
        if event in ("cut", "saved"):
            with self._lock:
                self._unanswered += 1
            self._reports.put({"event": event, "rank": rank, **facts})

    def stop(self) -> None:
        self._reports.put(None)
        self._thread.join()

    def wait_for_cut(self) -> None:
        """Wait until no cut is due or being made."""
        assert wait_until(lambda: not self._unanswered and self.coordinator.phase == "idle")

    def _run(self) -> None:
        while (report := self._reports.get()) is not None:
            self._do(self._take(report))
            with self._lock:
                self._unanswered -= 1
        self._do(self.coordinator.finish())

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, SendOrder):
                assert action.node is not None
                self._order(action.node, {**action.message, "cmd": "cut"})
            elif isinstance(action, RecordEvent):
                self.dropped.append(dict(action.event))

    def _take(self, report: dict[str, Any]) -> list[Action]:
        if report["event"] == "cut":
            return self.coordinator.take(report)  # type: ignore[arg-type]
        saved = bool(report.get("checkpoint")), str(report["tag"])
        self._receipts[saved] += 1
        return self.coordinator.written(saved[1], saved[0]) if self._receipts[saved] % self._pservers == 0 else []


class ThreadCluster:
    """Pservers as threads around real sockets; trainers as threads, each with its own session."""

    def __init__(self, root: Path, pservers: int, trainers: int, **spec: Any) -> None:
        self.root = make_job(root, pservers, trainers, **spec)
        self.trainers = trainers
        self.probe_every_s = 1.0
        self.kind: type[Session] = Session
        self.receipts: list[dict[str, Any]] = []
        self.steps: list[dict[str, Any]] = []
        self.pservers: list[PServer] = []
        self._threads: list[threading.Thread] = []
        self.lead = TestLead(pservers, lambda rank, order: self.pservers[rank].handle_command(order))
        for rank in range(pservers):
            hear = functools.partial(self._hear, rank)
            self.pservers.append(PServer(environment(self.root, "pserver", rank), hear))
            self._threads.append(threading.Thread(target=self.pservers[-1].run, daemon=True))
            self._threads[-1].start()
        self.addresses = tuple(f"127.0.0.1:{pserver.ports[0]}" for pserver in self.pservers)

    def _hear(self, rank: int, event: str, facts: dict[str, Any]) -> None:
        self.lead.hear(rank, event, facts)
        if event == "saved":
            self.receipts.append(facts)
        elif event == "step":
            self.steps.append(facts)

    @property
    def lanes(self) -> list[Lane]:
        return [lane for pserver in self.pservers for lane in pserver.server.lanes]

    @property
    def cores(self) -> list[ServerCore]:
        return [lane.core for lane in self.lanes]

    def session(self, rank: int, *, attempt: int = 1, load: str | None = None) -> Session:
        env = environment(self.root, "trainer", rank, self.addresses, attempt)
        link = RemoteLink(env, probe_every_s=self.probe_every_s)
        try:
            return self.kind(env, link, SupervisorSocket(None), load or env.spec.saving.load)
        except BaseException:
            link.close()
            raise

    def train(self, program: Callable[[Session], Any], *, load: str | None = None) -> list[Any]:
        """Run `program(ps)` as every trainer at once; return the results by rank, or raise the first error."""
        results: list[Any] = [None] * self.trainers
        errors: list[BaseException] = []

        def run(rank: int) -> None:
            try:
                with self.session(rank, load=load) as ps:
                    results[rank] = program(ps)
            except Exception as error:  # noqa: BLE001 - raised below, in the test's own thread
                errors.append(error)

        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(self.trainers)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + DEADLINE_S
        while not errors and time.monotonic() < deadline and any(thread.is_alive() for thread in threads):
            for thread in threads:
                thread.join(0.05)
        if errors:
            raise errors[0]
        assert not any(thread.is_alive() for thread in threads), "a trainer hangs"
        return results

    def stop(self) -> None:
        self.lead.stop()
        for pserver, thread in zip(self.pservers, self._threads, strict=True):
            pserver.finish()
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), "a pserver hangs"
        for pserver in self.pservers:
            pserver.close()


@contextlib.contextmanager
def thread_cluster(root: Path, pservers: int, trainers: int, **spec: Any) -> Iterator[ThreadCluster]:
    cluster = ThreadCluster(root, pservers, trainers, **spec)
    try:
        yield cluster
    finally:
        cluster.stop()


class Process:
    """A pserver or trainer process, with the supervisor's end of its control socket."""

    def __init__(
        self, root: Path, role: str, rank: int, argv: list[str], addresses: tuple[str, ...], attempt: int = 1
    ) -> None:
        self.control, theirs = socket.socketpair()
        self.control.settimeout(DEADLINE_S)
        spec = json.loads((root / ".clusterctl" / "runs" / RUN / "spec.json").read_text())
        environ = {
            **os.environ,
            "CLUSTERCTL_JOB": "JOB",
            "CLUSTERCTL_JOB_DIR": str(root),
            "CLUSTERCTL_RUN": RUN,
            "CLUSTERCTL_NODE_ID": "0",
            "CLUSTERCTL_ROLE": role,
            "CLUSTERCTL_RANK": str(rank),
            "CLUSTERCTL_TRAINERS": str(spec["trainers"]),
            "CLUSTERCTL_PSERVERS": ",".join(addresses),
            "CLUSTERCTL_ATTEMPT": str(attempt),
            "CLUSTERCTL_OUTPUT_DIR": str(root / "output"),
            "CLUSTERCTL_CONTROL_FD": str(theirs.fileno()),
            "OPENBLAS_NUM_THREADS": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, *argv],
            env=environ,
            cwd=root,
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        theirs.close()
        self._lines = self.control.makefile("r")
        self.events: list[dict[str, Any]] = []

    def until(self, event: str) -> dict[str, Any]:
        """Return the next event of this name; earlier ones are kept in `events`."""
        for line in self._lines:
            self.events.append(json.loads(line))
            if self.events[-1]["event"] == event:
                return self.events[-1]
        raise AssertionError(f"ended without {event!r}: {self.process.communicate()}")

    def listen(self, hear: Callable[[str, dict[str, Any]], None]) -> threading.Thread:
        """Pass on all further events, until the process ends."""

        def read() -> None:
            with contextlib.suppress(OSError, ValueError):  # it was killed
                for line in self._lines:
                    event = json.loads(line)
                    hear(event.pop("event"), event)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        return thread

    def send(self, command: str, **facts: Any) -> None:
        self.control.sendall(json.dumps({"cmd": command, **facts}).encode() + b"\n")

    def wait(self) -> tuple[int, str, str]:
        """Return exit status, standard output and error; collect the remaining events."""
        out, err = self.process.communicate(timeout=DEADLINE_S)
        self.events += [json.loads(line) for line in self._lines]
        return self.process.returncode, out, err

    def reap(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        self._lines.close()
        self.control.close()


@contextlib.contextmanager
def process_cluster(
    root: Path, pservers: int, trainers: int, script: str, **spec: Any
) -> Iterator[tuple[list[Process], list[Process]]]:
    """Start pserver processes, wait until they are ready, and start `script` as every trainer."""
    make_job(root, pservers, trainers, **spec)
    (root / "train.py").write_text(script)
    with contextlib.ExitStack() as stack:

        def start(role: str, rank: int, argv: list[str], addresses: tuple[str, ...] = ()) -> Process:
            process = Process(root, role, rank, argv, addresses)
            stack.callback(process.reap)
            return process

        servers = [start("pserver", p, ["-m", "clusterctl.runtime.pserver"]) for p in range(pservers)]
        addresses = tuple(f"127.0.0.1:{server.until('ready')['ports'][0]}" for server in servers)
        yield servers, [start("trainer", t, ["train.py"], addresses) for t in range(trainers)]


def is_ready(sock: Any, *, to_write: bool = False, wait_s: float = DEADLINE_S) -> bool:
    """Wait until a socket can be read (or written to). Unlike `select.select`, for descriptors of any number."""
    poll = select.poll()
    poll.register(sock, select.POLLOUT if to_write else select.POLLIN)
    return bool(poll.poll(1_000 * wait_s))
