"""Measure `start --detach` and `stop` of a program that only waits, and compare them with another clusterctl.

One process per node, on real OpenSSH daemons. `--against` is a command like CLUSTERCTL_PROGRAM; each program has its
own ROOT_DIR. All nodes share this machine's cores, so the time is that of the CPU that all of them use.
"""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path

from farm import Cost, Farm, farm, options, program, scratch, show

WAIT = "import time\ntime.sleep(3600)\n"


def dispatch(nodes: Farm, name: str, command: str, workspace: Path) -> str:
    os.environ["CLUSTERCTL_PROGRAM"] = command
    nodes.clusterctl("dispatch", str(workspace), root=name)
    job: str = json.loads(nodes.clusterctl("jobs", "--json", root=name).out)["jobs"][0]["job"]
    return job


def start_and_stop(nodes: Farm, name: str, command: str, job: str) -> dict[str, Cost]:
    os.environ["CLUSTERCTL_PROGRAM"] = command
    started = nodes.clusterctl("start", "--engine", "none", "--detach", "--job_workspace", job, root=name)
    return {"start": started, "stop": nodes.clusterctl("stop", job, root=name)}


def row(what: str, name: str, costs: list[Cost], ours: list[Cost]) -> list[str]:
    seconds = [cost.seconds for cost in costs]
    ratio = statistics.median(one.seconds / mine.seconds for one, mine in zip(costs, ours, strict=True))
    spread = f"{min(seconds):.2f}-{max(seconds):.2f}"
    client = statistics.median(cost.cpu_s for cost in costs)
    return [what, name, f"{statistics.median(seconds):.2f}", spread, f"{client:.2f}", f"{ratio:.2f}"]


def main() -> None:
    parser = options(__doc__, nodes=64, rounds=5)
    parser.add_argument("--against", help="another program to compare with")
    given = parser.parse_args()
    programs = {"ours": " ".join(program()), **({"other": given.against} if given.against else {})}
    with scratch(given.dir) as top, farm(given.nodes, top) as nodes:
        workspace = top / "workspace"
        workspace.mkdir()
        (workspace / "train.py").write_text(WAIT)
        jobs = {name: dispatch(nodes, name, command, workspace) for name, command in programs.items()}
        costs: dict[tuple[str, str], list[Cost]] = {}
        for turn in range(given.rounds):
            for name in programs if turn % 2 == 0 else reversed(programs):
                for what, cost in start_and_stop(nodes, name, programs[name], jobs[name]).items():
                    costs.setdefault((what, name), []).append(cost)
    rows = [row(what, name, costs[what, name], costs[what, "ours"]) for what, name in sorted(costs)]
    show([f"{given.nodes} nodes", "program", "median s", "range s", "client cpu s", "x of ours"], rows)


if __name__ == "__main__":
    main()
