"""The training program of the laboratory: dense and sparse tables, a step every 20 ms, about 40 KB per push.

It does not begin step 100 while a file exists that its second argument names: a fault meets a run that goes on,
however slow the machine is. With a third argument it takes a second to end after TERM, and has a helper in a session of
its own.
"""

PASSES, STEPS_OF_PASS = 4, 40
STEPS = PASSES * STEPS_OF_PASS
TRAIN = """
import os, signal, subprocess, sys, time
import numpy as np
from clusterctl.runtime import connect, Adagrad, Adam, uniform, zeros

passes, gate = int(sys.argv[1]), sys.argv[2]
if len(sys.argv) > 3:
    def end_slowly(*about):
        time.sleep(1)
        os._exit(143)
    signal.signal(signal.SIGTERM, end_slowly)
    helper = subprocess.Popen(["sleep", "100000"], start_new_session=True)

def reader(pass_, rng):
    for number in range(40 * pass_, 40 * pass_ + 40):
        x = rng.standard_normal((16, 4), dtype=np.float32)
        yield number, x, x @ np.arange(4, dtype=np.float32), rng.integers(-500, 500, 64)

with connect() as ps:
    w = ps.dense("w", shape=(4,), rule=Adam(0.05), init=zeros())
    wide = ps.dense("wide", shape=(3, 3_000), rule=Adagrad(0.1), init=uniform(0.1))
    emb = ps.embedding("e", dim=3, rule=Adagrad(0.1), init=uniform(0.1))
    for number, x, y, ids in ps.steps(reader, passes=passes):
        time.sleep(0.02)
        while number >= 100 and os.path.exists(gate):
            time.sleep(0.02)
        error = x @ w.value - y
        rows = emb.pull(ids)
        slope = {w: x.T @ error / len(x), emb: (ids, rows), wide: wide.value * np.float32(0.1)}
        ps.push(slope, samples=len(x), loss=float((error ** 2).mean()))
if len(sys.argv) > 3:
    helper.kill()
"""
