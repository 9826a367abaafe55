"""A start on nodes where another job runs: a warning with that job's name, its user and its start; or a refusal."""

from __future__ import annotations

import json
import time

import pytest

from clusterctl.cluster import who_asks
from contract.e2e.programs import SLEEP
from support.site import Site

pytestmark = [pytest.mark.nodes(2), pytest.mark.slow]


def test_another_running_job_is_a_warning_and_with_exclusive_a_refusal(site: Site) -> None:
    site.conf(ENGINE="none", PSERVERS=0)
    first = site.start(SLEEP)
    spec = site.job_dir(first, 0) / ".clusterctl/runs/0001/spec.json"
    day = time.strftime("%Y-%m-%d", time.localtime(json.loads(spec.read_text())["t"]))  # midnight may pass
    package = str(site.workspace(SLEEP))
    second = site.ok("start", "--job_dispatch_package", package, "--detach")
    words = f"{first} is running, started by {who_asks()} at {day}"
    assert f"nodes 0,1     {words}" in second.out
    assert "EXCLUSIVE = True" in second.out
    other = site.ok("status", "--json").json()["jobs"][0]["job"]
    site.conf(ENGINE="none", PSERVERS=0, EXCLUSIVE=True)
    third = site.run("start", "--job_dispatch_package", package)
    assert third.code == 4
    assert "nothing was started" in third.err
    assert words in third.err
    assert f"{other} is running" in third.err
    for job in (first, other):
        site.ok("stop", job)
        site.assert_nothing_left(job)
    alone = site.ok("start", "--job_dispatch_package", package, "--detach")
    assert "is running, started by" not in alone.out
    site.ok("stop")
