"""Train, bring the model home, and read it into arrays of numpy."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import clusterctl
from clusterctl.runtime import load_model

WORKSPACE = Path(__file__).with_name("workspace")


def main() -> None:
    with clusterctl.Cluster.from_conf() as cluster, tempfile.TemporaryDirectory() as directory:
        job = cluster.dispatch(WORKSPACE)
        job.start().wait(timeout=600)
        collected = job.collect(Path(directory) / "result")
        weights = load_model(collected.directory)["w"]
    assert isinstance(weights, np.ndarray)
    print(f"{collected.tag}: {np.round(weights, 2).tolist()}")


if __name__ == "__main__":
    main()
