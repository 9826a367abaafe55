"""Training programs for tests."""

REGRESSION = """
import argparse
import numpy as np
from clusterctl.runtime import connect, Adagrad, zeros, uniform

parser = argparse.ArgumentParser()
parser.add_argument("--num_passes", type=int, default=3)
options, rest = parser.parse_known_args()

def reader(pass_, rng):
    for _ in range(5):
        x = rng.standard_normal((32, 4), dtype=np.float32)
        yield x, x @ np.arange(4, dtype=np.float32), rng.integers(0, 50, 8)

with connect() as ps:
    w = ps.dense("w", shape=(4,), rule=Adagrad(0.5), init=zeros())
    emb = ps.embedding("e", dim=3, rule=Adagrad(0.1), init=uniform(0.1))

    def on_pass(pass_):
        ps.log(score=1.0, weight=2)
        print("end of pass", pass_, "on trainer", ps.rank, flush=True)

    for x, y, ids in ps.steps(reader, passes=options.num_passes, on_pass=on_pass):
        error = x @ w.value - y
        rows = emb.pull(ids)
        ps.push({w: x.T @ error / len(x), emb: (ids, rows)}, samples=len(x), loss=float((error ** 2).mean()))
print("done with", rest)
"""

# A program that reports that it is ready counts as running without living for a second.
READY = """
import os
os.write(int(os.environ["CLUSTERCTL_CONTROL_FD"]), b'{"event":"ready"}\\n')
"""

# A program that does no steps succeeds only if it joins the run and leaves it.
LEAVE = """
from clusterctl.runtime import connect
with connect():
    pass
"""

SLEEP = f"""
import time
print("up", flush=True)
{READY}
time.sleep(600)
"""

DEAF = f"""
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
{READY}
time.sleep(600)
"""
