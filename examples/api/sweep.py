"""Train with three learning rates, one after the other, and say which one is best."""

from __future__ import annotations

from pathlib import Path

import clusterctl

WORKSPACE = Path(__file__).with_name("workspace")


def main() -> None:
    losses: dict[float, float] = {}
    with clusterctl.Cluster.from_conf() as cluster:
        job = cluster.dispatch(WORKSPACE)
        for rate in (0.01, 0.05, 0.2):
            run = job.start([f"--lr={rate}"], name=f"lr-{rate}")
            run.wait(timeout=600)
            losses[rate] = run.metrics().last("loss")
            print(f"{run.id}: learning rate {rate}, loss {losses[rate]:.3g}")
    print(f"the best learning rate is {min(losses, key=losses.__getitem__)}")


if __name__ == "__main__":
    main()
