"""Two starts of the same job at once: one of them wins on all nodes, and the other says so."""

from __future__ import annotations

import re

import pytest

from contract.e2e.programs import SLEEP
from support.site import Site

pytestmark = pytest.mark.slow


@pytest.mark.nodes(3)
def test_one_of_two_starts_at_once_wins_and_the_other_names_it(site: Site) -> None:
    site.conf(ENGINE="none")
    job = site.dispatch(SLEEP)
    for number in range(1, 5):
        command = ("start", "--detach", "--job_workspace", job)
        with site.popen(*command) as one, site.popen(*command) as other:
            results = [(process.communicate(timeout=180), process.returncode) for process in (one, other)]
        [((out, _), won), ((_, err), lost)] = sorted(results, key=lambda result: result[1])
        assert (won, lost) == (0, 4), results
        assert f"run {number}: supervisors are up on 3 nodes" in out
        assert re.search(
            rf"{job} is already running \(run {number}\)|another clusterctl start of {job} is under way", err
        )
        site.ok("stop", job)
    site.assert_nothing_left(job)
