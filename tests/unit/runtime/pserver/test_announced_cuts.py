"""In sync the lead has a cut announced: the first pserver reports its step, and all lanes make it there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import SGD
from clusterctl.runtime.trainer.session import Session
from support.processes import wait_until
from unit.runtime.cluster import ThreadCluster, thread_cluster

STEPS = 12


def checkpoints(cluster: ThreadCluster) -> list[int]:
    """Return the steps of the checkpoints that all pservers have written."""
    steps = [receipt["step"] for receipt in list(cluster.receipts) if receipt.get("checkpoint")]
    return sorted(step for step in {*steps} if steps.count(step) == len(cluster.pservers))


def announced(cluster: ThreadCluster) -> list[tuple[int, dict[str, Any]]]:
    """Announce a cut as the lead does, by an order to all pservers, and return their reports once there is one."""
    reports: list[tuple[int, dict[str, Any]]] = []
    for rank, pserver in enumerate(cluster.pservers):
        pserver.cuts._send = lambda phase, facts, rank=rank: reports.append((rank, {"phase": phase, **facts}))
        pserver.cuts.order("announce", 5, {})
    assert wait_until(lambda: bool(reports))
    return reports


@pytest.mark.parametrize(
    ("every", "models"),
    [(None, None), ({"unit": "step", "n": 5}, {"unit": "step", "n": 3}), ({"unit": "pass", "n": 1}, None)],
)
def test_the_checkpoint_is_made_at_the_step_that_is_reported(
    tmp_path: Path, every: dict[str, Any] | None, models: dict[str, Any] | None
) -> None:
    reports: list[tuple[int, dict[str, Any]]] = []

    def program(ps: Session) -> None:
        w, e = ps.dense("w", 3, SGD(1.0)), ps.embedding("e", 2, SGD(1.0), rows=9)
        for batch in ps.steps(lambda pass_, rng: range(STEPS), passes=1):
            if (ps.rank, batch) == (0, 6):
                reports.extend(announced(cluster))
            ps.push({w: np.ones(3), e: (np.arange(9), np.ones((9, 2)))}, samples=1)

    facts = {"checkpoints": True, "save_every": every, "save_model_every": models, "ports_num_for_sparse": 1}
    with thread_cluster(tmp_path, 2, 2, mode="sync", **facts) as cluster:
        cluster.train(program)
    ((rank, report),) = reports
    at = report["step"]
    assert (rank, report) == (0, {"phase": "announced", "cut": 5, "step": at})
    assert 6 < at <= 9
    own = {"step": [5, 10], "pass": [STEPS]}.get(every["unit"] if every else "", [])
    assert checkpoints(cluster) == sorted({*own, at})


def test_a_second_request_gets_the_cut_that_is_announced_already(tmp_path: Path) -> None:
    steps: list[int] = []

    def program(ps: Session) -> None:
        w = ps.dense("w", 3, SGD(1.0))
        for batch in ps.steps(lambda pass_, rng: range(STEPS), passes=1):
            if (ps.rank, batch) == (0, 6):  # no step ends meanwhile: the others wait for this trainer
                steps.extend(report["step"] for _ in range(3) for _, report in announced(cluster))
            ps.push({w: np.ones(3)}, samples=1)

    with thread_cluster(tmp_path, 1, 2, mode="sync", checkpoints=True) as cluster:
        cluster.train(program)
    assert len(steps) == 3
    assert len(set(steps)) == 1
    assert checkpoints(cluster) == steps[:1]
