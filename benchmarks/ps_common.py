"""Shared parts of the parameter server's benchmarks: real pservers, real trainers, bare pyzmq for comparison, tables.

A benchmark script is its own trainer program: `fleet` starts pservers as a supervisor does, and the script again as
every trainer (`SCRIPT trainer JSON`), which runs steps on request of the harness (`Stopwatch`). `bare_fleet` starts
the same number of processes that only exchange frames. Contenders alternate, in fresh processes each time, so that a
busy moment of the machine, or TCP's bimodal speed on loopback, affects all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

import zmq

from networks import Network

RUN = "0001"
DEADLINE_S = 300.0
BARE = Path(__file__).with_name("ps_bare.py")


@dataclass(frozen=True)
class Layout:
    """The numbers of processes, and further fields of their spec.json."""

    trainers: int = 1
    pservers: int = 1
    spec: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.trainers}x{self.pservers}"


class Stopwatch:
    """The trainer's side of a round: waits for a step count from the harness, times each step, reports.

    Call `tick()` at the end of every step, and once before the first; facts given to it are reported, too. It exits
    the process when the harness is gone, without leaving the run: a clean end would save the model, which is not to be
    measured.
    """

    def __init__(self) -> None:
        self._marks: list[float] = []
        self._steps = 0

    def tick(self, **facts: Any) -> None:
        self._marks.append(time.perf_counter())
        if len(self._marks) > self._steps:
            report(seconds=[b - a for a, b in zip(self._marks, self._marks[1:], strict=False)], **facts)
            line = sys.stdin.readline()
            if not line:
                sys.stdout.flush()
                os._exit(0)
            self._steps = int(line)
            self._marks = [time.perf_counter()]


def report(**facts: Any) -> None:
    """Send facts to the harness."""
    sys.stdout.write("::" + json.dumps(facts) + "\n")
    sys.stdout.flush()


class Child:
    """A child process that reads numbers and writes JSON lines. It is killed at the end."""

    def __init__(
        self,
        argv: Sequence[str],
        env: dict[str, str],
        cwd: Path,
        pass_fds: Sequence[int] = (),
        prefix: Sequence[str] = (),
        executable: str = sys.executable,
    ) -> None:
        self.process = subprocess.Popen(
            [*prefix, executable, *argv],
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **env},
            cwd=cwd,
            pass_fds=pass_fds,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Return the next report, skipping other output of the process."""
        out: IO[str] | None = self.process.stdout
        for line in out or ():
            if line.startswith("::"):
                return dict(json.loads(line[2:]))
        raise RuntimeError(f"{self.process.args!r} exited with {self.process.wait()}")

    @property
    def rss(self) -> int:
        """The current resident bytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def cpu_s(self) -> float:
        """The CPU seconds so far of all live threads, in nanosecond resolution (/proc/PID/stat counts hundredths)."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def reap(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@dataclass
class Fleet:
    """Running pservers (or bare echoes) and trainers, and their total CPU seconds per step of the last round."""

    servers: list[Child]
    trainers: list[Child]
    servers_cpu_s: float = 0.0
    trainers_cpu_s: float = 0.0

    _ready: bool = False

    def wait(self) -> None:
        """Wait until every trainer is ready for its first step."""
        for trainer in [] if self._ready else self.trainers:
            trainer.receive()
        self._ready = True

    def steps(self, count: int, skip: int = 2) -> list[float]:
        """Return the seconds of `count` steps, after `skip` warm-up steps; for each step the slowest trainer's."""
        self.wait()
        began = self._cpu_s()
        for trainer in self.trainers:
            trainer.send(str(count + skip))
        columns = [trainer.receive()["seconds"] for trainer in self.trainers]
        ended = self._cpu_s()
        self.servers_cpu_s, self.trainers_cpu_s = ((b - a) / (count + skip) for a, b in zip(began, ended, strict=True))
        return [max(step) for step in zip(*columns, strict=True)][skip:]

    def _cpu_s(self) -> tuple[float, float]:
        return sum(child.cpu_s for child in self.servers), sum(child.cpu_s for child in self.trainers)


@contextlib.contextmanager
def fleet(layout: Layout, script: str, net: Network | None = None, **given: Any) -> Iterator[Fleet]:
    """Start the pservers and trainers of `layout`: `python script trainer JSON`, with `given` as the JSON.

    `net`: the machines to start them on, each process on the one of its rank; without it, all are on this one.
    """
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clusterctl-bench-")))
        make_job(root, layout)

        def start(role: str, rank: int, argv: Sequence[str], addresses: Sequence[str] = ()) -> _Started:
            ours, theirs = socket.socketpair()
            stack.callback(ours.close)
            control = stack.enter_context(ours.makefile("r"))
            env = process_environment(root, layout, role, rank, addresses, theirs.fileno())
            child = Child(argv, env, root, [theirs.fileno()], net.nodes[rank].inside() if net else ())
            theirs.close()
            stack.callback(child.reap)
            return _Started(child, ours, control)

        servers = [start("pserver", p, ["-m", "clusterctl.runtime.pserver"]) for p in range(layout.pservers)]
        hosts = [net.address(p) if net else "127.0.0.1" for p in range(layout.pservers)]
        addresses = [f"{host}:{server.ready_port()}" for host, server in zip(hosts, servers, strict=True)]
        program = [str(Path(script).resolve()), "trainer", json.dumps(given)]
        trainers = [start("trainer", t, program, addresses) for t in range(layout.trainers)]
        for started in (*servers, *trainers):
            threading.Thread(target=started.discard, daemon=True).start()
        yield Fleet([server.child for server in servers], [trainer.child for trainer in trainers])


@contextlib.contextmanager
def alone(
    argv: Sequence[str], env: Mapping[str, str] | None = None, executable: str = sys.executable
) -> Iterator[Fleet]:
    """Start a program that trains in one process, without pservers."""
    with tempfile.TemporaryDirectory(prefix="clusterctl-bench-") as scratch:
        child = Child(argv, dict(env or {}), Path(scratch), executable=executable)
        try:
            yield Fleet([], [child])
        finally:
            child.reap()


@dataclass(frozen=True)
class _Started:
    """A process, and the end of its socket to its supervisor, which the harness stands in for."""

    child: Child
    socket: socket.socket
    control: IO[str]

    def ready_port(self) -> int:
        """Return the first port that a pserver reports as bound."""
        self.socket.settimeout(DEADLINE_S)
        for line in self.control:
            event = json.loads(line)
            if event["event"] == "ready":
                return int(event["ports"][0])
        raise RuntimeError("a pserver exited before it was ready; see its output above")

    def discard(self) -> None:
        """Read reports until the process ends, so that it never waits for a reader."""
        self.socket.settimeout(None)
        with contextlib.suppress(OSError, ValueError):
            for _ in self.control:
                pass


def make_job(root: Path, layout: Layout) -> None:
    """Create a job directory as the nodes' supervisors do."""
    run_dir = root / ".clusterctl" / "runs" / RUN
    (run_dir / "keys").mkdir(parents=True)
    spec = {
        "v": 1,
        "job": "bench",
        "run": RUN,
        "node": 0,
        "mode": "sync",
        "seed": 7,
        "port": free_port(),
        "security": "none",
    }
    spec |= {"trainers": layout.trainers, "pservers": layout.pservers, "node_grace_s": 60, "load": None}
    spec |= layout.spec
    (run_dir / "spec.json").write_text(json.dumps(spec))
    if spec["security"] == "curve":
        write_keys(run_dir / "keys", layout)


def write_keys(directory: Path, layout: Layout) -> None:
    pairs = {("pserver", p): zmq.curve_keypair() for p in range(layout.pservers)}
    pairs |= {("trainer", t): zmq.curve_keypair() for t in range(layout.trainers)}
    allow = {pairs["trainer", t][0].decode(): f"trainer-{t}" for t in range(layout.trainers)}
    servers = [pairs["pserver", p][0].decode() for p in range(layout.pservers)]
    for (role, rank), (public, secret) in pairs.items():
        peers = {"allow": allow} if role == "pserver" else {"servers": servers}
        keys = {"public": public.decode(), "secret": secret.decode(), **peers}
        (directory / f"{role}-{rank}.json").write_text(json.dumps(keys))


def process_environment(
    root: Path, layout: Layout, role: str, rank: int, addresses: Sequence[str], control_fd: int
) -> dict[str, str]:
    return {
        "CLUSTERCTL_JOB": "bench",
        "CLUSTERCTL_JOB_DIR": str(root),
        "CLUSTERCTL_RUN": RUN,
        "CLUSTERCTL_NODE_ID": "0",
        "CLUSTERCTL_ROLE": role,
        "CLUSTERCTL_RANK": str(rank),
        "CLUSTERCTL_TRAINERS": str(layout.trainers),
        "CLUSTERCTL_PSERVERS": ",".join(addresses),
        "CLUSTERCTL_ATTEMPT": "1",
        "CLUSTERCTL_OUTPUT_DIR": str(root / "output"),
        "CLUSTERCTL_CONTROL_FD": str(control_fd),
    }


@contextlib.contextmanager
def bare_fleet(layout: Layout, **given: Any) -> Iterator[Fleet]:
    """Start the same number of processes as in `layout` that only send messages: the limit of pyzmq itself."""
    with contextlib.ExitStack() as stack:
        public, secret = zmq.curve_keypair() if layout.spec.get("security") == "curve" else (b"", b"")
        given |= {"public": public.decode(), "trainers": layout.trainers}

        def start(role: str, **more: Any) -> Child:
            child = Child([str(BARE), role, json.dumps(given | more)], {}, Path.cwd())
            stack.callback(child.reap)
            return child

        servers = [start("server", secret=secret.decode()) for _ in range(layout.pservers)]
        addresses = [server.receive()["address"] for server in servers]
        yield Fleet(servers, [start("client", addresses=addresses) for _ in range(layout.trainers)])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


Figure = TypeVar("Figure")
Contender = Callable[[], float]


def contest(contenders: Mapping[str, Callable[[], Figure]], rounds: int) -> dict[str, list[Figure]]:
    """Return each contender's figure of every round, in alternating order."""
    figures: dict[str, list[Figure]] = {name: [] for name in contenders}
    for turn in range(rounds):
        names = list(contenders)
        for name in names if turn % 2 == 0 else reversed(names):
            figures[name].append(contenders[name]())
    return figures


def ratio(ours: Sequence[float], reference: Sequence[float]) -> float:
    """Return the median over the rounds of ours / reference."""
    return statistics.median(a / b for a, b in zip(ours, reference, strict=True))


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value that `percent` percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def options(description: str, **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser with an option for each of `defaults`, of the default's type."""
    parser = argparse.ArgumentParser(description=description)
    more_options(parser, **defaults)
    return parser


def more_options(parser: argparse.ArgumentParser, **defaults: Any) -> None:
    for name, value in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value, help=f"default {value}")


def layouts(text: str, **spec: Any) -> list[Layout]:
    """Parse layouts such as "1x1,2x2" (trainers x pservers)."""
    pairs = [word.split("x") for word in text.split(",")]
    return [Layout(int(trainers), int(pservers), spec) for trainers, pservers in pairs]


def spread(figures: Sequence[float], scale: float = 1.0) -> list[str]:
    """Return the cells "median" and "min-max"."""
    low, high = min(figures) * scale, max(figures) * scale
    return [f"{statistics.median(figures) * scale:.3g}", f"{low:.3g}-{high:.3g}"]


def show(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table in Markdown, ready to be pasted into a page."""
    lines = [headings, ["---"] * len(headings), *rows]
    print("".join(f"| {' | '.join(line)} |\n" for line in lines), flush=True)


def trainer_given() -> dict[str, Any] | None:
    """Return the settings that the harness passed to this trainer, or None if this is not a trainer process."""
    return dict(json.loads(sys.argv[2])) if sys.argv[1:2] == ["trainer"] else None


def run(main: Callable[[], None], trainer: Callable[[dict[str, Any]], None]) -> None:
    """Run a script: in the processes that the harness starts it is a `trainer`, else `main`."""
    settings = trainer_given()
    if settings is None:
        main()
    else:
        trainer(settings)
