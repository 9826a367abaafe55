"""Fit the weights of a line to data that each trainer draws; logs the root mean squared error at every step.

It fails while a file named `broken` is in the job directory.
"""

import argparse
import time
from pathlib import Path

import numpy as np

from clusterctl.runtime import SGD, connect, zeros

WEIGHTS = np.arange(8, dtype=np.float32)
BATCHES = 20


def reader(pass_, rng):
    for _ in range(BATCHES):
        x = rng.standard_normal((64, len(WEIGHTS)), dtype=np.float32)
        yield x, x @ WEIGHTS


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--pause_s", type=float, default=0.0, help="after each step")
    options = parser.parse_args()
    with connect() as ps:
        w = ps.dense("w", shape=WEIGHTS.shape, rule=SGD(options.lr), init=zeros())
        for x, y in ps.steps(reader, passes=options.passes):
            if Path("broken").exists():
                raise RuntimeError("the data is broken")
            residual = x @ w.value - y
            loss = float((residual**2).mean())
            ps.push({w: 2 * x.T @ residual / len(x)}, samples=len(x), loss=loss)
            ps.log(rmse=loss**0.5)
            time.sleep(options.pause_s)


main()
