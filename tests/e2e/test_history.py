"""The record of a real run, read from its nodes: what happened, in typed values, with secrets hidden."""

from __future__ import annotations

import os
from typing import Any

import pytest

from clusterctl.cluster import Cluster
from clusterctl.config import load
from clusterctl.errors import UsageError
from clusterctl.inventory import build
from clusterctl.observe.record.history import read_history
from clusterctl.observe.record.model import RunRecord
from support.site import Site, events_in

pytestmark = pytest.mark.nodes(2)

SECRET = "s3cr3t-of-the-node"
# Trainer 1 fails in its second attempt, after the checkpoint of pass 0.
TRAIN = """
import os, sys
import numpy as np
from clusterctl.runtime import connect, Adam, zeros

with connect() as ps:
    w = ps.dense("w", shape=(4,), rule=Adam(0.05), init=zeros())
    print("training with", os.environ["WANDB"], "and token=abcdef", flush=True)
    def reader(pass_, rng):
        for _ in range(5):
            yield rng.standard_normal((8, 4), dtype=np.float32)
    for x in ps.steps(reader, passes=3):
        at = ps.step // 5
        if ps.rank == 1 and at == 2:
            {}["learning_rate"]
        error = x @ w.value - 1
        ps.push({w: x.T @ error / len(x)}, samples=len(x), loss=float((error ** 2).mean()))
        ps.log(**{"</script><b>": float("nan") if at == 1 else 0.5, "auc": 0.25 * at})
"""


def history(site: Site, job: str) -> RunRecord:
    settings = load(site.conf_path, os.environ)
    inventory = build(settings)
    with Cluster(settings, inventory, inventory.nodes) as cluster:
        return read_history(cluster, job)


def recorded(site: Site, job: str, node: int, event: str) -> list[dict[str, Any]]:
    path = site.job_dir(job, node) / ".clusterctl/runs/0001/events.jsonl"
    return [one for one in events_in(path) if one["event"] == event]


def test_the_record_of_a_failed_run_tells_its_story(site: Site) -> None:
    site.conf(ENV={"WANDB": SECRET}, SEED=5)
    job = site.dispatch(TRAIN)
    assert site.run("start", "--job_workspace", job, "--", "--token", "abcdef", "--lr=1").code == 1
    record = history(site, job)
    assert (record.state, record.run, record.mode, record.workspace) == ("failed", "0001", "sync", "workspace")
    assert record.cause is not None
    assert "KeyError: 'learning_rate'" in record.cause.headline
    assert (record.cause.role, record.cause.rank) == ("trainer", 1)
    assert (record.settings["SEED"], record.settings["MODE"], record.env) == ("5", "sync", ("WANDB",))
    assert record.arguments == ("--token", "[hidden]", "--lr=1")
    assert SECRET not in repr(record)
    assert "abcdef" not in repr(record)
    assert any("training with $WANDB and token=[hidden]" in line.text for line in record.trainers[0].tail)
    for process in record.processes:
        assert [span.state for span in process.spans] == ["starting", "running"], process.name
        assert all(span.end is not None and span.end >= span.begin for span in process.spans)
    assert [mark.kind for mark in record.marks][-1] == "ended"
    assert {"KeyError" in mark.text for mark in record.marks if mark.kind == "exited"} == {False}, "the kind of exit"
    assert record.duration_s is not None
    assert {node.versions["numpy"] for node in record.nodes} != set()
    for rank in range(2):
        [loss] = [curve for curve in record.find("step", "loss") if curve.rank == rank]
        events = [one for one in recorded(site, job, rank, "step") if one["role"] == "trainer"]
        assert [(bucket.step1, bucket.last) for bucket in loss.buckets] == [
            (one["step"], one["loss"]) for one in events
        ]
    assert set(record.metrics) == {"</script><b>", "auc"}
    [odd] = [curve for curve in record.find("log", "</script><b>") if curve.rank == 0]
    assert sum(bucket.gaps for bucket in odd.buckets) > 0
    site.assert_nothing_left(job)


@pytest.mark.slow
def test_a_silent_node_is_named_and_the_rest_is_there(site: Site) -> None:
    job = site.dispatch(TRAIN.replace("and at == 2", "and False").replace('os.environ["WANDB"]', '"x"'))
    site.ok("start", "--job_workspace", job)
    site.conf(HOSTS=[site.hosts[0], "root@127.0.0.1:1"])
    record = history(site, job)
    assert record.state == "succeeded"
    assert [node.node.id for node in record.silent] == [1]
    assert record.silent[0].problem is not None
    assert record.trainers[1].state == "unknown"
    assert {curve.rank for curve in record.find("step", "loss")} == {0}


def test_a_job_without_a_run_has_no_record(site: Site) -> None:
    job = site.dispatch(TRAIN)
    with pytest.raises(UsageError, match=f"{job} was never started"):
        history(site, job)
