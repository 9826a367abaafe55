"""How long a run stands still when it loses a machine for good: from the last sign of it to the next step of all.

Three machines in turn: one with a trainer, one with a pserver as well, and the first, whose run an attached `start`
resumes on the others. Fake nodes share one machine and its cores; a node is frozen, and so as silent as one without
power. Sync mode: a step ends once all trainers have taken part in it. `noticed` and `started` are when the others
recorded the loss, and when the last process was started again.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from farm import options, program, run, scratch, show
from support.processes import wait_until

TRAIN = """
import sys, time
import numpy as np
from clusterctl.runtime import SGD, connect

elements, steps = int(sys.argv[1]), int(sys.argv[2])
with connect() as ps:
    w = ps.dense("w", shape=(elements,), rule=SGD(0.1))
    gradient = np.ones(elements, np.float32)
    for step in ps.steps(lambda pass_, rng: range(steps), passes=1):
        ps.push({w: gradient}, samples=1)
        with open(f"steps-{ps.rank}", "a") as file:
            file.write(f"{time.time()}\\n")
"""
CONF = """
import runpy
for name, value in runpy.run_path({fake!r}).items():
    if name.isupper():
        globals()[name] = value
SHARDS = []
PSERVERS = {pservers}
NODE_GRACE_S = {grace_s}
SAVE_EVERY = "{save_s} s"
SAVE_MODEL_EVERY = None
"""
LOST = {"a trainer": -1, "a pserver and a trainer": 1, "the first node": 0}
QUIET_S = 2.0  # steps that were under way


def main() -> None:
    given = options(__doc__, nodes=4, rounds=3)
    given.add_argument("--mb", type=int, default=100, help="megabytes of the model (default 100)")
    given.add_argument("--steps", type=int, default=100_000, help="steps of the run, which is stopped (default 100000)")
    given.add_argument("--grace", type=int, default=10, help="NODE_GRACE_S (default 10)")
    given.add_argument("--save", type=int, default=5, help="seconds between checkpoints (default 5)")
    args = given.parse_args()
    results: dict[str, list[tuple[float, float, float]]] = {name: [] for name in LOST}
    for _ in range(args.rounds):
        for name, measured in results.items():
            with scratch(args.dir) as top:
                measured.append(measure(top, args, range(args.nodes)[LOST[name]]))
    rows = [
        [name, *(f"{statistics.median(one[i] for one in measured):.1f}" for i in range(3))]
        for name, measured in results.items()
    ]
    show(
        [f"{args.nodes} nodes, {args.mb} MB, NODE_GRACE_S = {args.grace}", "noticed s", "started s", "next step s"],
        rows,
    )


def measure(top: Path, args: Any, node: int) -> tuple[float, float, float]:
    """Return the seconds until the loss of a node was noticed, all processes were started, and all took a step."""
    workspace, fake = top / "workspace", top / "fake"
    workspace.mkdir()
    (workspace / "train.py").write_text(TRAIN)
    run([*program(), "fake", "up", "-n", str(args.nodes), "--dir", str(fake)])
    conf = top / "conf.py"
    conf.write_text(CONF.format(fake=str(fake / "conf.py"), pservers=2, grace_s=args.grace, save_s=args.save))
    env = {**os.environ, "CLUSTERCTL_CONF": str(conf), "XDG_CACHE_HOME": str(top / "cache")}
    words = [str(args.mb * 1_000_000 // 4), str(args.steps)]
    with (top / "start.log").open("w") as log:
        command = [*program(), "start", str(workspace), "--", *words]
        starting = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        assert wait_until(lambda: any(event["event"] == "copied" for event in events(fake))), log_of(top)
        run([*program(), "fake", "pause", f"node{node}", "--dir", str(fake)])
        lost = time.time()
        assert wait_until(lambda: any(t > lost + QUIET_S for t in steps(fake, node))), log_of(top)
        noticed = min(event["t"] for event in events(fake) if event["event"] == "lost" and event["t"] > lost)
        started = [event["t"] for event in events(fake) if event["event"] == "spawned" and event["t"] > lost]
        return noticed - lost, max(started) - lost, min(t for t in steps(fake, node) if t > lost + QUIET_S) - lost
    finally:
        starting.kill()  # it would wait for the nodes
        starting.wait()
        run([*program(), "fake", "down", "--dir", str(fake), "--yes"])


def events(fake: Path) -> Iterator[dict[str, Any]]:
    for file in (fake / "nodes").glob("*/clusterctl/JOB*/.clusterctl/runs/*/events.jsonl"):
        yield from (json.loads(line) for line in file.read_text().splitlines() if line.endswith("}"))


def steps(fake: Path, lost: int) -> list[float]:
    """Return when each trainer that is not on the lost node ended each step."""
    files = (fake / "nodes").glob("*/clusterctl/JOB*/steps-*")
    return [float(line) for file in files if f"node{lost}" not in file.parts for line in file.read_text().split()]


def log_of(top: Path) -> str:
    return (top / "start.log").read_text()


if __name__ == "__main__":
    main()
