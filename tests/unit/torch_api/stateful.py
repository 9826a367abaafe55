"""A training program whose bits depend on all of a trainer's state, in processes that die where they are told to."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import nn, optim

import clusterctl.torch as ct
from clusterctl.runtime.checkpoint import safetensors
from clusterctl.runtime.state.keeper import StateKeeper
from clusterctl.runtime.supervisor_socket import SupervisorSocket
from clusterctl.runtime.trainer.client import Client
from clusterctl.runtime.trainer.zmq_link import RemoteLink
from unit.runtime.cluster import DEADLINE_S, ThreadCluster, environment

SIZE, PASSES, TRAINERS = 8, 3, 2
BATCHES = 9  # of all trainers in a pass: trainer 0 has one more than trainer 1
optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)  # imports half of torch: once, before processes are forked
X = torch.randn(SIZE * BATCHES, 8, generator=torch.Generator().manual_seed(3))


class Kill(NamedTuple):
    """SIGKILL at a point of the program: the `number`-th forward call or file, or the step or pass `number`."""

    rank: int
    point: str
    number: int


class Noisy:
    """Samples with noise of torch's global generator."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> Any:
        return X[index] + 0.1 * torch.randn(8)


class Seen:
    """Something with state of its own, as a GradScaler has."""

    def __init__(self) -> None:
        self.scale = torch.tensor(1.0, dtype=torch.bfloat16)
        self.losses: list[float] = []
        self.batches = 0

    def state_dict(self) -> dict[str, Any]:
        numbered = dict(enumerate(self.losses[-2:]))
        return {"scale": self.scale, "losses": tuple(self.losses), "by_number": numbered, "batches": self.batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert isinstance(state["losses"], tuple)
        assert all(type(key) is int for key in state["by_number"])
        self.scale, self.losses, self.batches = state["scale"], list(state["losses"]), state["batches"]


def model_of() -> Any:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 1))


def train(ps: Any, every: int = 1, workers: int = 2, rounds: int = 0) -> dict[str, Any]:
    """Train with a step for `every` batches; return everything that the trainer has.

    With `rounds` in the outer mode, whose rounds have so many batches.
    """
    model = model_of()
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    outer = ps.outer(model, optimizer, every=rounds) if rounds else None
    if outer is None:
        ps.distribute(model, optimizer)
    scheduler, noise, seen = optim.lr_scheduler.StepLR(optimizer, 2, 0.8), torch.Generator(), Seen()
    noise.manual_seed(8 + ps.rank)
    for name, thing in (("scheduler", scheduler), ("noise", noise), ("seen", seen)):
        ps.keep(name, thing)

    def on_pass(pass_: int) -> None:
        seen.losses.append(float(torch.rand((), generator=noise) + torch.rand(())))
        die("on_pass", pass_)

    more = {"num_workers": workers, **({"multiprocessing_context": "fork"} if workers else {})}
    for x in ps.loader(Noisy(), SIZE, PASSES, shuffle=True, on_pass=on_pass, **more):
        loss = (model(x * torch.rand((), generator=noise)) ** 2 - x[:, :1]).square().mean()
        loss.backward()
        seen.batches += 1
        if seen.batches % every == 0:
            if outer is None:
                optimizer.step(loss=loss)
            else:
                optimizer.step()
                outer.step(loss=loss)
            optimizer.zero_grad()
            scheduler.step()
            seen.losses.append(loss.item())
            seen.scale *= 1.01
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    state.update({f"inner.{n}": one["exp_avg"] for n, one in optimizer.state_dict()["state"].items()})
    return {**state, "lr": optimizer.param_groups[0]["lr"], "noise": noise.get_state(), **seen.state_dict()}


_kill: list[Kill] = []


def die(point: str, number: int) -> None:
    if _kill and _kill[0][1:] == (point, number):
        os.kill(os.getpid(), signal.SIGKILL)


def _plant() -> None:
    """Make the points at which this process may die."""
    take, write, end_pass, forward = StateKeeper.take, safetensors.write_to, Client.end_pass, nn.Sequential.forward
    settle = Client.settle
    calls = {"forward": 0, "write": 0}

    def counted(point: str) -> None:
        calls[point] += 1
        die(point, calls[point])

    def dying_take(self: Any, *given: Any, **more: Any) -> None:
        die("answered", self._client.step)
        take(self, *given, **more)
        die("taken", self._client.step)

    def dying_settle(self: Any, *given: Any) -> None:
        if self._pushes:
            die("sent", self.step)
        settle(self, *given)

    def dying_write(file: Any, *given: Any) -> str:
        digest = write(file, *given)
        if _kill and _kill[0][1:] == ("write", calls["write"] + 1):
            file.truncate(file.tell() // 2)
            file.flush()
        counted("write")
        return digest

    def dying_end(self: Any, tag: str, **more: Any) -> None:
        die("end", int(tag[-5:]))
        end_pass(self, tag, **more)
        die("ended", int(tag[-5:]))

    def dying_forward(self: Any, *given: Any) -> Any:
        counted("forward")
        return forward(self, *given)

    StateKeeper.take, Client.end_pass, Client.settle = dying_take, dying_end, dying_settle  # type: ignore[method-assign]
    safetensors.write_to, nn.Sequential.forward = dying_write, dying_forward


class Reports(SupervisorSocket):
    """Keeps what a trainer tells its supervisor in a file."""

    def __init__(self, path: Path) -> None:
        super().__init__(None)
        self._path = path

    def send(self, event: str, **fields: Any) -> None:
        if event in ("saved", "state_lost"):
            with self._path.open("a") as file:
                file.write(f"{event} {fields.get('tag', '')}\n")


def _trainer(
    root: Path, rank: int, addresses: tuple[str, ...], attempt: int, kill: Kill | None, options: dict[str, Any]
) -> None:
    """A trainer process."""
    torch.set_num_threads(1)
    os.chdir(root)
    if kill is not None and kill.rank == rank:
        _kill.append(kill)
        _plant()
    env = environment(root, "trainer", rank, addresses, attempt)
    with ct.Session(env, RemoteLink(env), Reports(root / f"reports-{rank}"), None) as ps:
        result = train(ps, **options)
    torch.save(result, root / f"result-{rank}.pt")


@contextlib.contextmanager
def processes() -> Iterator[Any]:
    """Yield a context whose processes are forked from one that has imported torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path))):  # else it cannot import that
        forkserver.ensure_running()
    try:
        yield context
    finally:
        forkserver._forkserver._stop()  # type: ignore[attr-defined]


class Job:
    """The trainers of a cluster, as processes that `context` starts."""

    def __init__(self, context: Any, cluster: ThreadCluster, kill: Kill | None = None, **options: Any) -> None:
        self._context = context
        self._cluster = cluster
        self._options = options
        self.trainers = [self._start(rank, 1, kill) for rank in range(TRAINERS)]

    def _start(self, rank: int, attempt: int, kill: Kill | None = None) -> Any:
        cluster = self._cluster
        given = (cluster.root, rank, cluster.addresses, attempt, kill, self._options)
        process = self._context.Process(target=_trainer, args=given)
        process.start()
        return process

    def restart(self, rank: int, attempt: int = 2, kill: Kill | None = None) -> None:
        """Wait until a trainer is killed, and start it again."""
        self.trainers[rank].join(DEADLINE_S)
        assert self.trainers[rank].exitcode == -signal.SIGKILL
        self.trainers[rank] = self._start(rank, attempt, kill)

    def kill(self) -> None:
        for process in self.trainers:
            process.kill()
            process.join(DEADLINE_S)

    def results(self) -> list[dict[str, Any]]:
        """Wait for the end, and return the results by rank."""
        for process in self.trainers:
            process.join(DEADLINE_S)
            assert process.exitcode == 0
        return [torch.load(self._cluster.root / f"result-{rank}.pt") for rank in range(TRAINERS)]


def assert_same(results: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    for own, other in zip(results, expected, strict=True):
        assert own.keys() == other.keys()
        for name, value in own.items():
            same = torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
            assert same, (name, value, other[name])
