"""Train until a metric is good enough, then stop the run on all nodes."""

from __future__ import annotations

import math
from pathlib import Path

import clusterctl

WORKSPACE = Path(__file__).with_name("workspace")
GOOD_ENOUGH = 0.1


def wait_for_metric(run: clusterctl.Run, name: str, limit: float) -> float:
    """Return the first value below the limit. Raises JobFailedError if the run ends without one."""
    for event in run.events():
        value = (event.values or {}).get(name, math.inf) if isinstance(event, clusterctl.Log) else math.inf
        if value < limit:
            return value
    run.wait()
    raise RuntimeError(f"{run.id} succeeded without a {name} below {limit}")


def main() -> None:
    with clusterctl.Cluster.from_conf() as cluster:
        run = cluster.dispatch(WORKSPACE).start(["--passes=100000", "--pause_s=0.01"])
        value = wait_for_metric(run, "rmse", GOOD_ENOUGH)
        run.stop()
        print(f"{run.id} is {run.state} with rmse {value:.3f}; nothing of it is left on the nodes")


if __name__ == "__main__":
    main()
