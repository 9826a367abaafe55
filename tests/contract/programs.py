"""The training programs of recordings."""

from __future__ import annotations

REGRESSION = """
import os, signal, sys, time
import numpy as np
from clusterctl.runtime import Adagrad, connect, uniform, zeros

how = (sys.argv[1:] + [""])[0]
attempt, rank = os.environ["CLUSTERCTL_ATTEMPT"], os.environ["CLUSTERCTL_RANK"]

def reader(pass_, rng):
    for _ in range(6):
        x = rng.standard_normal((8, 4), dtype=np.float32)
        yield x, x @ np.arange(4, dtype=np.float32), rng.integers(0, 50, 8)

with connect() as ps:
    w = ps.dense("w", shape=(4,), rule=Adagrad(0.5), init=zeros())
    emb = ps.embedding("e", dim=3, rule=Adagrad(0.1), init=uniform(0.1))
    for x, y, ids in ps.steps(reader, passes=2, on_pass=lambda pass_: ps.log(score=float(pass_))):
        if how == "fail" and rank == "1" and ps.step == 8:
            raise ValueError("no such column: age")
        if how == "die" and (attempt, rank) == ("1", "1") and ps.step == 8:
            os.kill(os.getpid(), signal.SIGKILL)
        while how == "wait" and ps.step == 8 and not os.path.exists("go"):
            time.sleep(0.05)
        error = x @ w.value - y
        rows = emb.pull(ids)
        ps.push({w: x.T @ error / len(x), emb: (ids, rows)}, samples=len(x), loss=float((error ** 2).mean()))
        print("step", ps.step, flush=True)
"""

OUTER = """
import clusterctl.torch as ct
import torch

torch.manual_seed(0)
x = torch.randn(96, 4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with ct.connect() as ps:
    outer = ps.outer(model, optimizer, every=3)
    for inputs, targets in ps.loader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, passes=2):
        loss = ((model(inputs) - targets) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        outer.step(loss=loss)
"""

# For other engines: trainers end by themselves, servers when they are told to.
OTHER = """
import os, socket, sys, time

env, role = os.environ, os.environ["CLUSTERCTL_ROLE"]
print("up", flush=True)
if role == "trainer":
    time.sleep(2)
    sys.exit()
if role == "scheduler" or "PADDLE_PORT" in env:
    listener = socket.socket()
    listener.bind(("", int(env["DMLC_PS_ROOT_PORT" if role == "scheduler" else "PADDLE_PORT"])))
    listener.listen()
time.sleep(600)
"""
