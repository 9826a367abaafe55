"""Measure look-ups per second in 10 M rows x 16 with Adagrad: pull, push and update of 4,096 x 26 Zipf(1.2) ids.

Every row is created before the clock starts, so the table has its full size; then the memory of the pservers is read.
The reference is bare pyzmq messages of the same bytes: distinct ids sent, their rows returned, ids and rows sent,
nothing returned. The runs with and without prefetch stay up and alternate.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import ps_common as bench

IDS = 4_096 * 26
FILL = 2**19
SPREAD = 2_654_435_761  # odd, and coprime to every number of rows used here: spreads frequent ids over the table


def zipf(rows: int, exponent: float, rng: np.random.Generator, batches: int) -> list[np.ndarray[Any, Any]]:
    """Return batches of IDS ids from 0..rows-1, where the frequency of the k-th most frequent is k ** -exponent."""
    cumulated = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -exponent)
    drawn = np.searchsorted(cumulated, rng.random((batches, IDS)) * cumulated[-1])
    return list((drawn * SPREAD % rows).astype(np.int64).reshape(batches, 4_096, 26))


def trainer(given: dict[str, Any]) -> None:
    from clusterctl.runtime import Adagrad, connect

    rows, dim = given["rows"], given["dim"]
    fill = [np.arange(at, min(at + FILL, rows)) for at in range(0, rows, FILL)]
    watch = bench.Stopwatch()
    with connect() as ps:
        emb = ps.embedding("e", dim=dim, rule=Adagrad(0.05), rows=None if given["unbounded"] else rows)
        batches = zipf(rows, given["zipf"], np.random.default_rng(ps.rank), given["batches"])
        gradient = np.full((*batches[0].shape, dim), 2.0**-10, np.float32)
        feed = itertools.chain(fill, itertools.cycle(batches))
        early = {"prefetch": given["prefetch"], "ids": {emb: lambda ids: ids}} if given["prefetch"] else {}
        for number, ids in enumerate(ps.steps(lambda pass_, rng: feed, passes=1, **early)):
            if number < len(fill):
                ps.push({emb: (ids, np.zeros((len(ids), dim), np.float32))}, samples=1)
                continue
            if number == len(fill):
                bench.report(distinct=statistics.mean(len(np.unique(batch)) for batch in batches))
                watch.tick()
            if emb.pull(ids).shape != gradient.shape:
                raise SystemExit("the pulled rows have the wrong shape")
            ps.push({emb: (ids, gradient)}, samples=len(ids))
            watch.tick()


@dataclass
class Run:
    """A running fleet with a full table."""

    running: bench.Fleet
    bytes_per_row: float
    distinct: int

    cpu_s: list[tuple[float, float]] = field(default_factory=list)

    def rate(self, steps: int) -> float:
        measured = rate(self.running, steps)
        self.cpu_s.append((self.running.trainers_cpu_s, self.running.servers_cpu_s))
        return measured

    def cpu_ns(self) -> list[str]:
        """Return CPU nanoseconds per look-up, of trainers and of pservers."""
        lookups = len(self.running.trainers) * IDS
        return [f"{1e9 * statistics.median(column) / lookups:.0f}" for column in zip(*self.cpu_s, strict=True)]


def begin(stack: contextlib.ExitStack, layout: bench.Layout, given: argparse.Namespace, prefetch: int) -> Run:
    facts = {name: getattr(given, name) for name in ("rows", "dim", "zipf", "batches", "unbounded")}
    running = stack.enter_context(bench.fleet(layout, __file__, prefetch=prefetch, **facts))
    empty = sum(server.rss for server in running.servers)
    reports = [trainer.receive() for trainer in running.trainers]
    running.wait()
    full = sum(server.rss for server in running.servers)
    return Run(running, (full - empty) / given.rows, int(reports[0]["distinct"]))


def rate(running: bench.Fleet, steps: int) -> float:
    """Return millions of look-ups per second of all trainers."""
    return len(running.trainers) * IDS / statistics.median(running.steps(steps)) / 1e6


def bare(layout: bench.Layout, distinct: int, dim: int, steps: int) -> float:
    each, row = distinct // layout.pservers, 4 * dim
    with bench.bare_fleet(layout, bytes=each * (8 + 8 + row), reply=each * row, count=1) as running:
        return rate(running, steps)


def compare(layout: bench.Layout, given: argparse.Namespace) -> list[list[str]]:
    """Return the table's rows for one layout."""
    with contextlib.ExitStack() as stack:
        runs = {n: begin(stack, layout, given, n) for n in sorted({0, given.prefetch})}
        contenders: dict[str, bench.Contender] = {str(n): partial(run.rate, given.steps) for n, run in runs.items()}
        contenders["bare"] = partial(bare, layout, runs[0].distinct, given.dim, given.steps)
        figures = bench.contest(contenders, given.rounds)
    rows = []
    for n, run in runs.items():
        mine, them = figures[str(n)], figures["bare"]
        cells = [*bench.spread(mine), *bench.spread(them), f"{bench.ratio(mine, them):.2f}", *run.cpu_ns()]
        rows.append([f"{layout}, prefetch {n}", *cells, f"{run.bytes_per_row:.0f}", str(run.distinct)])
    return rows


def main() -> None:
    parser = bench.options(__doc__.splitlines()[0], layouts="1x1,2x2", rows=10_000_000, dim=16, zipf=1.2, batches=32)
    bench.more_options(parser, rounds=5, steps=20, prefetch=2, mode="sync", security="none", shm="off", ports=1)
    parser.add_argument("--unbounded", action="store_true", help="any int64 id, instead of 0..rows-1")
    given = parser.parse_args()
    spec = {"mode": given.mode, "security": given.security, "shm": given.shm, "ports_num_for_sparse": given.ports}
    rows = [row for layout in bench.layouts(given.layouts, **spec) for row in compare(layout, given)]
    table = f"{given.rows:,} rows x {given.dim}, {'unbounded' if given.unbounded else 'bounded'}, {given.mode}"
    print(f"{table}, security {given.security}, shm {given.shm}, {given.ports} ports: millions of look-ups per second")
    headings = ["trainers x pservers", "ours", "range", "bare messages", "range", "ours / bare", "trainer's CPU ns"]
    bench.show([*headings, "pserver's CPU ns", "pserver's bytes per row", "distinct ids per batch"], rows)


if __name__ == "__main__":
    bench.run(main, trainer)
