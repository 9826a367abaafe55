"""Measure `ps.parallel`: samples per second of a trainer with 1 and with 2 threads, on a numpy and on a torch model.

Both models are the same network over embeddings: x = the vectors of 8 ids, h = tanh(x W), and a linear output. The
program runs alone (the pserver is in its process), so that it has the cores to itself. For comparison: the same program
without `ps.parallel`, and one thread whose BLAS has two. Every figure comes from a fresh process; contenders alternate.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import ps_common as bench
from clusterctl.runtime import Adagrad, connect, uniform

FIELDS, WIDTH, IDS = 8, 16, 20_000
#: By name: threads of `ps.parallel` (0: without), and BLAS threads in each.
CONTENDERS = {"without": (0, 1), "1 thread": (1, 1), "2 threads": (2, 1), "without, 2 BLAS threads": (0, 2)}
Work = Callable[[Any], Any]


def numpy_model(w: Any, u: Any, e: Any) -> Work:
    def work(part: Any) -> Any:
        ids, vectors, y = part
        x = vectors.reshape(len(ids), -1)
        h = np.tanh(x @ w.value)
        error = h @ u.value - y
        slope = error / np.float32(len(ids))
        d_h = np.multiply.outer(slope, u.value) * (1 - h * h)
        d_x = (d_h @ w.value.T).reshape(vectors.shape)
        return {w: x.T @ d_h, u: h.T @ slope, e: (ids, d_x)}, len(ids), float((error * error).mean())

    return work


def torch_model(w: Any, u: Any, e: Any) -> Work:
    import torch

    def work(part: Any) -> Any:
        ids, vectors, y = part
        weights = [torch.from_numpy(array).requires_grad_() for array in (w.value, u.value, vectors)]
        error = torch.tanh(weights[2].reshape(len(ids), -1) @ weights[0]) @ weights[1] - torch.from_numpy(y)
        loss = (error * error).mean()
        d_w, d_u, d_vectors = torch.autograd.grad(loss, weights)
        return {w: d_w, u: d_u, e: (ids, d_vectors)}, len(ids), loss.item()

    return work


MODELS = {"numpy": numpy_model, "torch": torch_model}


def train(model: str, batch: int, hidden: int, steps: int, threads: int) -> float:
    """Return samples per second, the first fifth of the steps not counted."""
    warm_up = steps // 5
    with connect() as ps:
        w = ps.dense("w", (FIELDS * WIDTH, hidden), Adagrad(0.01), uniform(0.1))
        u = ps.dense("u", hidden, Adagrad(0.01), uniform(0.1))
        e = ps.embedding("e", WIDTH, Adagrad(0.01), rows=IDS)
        work = MODELS[model](w, u, e)

        def reader(pass_: int, rng: np.random.Generator) -> Any:
            batches = [
                (rng.integers(0, IDS, (batch, FIELDS)), rng.normal(size=batch).astype(np.float32)) for _ in range(4)
            ]
            return (batches[n % 4] for n in range(steps + warm_up))

        began = 0.0
        for n, (ids, y) in enumerate(ps.steps(reader, passes=1)):
            if n == warm_up:
                began = time.perf_counter()
            whole = ids, e.pull(ids), y
            ps.push(*(ps.parallel(work, whole) if threads else work(whole)))
        return steps * batch / (time.perf_counter() - began)


def samples_per_s(model: str, name: str, given: argparse.Namespace) -> float:
    """Return the figure of a fresh process."""
    threads, blas = CONTENDERS[name]
    env = {**os.environ, "OMP_NUM_THREADS": str(blas), "OPENBLAS_NUM_THREADS": str(blas)}
    env["CLUSTERCTL_TRAINER_THREADS"] = str(max(1, threads))
    arguments = [model, given.batch, given.hidden, given.steps, threads]
    with tempfile.TemporaryDirectory(prefix="clusterctl-bench-") as scratch:
        command = [sys.executable, os.path.abspath(__file__), "trainer", json.dumps(arguments)]  # noqa: PTH100
        done = subprocess.run(command, cwd=scratch, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    if sys.argv[1:2] == ["trainer"]:
        print(train(*json.loads(sys.argv[2])))
        return
    parser = bench.options(__doc__.partition("\n")[0], rounds=7, steps=40, batch=8192, hidden=256)
    given = parser.parse_args()
    rows: list[list[str]] = []
    for model in MODELS:
        if importlib.util.find_spec(model) is None:
            print(f"{model} is not installed: its figures are left out")
            continue
        figures = bench.contest(
            {name: lambda name=name, model=model: samples_per_s(model, name, given) for name in CONTENDERS},
            given.rounds,
        )
        for name, values in figures.items():
            against = f"{bench.ratio(values, figures['1 thread']):.2f}"
            rows.append([model, name, *bench.spread(values, 1e-3), against])
    bench.show(["model", "ps.parallel", "1,000 samples/s", "range", "relative to 1 thread"], rows)


if __name__ == "__main__":
    main()
