"""Measure the parts of the way from `clusterctl start` to the first step of every trainer, on fake nodes.

The job has a pserver and a trainer per node, and one small table. `--detach` returns when all processes run; without
it, the command follows the run. The first start after a dispatch also tests the interpreter and compiles the runtime:
`--fresh` makes a new fake cluster for every round. `--against` is a command like CLUSTERCTL_PROGRAM; the programs
alternate. All nodes share this machine, so the times are those of its cores, and the CPU time is what a change saves.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from farm import options, program, run, scratch, show

PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
LIMIT_S = 600.0
TRAIN = """\
import time
marks = {}
def mark(name):
    marks[name] = [time.time(), time.process_time()]
mark("python")
import numpy, zmq
mark("numpy, pyzmq")
from clusterctl.runtime import SGD, connect
import clusterctl.runtime.connector, clusterctl.runtime.table.rules, clusterctl.runtime.trainer.zmq_link
mark("runtime")
with connect() as ps:
    mark("connect")
    w = ps.dense("w", shape=10, rule=SGD(0.1))
    mark("table")
    for _ in ps.steps(lambda pass_, rng: range(2), passes=1):
        ps.push({w: numpy.ones(10, numpy.float32)}, samples=1)
        mark("first step")
        import json, signal
        with open(f"{ps.output_dir}/marks", "w") as f:
            json.dump(marks, f)
        signal.pause()
"""
#: Marks of the trainers, in order.
MARKS = ("python", "numpy, pyzmq", "runtime", "connect", "table", "first step")
#: The last node of all is shown, relative to the command.
PARTS = ("prepared", "supervisors", "pservers spawned", "pservers ready", "trainers spawned", *MARKS)
ROLES = ("client", "SSH servers", "agents", "supervisors", "pservers", "trainers")


@dataclass(frozen=True)
class Figures:
    """Seconds until all nodes had passed each part, seconds of CPU by role, and those of a trainer by mark."""

    reached_s: dict[str, float]
    cpu_s: dict[str, float]
    trainer_cpu_s: dict[str, float]


@dataclass
class Site:
    """A fake cluster and its newest job, for one program."""

    command: tuple[str, ...]
    directory: Path
    server: int
    job: str = ""

    def environment(self) -> dict[str, str]:
        return _environment(self.directory)

    def files(self, name: str) -> list[Path]:
        return list(self.directory.glob(f"fake/nodes/node*/clusterctl/{self.job}/{name}"))

    def dispatch(self) -> None:
        """Dispatch a new job: the agents search for processes of earlier runs of a job."""
        run([*self.command, "dispatch", str(self.directory / "workspace")], self.environment())
        jobs = json.loads(run([*self.command, "jobs", "--json"], self.environment()).out)["jobs"]
        self.job = jobs[0]["job"]

    def start(self, nodes: int, *, detach: bool) -> Figures:
        """Start the job, wait for every trainer's first step, and stop it."""
        self.dispatch()
        before = _cpu_s(self.server)
        reaped = _reaped_s()
        began = time.time()
        argv = [*self.command, "start", "--quiet", *(["--detach"] if detach else []), "--job_workspace", self.job]
        with tempfile.TemporaryFile() as out:
            client = subprocess.Popen(
                argv, env=self.environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
            marks = self._await_marks(nodes, client)
            if detach:
                client.wait()
                if client.returncode:
                    out.seek(0)
                    raise RuntimeError(f"{shlex.join(argv)} exited with {client.returncode}: {out.read().decode()}")
            cpu_s = self._used_s(client, before, reaped, detach=detach)
            run([*self.command, "stop", self.job], self.environment())
            client.wait()
        reached = {**self._reached(), **{mark: max(one[mark][0] for one in marks) for mark in MARKS}}
        of_trainer = {mark: statistics.median(one[mark][1] for one in marks) for mark in MARKS}
        return Figures({name: t - began for name, t in reached.items()}, cpu_s, of_trainer)

    def _await_marks(self, nodes: int, client: subprocess.Popen[bytes]) -> list[dict[str, list[float]]]:
        deadline = time.monotonic() + LIMIT_S
        while len(found := self.files("output/marks")) < nodes:
            if time.monotonic() > deadline or client.poll():
                raise RuntimeError(f"{len(found)} of {nodes} trainers made a step; the client's state: {client.poll()}")
            time.sleep(0.02)
        time.sleep(0.1)  # the last one may be writing
        return [json.loads(path.read_text()) for path in found]

    def _reached(self) -> dict[str, float]:
        """Return the time of day at which the last node passed each part, by the events of the newest run."""
        last: dict[str, float] = {}
        for directory in (path.parent for path in self.files(".clusterctl/runs/*/spec.json")):
            times = {"prepared": json.loads((directory / "spec.json").read_text())["t"]}
            for event in map(json.loads, (directory / "events.jsonl").read_text().splitlines()):
                times.setdefault("supervisors", event["t"])
                if event["event"] in ("spawned", "ready") and "role" in event:
                    times.setdefault(f"{event['role']}s {event['event']}", event["t"])
            for name in PARTS:
                if name in times:
                    last[name] = max(times[name], last.get(name, 0.0))
        return last

    def _used_s(
        self, client: subprocess.Popen[bytes], before: tuple[float, float], reaped: float, *, detach: bool
    ) -> dict[str, float]:
        """Return the seconds of CPU so far, by role. Trainers and pservers still run."""
        used: Counter[str] = Counter()
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                with contextlib.suppress(OSError):
                    role = _role_of(process, self.directory, client.pid)
                    if role:
                        used[role] += _precise_s(process)
        for role, now, then in zip(("SSH servers", "agents"), _cpu_s(self.server), before, strict=True):
            used[role] = now - then
        if detach:
            used["client"] = _reaped_s() - reaped
        return dict(used)


def _role_of(process: Path, directory: Path, client: int) -> str | None:
    if process.name == str(client):
        return "client"
    words = (process / "cmdline").read_bytes().split(b"\0")
    if str(directory).encode() not in (process / "environ").read_bytes():
        return None
    if b"supervisor" in words:
        return "supervisors"
    if b"clusterctl.runtime.pserver" in words:
        return "pservers"
    return "trainers" if b"train.py" in words else None


def _precise_s(process: Path) -> float:
    """Return the CPU time of a process's threads."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in (process / "task").iterdir()) / 1e9


def _cpu_s(pid: int) -> tuple[float, float]:
    """Return the CPU time of a process, and of its reaped children."""
    ticks = list(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return sum(ticks[:2]) / os.sysconf("SC_CLK_TCK"), sum(ticks[2:]) / os.sysconf("SC_CLK_TCK")


def _reaped_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _environment(directory: Path) -> dict[str, str]:
    env = {**os.environ, "CLUSTERCTL_CONF": str(directory / "fake/conf.py"), "XDG_CACHE_HOME": str(directory / "cache")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program has cached bytecode
    return env


@contextlib.contextmanager
def site(command: Sequence[str], directory: Path, nodes: int) -> Iterator[Site]:
    """Start a fake cluster; stop it in the end."""
    (directory / "workspace").mkdir(parents=True)
    (directory / "workspace/train.py").write_text(TRAIN)
    fake = ["--dir", str(directory / "fake")]
    env = _environment(directory)
    run([*command, "fake", "up", "-n", str(nodes), *fake], env)
    try:
        server = json.loads(run([*command, "fake", "status", "--json", *fake], env).out)["pid"]
        yield Site(tuple(command), directory, server)
    finally:
        run([*command, "fake", "down", "--yes", *fake], env)
        shutil.rmtree(directory)


def rows(figures: dict[str, list[Figures]], part: str, names: Sequence[str], scale: float) -> list[list[str]]:
    """Return a row for each name with the median of each program, and the ratio of the last to the first."""
    made = []
    for name in names:
        values = [[getattr(one, part).get(name, 0.0) for one in of_one] for of_one in figures.values()]
        cells = [f"{scale * statistics.median(each):.{0 if scale > 1 else 2}f}" for each in values]
        ratios = [theirs / mine for mine, theirs in zip(values[0], values[-1], strict=True) if mine]
        made.append([name, "", *cells, f"{statistics.median(ratios):.2f}" if len(values) > 1 and ratios else ""])
    return made


def main() -> None:
    parser = options(__doc__, nodes=4, rounds=5)
    parser.add_argument("--against", help="another program to compare with")
    parser.add_argument("--detach", action="store_true", help="measure start --detach")
    parser.add_argument("--fresh", action="store_true", help="the first start after a dispatch")
    given = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    programs = {"ours": program(), **({"other": shlex.split(given.against)} if given.against else {})}
    figures: dict[str, list[Figures]] = {name: [] for name in programs}
    with scratch(given.dir) as top, contextlib.ExitStack() as stack:
        sites: dict[str, Site] = {}
        for turn in range(given.rounds):
            for name in programs if turn % 2 == 0 else reversed(programs):
                with contextlib.ExitStack() as round_:
                    if given.fresh or name not in sites:
                        owner = round_ if given.fresh else stack
                        sites[name] = owner.enter_context(site(programs[name], top / f"{name}-{turn}", given.nodes))
                    figures[name].append(sites[name].start(given.nodes, detach=given.detach))
    how = "detached" if given.detach else "attached"
    ratio = ["x of ours"] if given.against else [""]
    show([f"{given.nodes} nodes, {how}: s until", "", *programs, *ratio], rows(figures, "reached_s", PARTS, 1))
    for of_one in figures.values():
        for one in of_one:
            one.cpu_s["all"] = sum(one.cpu_s.values())
    show(["CPU ms until then", "", *programs, *ratio], rows(figures, "cpu_s", (*ROLES, "all"), 1e3))
    show(["CPU ms of a trainer until", "", *programs, *ratio], rows(figures, "trainer_cpu_s", MARKS, 1e3))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
