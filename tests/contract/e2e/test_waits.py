"""In sync, `status` names the trainers that all others wait for, for as long as they do."""

from __future__ import annotations

import re
from typing import Any

import pytest

from support.processes import wait_until
from support.site import Site

pytestmark = [pytest.mark.nodes(2), pytest.mark.slow]

# The reader of trainer 1 sleeps before batch 5 until the file `go_on` exists. Then all are quiet until `end` does.
TRAIN = """
import os, time
import numpy as np
from clusterctl.runtime import connect, SGD, zeros

def until(name):
    while not os.path.exists(name):
        time.sleep(0.02)

def reader(pass_, rng):
    for number in range(8):
        if number == 5 and os.environ["CLUSTERCTL_RANK"] == "1":
            until("go_on")
        yield number, rng.standard_normal((8, 4), dtype=np.float32)

with connect() as ps:
    w = ps.dense("w", shape=(4,), rule=SGD(0.1), init=zeros())
    for number, x in ps.steps(reader, passes=1):
        if number == 7:
            until("end")
        ps.push({w: x.mean(0)}, samples=len(x))
"""
WAITS = re.compile(r"3 trainers have been waiting for trainer1 for (\d+) s")
PASSING = {"awaits", "awaited", "waiting", "awaits_s"}


def waits(site: Site, job: str) -> list[dict[str, Any]]:
    """Return what each pserver reports of a wait."""
    found = [{name: one[name] for name in PASSING if name in one} for one in site.status(job)["processes"]]
    return [one for one in found if one]


def test_status_names_the_trainer_that_all_others_wait_for_until_it_goes_on(site: Site) -> None:
    site.conf(PSERVERS=1, TRAINERS_PER_NODE=2)
    job = site.start(TRAIN)
    # On a busy machine they may have waited before, for a trainer that took long to start.
    expected = [{"awaits": [1], "awaited": 1, "waiting": 3, "awaits_s": 0}]
    assert wait_until(lambda: [{**one, "awaits_s": 0} for one in waits(site, job)] == expected), waits(site, job)
    assert waits(site, job)[0]["awaits_s"] >= 3
    shown = WAITS.search(site.ok("status", job).out)
    assert shown is not None
    assert wait_until(lambda: waits(site, job)[0]["awaits_s"] > int(shown[1]) + 1), "it grows"
    for node in range(2):
        (site.job_dir(job, node) / "go_on").touch()
    assert wait_until(lambda: not waits(site, job)), "it is over, though no message reaches the pservers any more"
    assert "waiting" not in site.ok("status", job).out
    for node in range(2):
        (site.job_dir(job, node) / "end").touch()
    assert wait_until(lambda: site.has_ended(job))
    assert site.status(job)["state"] == "succeeded"
    site.assert_nothing_left(job)
