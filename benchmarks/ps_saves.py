"""Measure how long a lane does not answer while its tables are copied for a save: rows x 16 with Adagrad.

One trainer makes all rows and then saves, another pulls some rows again and again, and a third pushes a few. The
longest pull is the longest time for which the pserver did not answer; pushes wait until the copy is made.
"""

from __future__ import annotations

import argparse
import itertools
import select
import sys
import time
from typing import Any

import numpy as np

import ps_common as bench

FILL = 2**18
FEW = np.arange(64)


def trainer(given: dict[str, Any]) -> None:
    from clusterctl.runtime import Adagrad, connect

    rows, dim = given["rows"], given["dim"]
    with connect() as ps:
        emb = ps.embedding("e", dim=dim, rule=Adagrad(0.05))
        if ps.rank == 0:
            for at in ps.steps(lambda pass_, rng: range(0, rows, FILL), passes=1):
                ids = np.arange(at, min(at + FILL, rows))
                ps.push({emb: (ids, np.ones((len(ids), dim), np.float32))}, samples=1)
                if at + FILL >= rows:
                    save(ps)
        pulled = np.arange(given["pulled"])
        gradient = np.full((len(FEW), dim), 2.0**-10, np.float32)
        longest, count, at = 0.0, 0, time.perf_counter()
        bench.report(ready=True)
        for _ in ps.steps(lambda pass_, rng: itertools.count(), passes=1):
            if ps.rank == 1:
                emb.pull(pulled)
            else:
                ps.push({emb: (FEW, gradient)}, samples=1)
            now = time.perf_counter()
            longest, count, at = max(longest, now - at), count + 1, now
            if select.select([sys.stdin], [], [], 0)[0]:
                sys.stdin.readline()
                bench.report(longest_s=longest, count=count)
                longest, count, at = 0.0, 0, time.perf_counter()


def save(ps: Any) -> None:
    """Save whenever the harness asks for it, and report how long it took."""
    bench.report(ready=True)
    for number in itertools.count():
        sys.stdin.readline()
        began = time.perf_counter()
        ps.save(f"save-{number}")
        bench.report(save_s=time.perf_counter() - began)


def measure(given: argparse.Namespace, rows: int) -> list[str]:
    """Return the table's row for a number of rows."""
    layout = bench.Layout(3, 1, {"mode": "async", "shm": "off", "ports_num": 1})
    with bench.fleet(layout, __file__, rows=rows, dim=given.dim, pulled=given.pulled) as running:
        running.wait()
        server, (saver, *others) = running.servers[0], running.trainers
        figures = []
        for _ in range(given.rounds):
            for other in others:
                other.send("")
                other.receive()
            saver.send("")
            taken = saver.receive()["save_s"]
            for other in others:
                other.send("")
            figures.append([taken, *(other.receive()["longest_s"] for other in others)])
        rss = server.rss
    cells = [cell for column in zip(*figures, strict=True) for cell in bench.spread(column, 1e3)]
    return [f"{rows:,}", *cells, f"{rss / 1e9:.1f}"]


def main() -> None:
    parser = bench.options(__doc__.splitlines()[0], rows="1000000,5000000,20000000", dim=16, pulled=64, rounds=3)
    given = parser.parse_args()
    headings = ["rows", "save, ms", "range", "longest pull, ms", "range", "longest push, ms", "range", "GB afterwards"]
    bench.show(headings, [measure(given, int(rows)) for rows in given.rows.split(",")])


if __name__ == "__main__":
    bench.run(main, trainer)
