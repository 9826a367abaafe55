"""Measure what people do: samples per second of the two example models, beside PaddlePaddle and beside one process.

    python benchmarks/samples.py --paddle /path/to/python

`--paddle` is a Python that has paddlepaddle 2.6.2, numpy < 2 and protobuf 4.25.3; without it that contender is left
out. Models: `ctr`, the wide and deep model of workspace_ctr on its flights (pip downloads them once), and `ngram`, the
language model of workspace_template on its text. Both programs train the same model with Adam on the same data,
asynchronously, with one trainer and two pservers, and each alone in one process. Ours is the workspace's own code;
Paddle's is samples_paddle.py, whose executor is fed batch by batch. Each process has one thread for its mathematics.
Contenders alternate, in fresh processes; the figures are those of steps after a warm-up.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import ps_common as bench

TOP = Path(__file__).resolve().parents[1]
PADDLE = Path(__file__).with_name("samples_paddle.py")
WORKSPACES = {"ctr": "workspace_ctr", "ngram": "workspace_template"}
RATE = 0.001


def workspace(model: str) -> tuple[Any, Any]:
    """Return the programs train.py and prepare_data.py of a model's workspace."""
    sys.path.insert(0, str(TOP / WORKSPACES[model]))
    import prepare_data
    import train

    return train, prepare_data


# The trainer, started by `bench.fleet` or alone


def trainer(given: dict[str, Any]) -> None:
    from clusterctl.runtime import Adam, connect

    program, _ = workspace(given["model"])
    program.Adagrad = lambda rate, l2=0.0: Adam(rate)
    shards, size = Path(given["data"]), given["batch"]
    watch = bench.Stopwatch()
    with connect() as ps:
        if given["model"] == "ctr":
            samples = program.read_shards(sorted(shards.glob("train.npy-*")))
            categories = len((shards / "categories.txt").read_text(encoding="utf-8").splitlines())
            made = program.Trainer(ps, categories, samples["open"].shape[1] + samples["closed"].shape[1], RATE)
        else:
            words = program.read_words(shards)
            samples = program.read_ngrams(sorted(shards.glob("train.txt-*")), words)
            made = program.Trainer(ps, len(words), size, RATE)
        reader = partial(batches, program, samples, size)
        watch.tick()
        for batch in ps.steps(reader, **ahead(given, made)):
            loss = made.learn(batch)
            watch.tick(loss=float(loss))


def ahead(given: dict[str, Any], made: Any) -> dict[str, Any]:
    """Return further options of `ps.steps`, as the workspace's own program has them."""
    if given["model"] == "ctr":
        return {"passes": 10_000}
    return {"passes": 10_000, "prefetch": 1, "ids": {made.vectors: lambda batch: batch[:, :-1]}}


def batches(program: Any, samples: np.ndarray, size: int, pass_: int, rng: np.random.Generator) -> Iterator[Any]:
    whole = len(samples) - len(samples) % size
    return iter(program.cut(rng.permutation(samples)[:whole], size))


# The contenders


@contextlib.contextmanager
def paddle_fleet(python: str, argv: list[str], trainers: int, pservers: int) -> Iterator[bench.Fleet]:
    """Start Paddle's servers and trainers as its launcher does."""
    addresses = [f"127.0.0.1:{bench.free_port()}" for _ in range(pservers + trainers)]
    common = {
        **ONE_THREAD,
        "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(addresses[:pservers]),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(addresses[pservers:]),
        "PADDLE_TRAINERS_NUM": str(trainers),
        "POD_IP": "127.0.0.1",
    }
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clusterctl-bench-")))

        def start(role: str, **own: str) -> bench.Child:
            child = bench.Child(argv, {**common, "TRAINING_ROLE": role, **own}, scratch, executable=python)
            stack.callback(child.reap)
            return child

        ports = [address.rpartition(":")[2] for address in addresses]
        servers = [start("PSERVER", PADDLE_PORT=port) for port in ports[:pservers]]
        clients = [
            start("TRAINER", PADDLE_TRAINER_ID=str(rank), PADDLE_PORT=port)
            for rank, port in enumerate(ports[pservers:])
        ]
        yield bench.Fleet(servers, clients)


ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CPU_NUM": "1"}
Fleets = Callable[[], contextlib.AbstractContextManager[bench.Fleet]]


def rate(started: Fleets, batch: int, steps: int) -> tuple[float, float]:
    """Return the samples per second of one round, and the CPU microseconds per sample of all processes."""
    with started() as running:
        seconds = running.steps(steps, skip=20)
        cpu_s = running.trainers_cpu_s + running.servers_cpu_s
    return batch * len(seconds) / sum(seconds), 1e6 * cpu_s / batch


def contenders(model: str, data: Path, arrays: Path, batch: int, python: str) -> dict[str, Fleets]:
    given: dict[str, Any] = {"model": model, "data": str(data), "batch": batch}
    own = [str(Path(__file__).resolve()), "trainer", json.dumps(given)]
    layout = bench.Layout(1, 2, {"mode": "async"})
    found: dict[str, Fleets] = {
        "ours, 1x2": partial(bench.fleet, layout, __file__, **given),
        "ours, one process": partial(bench.alone, own),
    }
    if python:
        argv = [str(PADDLE), model, str(arrays), str(batch)]
        found["Paddle, 1x2"] = partial(paddle_fleet, python, argv, 1, 2)
        found["Paddle, one process"] = partial(bench.alone, argv, ONE_THREAD, python)
    return found


def prepare(model: str, directory: Path) -> tuple[Path, Path]:
    """Write the data of a model: the directory of its shards, and the same samples as arrays for Paddle."""
    program, source = workspace(model)
    shards, arrays = directory / model, directory / f"{model}.npz"
    if model == "ctr":
        source.prepare(source.download(), shards, 1)
        records = program.read_shards(sorted(shards.glob("train.npy-*")))
        known, ids = np.unique(records["open"], return_inverse=True)
        columns = {"open": ids.reshape(-1, records["open"].shape[1]), "closed": records["closed"].astype(np.int64)}
        np.savez(arrays, **columns, late=records["late"][:, None])
        print(f"ctr: {len(records):,} flights, {len(known):,} open ids")
    else:
        source.prepare(shards, 1)
        words = program.read_words(shards)
        ngrams = program.read_ngrams(sorted(shards.glob("train.txt-*")), words)
        np.savez(arrays, context=ngrams[:, :-1], target=ngrams[:, -1:], words=np.array([len(words)]))
        print(f"ngram: {len(ngrams):,} n-grams, {len(words):,} words")
    return shards, arrays


def compare(model: str, batch: int, where: tuple[Path, Path], given: Any) -> list[list[str]]:
    fleets = contenders(model, *where, batch, given.paddle)
    measured = bench.contest(
        {name: partial(rate, one, batch, given.steps) for name, one in fleets.items()}, given.rounds
    )
    speeds = {name: [speed for speed, _ in figures] for name, figures in measured.items()}
    ours = speeds["ours, 1x2"]
    rows = []
    for name, figures in measured.items():
        cpu = statistics.median(us for _, us in figures)
        times = f"{bench.ratio(ours, speeds[name]):.2f}"
        rows.append([f"{model}, {batch:,}", name, *bench.spread(speeds[name], 1e-3), f"{cpu:.3g}", times])
    return rows


def main() -> None:
    parser = bench.options(__doc__.partition("\n")[0], paddle="", batches="512,4096", steps=200, rounds=5)
    parser.add_argument("model", nargs="*", help="ctr, ngram; default both")
    given = parser.parse_args()
    for name in given.model or WORKSPACES:
        rows = []
        with tempfile.TemporaryDirectory(prefix="clusterctl-bench-") as scratch:
            where = prepare(name, Path(scratch))
            for batch in map(int, given.batches.split(",")):
                rows += compare(name, batch, where, given)
        print(f"{os.cpu_count()} cores, {given.rounds} rounds of {given.steps} steps")
        headings = [
            "model, batch",
            "contender",
            "1,000 samples/s",
            "range",
            "CPU us per sample",
            "ours, 1x2, relative to it",
        ]
        bench.show(headings, rows)
        forget()


def forget() -> None:
    """Forget the programs of a workspace: the next one has the same names."""
    for name in ("train", "prepare_data", "model"):
        sys.modules.pop(name, None)


if __name__ == "__main__":
    bench.run(main, trainer)
