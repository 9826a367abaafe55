"""Measure the ctr workspace written with clusterctl.torch: its step relative to that of the numpy program, and its AUC.

Both train the model of workspace_ctr/model.py on the same flights, with the same initial rows and the same rule. Real
pservers and trainers of both programs stay up, and take turns for some steps at a time. Afterwards each trains `passes`
passes for its AUC. pip downloads the data once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import ps_common as bench

sys.path.append(str(Path(__file__).parents[1] / "workspace_ctr"))

import model as formulas
import train as workspace

Steps = Iterator[float | None]
ENDLESS = 10_000


class Flights:
    """A torch Dataset over an array of RECORD."""

    def __init__(self, records: Any) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitems__(self, indices: list[int]) -> Any:
        return self.records.take(indices)

    __getitem__ = __getitems__


def tensors(records: Any) -> Any:
    """Return a batch: the ids of open and of closed fields, and the labels."""
    import torch

    arrays = records["open"], records["closed"].astype(np.int64), records["late"]
    return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]


def make_model(categories: int, fields: int) -> Any:
    """Return the model of workspace_ctr/model.py."""
    import torch
    from torch import nn

    import clusterctl.torch as ct
    from clusterctl.runtime import uniform

    class WideAndDeep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.open = ct.Embedding(formulas.WIDTH, init=uniform(0.05))
            self.closed = nn.Embedding(categories, formulas.WIDTH, sparse=True)
            self.hidden = nn.Linear(fields * formulas.EMBEDDING, formulas.HIDDEN)
            self.output = nn.Linear(formulas.HIDDEN, 1)
            nn.init.uniform_(self.closed.weight, -0.05, 0.05)
            for layer in (self.hidden, self.output):
                nn.init.uniform_(layer.weight, -0.1, 0.1)
                nn.init.zeros_(layer.bias)

        def forward(self, opened: Any, closed: Any) -> Any:
            vectors = torch.cat([self.open(opened), self.closed(closed)], 1)
            wide, deep = vectors.split([1, formulas.EMBEDDING], 2)
            hidden = torch.relu(self.hidden(deep.flatten(1)))
            return wide.sum((1, 2)) + self.output(hidden).squeeze(1)

    return WideAndDeep()


def by_torch(given: dict[str, Any]) -> Steps:
    """Train with clusterctl.torch: yield None after each step, and the AUC at the end."""
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits

    import clusterctl.torch as ct

    with ct.connect() as ps:
        train, test, categories, fields = flights(given["data"], ps)
        torch.manual_seed(ps.seed)
        model = make_model(categories, fields)
        optimizer = torch.optim.Adagrad(model.parameters(), lr=given["rate"], weight_decay=workspace.L2)
        ps.distribute(model, optimizer)
        loader = ps.loader(
            Flights(train), given["batch"], given["passes"] or ENDLESS, shuffle=True, shard=False, collate_fn=tensors
        )
        for opened, closed, late in loader:
            loss = binary_cross_entropy_with_logits(model(opened, closed), late)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step(loss=loss)
            yield None
        with torch.no_grad():
            scores = [model(*tensors(part)[:2]).numpy() for part in workspace.cut(test, 4096)]
        yield formulas.auc(np.concatenate(scores), test["late"])


def by_numpy(given: dict[str, Any]) -> Steps:
    """Train as workspace_ctr/train.py does."""
    from clusterctl.runtime import connect

    with connect() as ps:
        train, test, categories, fields = flights(given["data"], ps)
        learner = workspace.Trainer(ps, categories, fields, given["rate"])

        def reader(pass_: int, rng: np.random.Generator) -> Any:
            return workspace.cut(rng.permutation(train), given["batch"])

        for batch in ps.steps(reader, passes=given["passes"] or ENDLESS):
            learner.learn(batch)
            yield None
        yield formulas.auc(learner.scores(test), test["late"])


PROGRAMS = {"numpy": by_numpy, "torch": by_torch}


def flights(folder: str, ps: Any) -> tuple[Any, Any, int, int]:
    """Return the training flights of this trainer, the held-out ones, and the numbers of categories and of fields."""
    train, test = (workspace.read_shards(workspace.own_shards(folder, kind, ps)) for kind in ("train", "test"))
    categories = len((Path(folder) / "categories.txt").read_text(encoding="utf-8").splitlines())
    return train, test, categories, train["open"].shape[1] + train["closed"].shape[1]


def trainer(given: dict[str, Any]) -> None:
    steps = PROGRAMS[given["program"]](given)
    if given["passes"] is None:
        watch = bench.Stopwatch()
        for _ in steps:
            watch.tick()
    for auc in steps:
        if auc is not None:
            bench.report(auc=auc)


def compare(layout: bench.Layout, given: argparse.Namespace, data: str) -> list[str]:
    """Return the table's row for one layout."""
    facts = {"data": data, "batch": given.batch, "rate": given.rate}
    aucs = []
    with contextlib.ExitStack() as stack:
        running = {
            name: stack.enter_context(bench.fleet(layout, __file__, program=name, passes=None, **facts))
            for name in PROGRAMS
        }
        cpu_s: dict[str, list[float]] = {name: [] for name in running}

        def step(name: str) -> float:
            seconds = statistics.median(running[name].steps(given.steps))
            cpu_s[name].append(running[name].trainers_cpu_s)
            return seconds

        figures = bench.contest({name: partial(step, name) for name in running}, given.rounds)
    for name in PROGRAMS:
        with bench.fleet(layout, __file__, program=name, passes=given.passes, **facts) as fleet:
            aucs.append(statistics.mean(one.receive()["auc"] for one in fleet.trainers))
    mine, theirs = figures["torch"], figures["numpy"]
    cells = [*bench.spread(mine, 1e3), *bench.spread(theirs, 1e3), f"{bench.ratio(mine, theirs):.2f}"]
    return [str(layout), *cells, f"{bench.ratio(cpu_s['torch'], cpu_s['numpy']):.2f}", *(f"{auc:.4f}" for auc in aucs)]


def main() -> None:
    parser = bench.options(__doc__.partition("\n")[0], layouts="1x1,2x2", batch=512, rate=0.02, threads=1)
    bench.more_options(parser, rounds=9, steps=40, passes=3)
    given = parser.parse_args()
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "CLUSTERCTL_TRAINER_THREADS"), str(given.threads)))
    with tempfile.TemporaryDirectory(prefix="clusterctl-bench-") as data:
        prepare = [
            sys.executable,
            str(Path(workspace.__file__).with_name("prepare_data.py")),
            "--shards",
            "4",
            "--out",
            data,
        ]
        subprocess.run(prepare, check=True, stdout=subprocess.DEVNULL)
        rows = [compare(layout, given, data) for layout in bench.layouts(given.layouts)]
    print(f"steps of {given.batch} samples, {given.threads} threads; AUC after {given.passes} passes")
    headings = ["trainers x pservers", "torch, ms", "range", "numpy, ms", "range", "torch / numpy"]
    bench.show([*headings, "trainers' CPU, torch / numpy", "AUC, numpy", "AUC, torch"], rows)


if __name__ == "__main__":
    bench.run(main, trainer)
