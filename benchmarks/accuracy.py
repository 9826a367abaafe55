"""Measure the accuracy of each training mode: AUC and log-loss of the ctr workspace, over seeds, on real flights.

A single process, and jobs of four trainers and two pservers on a fake cluster, train on the same flights for the same
number of passes. The collected model is scored here, on all held-out flights at once. The SEED determines the initial
values and the order of samples. pip downloads the data once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "workspace_ctr"))

import model as formulas
import prepare_data
import train as program
from clusterctl import fake
from clusterctl.runtime import connect
from ps_common import options, show

TRAINERS, PSERVERS, BATCH = 4, 2, 512
PROGRAM = [sys.executable, "-m", "clusterctl"]


@dataclass(frozen=True)
class Score:
    """The metrics on all held-out flights."""

    auc: float
    logloss: float


@dataclass(frozen=True)
class Bench:
    """A directory with the workspace, its data, and the conf.py of a fake cluster."""

    directory: Path
    conf: Path
    given: argparse.Namespace

    @property
    def workspace(self) -> Path:
        return self.directory / "workspace"

    def options(self, batch: int) -> list[str]:
        chosen = {"num_passes": self.given.passes, "batch_size": batch, "learning_rate": self.given.learning_rate}
        return [f"--{name}={value}" for name, value in chosen.items()]

    def alone(self, batch: int, seed: int) -> Score:
        """Return the score of a single process with batches of `batch` samples."""
        output = self.directory / f"alone-{batch}-{seed}"
        environ = {"CLUSTERCTL_SEED": str(seed), "CLUSTERCTL_OUTPUT_DIR": str(output)}
        run([sys.executable, "train.py", *self.options(batch)], self.workspace, **environ)
        return self.score(output / f"pass-{self.given.passes - 1:05d}", seed)

    def job(self, mode: str, seed: int) -> Score:
        """Return the score of a job with all trainers."""
        home = Path(tempfile.mkdtemp(prefix="job-", dir=self.directory))
        conf = self.conf.with_name(f"{home.name}.py")
        settings = {"MODE": mode, "SEED": seed, "TRAINERS": TRAINERS, "PSERVERS": PSERVERS, "WIRE": self.given.wire}
        conf.write_text(self.conf.read_text() + "".join(f"{name} = {value!r}\n" for name, value in settings.items()))
        clusterctl = [*PROGRAM, "--conf", str(conf)]
        run([*clusterctl, "start", "--job_dispatch_package", str(self.workspace), "--", *self.options(BATCH)], home)
        run([*clusterctl, "collect", "-o", str(home / "result")], home)
        return self.score(home / "result/model/model.safetensors", seed)

    def score(self, saved: Path, seed: int) -> Score:
        """Return the score of a saved model. Categories that it has not seen get their initial values for this seed."""
        os.environ["CLUSTERCTL_SEED"] = str(seed)
        data = self.workspace / "data"
        held_out = program.read_shards(sorted(data.glob("test.npy-*")))
        categories = len((data / "categories.txt").read_text().splitlines())
        fields = len(prepare_data.OPEN) + len(prepare_data.CLOSED)
        with connect(load=str(saved)) as ps:
            z = program.Trainer(ps, categories, fields, learning_rate=1.0).scores(held_out)
        return Score(formulas.auc(z, held_out["late"]), formulas.log_loss(z, held_out["late"]))


@contextlib.contextmanager
def bench(given: argparse.Namespace) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="clusterctl-bench-") as scratch:
        directory = Path(scratch)
        run([*PROGRAM, "init", "--template", "ctr", str(directory)], directory)
        run([sys.executable, "prepare_data.py", "--shards", str(TRAINERS)], directory / "workspace")
        with fake.up(directory / "fake", TRAINERS, lifeline=True) as cluster:
            yield Bench(directory, cluster.conf, given)


def run(command: Sequence[str], cwd: Path, **environ: str) -> None:
    """Run a program to completion. If it fails, exit with its output."""
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **environ}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def row(name: str, scores: Sequence[Score], reference: Sequence[Score]) -> list[str]:
    """Return a row of name, AUC, log-loss, and the difference of the mean AUC from that of `reference`."""
    aucs, losses = [score.auc for score in scores], [score.logloss for score in scores]
    gap = statistics.mean(aucs) - statistics.mean(score.auc for score in reference)
    return [name, *cells(aucs), *cells(losses), f"{gap:+.4f}"]


def equivalent_batch(mode: str) -> int:
    """Return the batch size with which a single process makes the same number of updates.

    A step of sync merges the batches of all trainers.
    """
    return BATCH * TRAINERS if mode == "sync" else BATCH


def cells(figures: Sequence[float]) -> list[str]:
    """Return the cells "mean" and "min-max"."""
    return [f"{statistics.mean(figures):.4f}", f"{min(figures):.4f}-{max(figures):.4f}"]


def main() -> None:
    parser = options(__doc__.partition("\n")[0], seeds=5, passes=3, learning_rate=0.02)
    parser.add_argument("--wire", default="float32", help="or float16 (default float32)")
    parser.add_argument("modes", nargs="*", default=["sync", "async", "half-async", "ssp(4)", "geo(25)"])
    given = parser.parse_args()
    seeds = range(1, given.seeds + 1)
    rows: list[list[str]] = []
    with bench(given) as made:
        alone = {batch: [made.alone(batch, seed) for seed in seeds] for batch in (BATCH * TRAINERS, BATCH)}
        rows += [row(f"alone, batch {batch}", scores, scores) for batch, scores in alone.items()]
        for mode in given.modes:
            began = time.monotonic()
            rows.append(row(mode, [made.job(mode, seed) for seed in seeds], alone[equivalent_batch(mode)]))
            print(*rows[-1], f"{time.monotonic() - began:.0f} s", flush=True)
    show(["", "AUC", "min-max", "log-loss", "min-max", "AUC relative to alone with as many updates"], rows)


if __name__ == "__main__":
    main()
