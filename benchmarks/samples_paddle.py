"""The models of samples.py in PaddlePaddle, for its parameter server or one process. samples.py starts this program.

    python samples_paddle.py MODEL DATA BATCH

The environment says which role to play (TRAINING_ROLE and so on); without it this process trains alone. DATA is a file
of numpy arrays. Only numpy and paddlepaddle are needed.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import paddle
from paddle.distributed import fleet

RATE = 0.001


def embedding(name: str, ids: Any, rows: int, width: int) -> Any:
    start = paddle.ParamAttr(name=name, initializer=paddle.nn.initializer.Uniform(-0.05, 0.05))
    return paddle.static.nn.embedding(ids, [rows, width], is_sparse=True, param_attr=start)


def ctr(data: Mapping[str, np.ndarray]) -> Any:
    """Return the loss of workspace_ctr's wide and deep model."""
    fields = {name: paddle.static.data(name, [None, data[name].shape[1]], "int64") for name in ("open", "closed")}
    label = paddle.static.data("late", [None, 1], "float32")
    vectors = [embedding(f"rows.{name}", ids, int(data[name].max()) + 1, 9) for name, ids in fields.items()]
    both = paddle.concat(vectors, axis=1)
    deep = paddle.flatten(both[:, :, 1:], 1)
    hidden = paddle.static.nn.fc(deep, 32, activation="relu")
    logit = both[:, :, 0].sum(1, keepdim=True) + paddle.static.nn.fc(hidden, 1)
    return paddle.nn.functional.binary_cross_entropy_with_logits(logit, label)


def ngram(data: Mapping[str, np.ndarray]) -> Any:
    """Return the loss of workspace_template's language model."""
    context = paddle.static.data("context", [None, data["context"].shape[1]], "int64")
    target = paddle.static.data("target", [None, 1], "int64")
    words = int(data["words"][0])
    vectors = paddle.flatten(embedding("word", context, words, 32), 1)
    hidden = paddle.static.nn.fc(vectors, 256, activation="tanh")
    return paddle.nn.functional.cross_entropy(paddle.static.nn.fc(hidden, words), target)


INPUTS = {"ctr": ("open", "closed", "late"), "ngram": ("context", "target")}


def batches(model: str, data: Mapping[str, np.ndarray], size: int) -> Iterator[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    while True:
        order = rng.permutation(len(data[INPUTS[model][0]]))
        shuffled = {name: data[name][order] for name in INPUTS[model]}
        for start in range(0, len(order) - size + 1, size):
            yield {name: column[start : start + size] for name, column in shuffled.items()}


def train(model: str, data: Mapping[str, np.ndarray], size: int, loss: Any) -> None:
    """Train for as many steps as each line of standard input says, and report the seconds of each step."""
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(paddle.static.default_startup_program())
    if in_cluster():
        fleet.init_worker()
    reader, program = batches(model, data, size), paddle.static.default_main_program()
    report(seconds=[])
    for line in sys.stdin:
        seconds, losses = [], []
        for feed in itertools.islice(reader, int(line)):
            began = time.perf_counter()
            losses += executor.run(program, feed=feed, fetch_list=[loss])
            seconds.append(time.perf_counter() - began)
        report(seconds=seconds, loss=float(np.mean(losses[-20:])))


def report(**facts: Any) -> None:
    print("\n::" + json.dumps(facts), flush=True)  # after whatever Paddle has begun to print


def in_cluster() -> bool:
    return "TRAINING_ROLE" in os.environ


def main() -> None:
    model, path, batch = sys.argv[1:]
    data = dict(np.load(path))
    paddle.enable_static()
    loss = {"ctr": ctr, "ngram": ngram}[model](data)
    rule = paddle.optimizer.Adam(RATE)
    if in_cluster():
        fleet.init()
        strategy = fleet.DistributedStrategy()
        strategy.a_sync = True
        rule = fleet.distributed_optimizer(rule, strategy)
    rule.minimize(loss)
    if in_cluster() and fleet.is_server():
        fleet.init_server()
        fleet.run_server()
    else:
        train(model, data, int(batch), loss)


if __name__ == "__main__":
    main()
