"""A run that succeeds without learning: warned of once in each command, with the state and the exit code unchanged.

Which runs are doubted: tests/unit/agent/lead/test_learning.py.
"""

from __future__ import annotations

import pytest

from support.site import Site

pytestmark = pytest.mark.slow

NO_PUSH = """
from clusterctl.runtime import connect, Adagrad, zeros

with connect() as ps:
    ps.dense("w", shape=(4,), rule=Adagrad(0.5), init=zeros()).pull()
"""


@pytest.mark.nodes(1)
def test_a_run_that_learned_nothing_succeeds_with_a_warning_that_commands_show(site: Site) -> None:
    started = site.ok("start", "--job_dispatch_package", str(site.workspace(NO_PUSH)))
    status = site.ok("status", "--json").json()
    job, warnings = status["job"], status["warnings"]
    assert (status["state"], [one["kind"] for one in warnings]) == ("succeeded", ["no_push"])
    why = site.ok("why", job)
    for one in (started, why):
        assert (one.out + one.err).count(f"warning: {warnings[0]['message']}") == 1
