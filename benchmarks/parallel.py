"""Measure `ps.parallel`: the step of a trainer with 1 and with 2 threads, on a numpy and on a torch model.

Both models are the same network over embeddings: x = the vectors of 8 ids, h = tanh(x W), and a linear output. The
program runs alone (the pserver is in its process), so that it has the cores to itself; BLAS has one thread. For
comparison: the same program without `ps.parallel`. The contenders take turns step by step, each with a session of its
own, so that a busy moment of the machine affects all of them; every round is a fresh process. The quick step is the
10th percentile: on a busy machine it is closest to what the machine can do.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ps_common as bench
from clusterctl.runtime import Adagrad, connect, uniform

FIELDS, WIDTH, IDS = 8, 16, 20_000
#: The threads of `ps.parallel` by name; 0: without.
CONTENDERS = {"without": 0, "1 thread": 1, "2 threads": 2}
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


def steps(model: str, batch: int, hidden: int, threads: int) -> Iterator[float]:
    """Train forever; yield the seconds of each step."""
    os.environ["CLUSTERCTL_TRAINER_THREADS"] = str(max(1, threads))
    with connect() as ps:
        w = ps.dense("w", (FIELDS * WIDTH, hidden), Adagrad(0.01), uniform(0.1))
        u = ps.dense("u", hidden, Adagrad(0.01), uniform(0.1))
        e = ps.embedding("e", WIDTH, Adagrad(0.01), rows=IDS)
        work = MODELS[model](w, u, e)

        def reader(pass_: int, rng: np.random.Generator) -> Any:
            data = [
                (rng.integers(0, IDS, (batch, FIELDS)), rng.normal(size=batch).astype(np.float32)) for _ in range(4)
            ]
            return itertools.cycle(data)

        for ids, y in ps.steps(reader, passes=1):
            began = time.perf_counter()
            whole = ids, e.pull(ids), y
            ps.push(*(ps.parallel(work, whole) if threads else work(whole)))
            yield time.perf_counter() - began


def train(model: str, batch: int, hidden: int, count: int) -> None:
    """Print the seconds of `count` steps of each contender as JSON. The first fifth does not count."""
    running = {name: steps(model, batch, hidden, threads) for name, threads in CONTENDERS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in running}
    for turn in range(count + count // 5):
        for name in running if turn % 2 == 0 else reversed(running):
            seconds[name].append(next(running[name]))
    print(json.dumps({name: took[count // 5 :] for name, took in seconds.items()}), flush=True)
    os._exit(0)  # without saving the models


def round_of(model: str, given: argparse.Namespace) -> dict[str, list[float]]:
    """Return the seconds of the steps of each contender in a fresh process."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    arguments = json.dumps([model, given.batch, given.hidden, given.steps])
    with tempfile.TemporaryDirectory(prefix="clusterctl-bench-") as scratch:
        command = [sys.executable, str(Path(__file__).resolve()), "trainer", arguments]
        done = subprocess.run(command, cwd=scratch, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    if sys.argv[1:2] == ["trainer"]:
        train(*json.loads(sys.argv[2]))
    parser = bench.options(__doc__.partition("\n")[0], rounds=5, steps=60, batch=8192, hidden=256)
    parser.add_argument("models", nargs="*", default=list(MODELS), help="default numpy torch")
    given = parser.parse_args()
    rows: list[list[str]] = []
    for model in given.models:
        if importlib.util.find_spec(model) is None:
            print(f"{model} is not installed: its figures are left out")
            continue
        rounds = [round_of(model, given) for _ in range(given.rounds)]
        took = {name: [second for one in rounds for second in one[name]] for name in CONTENDERS}
        quick = {name: bench.percentile(seconds, 10) for name, seconds in took.items()}
        for name, seconds in took.items():
            speed = [f"{given.batch / one / 1e3:.0f}" for one in (statistics.median(seconds), quick[name])]
            gain = bench.ratio(took["1 thread"], seconds)
            rows.append([model, name, *speed, f"{gain:.2f}", f"{quick['1 thread'] / quick[name]:.2f}"])
    headings = ["model", "ps.parallel", "1,000 samples/s", "quick steps", "relative to 1 thread", "quick steps"]
    bench.show(headings, rows)


if __name__ == "__main__":
    main()
