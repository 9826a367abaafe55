"""Outside sync, a checkpoint is not made while a push has reached only some pservers; `status` names its trainer."""

from __future__ import annotations

import re
from typing import Any

import pytest

from support.processes import wait_until
from support.site import Site, events_in

pytestmark = pytest.mark.nodes(2)

# Trainer 1 blocks in a push that pserver 0 has and pserver 1 has not, until the file `go_on` exists.
TRAIN = """
import os, time
import numpy as np
from clusterctl.runtime import connect, SGD, zeros
from clusterctl.runtime.wire import messages as wire

def reader(pass_, rng):
    while not os.path.exists("end"):
        time.sleep(0.01)
        yield 1

with connect() as ps:
    w = ps.dense("w", shape=(3, 30_000), rule=SGD(0.1), init=zeros())
    post = ps._client._link.post

    def slow(lane, message, *more):
        if message.kind == wire.PUSH and lane == ps._client.used[-1] and ps.step > 5:
            while not os.path.exists("go_on"):
                time.sleep(0.02)
        post(lane, message, *more)

    if ps.rank == 1:
        ps._client._link.post = slow
    for one in ps.steps(reader, passes=1):
        ps.push({w: np.ones((3, 30_000), np.float32)}, samples=1)
"""
REASON = "no checkpoint this time: a push of trainer1 did not reach all pservers in 5 s; the next one comes at its time"


def touch(site: Site, job: str, name: str) -> None:
    for node in range(2):
        (site.job_dir(job, node) / name).touch()


@pytest.mark.slow
def test_status_shows_a_dropped_checkpoint_until_one_is_complete(site: Site) -> None:
    site.conf(PSERVERS=2, TRAINERS=2, MODE="async", SAVE_EVERY=50, SAVE_MODEL_EVERY=None)
    job = site.start(TRAIN)

    def dropped() -> dict[str, Any] | None:
        found: dict[str, Any] | None = site.status(job).get("cut_dropped")
        return found

    lead = site.job_dir(job, 0) / ".clusterctl/runs/0001"
    assert wait_until(lambda: '"event":"cut_dropped"' in (lead / "events.jsonl").read_text())
    assert wait_until(lambda: dropped() is not None)
    assert {**(dropped() or {}), "t": 0} == {"t": 0, "message": REASON, "trainers": [1]}
    assert re.search(rf"\d\d:\d\d:\d\d  {REASON}", site.ok("status", job).out)
    touch(site, job, "go_on")
    assert wait_until(lambda: bool(list(lead.glob("checkpoints/*/manifest.json"))))
    assert wait_until(lambda: dropped() is None)
    assert site.status(job)["state"] == "running"
    touch(site, job, "end")
    assert wait_until(lambda: site.has_ended(job))
    assert site.status(job)["state"] == "succeeded"
    events = events_in(lead / "events.jsonl")
    assert {event["message"] for event in events if event["event"] == "cut_dropped"} == {REASON}
    site.assert_nothing_left(job)
