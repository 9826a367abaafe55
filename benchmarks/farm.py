"""Shared parts of the benchmarks: real OpenSSH daemons on loopback, measured runs, alternating contenders, tables.

Needs the development extras (`pip install -e .[dev]`), OpenSSH, and for the comparisons rsync and pdsh.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from clusterctl.common.procfs import adopt_orphans
from support.openssh import OpenSshCluster, openssh_cluster
from support.processes import wait_until

SOURCES = Path(__file__).parents[1]
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
CIPHERS = (
    "Ciphers=aes128-gcm@openssh.com",
    "KexAlgorithms=curve25519-sha256",
    "HostKeyAlgorithms=ssh-ed25519",
)
PEER_CONFIG = """\
Host node*
    HostName 127.0.0.1
    IdentityFile {identity}
    IdentitiesOnly yes
    UserKnownHostsFile {known_hosts}
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    PreferredAuthentications publickey
    LogLevel ERROR
"""


@dataclass(frozen=True)
class Cost:
    """The cost of a program: wall time of the whole process, and CPU time including its reaped children.

    `nodes_cpu_s`: the CPU time of the nodes' daemons and everything they ran.
    """

    seconds: float
    cpu_s: float
    out: bytes
    nodes_cpu_s: float = 0.0


@dataclass(frozen=True)
class Farm:
    """Nodes node0, node1, ..., each with a home, and the configuration for clusterctl and the peers to reach them.

    `environment` is added to that of clusterctl.
    """

    directory: Path
    sshd: OpenSshCluster
    peer_config: Path
    environment: Mapping[str, str]
    orphans_cpu_s: list[float] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.sshd.daemons)

    def home(self, node: int) -> Path:
        return self.sshd.daemons[node].home

    def clusterctl(self, *args: str, nodes: int | None = None, root: str = "clusterctl") -> Cost:
        """Run the program for the first `nodes`, with ~/`root` as their ROOT_DIR and with a separate cache."""
        conf = self.directory / f"conf-{nodes or self.count}-{root}.py"
        if not conf.exists():
            settings = {
                "HOSTS": list(self.sshd.hosts[:nodes]),
                "ROOT_DIR": f"~/{root}",
                "PYTHON": shutil.which("python3", path="/usr/bin:/usr/local/bin") or "python3",
                "IDENTITY_FILE": str(self.sshd.identity),
                "KNOWN_HOSTS": str(self.sshd.known_hosts),
                "SSH_CONFIG": str(self.sshd.ssh_config),
            }
            conf.write_text("".join(f"{name} = {value!r}\n" for name, value in settings.items()))
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.directory / f"cache-{root}")}
        environment.pop(NO_BYTECODE, None)  # an installed program has cached bytecode
        return run([*program(), "--conf", str(conf), *args], {**environment, **self.environment})

    def measured(self, work: Callable[[], Cost]) -> Cost:
        """Return the cost of `work`, with the CPU time that the nodes spent on it."""
        before = self.cpu_s()
        cost = work()
        return replace(cost, nodes_cpu_s=self.cpu_s() - before)

    def cpu_s(self) -> float:
        """Return the CPU seconds of all daemons and what they started so far, once nothing of that is left.

        A command may outlive its session. Its CPU time would be lost, but this process has adopted it.
        """
        daemons = [daemon.process.pid for daemon in self.sshd.daemons]
        wait_until(lambda: not any(_children(pid) for pid in daemons))
        for orphan in _children(os.getpid()) - set(daemons):
            usage = os.wait4(orphan, 0)[2]
            self.orphans_cpu_s.append(usage.ru_utime + usage.ru_stime)
        ticks = sum(int(field) for pid in daemons for field in _stat(pid)[11:15])  # utime, stime, and of children
        return ticks / os.sysconf("SC_CLK_TCK") + sum(self.orphans_cpu_s)

    def ssh(self, *, tuned: bool = True) -> str:
        """Return the peers' ssh command as one string for `rsync -e`. `tuned`: the cheapest key exchange and cipher."""
        return f"ssh -F {self.peer_config}" + "".join(f" -o {shlex.quote(o)}" for o in (CIPHERS if tuned else ()))

    def remove(self, name: str) -> None:
        """Remove ~/`name` on all nodes, and sync the disks.

        On a disk it is only renamed. For minutes, ext4 does not reuse the inode of a deleted file, and looks at each
        of them when a file is created: that made the next contender four times as slow.
        """
        for node in range(self.count):
            place = self.home(node) / name
            if file_system(place) == "tmpfs":
                shutil.rmtree(place, ignore_errors=True)
            elif place.exists():
                place.rename(self.home(node) / f"removed-{time.time_ns()}")
        os.sync()


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _children(pid: int) -> set[int]:
    """Return the children of a process, all of whose threads count."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return {int(child) for task in tasks for child in task.read_text().split()}


def file_system(path: Path) -> str:
    """Return the type of the file system of a path, which need not exist."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    return max((len(place), kind) for place, kind in mounts if path.resolve().is_relative_to(place))[1]


@contextlib.contextmanager
def farm(nodes: int, directory: Path, *, bytecode: bool = True, apart: bool = False) -> Iterator[Farm]:
    """Start the daemons under `directory`, and stop them at the end.

    Without `bytecode`, clusterctl runs from a copy of its sources that nothing has compiled: PYTHONDONTWRITEBYTECODE
    is set there and on the nodes. With `apart` the daemons have the last core to themselves, and this process, with all
    that it starts, the others.
    """
    adopt_orphans()
    *cores, last = sorted(os.sched_getaffinity(0))
    inside = ("taskset", "--cpu-list", str(last)) if apart and cores else ()
    environment = {} if bytecode else {NO_BYTECODE: "1"}
    with openssh_cluster(directory / "sshd", nodes, inside=inside, environment=environment) as sshd:
        if inside:
            os.sched_setaffinity(0, cores)
        if not bytecode:
            uncompiled = shutil.ignore_patterns("__pycache__")
            shutil.copytree(SOURCES / "clusterctl", directory / "sources" / "clusterctl", ignore=uncompiled)
            environment["PYTHONPATH"] = str(directory / "sources")
        options = PEER_CONFIG.format(identity=sshd.identity, known_hosts=sshd.known_hosts)
        ports = "".join(f"Host node{i}\n    Port {daemon.port}\n" for i, daemon in enumerate(sshd.daemons))
        config = directory / "peer_ssh_config"
        config.write_text(ports + options)
        yield Farm(directory, sshd, config, environment)


@contextlib.contextmanager
def scratch(chosen: Path | None) -> Iterator[Path]:
    """Yield a temporary directory for a benchmark, removed at the end and on SIGTERM; by default in the usual place."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="clusterctl-bench-", dir=chosen) as name:
        yield Path(name)


def program() -> list[str]:
    """Return the installed `clusterctl` of this Python, or CLUSTERCTL_PROGRAM, for comparing two versions."""
    chosen = os.environ.get("CLUSTERCTL_PROGRAM")
    script = Path(sys.executable).with_name("clusterctl")
    return shlex.split(chosen) if chosen else [str(script)]


def run(argv: Sequence[str], env: dict[str, str] | None = None, ok: Sequence[int] = (0,)) -> Cost:
    """Run a program to completion. Raises RuntimeError if its exit code is not one of `ok`."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.perf_counter()
        process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode not in ok:
            output = (err.read() or out.read()).decode()
            raise RuntimeError(f"{shlex.join(argv)} exited with {process.returncode}:\n{output[:2000]}")
        return Cost(seconds, usage.ru_utime + usage.ru_stime, out.read())


@dataclass
class Contest:
    """Contenders that alternate, so that a busy moment of the machine affects all of them."""

    contenders: dict[str, Callable[[int], Cost]]
    after: Callable[[str, int], None] = field(default=lambda name, turn: None)
    costs: dict[str, list[Cost]] = field(default_factory=dict)

    def play(self, rounds: int) -> Contest:
        for turn in range(rounds):
            names = list(self.contenders)
            for name in names if turn % 2 == 0 else reversed(names):
                self.costs.setdefault(name, []).append(self.contenders[name](turn))
                self.after(name, turn)
        return self

    def seconds(self, name: str) -> float:
        return statistics.median(cost.seconds for cost in self.costs[name])

    def cpu_s(self, name: str) -> float:
        return statistics.median(cost.cpu_s for cost in self.costs[name])

    def nodes_cpu_s(self, name: str) -> float:
        return statistics.median(cost.nodes_cpu_s for cost in self.costs[name])

    def ratio(self, ours: str, peer: str) -> float:
        """Return the factor by which ours is faster: the median over the rounds of peer / ours."""
        pairs = zip(self.costs[peer], self.costs[ours], strict=True)
        return statistics.median(theirs.seconds / mine.seconds for theirs, mine in pairs)

    def rows(self, what: str, ours: str = "clusterctl") -> list[list[str]]:
        return [
            [
                what,
                name,
                f"{self.seconds(name):.3f}",
                f"{min(c.seconds for c in costs):.3f}-{max(c.seconds for c in costs):.3f}",
                f"{self.cpu_s(name):.2f}",
                f"{self.nodes_cpu_s(name):.2f}",
                "" if name == ours else f"{self.ratio(ours, name):.2f}",
            ]
            for name, costs in self.costs.items()
        ]


HEADINGS = ["case", "program", "median s", "range s", "client cpu s", "nodes cpu s", "x of ours"]


class PeakOf:
    """The peak resident memory of the processes that a predicate selects, sampled every 20 ms."""

    def __init__(self, chosen: Callable[[Path], bool]) -> None:
        self._chosen = chosen
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.peaks: dict[int, int] = {}

    def __enter__(self) -> PeakOf:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def bytes(self) -> int:
        return max(self.peaks.values(), default=0)

    def _sample(self) -> None:
        while not self._stop.wait(0.02):
            for process in Path("/proc").iterdir():
                if process.name.isdigit():
                    with contextlib.suppress(OSError):
                        self._look(process)

    def _look(self, process: Path) -> None:
        if not self._chosen(process):
            return
        for line in (process / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                pid = int(process.name)
                self.peaks[pid] = max(self.peaks.get(pid, 0), int(line.split()[1]) * 1024)


def options(description: str, **defaults: int) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark. `defaults` become integer options."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--dir", type=Path, help="parent of the nodes' directories (default: the temporary directory)")
    for name, value in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value, help=f"default {value}")
    return parser


def add_bytecode(parser: argparse.ArgumentParser) -> None:
    """Add the option --no-bytecode."""
    parser.add_argument(
        "--no-bytecode",
        dest="bytecode",
        action="store_false",
        help=f"set {NO_BYTECODE} here and on the nodes, and run sources that were never compiled",
    )


def show(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table. The first two columns are aligned left, numbers right."""
    lines = [list(headings), *[list(row) for row in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    for line in lines:
        cells = (
            cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        print("  ".join(cells).rstrip(), flush=True)
    print()
