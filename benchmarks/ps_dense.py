"""Compare a dense model's step, push + update + pull, with a bare pyzmq echo of the same bytes and process count.

GB/s counts the bytes that all trainers send and receive: 2 x trainers x bytes / step. The third contender is a minimal
parameter server on pyzmq, without merging, checking or remembering anything: the server updates each part on arrival
and returns it, and the trainer copies it into place. `--shm auto` lets the runtime use shared memory, as it does by
default on one host, `--streams off` leaves all messages to ZeroMQ; the others always use ZeroMQ over TCP. Our values
are checked against the rule's exact result.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import ps_common as bench

RATE = 2.0**-20
HEADINGS = ["trainers x pservers", "ours", "range", "echo", "range", "least", "range", "ours / echo", "ours / least"]


def trainer(given: dict[str, Any]) -> None:
    from clusterctl.runtime import SGD, connect

    gradient = np.ones(given["elements"], np.float32)
    watch = bench.Stopwatch()
    with connect() as ps:
        w = ps.dense("w", shape=len(gradient), rule=SGD(RATE))
        assert w.value[-1] == 0  # its first use makes a table
        watch.tick()
        for _ in ps.steps(lambda pass_, rng: itertools.count(), passes=1):
            ps.push({w: gradient}, samples=1)
            # After step s each value is exactly -s * RATE. Checking all of them would add to the cost.
            ends = w.value[:: max(1, len(gradient) // 64)]
            if not (ends == -ps.step * np.float32(RATE)).all():
                raise SystemExit(f"step {ps.step}: {ends}")
            watch.tick()


@dataclass(frozen=True)
class Round:
    """GB/s of one round, and CPU milliseconds per step of all processes, which a busy machine hardly changes."""

    rate: float
    cpu_ms: float


def ours(layout: bench.Layout, elements: int, steps: int) -> Round:
    with bench.fleet(layout, __file__, elements=elements) as running:
        return measure(running, 4 * elements, steps)


def bare(layout: bench.Layout, elements: int, steps: int, frame: int, window: int, model: bool = False) -> Round:
    each = 4 * elements // layout.pservers
    size, count = min(frame, each), max(1, each // frame)
    with bench.bare_fleet(layout, bytes=size, count=count, window=window, model=model) as running:
        return measure(running, count * size * layout.pservers, steps)


def measure(running: bench.Fleet, size: int, steps: int) -> Round:
    seconds = statistics.median(running.steps(steps))
    cpu_s = running.servers_cpu_s + running.trainers_cpu_s
    return Round(2 * len(running.trainers) * size / seconds / 1e9, 1e3 * cpu_s)


def tune(layout: bench.Layout, elements: int, steps: int) -> tuple[int, int]:
    """Return the frame size in bytes and the window with which the echo is fastest here."""
    rates: dict[tuple[int, int], float] = {}
    for frame, window in itertools.product((2**18, 2**20, 2**22, 2**24), (4, 16, 0)):
        rates[frame, window] = statistics.median(bare(layout, elements, steps, frame, window).rate for _ in range(3))
        print(f"echo of {describe(frame, window)}: {rates[frame, window]:.2f} GB/s", flush=True)
    return max(rates, key=rates.__getitem__)


def describe(frame: int, window: int) -> str:
    return f"{frame >> 10} KB, {window or 'all'} in flight"


def row(layout: bench.Layout, given: argparse.Namespace) -> list[str]:
    """Return the table's row for one layout."""
    elements = int(given.megabytes * 1e6 / 4)
    frame, window = tune(layout, elements, given.steps) if given.tune else (given.frame, given.window)
    contenders = {
        "ours": partial(ours, layout, elements, given.steps),
        "bare": partial(bare, layout, elements, given.steps, frame, window),
        "least": partial(bare, layout, elements, given.steps, frame, window, model=True),
    }
    if given.compare_streams:
        spec = {**layout.spec, "streams": "off"}
        contenders["bare"] = partial(ours, bench.Layout(layout.trainers, layout.pservers, spec), elements, given.steps)
    figures = bench.contest(contenders, given.rounds)
    us, echo, least = ([each.rate for each in figures[name]] for name in contenders)
    cpu = [f"{statistics.median(each.cpu_ms for each in figures[name]):.0f}" for name in contenders]
    ratios = [f"{bench.ratio(us, them):.2f}" for them in (echo, least)]
    return [str(layout), *bench.spread(us), *bench.spread(echo), *bench.spread(least), *ratios, " / ".join(cpu)]


def main() -> None:
    parser = bench.options(__doc__.splitlines()[0], layouts="1x1,1x2,2x2", megabytes=100.0, rounds=5, steps=8)
    bench.more_options(parser, security="none", shm="off", streams="auto", ports=1, frame=2**20, window=4)
    parser.add_argument("--tune", action="store_true", help="first look for the echo's best frame size and window")
    parser.add_argument("--compare-streams", action="store_true", help="the same without streams instead of the echo")
    given = parser.parse_args()
    spec = {"security": given.security, "shm": given.shm, "ports_num": given.ports, "streams": given.streams}
    rows = [row(layout, given) for layout in bench.layouts(given.layouts, **spec)]
    what = f"{given.megabytes:g} MB, security {given.security}, shm {given.shm}, streams {given.streams}"
    print(f"{what}, {given.ports} ports, {given.rounds} rounds of {given.steps} steps: GB/s")
    headings = [name.replace("echo", "without streams") if given.compare_streams else name for name in HEADINGS]
    bench.show([*headings, "CPU ms per step"], rows)


if __name__ == "__main__":
    bench.run(main, trainer)
