"""Restart a run that failed from its newest checkpoint, once its cause is fixed."""

from __future__ import annotations

from pathlib import Path

import clusterctl

WORKSPACE = Path(__file__).with_name("workspace")


def break_after_a_checkpoint(cluster: clusterctl.Cluster, job: clusterctl.Job, run: clusterctl.Run) -> None:
    """Damage the data on all nodes: this program has to show a failure."""
    for event in run.events():
        if isinstance(event, clusterctl.Saved) and event.checkpoint and event.complete:
            cluster.exec(["touch", "broken"], job=job)
            return


def main() -> None:
    with clusterctl.Cluster.from_conf(set={"SAVE_EVERY": "10 steps"}) as cluster:
        job = cluster.dispatch(WORKSPACE)
        run = job.start(["--passes=100000", "--pause_s=0.01"])
        break_after_a_checkpoint(cluster, job, run)
        try:
            run.wait(timeout=600)
        except clusterctl.JobFailedError as error:
            outcome = run.outcome()
            print(f"{error}\nthe newest checkpoint is {outcome.checkpoint}")
        cluster.exec(["rm", "broken"], job=job)
        run = job.start([f"--passes={(outcome.pass_ or 0) + 2}"], resume=True)
        print(f"{run.id} {run.wait(timeout=600).state}")


if __name__ == "__main__":
    main()
