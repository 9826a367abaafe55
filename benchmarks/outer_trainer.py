"""A trainer of every contender of outer.py: one model, one optimizer, the same batches; they differ in what they send.

`python outer_trainer.py trainer JSON` takes the given steps and reports the seconds of each, the held-out losses, and
the seconds of each all-reduce for the contender that does nothing else. Then it waits until the harness kills it.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

sys.path.append(str(Path(__file__).parents[1] / "workspace_torch"))

from model import Transformer
from ps_common import report
from train import Windows, mean_loss, read_bytes

CONTEXT = 128
HELD_OUT = 128  # windows
Step = Callable[[Any], None]


@dataclass(frozen=True)
class Given:
    """A trainer's task. `tokens` are those of one of its batches; with `evaluate_every=0` it never evaluates.

    `begin` is a file with the model to begin with, if not with a new one, and `end` one to write rank 0's model to.
    """

    contender: str
    data: str
    steps: int
    tokens: int
    every: int
    evaluate_every: int
    learning_rate: float
    outer_rate: float
    outer_momentum: float
    depth: int
    seed: int
    begin: str = ""
    end: str = ""


@dataclass
class Record:
    """The seconds of each step and the held-out losses by step, without the time that evaluation takes."""

    given: Given
    rank: int
    seconds: list[float] = field(default_factory=list)
    losses: list[tuple[int, float]] = field(default_factory=list)
    _mark: float = field(default_factory=time.perf_counter)

    def tick(self, model: Any) -> None:
        now = time.perf_counter()
        self.seconds.append(now - self._mark)
        every, done = self.given.evaluate_every, len(self.seconds)
        if every and done % every == 0 and self.rank == 0:
            self.losses.append((done, mean_loss(model, held_out(self.given))[0]))
        self._mark = time.perf_counter()


class Order:
    """The batches of all trainers, as a DataLoader's batch sampler: the windows in a new order for each pass."""

    def __init__(self, given: Given, windows: int, trainers: int) -> None:
        self._given, self._windows, self._trainers = given, windows, trainers

    def __len__(self) -> int:
        return self._given.steps * self._trainers

    def __iter__(self) -> Iterator[list[int]]:
        size, generator = self._given.tokens // CONTEXT, torch.Generator().manual_seed(self._given.seed)
        order: list[int] = []
        for _ in range(len(self)):
            if len(order) < size:
                order += torch.randperm(self._windows, generator=generator).tolist()
            yield order[:size]
            del order[:size]


def windows_of(given: Given) -> Any:
    return Windows(read_bytes(Path(given.data) / "train.txt"), CONTEXT)


def held_out(given: Given) -> list[Any]:
    windows = Windows(read_bytes(Path(given.data) / "test.txt"), CONTEXT)
    return [windows[number * len(windows) // HELD_OUT] for number in range(HELD_OUT)]


@dataclass(frozen=True)
class Learner:
    """The model, its optimizer, and a schedule: a short warm-up, then a cosine down to a tenth."""

    model: Any
    optimizer: Any
    schedule: Any

    @classmethod
    def new(cls, given: Given) -> Learner:
        torch.manual_seed(given.seed)
        model = Transformer(CONTEXT, depth=given.depth, dropout=0.0)
        if given.begin:
            model.load_state_dict(torch.load(given.begin))
        optimizer = torch.optim.AdamW(model.parameters(), lr=given.learning_rate)

        def factor(step: int) -> float:
            return min((step + 1) / 50, 0.55 + 0.45 * math.cos(math.pi * step / given.steps))

        return cls(model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor))

    def learn(self, batches: Any, step: Step, record: Record, forward: Any = None) -> Record:
        """Take a step for each batch; `forward` returns its loss."""
        for batch in batches:
            loss = (forward or self.model.loss)(batch)
            self.optimizer.zero_grad()
            loss.backward()
            step(loss)
            self.schedule.step()
            record.tick(self.model)
        if record.given.end and record.rank == 0:
            torch.save(self.model.state_dict(), record.given.end)
        return record


class Loss(torch.nn.Module):
    """The loss of a batch as `forward`, which DDP hooks into."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Any) -> Any:
        return self.model.loss(batch)


def ours(given: Given) -> Record:
    """`ps.distribute`, or `ps.outer` in the WIRE of the job."""
    import clusterctl.torch as ct
    from clusterctl.runtime import Momentum

    ps = ct.connect()  # its end would save the model; the harness kills this process before
    learner = Learner.new(given)
    optimizer = learner.optimizer
    outer: Any = None
    if given.contender == "distribute":
        ps.distribute(learner.model, optimizer)
    else:
        rule = Momentum(given.outer_rate, given.outer_momentum, nesterov=True)
        outer = ps.outer(learner.model, optimizer, every=given.every, rule=rule)

    def step(loss: Any) -> None:
        if outer is None:
            optimizer.step(loss=loss)
        else:
            optimizer.step()
            outer.step(loss=loss)

    windows = windows_of(given)
    loader = DataLoader(windows, batch_sampler=Order(given, len(windows), ps.trainers))
    return learner.learn(ps.loader(loader), step, Record(given, ps.rank))


def peer(given: Given) -> Record:
    """Programs of torch.distributed over gloo, and `compute`, which sends nothing."""
    dist.init_process_group("gloo")
    rank, trainers = dist.get_rank(), dist.get_world_size()
    learner = Learner.new(given)
    optimizer, forward = learner.optimizer, None
    if given.contender == "postlocal":
        averager = PeriodicModelAverager(period=given.every, warmup_steps=0)
        averager.step = 1  # the first average is after the first period, not after the first step
        optimizer = PostLocalSGDOptimizer(optimizer, averager)
    elif given.contender in ("ddp", "powersgd"):
        # With several buckets PowerSGD's all-reduces start in different orders on different ranks, which gloo refuses.
        one_bucket = {"bucket_cap_mb": 100} if given.contender == "powersgd" else {}
        forward = DistributedDataParallel(Loss(learner.model), **one_bucket)
        if given.contender == "powersgd":
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=10)
            forward.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    windows = windows_of(given)
    own = list(Order(given, len(windows), trainers))[rank::trainers]
    dist.barrier()
    batches = DataLoader(windows, batch_sampler=own)
    return learner.learn(batches, lambda loss: optimizer.step(), Record(given, rank), forward)


def all_reduce(given: Given) -> Record:
    """Sum as many numbers as the model has, again and again."""
    dist.init_process_group("gloo")
    record = Record(given, dist.get_rank())
    numbers = torch.ones(sum(parameter.numel() for parameter in Learner.new(given).model.parameters()))
    dist.barrier()
    for _ in range(given.steps):
        dist.all_reduce(numbers)
        numbers /= dist.get_world_size()
        record.tick(None)
    return record


def main() -> None:
    torch.set_num_threads(1)
    given = Given(**json.loads(sys.argv[2]))
    programs = {"distribute": ours, "outer": ours, "outer-int8": ours, "outer-int4": ours, "allreduce": all_reduce}
    record = programs.get(given.contender, peer)(given)
    report(seconds=record.seconds, losses=record.losses)
    sys.stdin.read()


if __name__ == "__main__":
    main()
