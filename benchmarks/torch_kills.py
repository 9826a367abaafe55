"""Kill a random trainer or pserver every two minutes while a torch model is trained; compare with an undisturbed run.

The workspace of `init --template torch` runs twice on a fake cluster, each node with a trainer and a pserver. In the
second run, processes that are drawn from the seed get SIGKILL. Reports if both models have the same bits, the seconds
lost per kill by cause, and the ratio of the two times. Needs torch.

    python benchmarks/torch_kills.py --passes 24
    python benchmarks/torch_kills.py --passes 2 --every-s 20 --save-every "20 steps" -- --depth 1

Arguments after `--` go to train.py, such as `--outer 50`. The loss of time is the time from a kill to the next one, or
to the end, less the time that the undisturbed run took for the same steps.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from clusterctl import fake
from clusterctl.runtime import load_model
from clusterctl.templates import copy_workspace
from ps_common import options, show

PROGRAM = [sys.executable, "-m", "clusterctl"]
RUN = "0001"


@dataclass(frozen=True)
class Kill:
    at: float
    role: str
    rank: int


@dataclass(frozen=True)
class Ended:
    """A run that has ended: its kills, the steps of its trainers by time, and the bits of its model's tables."""

    began: float
    ended: float
    kills: list[Kill]
    steps: list[tuple[float, int]]
    model: dict[str, bytes]

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    def step_at(self, t: float) -> float:
        """Return the step of the trainers at a time, between two reports by interpolation."""
        times, steps = zip(*self.steps, strict=True)
        return float(np.interp(t, times, steps))


@dataclass
class Killer:
    """A thread that kills processes of a fake cluster below `directory`, drawn from the seed."""

    directory: Path
    chance: random.Random
    given: argparse.Namespace
    most: int
    kills: list[Kill] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while len(self.kills) < self.most and not self._over.wait(self.given.every_s):
            role, rank = self.chance.choice(self.given.roles), self.chance.randrange(self.given.nodes)
            while not self._over.is_set():
                pid = self._find(role, rank)
                if pid is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        self.kills.append(Kill(time.time(), role, rank))
                        print(f"killed {role}{rank}", flush=True)
                        break
                self._over.wait(0.1)  # it is being restarted

    def _find(self, role: str, rank: int) -> int | None:
        """Return the pid of a process of the run. Its children have its environment too, and later pids."""
        wanted = {f"CLUSTERCTL_ROLE={role}".encode(), f"CLUSTERCTL_RANK={rank}".encode()}
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit():
                    words = (entry / "environ").read_bytes()
                    if str(self.directory).encode() in words and wanted <= {*words.split(b"\0")}:
                        found.append(int(entry.name))
        return min(found, default=None)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()


@dataclass(frozen=True)
class Bench:
    directory: Path
    conf: Path
    given: argparse.Namespace

    def train(self, name: str, kills: int) -> Ended:
        """Run the workspace to its end. Raises SystemExit if it fails."""
        given = self.given
        killer = Killer(self.directory, random.Random(given.seed), given, kills)
        package = ["--job_dispatch_package", str(self.directory / "workspace")]
        began = time.time()
        with killer.at_work():
            lines = self.clusterctl("start", *package, "--json", "--", "--passes", str(given.passes), *given.more)
        ended = time.time()
        job = json.loads(lines.splitlines()[-1])["job"]
        home = self.directory / f"home-{name}"
        self.clusterctl("collect", job, "-o", str(home))
        model = load_model(home / "model/model.safetensors")  # its file also names the job
        bits = {name: value.tobytes() for name, value in model.items()}
        return Ended(began, ended, killer.kills, self._steps(job), bits)

    def keep(self) -> None:
        if self.given.keep is not None:
            shutil.copytree(self.directory, self.given.keep, symlinks=True, ignore=shutil.ignore_patterns("control"))

    def _steps(self, job: str) -> list[tuple[float, int]]:
        """Return the steps that the trainers have reported, by time."""
        logs = self.directory.glob(f"fake/nodes/*/clusterctl/{job}/.clusterctl/runs/{RUN}/events.jsonl")
        events = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
        own = [event for event in events if event["event"] == "step" and event.get("role") == "trainer"]
        return sorted((float(event["t"]), int(event["step"])) for event in own if event.get("step") is not None)

    def clusterctl(self, *argv: str) -> str:
        env = {**os.environ, "CLUSTERCTL_CONF": str(self.conf), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*PROGRAM, *argv], cwd=self.directory, env=env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            self.keep()
            raise SystemExit(f"clusterctl {' '.join(argv)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
        return done.stdout


def lost_s(run: Ended, plain: Ended) -> list[tuple[Kill, float]]:
    """Return the seconds that each kill took from the run."""
    (first, step0), (last, step1) = plain.steps[0], plain.steps[-1]
    seconds_per_step = (last - first) / max(step1 - step0, 1)
    ends = [*(kill.at for kill in run.kills), run.steps[-1][0]][1:]
    return [
        (kill, end - kill.at - (run.step_at(end) - run.step_at(kill.at)) * seconds_per_step)
        for kill, end in zip(run.kills, ends, strict=True)
    ]


@contextlib.contextmanager
def bench(given: argparse.Namespace) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="clusterctl-bench-") as scratch:
        directory = Path(scratch)
        copy_workspace(directory / "workspace", "torch")
        subprocess.run([sys.executable, "prepare_data.py"], cwd=directory / "workspace", check=True)
        with fake.up(directory / "fake", given.nodes, lifeline=True) as cluster:
            conf = directory / "conf.py"
            settings = {"PYTHON": sys.executable, "SEED": given.seed, "SAVE_EVERY": given.save_every, "RESTARTS": 1000}
            settings |= {"SAVE_MODEL_EVERY": None}
            lines = [f"{name} = {value!r}\n" for name, value in settings.items()]
            conf.write_text(cluster.conf.read_text() + "".join(lines))
            yield Bench(directory, conf, given)


def read_options() -> argparse.Namespace:
    parser = options(__doc__.partition("\n")[0], passes=24, nodes=4, every_s=120.0, kills=10, seed=1)
    parser.add_argument("--save-every", default="15 s", help="SAVE_EVERY of the run (default 15 s)")
    parser.add_argument("--roles", nargs="+", default=["trainer", "pserver"], help="what to kill (default both)")
    parser.add_argument("--keep", type=Path, help="where to copy everything if a run fails or gives other bits")
    parser.add_argument("more", nargs="*", help="arguments for train.py, after --")
    return parser.parse_args()


def main() -> None:
    given = read_options()
    with bench(given) as made:
        plain = made.train("plain", 0)
        print(f"undisturbed: {plain.seconds:.0f} s, {plain.steps[-1][1]:,} steps", flush=True)
        run = made.train("killed", given.kills)
        if run.model != plain.model:
            made.keep()
    print(f"with {len(run.kills)} kills: {run.seconds:.0f} s, {run.seconds / plain.seconds:.2f} times as long")
    print("the same bits" if run.model == plain.model else "OTHER BITS")
    losses = lost_s(run, plain)
    rows = []
    for role in ("trainer", "pserver"):
        seconds = [lost for kill, lost in losses if kill.role == role]
        if seconds:
            rows.append(
                [role, f"{len(seconds)}", f"{statistics.median(seconds):.1f}", f"{min(seconds):.1f}-{max(seconds):.1f}"]
            )
    show(["killed", "times", "median s lost", "min-max"], rows)
    if run.model != plain.model:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
