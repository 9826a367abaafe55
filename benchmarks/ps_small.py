"""Compare a 1 KB push with a real update to a bare pyzmq round trip of 1 KB: microseconds, p50, p99 and CPU.

CPU is that of all processes per step. A busy machine changes it less than the times. `--streams off` leaves all
messages to ZeroMQ, and `--compare-streams` measures both instead of the bare round trip.
"""

from __future__ import annotations

import argparse
import itertools
from functools import partial
from typing import Any

import numpy as np

import ps_common as bench

RATE = 2.0**-20


def trainer(given: dict[str, Any]) -> None:
    from clusterctl.runtime import SGD, connect

    gradient = np.ones(given["bytes"] // 4, np.float32)
    watch = bench.Stopwatch()
    with connect() as ps:
        w = ps.dense("w", shape=len(gradient), rule=SGD(RATE))
        assert w.value[-1] == 0  # its first use makes a table
        watch.tick()
        for _ in ps.steps(lambda pass_, rng: itertools.count(), passes=1):
            ps.push({w: gradient}, samples=1)
            if w.value[-1] != -ps.step * np.float32(RATE):
                raise SystemExit(f"step {ps.step}: {w.value[-1]}")
            watch.tick()


Tail = tuple[float, float, float]


def measure(running: bench.Fleet, steps: int) -> Tail:
    """Return p50, p99 and CPU of the steps of one round, in microseconds."""
    seconds = running.steps(steps, skip=50)
    cpu_s = running.servers_cpu_s + running.trainers_cpu_s
    return 1e6 * bench.percentile(seconds, 50), 1e6 * bench.percentile(seconds, 99), 1e6 * cpu_s


def ours(layout: bench.Layout, size: int, steps: int) -> Tail:
    with bench.fleet(layout, __file__, bytes=size) as running:
        return measure(running, steps)


def bare(layout: bench.Layout, size: int, steps: int, barrier: bool) -> Tail:
    with bench.bare_fleet(layout, bytes=size, count=1, barrier=barrier) as running:
        return measure(running, steps)


def compare(given: argparse.Namespace, size: int, barrier: bool) -> list[list[str]]:
    """Return the table's rows: p50, p99 and CPU of each layout."""
    rows = []
    spec = {"security": given.security, "shm": given.shm, "streams": given.streams}
    for layout in bench.layouts(given.layouts, **spec):
        contenders = {
            "ours": partial(ours, layout, size, given.steps),
            "bare": partial(bare, layout, size, given.steps, barrier),
        }
        if given.compare_streams:
            [without] = bench.layouts(str(layout), **{**spec, "streams": "off"})
            contenders["bare"] = partial(ours, without, size, given.steps)
        figures = bench.contest(contenders, given.rounds)
        for at, name in enumerate(("p50", "p99", "CPU")):
            us, them = ([figure[at] for figure in figures[contender]] for contender in ("ours", "bare"))
            rows.append([f"{layout}, {name}", *bench.spread(us), *bench.spread(them), f"{bench.ratio(us, them):.2f}"])
    where = f"security {given.security}, shm {given.shm}, streams {given.streams}"
    print(f"{where}, {given.rounds} rounds of {given.steps} steps: microseconds")
    return rows


def main() -> None:
    parser = bench.options(__doc__.splitlines()[0], layouts="1x1", bytes=1024, rounds=7, steps=3000)
    bench.more_options(parser, security="none", shm="off", streams="auto")
    parser.add_argument("--compare-streams", action="store_true", help="compare with the same without streams")
    given = parser.parse_args()
    rows = compare(given, given.bytes, barrier=False)
    bench.show([f"push of {given.bytes} bytes", *headings(given, "bare round trip")], rows)


def headings(given: argparse.Namespace, bare: str) -> list[str]:
    other = "without streams" if given.compare_streams else bare
    return ["ours", "range", other, "range", f"ours / {other}"]


if __name__ == "__main__":
    bench.run(main, trainer)
