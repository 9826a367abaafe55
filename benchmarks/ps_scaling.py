"""Measure the cost of a dense step as bytes and trainers grow, and fit a line: t = a + b x bytes.

Each figure is compared with a bare pyzmq echo of the same bytes and number of processes. With more processes than
cores, the figures are limited by the cores, so the cost is also shown per trainer.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from functools import partial

import numpy as np

import ps_common as bench
import ps_dense

FRAME = 2**20
COLUMNS = ["ours", "bare echo", "ours / bare", "a trainer's CPU", "pservers' CPU for it"]


@dataclass(frozen=True)
class Cost:
    """Milliseconds per step, and CPU milliseconds per step: of each trainer, and of all pservers per trainer."""

    step: float
    trainer_cpu: float
    pserver_cpu: float


def cost(running: bench.Fleet, steps: int) -> Cost:
    step, count = statistics.median(running.steps(steps)), len(running.trainers)
    return Cost(1e3 * step, 1e3 * running.trainers_cpu_s / count, 1e3 * running.servers_cpu_s / count)


def ours(layout: bench.Layout, elements: int, steps: int) -> Cost:
    with bench.fleet(layout, ps_dense.__file__, elements=elements) as running:
        return cost(running, steps)


def bare(layout: bench.Layout, elements: int, steps: int) -> Cost:
    each = max(4, 4 * elements // layout.pservers)
    with bench.bare_fleet(layout, bytes=min(FRAME, each), count=max(1, each // FRAME), window=16) as running:
        return cost(running, steps)


def compare(layout: bench.Layout, elements: int, steps: int, given: argparse.Namespace) -> dict[str, list[Cost]]:
    contenders = {"ours": partial(ours, layout, elements, steps), "bare": partial(bare, layout, elements, steps)}
    return bench.contest(contenders, given.rounds)


def line(sizes: list[int], milliseconds: list[float]) -> tuple[float, float]:
    """Return `(a, b)` of t = a + b x bytes, by least squares of relative errors: ms, and ms per MB."""
    x, y = np.array(sizes) / 1e6, np.array(milliseconds)
    a, b = np.linalg.lstsq(np.stack([1 / y, x / y], axis=1), np.ones(len(y)), rcond=None)[0]
    return float(a), float(b)


def by_bytes(given: argparse.Namespace) -> None:
    """Measure one trainer with increasing bytes."""
    rows, medians, sizes = [], [], [int(float(word) * 1e6) for word in given.sizes.split(",")]
    for size in sizes:
        steps = given.steps * (1 if size > 1e6 else 20)
        figures = compare(bench.Layout(1, given.pservers, {"shm": given.shm}), size // 4, steps, given)
        medians.append(middle(figures["ours"], "step"))
        rows.append([f"{size / 1e6:g} MB", *cells(figures)])
    print(f"1 trainer, {given.pservers} pservers, shm {given.shm}: milliseconds per step")
    bench.show(["dense model", *COLUMNS], rows)
    fixed, each = line(sizes, medians)
    print(f"t = {fixed:.3g} ms + {each:.3g} ms per MB\n", flush=True)


def by_trainers(given: argparse.Namespace) -> None:
    """Measure increasing numbers of trainers with the same bytes."""
    rows = []
    for count in [int(word) for word in given.trainers.split(",")]:
        layout = bench.Layout(count, given.pservers, {"shm": given.shm})
        figures = compare(layout, int(given.megabytes * 1e6 / 4), given.steps, given)
        each = middle(figures["ours"], "step") / count
        rows.append([str(count), f"{each:.3g}", *cells(figures)])
    print(f"{given.megabytes:g} MB, {given.pservers} pservers, shm {given.shm}: milliseconds per step")
    bench.show(["trainers", "ours per trainer", *COLUMNS], rows)


def cells(figures: dict[str, list[Cost]]) -> list[str]:
    """Return the cells of a row: ours, the echo's, the ratio, and our CPU."""
    us, them = figures["ours"], figures["bare"]
    ratio = bench.ratio([each.step for each in us], [each.step for each in them])
    numbers = [middle(us, "step"), middle(them, "step"), ratio, middle(us, "trainer_cpu"), middle(us, "pserver_cpu")]
    return [f"{number:.3g}" for number in numbers]


def middle(costs: list[Cost], name: str) -> float:
    return float(statistics.median(getattr(each, name) for each in costs))


def main() -> None:
    parser = bench.options(__doc__.splitlines()[0], sizes="0.004,0.04,0.4,4,40,200", trainers="1,2,4,8")
    bench.more_options(parser, pservers=1, megabytes=16.0, rounds=5, steps=20, shm="off")
    given = parser.parse_args()
    by_bytes(given)
    by_trainers(given)


if __name__ == "__main__":
    main()
