"""A pserver that pauses slows its trainers down; no process's memory grows meanwhile, and training continues."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.runtime.attack import resident
from tests.runtime.cluster import process_cluster

MB = 10**6
TABLE_BYTES = 8 * MB
TRAIN = f"""
import itertools
import numpy as np
from clusterctl.runtime import SGD, connect

with connect() as ps:
    w = ps.dense("w", shape={TABLE_BYTES // 4}, rule=SGD(2.0**-10))
    for n in ps.steps(lambda pass_, rng: itertools.count(), passes=1):
        ps.push({{w: np.ones({TABLE_BYTES // 4}, np.float32)}}, samples=1)
        print("step", n, flush=True)
"""


@pytest.mark.slow
def test_a_pserver_that_pauses_for_ten_seconds_costs_time_but_no_memory(tmp_path: Path) -> None:
    with process_cluster(tmp_path, 1, 2, TRAIN, mode="async") as (servers, trainers):

        def steps(count: int) -> None:
            for trainer in trainers:
                out = iter(trainer.process.stdout or ())
                for _ in range(count):
                    assert any(line.startswith("step") for line in out), "a trainer ended"

        steps(30)
        everyone = [*servers, *trainers]
        before = [resident(process) for process in everyone]
        servers[0].process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                trainers[0].process.wait(10)
        finally:
            servers[0].process.send_signal(signal.SIGCONT)
        steps(30)
        grown = [resident(process) - was for process, was in zip(everyone, before, strict=True)]
        assert max(grown) < 4 * TABLE_BYTES, grown
