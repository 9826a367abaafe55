"""Measure when a cluster pays: one process against fake nodes that share its machine, and the overhead of a step.

    python benchmarks/one_or_many.py
    python benchmarks/one_or_many.py demo --rounds 3

`demo`: the language model of `clusterctl demo`, trained by `python train.py` alone, and by `clusterctl start` on 2 and
4 fake nodes, with the same text and the same number of passes. A run of few passes and one of many give the seconds of
a pass and those of everything else: start, dispatch, saves. Alone, numpy may use all cores. CPU time is that of all
processes on all nodes, and of the command; it also counts on a busy machine.

`steps`: a sync step of a model of so many megabytes, with work that takes a given time in one process and is divided
among the trainers. Alone, the server is in the trainer's process; two machines are 2 trainers and 2 pservers over TCP
with encryption, as by default, but all on this machine, without a network. The work is a wait, as if each trainer had
cores of its own; with `--work burn` it computes, on the cores that all share. A step takes l + w alone and o + w / 2 on
two machines, so two of them are faster from w = 2 (o - l). Predictions from w = 0 are shown beside measurements.

Contenders alternate, in fresh processes each time. Figures are medians, ratios are medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import json
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import ps_common as bench

NODES = (2, 4)
RATE = 2.0**-20
PROGRAM = (sys.executable, "-m", "clusterctl")
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
PERPLEXITY = re.compile(r"held-out perplexity ([\d.]+)")


# The demo's model


@dataclass(frozen=True)
class Spent:
    """The wall time of a training, from the command to its end, and its CPU time on all nodes."""

    seconds: float
    cpu_s: float


@dataclass(frozen=True)
class Site:
    """A workspace with the text, and the fake cluster that trains on it; without one, the workspace is run here."""

    directory: Path
    nodes: int

    @property
    def name(self) -> str:
        return f"{self.nodes} fake nodes" if self.nodes else "one process"

    def train(self, passes: int) -> Spent:
        began, cpu_s = time.perf_counter(), self.cpu_s()
        given = f"--num_passes={passes}"
        if self.nodes:
            self.run(*PROGRAM, "start", "workspace", "--quiet", "--", given)
        else:
            self.run(sys.executable, "workspace/train.py", given)
        seconds = time.perf_counter() - began
        return Spent(seconds, self.cpu_s() - cpu_s)

    def cpu_s(self) -> float:
        """Return the CPU seconds of all children so far, and of the fake cluster with its children.

        Supervisors become children of this process, which is a reaper, when the agent that started them has ended.
        """
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        ticks = 0
        if self.nodes:
            server = json.loads(self.run(*PROGRAM, "fake", "status", "--json"))["pid"]
            ticks = sum(map(int, Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[11:15]))
        return used.ru_utime + used.ru_stime + ticks / os.sysconf("SC_CLK_TCK")

    def run(self, *argv: str) -> str:
        env = {name: value for name, value in os.environ.items() if not name.startswith("CLUSTERCTL_")}
        env |= {"CLUSTERCTL_CONF": "fake/conf.py", "HOME": str(self.directory)}
        done = subprocess.run(argv, cwd=self.directory, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(argv)} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def perplexity(self, passes: int) -> float:
        """Return the held-out perplexity after so many passes, of trainer 0's text on a cluster."""
        given = f"--num_passes={passes}"
        if not self.nodes:
            return float(PERPLEXITY.findall(self.run(sys.executable, "workspace/train.py", given))[-1])
        self.run(*PROGRAM, "start", "workspace", "--quiet", "--", given)
        logs = self.run(*PROGRAM, "logs", "--role", "trainer", "--grep", f"pass {passes - 1}: held-out")
        return statistics.geometric_mean(map(float, PERPLEXITY.findall(logs)))


@contextlib.contextmanager
def site(top: Path, nodes: int) -> Iterator[Site]:
    made = Site(top / f"nodes{nodes}", nodes)
    made.directory.mkdir()
    made.run(*PROGRAM, "init", ".")
    made.run(sys.executable, "workspace/prepare_data.py", "--shards", str(max(1, nodes)))
    if nodes:
        made.run(*PROGRAM, "fake", "up", "-n", str(nodes))
    try:
        yield made
    finally:
        if nodes:
            made.run(*PROGRAM, "fake", "down")


def demo(given: argparse.Namespace) -> None:
    few, many = given.few, given.many
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with contextlib.ExitStack() as stack:
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clusterctl-bench-")))
        sites = [stack.enter_context(site(top, nodes)) for nodes in (0, *NODES)]
        contenders = {(one.name, passes): partial(one.train, passes) for one in sites for passes in (few, many)}
        spent = bench.contest(contenders, given.rounds)
        perplexities = {one.name: one.perplexity(many) for one in sites}
    seconds = {key: [one.seconds for one in figures] for key, figures in spent.items()}
    cpu = {key: [one.cpu_s for one in figures] for key, figures in spent.items()}
    rows = []
    for name, perplexity in perplexities.items():
        each = [(b - a) / (many - few) for a, b in zip(seconds[name, few], seconds[name, many], strict=True)]
        rest = [a - few * of_pass for a, of_pass in zip(seconds[name, few], each, strict=True)]
        cells = [*bench.spread(seconds[name, many]), bench.spread(each)[0], bench.spread(rest)[0]]
        for figures in (seconds, cpu):
            cells.append(f"{bench.ratio(figures[name, many], figures[sites[0].name, many]):.2f}")
        cells.insert(-1, bench.spread(cpu[name, many])[0])
        rows.append([name, *cells, f"{perplexity:.1f}"])
    relative = "relative to one process"
    headings = ["", f"{many} passes, s", "range", "a pass, s", "the rest, s", relative, "CPU s", relative, "perplexity"]
    print(f"{os.cpu_count()} cores, {given.rounds} rounds")
    bench.show(headings, rows)


# Steps


def trainer(given: dict[str, Any]) -> None:
    from clusterctl.runtime import SGD, connect

    gradient = np.ones(int(given["megabytes"] * 1e6) // 4, np.float32)
    watch = bench.Stopwatch()
    with connect() as ps:
        w = ps.dense("w", shape=len(gradient), rule=SGD(RATE))
        assert w.value[-1] == 0  # its first use makes a table
        watch.tick()
        for _ in ps.steps(lambda pass_, rng: itertools.count(), passes=1):
            WORK[given["work"]](given["work_ms"] / 1e3 / ps.trainers)
            ps.push({w: gradient}, samples=1)
            watch.tick()


def burn(cpu_s: float) -> None:
    """Compute for so many seconds of CPU time of this thread."""
    end, numbers = time.thread_time() + cpu_s, np.ones(1000, np.float32)
    while time.thread_time() < end:
        numbers *= 1.0


WORK = {"wait": time.sleep, "burn": burn}


def step_ms(machines: int, count: int, **given: Any) -> float:
    """Return the median milliseconds of a step in one round."""
    layout = bench.Layout(machines, machines, {"security": "curve", "shm": "off"})
    own = [str(Path(__file__).resolve()), "trainer", json.dumps(given)]
    with bench.alone(own) if machines == 1 else bench.fleet(layout, __file__, **given) as running:
        return 1e3 * statistics.median(running.steps(count))


def steps(given: argparse.Namespace) -> None:
    rows, checks = [], []
    for megabytes in numbers(given.megabytes):
        works = [0.0, *numbers(given.work_ms)]
        contenders = {
            (machines, work): partial(
                step_ms, machines, given.steps, megabytes=megabytes, work_ms=work, work=given.work
            )
            for machines in (1, 2)
            for work in works
        }
        figures = bench.contest(contenders, given.rounds)
        alone, two = (statistics.median(figures[machines, 0.0]) for machines in (1, 2))
        least = statistics.median(2 * (o - own) for own, o in zip(figures[1, 0.0], figures[2, 0.0], strict=True))
        cells = [*bench.spread(figures[1, 0.0]), *bench.spread(figures[2, 0.0])]
        rows.append([f"{megabytes:g} MB", *cells, f"{least:.3g}"])
        for work in works[1:]:
            measured = bench.ratio(figures[1, work], figures[2, work])
            predicted = (alone + work) / (two + work / 2)
            checks.append([f"{megabytes:g} MB", f"{work:g}", f"{measured:.2f}", f"{predicted:.2f}"])
    print(f"{os.cpu_count()} cores, {given.rounds} rounds of {given.steps} steps")
    bench.show(["model", "one process: l, ms", "range", "two machines: o, ms", "range", "2 (o - l), ms"], rows)
    bench.show(["model", "work of a step, ms", "two machines are faster by", "predicted"], checks)


def numbers(text: str) -> list[float]:
    return [float(word) for word in text.split(",")]


MEASUREMENTS = {"demo": demo, "steps": steps}


def main(argv: Sequence[str] | None = None) -> None:
    parser = bench.options(__doc__.partition("\n")[0], rounds=5, few=2, many=12, steps=40)
    bench.more_options(parser, megabytes="0.004,1,10", work_ms="10,40,160", work="wait")
    parser.add_argument("which", nargs="*", help="demo, steps; default both")
    given = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that fake clusters are removed
    for name in given.which or MEASUREMENTS:
        MEASUREMENTS[name](given)


if __name__ == "__main__":
    bench.run(main, trainer)
