"""Predict clicks with a factorization machine in Paddle's parameter-server mode. Both server and trainer run this."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import paddle
from paddle.distributed import fleet

SLOTS = 4  # user, advertisement, page, hour
IDS = 20_000  # of all slots together
DIM = 8
BATCH = 256


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=("async", "geo"), default="async")
    parser.add_argument("--k_steps", type=int, default=20, help="steps between two exchanges in geo mode")
    parser.add_argument("--num_passes", type=int, default=4)
    parser.add_argument("--batches", type=int, default=100, help="batches per trainer and pass")
    return parser.parse_args()


def clicks(trainer: int, batches: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield ids (BATCH, SLOTS) and clicks (BATCH, 1), 0 or 1. Few ids are frequent; each has a hidden appeal."""
    appeal = np.random.default_rng(1).normal(0, 1.5, IDS)
    rng = np.random.default_rng([2, trainer])
    for _ in range(batches):
        within = rng.zipf(1.3, (BATCH, SLOTS)) % (IDS // SLOTS)
        ids = within + np.arange(SLOTS) * (IDS // SLOTS)
        chance = 1 / (1 + np.exp(-appeal[ids].sum(1)))
        yield ids.astype("int64"), (rng.random(BATCH) < chance).astype("float32")[:, None]


def network() -> paddle.static.Variable:
    """Return the loss. An id's row holds its weight and its factors; `is_sparse` puts it into the servers' table."""
    ids = paddle.static.data("ids", [None, SLOTS], "int64")
    label = paddle.static.data("label", [None, 1], "float32")
    start = paddle.ParamAttr(name="embedding", initializer=paddle.nn.initializer.Uniform(-0.1, 0.1))
    rows = paddle.static.nn.embedding(ids, [IDS, 1 + DIM], is_sparse=True, param_attr=start)
    factors = rows[:, :, 1:]
    pairs = factors.sum(1) ** 2 - (factors**2).sum(1)
    logit = rows[:, :, 0].sum(1, keepdim=True) + 0.5 * pairs.sum(1, keepdim=True)
    return paddle.nn.functional.binary_cross_entropy_with_logits(logit, label)


def strategy(args: argparse.Namespace) -> fleet.DistributedStrategy:
    made = fleet.DistributedStrategy()
    made.a_sync = True
    if args.mode == "geo":
        made.a_sync_configs = {"k_steps": args.k_steps}
    return made


def train(args: argparse.Namespace, executor: paddle.static.Executor, loss: paddle.static.Variable) -> None:
    trainer = fleet.worker_index()
    for pass_ in range(args.num_passes):
        losses = []
        for ids, label in clicks(trainer, args.batches):
            feed = {"ids": ids, "label": label}
            losses += executor.run(paddle.static.default_main_program(), feed=feed, fetch_list=[loss])
        print(f"trainer {trainer} of {fleet.worker_num()}, pass {pass_}: loss {np.mean(losses):.4f}", flush=True)


def main() -> None:
    args = options()
    paddle.enable_static()
    fleet.init()
    loss = network()
    rule = paddle.optimizer.SGD(1.0) if args.mode == "geo" else paddle.optimizer.Adam(0.01)
    fleet.distributed_optimizer(rule, strategy(args)).minimize(loss)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(paddle.static.default_startup_program())
    fleet.init_worker()
    train(args, executor, loss)
    fleet.stop_worker()


if __name__ == "__main__":
    main()
