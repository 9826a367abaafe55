"""The cost of copies to training: steps of a run that saves often, with COPIES = 1 and COPIES = 2, alternating.

Fake nodes share one machine, its disk and its cores: the copies compete with training for all of them, which they do
not on separate machines. Models are merged in neither of them, but with --merge in both.
"""

from __future__ import annotations

import json
import os
import re
import statistics
from pathlib import Path

from farm import options, program, run, scratch, show

TRAIN = """
import sys, time
import numpy as np
from clusterctl.runtime import SGD, connect

elements, steps = int(sys.argv[1]), int(sys.argv[2])
times = []
with connect() as ps:
    w = ps.dense("w", shape=(elements,), rule=SGD(0.1))
    gradient = np.ones(elements, np.float32)
    for step in ps.steps(lambda pass_, rng: range(steps), passes=4):
        began = time.perf_counter()
        ps.push({w: gradient}, samples=1)
        times.append(time.perf_counter() - began)
times = times[steps:]
print(f"step_ms {1e3 * sum(times) / len(times):.3f} median {1e3 * sorted(times)[len(times) // 2]:.3f}", flush=True)
"""
CONF = """
import runpy
HOSTS = runpy.run_path({fake!r})["HOSTS"]
for name, value in runpy.run_path({fake!r}).items():
    if name.isupper():
        globals()[name] = value
SAVE_EVERY = "1 pass"
COPIES = {copies}
MODEL_ON_LEAD_MB = {merge}
"""


def main() -> None:
    given = options(__doc__, nodes=4, rounds=5)
    given.add_argument("--mb", type=int, default=64, help="megabytes of the model (default 64)")
    given.add_argument("--steps", type=int, default=40, help="steps of a pass, after which it is saved (default 40)")
    given.add_argument("--merge", action="store_true", help="merge models on the first node, too")
    args = given.parse_args()
    elements = args.mb * 1_000_000 // 4
    with scratch(args.dir) as top:
        workspace = top / "workspace"
        workspace.mkdir()
        (workspace / "train.py").write_text(TRAIN)
        fake = top / "fake"
        run([*program(), "fake", "up", "-n", str(args.nodes), "--dir", str(fake)])
        results: dict[int, list[tuple[float, float, int]]] = {1: [], 2: []}
        try:
            for _ in range(args.rounds):
                for copies, measured in results.items():
                    measured.append(measure(top, fake, workspace, copies, [elements, args.steps], merge=args.merge))
        finally:
            run([*program(), "fake", "down", "--dir", str(fake), "--yes"])
        rows = []
        base = statistics.median(mean for mean, _, _ in results[1])
        for copies, measured in results.items():
            mean, median = (statistics.median(one[i] for one in measured) for i in (0, 1))
            copied = statistics.median(one[2] for one in measured) / 1e6
            rows.append([f"COPIES = {copies}", f"{mean:.1f}", f"{median:.1f}", f"{mean / base:.2f}", f"{copied:.0f}"])
        show([f"{args.nodes} nodes, {args.mb} MB", "ms/step (mean)", "(median)", "ratio", "MB copied"], rows)


def measure(
    top: Path, fake: Path, workspace: Path, copies: int, arguments: list[int], *, merge: bool
) -> tuple[float, float, int]:
    """Return the mean and the median of a step of node 0's trainer in ms, and the bytes that were copied."""
    conf = top / f"conf-{copies}.py"
    conf.write_text(CONF.format(fake=str(fake / "conf.py"), copies=copies, merge=2000 if merge else 0))
    env = {**os.environ, "CLUSTERCTL_CONF": str(conf), "XDG_CACHE_HOME": str(top / "cache")}
    words = ["start", "--job_dispatch_package", str(workspace), "--json", "--", *map(str, arguments)]
    run([*program(), *words], env)
    logs = run([*program(), "logs", "--rank", "0", "--role", "trainer"], env).out.decode()
    found = re.search(r"step_ms ([\d.]+) median ([\d.]+)", logs)
    assert found is not None, logs
    events = max((fake / "nodes/node0/clusterctl").glob("JOB*/.clusterctl/runs/*/events.jsonl"))
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    copied = sum(line["bytes"] for line in lines if line["event"] == "copied")
    return float(found[1]), float(found[2]), copied


if __name__ == "__main__":
    main()
