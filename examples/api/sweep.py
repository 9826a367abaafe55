"""Train with three learning rates, and say which one is best."""

from __future__ import annotations

from pathlib import Path

import clusterctl

WORKSPACE = Path(__file__).with_name("workspace")


def main() -> None:
    losses: dict[object, float] = {}
    with clusterctl.Cluster.from_conf() as cluster:
        for trial in cluster.map([{"lr": rate} for rate in (0.01, 0.05, 0.2)], workspace=WORKSPACE, timeout=600):
            if trial.error is not None:
                raise trial.error
            losses[trial.settings["lr"]] = trial.values["loss"]
            print(f"{trial.job.id}: learning rate {trial.settings['lr']}, loss {trial.values['loss']:.3g}")
    print(f"the best learning rate is {min(losses, key=losses.__getitem__)}")


if __name__ == "__main__":
    main()
