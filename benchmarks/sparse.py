"""Measure embeddings without a network: the time one lane of a pserver and one trainer spend on a batch of Zipf ids.

The table is filled first, in a separate process. Its memory is the growth of that process, at the end and at the peak
(the kernel's high-water mark, which includes the current batch). Then every operation alternates with a reference in
plain numpy. Times are median CPU times of the single working thread, so that other programs have less influence.

These experiments did not help (2 cores, AMD EPYC, numpy 2.4) and need not be repeated:
- grouping by sorting: `np.sort` of the 106,496 ids alone takes 2.8 ms, `np.unique` with its inverse 6 to 14 (numpy's
  AVX-512 sorting is slow on Zen 4: `np.argsort` of 17,199 ids takes 0.73 ms, by 16-bit digits 0.25);
- `np.add.reduceat` for the sums: it adds pairwise, not in order; `np.add.at` on two dimensions has no fast path
  (17 ms), on a flat index 5.9 (as complex 3.8), column by column 2.9, column by column as complex 1.6;
- values and state adjacent in one array: `np.take` first copies a strided table completely;
- int32 positions from the index: numpy converts them to int64 before each take;
- `np.put` for the cells of the hash: three times slower than fancy assignment for 4 bytes; for rows as single items
  it is twice as fast;
- for the sums, contiguous columns of the sums or of the gradients: transposing costs as much as it saves; the most
  frequent id alone (a fifth of all rows) through `np.einsum`, which also adds in order: its take cancels the gain;
- fewer cells, or int32 cells, for grouping: the same time, and more if all ids are distinct;
- chunks of an update other than 65,536 elements, from 16,384 to 262,144: within 3%;
- keeping the positions of the last pull for the push that follows: 0.1 to 0.4 ms of 2, not worth the invalidation;
- unions of several trainers' ids by hashing: sorted runs merge in 0.05 ms.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np

from clusterctl.runtime.store.sparse import SparseGrad, SparseTable
from clusterctl.runtime.table.initializers import uniform
from clusterctl.runtime.table.retention import Retention
from clusterctl.runtime.table.rules import Adagrad
from clusterctl.runtime.table.spec import TableSpec
from clusterctl.runtime.trainer.ids import group

IDS = 4_096 * 26
FILL = 2**17
SPREAD = 2_654_435_761  # odd, and coprime to the numbers of rows used here: spreads frequent ids over the table
WEIGHT = np.float32(4_096)
Work = Callable[[int], Any]


def zipf(rows: int, rng: np.random.Generator, batches: int, exponent: float = 1.2) -> list[Any]:
    cumulated = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -exponent)
    drawn = np.searchsorted(cumulated, rng.random((batches, IDS)) * cumulated[-1])
    return list((drawn * SPREAD % rows).astype(np.int64))


def memory(what: str) -> int:
    """Return the bytes of this process: current ("VmRSS") or peak ("VmHWM")."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def table_of(rows: int | None, dim: int, retention: Retention | None = None) -> SparseTable:
    return SparseTable(TableSpec("e", "sparse", (dim,), Adagrad(0.05), uniform(0.1), rows, retention=retention), 0)


def filled(rows: int, dim: int, bounded: bool) -> tuple[SparseTable, dict[str, float]]:
    grad = np.zeros((FILL, dim), np.float32)
    begun = memory("VmRSS")
    table = table_of(rows if bounded else None, dim)
    began = time.process_time()
    for step, at in enumerate(range(0, rows, FILL)):
        ids = np.arange(at, min(at + FILL, rows))
        table.apply([SparseGrad(WEIGHT, ids, grad[: len(ids)])], WEIGHT, step)
    facts = {
        "rows created, M/s": rows / (time.process_time() - began) / 1e6,
        "bytes per row": (memory("VmRSS") - begun) / rows,
        "peak bytes per row": (memory("VmHWM") - begun) / rows,
        "allowed bytes per row": 1.6 * 2 * dim * 4 + 16,
    }
    return table, facts


def in_turns(contenders: dict[str, Work], repeats: int, batches: int) -> dict[str, float]:
    """Return the median milliseconds of each contender."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(repeats):
        for name, work in contenders.items():
            began = time.process_time()
            work(number % batches)
            times[name].append((time.process_time() - began) * 1e3)
    return {name: statistics.median(each) for name, each in times.items()}


def trainer_work(batches: list[Any], dim: int) -> dict[str, tuple[Work, Work]]:
    """Return by name our implementation and plain numpy's."""
    values = np.random.default_rng(1).normal(size=(IDS, dim)).astype(np.float32)
    groups = [group(ids) for ids in batches]
    rows = [values[: len(g.distinct)].copy() for g in groups]

    def add_at(i: int) -> None:
        np.add.at(np.zeros_like(rows[i]), groups[i].inverse, values)

    return {
        "group": (lambda i: group(batches[i]), lambda i: np.unique(batches[i], return_inverse=True)),
        "sum": (lambda i: groups[i].sum(values), add_at),
        "expand": (lambda i: rows[i].take(groups[i].inverse, axis=0), lambda i: rows[i][groups[i].inverse]),
    }


def server_work(table: SparseTable, batches: list[Any]) -> dict[str, Work]:
    ids = [group(batch).distinct for batch in batches]
    grads = [SparseGrad(WEIGHT, each, np.full((len(each), table.spec.dim), 1e-3, np.float32)) for each in ids]
    return {
        "pull": lambda i: table.pull(ids[i], None),
        "apply, 1 trainer": lambda i: table.apply([grads[i]], WEIGHT, 0),
        "apply, 2 trainers": lambda i: table.apply([grads[i], grads[i - 1]], 2 * WEIGHT, 0),
        "pull of all ids, not grouped": lambda i: table.pull(batches[i], None),
    }


def serve(rows: int, dim: int, bounded: bool, repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    table, facts = filled(rows, dim, bounded)
    batches = zipf(rows, np.random.default_rng(0), 8)
    times = in_turns(server_work(table, batches), repeats, len(batches))
    facts["look-ups not grouped, M/s"] = IDS / times["pull of all ids, not grouped"] / 1e3
    times["frozen, for a checkpoint"] = in_turns({"": lambda i: table.frozen()}, 5, 1)[""]
    return facts, times


def forget(rows: int, dim: int, _: bool, repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    """Measure steps of a full table: ids are ten times its cap, and each step has thousands of new ones."""
    table = table_of(None, dim, Retention(max_rows=rows // 10))
    rng = np.random.default_rng(0)
    batches = [group(rng.integers(0, rows, 20_000)).distinct for _ in range(rows // 20_000 + repeats)]
    times = []
    for step, ids in enumerate(batches):
        grad = SparseGrad(WEIGHT, ids, np.full((len(ids), dim), 1e-3, np.float32))
        began = time.process_time()
        table.apply([grad], WEIGHT, step)
        times.append((time.process_time() - began) * 1e3)
    last = times[-repeats:]
    counted = table.counters()
    facts = {"rows kept, M": counted["rows"] / 1e6, "evicted per step": counted["evicted"] / len(batches)}
    return facts, {"step, median": statistics.median(last), "step, mean": statistics.mean(last), "worst": max(last)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=40)
    given = parser.parse_args()
    batches = zipf(given.rows, np.random.default_rng(0), 8)
    print(f"trainer: {IDS:,} ids of {len(group(batches[0]).distinct):,} kinds, {given.dim} wide")
    for name, (ours, plain) in trainer_work(batches, given.dim).items():
        took = in_turns({"ours": ours, "numpy": plain}, given.repeats, len(batches))
        print(
            f"  {name:28} {took['ours']:7.2f} ms, numpy {took['numpy']:7.2f}, ratio {took['numpy'] / took['ours']:.1f}"
        )
    jobs: list[tuple[str, Any, bool]] = [
        ("rows known", serve, True),
        ("unbounded", serve, False),
        ("capped", forget, False),
    ]
    for title, job, bounded in jobs:
        with multiprocessing.get_context("spawn").Pool(1) as fresh:
            facts, times = fresh.apply(job, (given.rows, given.dim, bounded, given.repeats))
        print(f"lane, {title}: {given.rows:,} rows x {given.dim}, Adagrad")
        print("\n".join(f"  {name:28} {number:7.1f}" for name, number in facts.items()))
        print("\n".join(f"  {name:28} {ms:7.2f} ms" for name, ms in times.items()))


if __name__ == "__main__":
    main()
