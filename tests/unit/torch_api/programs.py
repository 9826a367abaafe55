"""Small models and data, plain training, and clusters whose sessions are clusterctl.torch's."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import TensorDataset

import clusterctl.torch as ct
from unit.runtime.cluster import ThreadCluster, thread_cluster

torch.set_num_threads(1)

SAMPLES, SIZE, PASSES = 320, 32, 5
STEPS = SAMPLES // SIZE * PASSES
_GENERATOR = torch.Generator().manual_seed(4)
X = torch.randn(SAMPLES, 8, generator=_GENERATOR)
Y = X[:, :1] * 2 - X[:, 1:2] * X[:, 2:3]
DATASET = TensorDataset(X, Y)


def mlp() -> Any:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def plain_batches(size: int = SIZE, passes: int = PASSES) -> list[Any]:
    return [(X[at : at + size], Y[at : at + size]) for _ in range(passes) for at in range(0, SAMPLES, size)]


def fit(model: Any, optimizer: Any, batches: Any, scheduler: Any = None) -> Any:
    """Train, one step for each batch, and return the model."""
    for x, y in batches:
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return model


def values(model: Any) -> dict[str, Any]:
    return {name: copy.deepcopy(parameter.detach()) for name, parameter in model.named_parameters()}


def furthest(model: Any, other: Any) -> float:
    """Return the largest difference between two models' parameters."""
    mine, theirs = values(model), values(other)
    assert mine.keys() == theirs.keys()
    return max(float((mine[name] - theirs[name]).abs().max()) for name in mine)


@contextlib.contextmanager
def cluster_of(root: Path, pservers: int, trainers: int, **spec: Any) -> Iterator[ThreadCluster]:
    with thread_cluster(root, pservers, trainers, **spec) as cluster:
        cluster.kind = ct.Session
        yield cluster


def adam(model: Any) -> Any:
    return optim.Adam(model.parameters(), lr=0.01)


def inner_step(model: Any, optimizer: Any, batch: Any) -> Any:
    x, y = batch
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    return loss


def rounds_of(batches: list[Any], every: int) -> list[list[Any]]:
    return [batches[at : at + every] for at in range(0, len(batches), every)]


class Reference:
    """DiLoCo in one process: models and inner optimizers by rank, and Nesterov's momentum in numpy outside."""

    def __init__(self, trainers: int, make: Callable[[Any], Any] = adam) -> None:
        self.models = [mlp() for _ in range(trainers)]
        self.optimizers = [make(model) for model in self.models]
        self.value = {name: value.numpy() for name, value in values(self.models[0]).items()}
        self.velocity = {name: np.zeros_like(value) for name, value in self.value.items()}

    def round(self, work: list[list[Any]]) -> None:
        """Take a round with the batches of each rank."""
        for model, optimizer, batches in zip(self.models, self.optimizers, work, strict=True):
            for batch in batches:
                inner_step(model, optimizer, batch)
        samples = [sum(len(x) for x, _ in batches) for batches in work]
        lr, momentum = np.float32(0.7), np.float32(0.9)
        for name, value in self.value.items():
            merged = np.zeros_like(value)
            for model, n in zip(self.models, samples, strict=True):
                if n:
                    merged += np.float32(n) * (value - values(model)[name].numpy())
            merged /= np.float32(sum(samples))
            self.velocity[name] = self.velocity[name] * momentum + merged
            self.value[name] = value - (merged + self.velocity[name] * momentum) * lr
        self.begin()

    def begin(self) -> None:
        for model in self.models:
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter.copy_(torch.from_numpy(self.value[name]))


def same(model: Any, expected: dict[str, Any]) -> bool:
    return all(np.array_equal(value.numpy(), expected[name]) for name, value in values(model).items())
