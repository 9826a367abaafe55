"""Fit a linear model to noisy points. The options are those that the old launcher passed on."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Iterator

import numpy as np

from clusterctl.runtime import SGD, connect

FEATURES = 13
BATCHES = 200
WEIGHTS = np.linspace(-1, 1, FEATURES, dtype=np.float32)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="./trainer_config.py")
    parser.add_argument("--num_passes", type=int, default=1)
    parser.add_argument("--log_period", type=int, default=100, help="batches between two log lines")
    parser.add_argument("--dot_period", type=int, default=10, help="batches between two dots")
    parser.add_argument("--trainer_count", type=int, default=1, help="formerly the number of threads")
    parser.add_argument("--use_gpu", type=int, default=0)
    parser.add_argument("--local", type=int, default=1)
    parser.add_argument("--saving_period", type=int, default=1)
    parser.add_argument("--save_dir", default="./output")
    parser.add_argument("--ports_num_for_sparse", type=int, default=1)
    return parser.parse_args()


def reader(batch_size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield this trainer's points, (batch_size, FEATURES) and (batch_size,), seeded by its old trainer id."""
    rng = np.random.default_rng(int(os.environ.get("PADDLE_INIT_TRAINER_ID", "0")))
    for _ in range(BATCHES):
        x = rng.standard_normal((batch_size, FEATURES), dtype=np.float32)
        yield x, x @ WEIGHTS + 0.1 * rng.standard_normal(batch_size, dtype=np.float32)


def main() -> None:
    args = options()
    config = runpy.run_path(args.config)
    trainers = os.environ.get("PADDLE_INIT_NUM_GRADIENT_SERVERS", "1")
    print(f"trainer {os.environ.get('PADDLE_INIT_TRAINER_ID', '0')} of {trainers}: {vars(args)}")
    costs: list[float] = []

    def on_pass(pass_: int) -> None:
        print(f"pass {pass_}: cost {np.mean(costs[-BATCHES:]):.4f}", flush=True)

    with connect() as ps:
        w = ps.dense("w", shape=FEATURES, rule=SGD(config["learning_rate"]))
        batches = ps.steps(lambda pass_, rng: reader(config["batch_size"]), passes=args.num_passes, on_pass=on_pass)
        for number, (x, y) in enumerate(batches, start=1):
            error = x @ w.value - y
            costs.append(float((error**2).mean()))
            ps.push({w: x.T @ error / len(x)}, samples=len(x), loss=costs[-1])
            if number % args.dot_period == 0:
                sys.stdout.write(".")
            if number % args.log_period == 0:
                print(f" batch {number}: cost {np.mean(costs[-args.log_period :]):.4f}", flush=True)


if __name__ == "__main__":
    main()
