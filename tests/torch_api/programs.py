"""Small models and data, plain training, and clusters whose sessions are clusterctl.torch's."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import clusterctl.torch as ct
from tests.runtime.cluster import ThreadCluster, thread_cluster

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
