"""Runs that start from a checkpoint whose tables have other names: warned of, or refused."""

from __future__ import annotations

import pytest

from support.site import Site

pytestmark = [pytest.mark.nodes(2), pytest.mark.slow]
TRAIN = """
import sys
import numpy as np
from clusterctl.runtime import connect, SGD

passes, *names = sys.argv[1:]
with connect() as ps:
    tables = [ps.dense(name, 2, SGD(1.0)) for name in names]
    for _ in ps.steps(lambda pass_, rng: range(5), passes=int(passes)):
        ps.push({table: np.ones(2, np.float32) for table in tables}, samples=1, loss=1.0)
"""


def test_tables_of_one_side_are_warnings_of_the_run_and_other_tables_refuse_it(site: Site) -> None:
    site.conf(SAVE_EVERY=5)
    package = str(site.workspace(TRAIN))
    site.ok("start", "--job_dispatch_package", package, "--", "2", "same", "old")
    first = site.ok("status", "--json").json()["job"]
    again = ("start", "--job_dispatch_package", package, "--resume-from", first, "--", "3")
    started = site.ok(*again, "same", "new")
    status = site.ok("status", "--json").json()
    assert [one["kind"] for one in status["warnings"]] == ["tables_not_loaded", "tables_not_declared"]
    for one in status["warnings"]:
        assert f"warning: {one['message']}" in started.out + started.err
    explained = site.ok("why", "--json").json()
    for warning in (*explained["warnings"], *status["warnings"]):
        del warning["t"]  # by our clock, or by that of the first node
    assert explained["warnings"] == status["warnings"]
    refused = site.run(*again, "other")
    assert refused.code == 1
    assert "has none of the declared tables: it has tables old, same; the program declares table other" in refused.err
