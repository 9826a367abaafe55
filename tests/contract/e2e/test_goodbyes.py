"""A trainer that exits with code 0 has finished only if it has left the run."""

from __future__ import annotations

import pytest

from contract.e2e.test_programs import newest_job
from support.site import Site

pytestmark = [pytest.mark.nodes(2), pytest.mark.slow]
TRAIN = """
import os, sys
from clusterctl.runtime import SGD, connect

RANK, ATTEMPT = os.environ["CLUSTERCTL_RANK"], os.environ["CLUSTERCTL_ATTEMPT"]

def train(ps, passes, until=None):
    w = ps.dense("w", 4, SGD(0.1))
    for number, _ in enumerate(ps.steps(lambda pass_, rng: range(5), passes=passes)):
        if number == until and ATTEMPT == "1":
            return
        ps.push({w: w.value - 1}, samples=1)
"""


def explained(site: Site) -> tuple[str, str]:
    """The process and the reason that `why` gives for the newest job."""
    cause = site.ok("why", newest_job(site), "--json").json()["cause"]
    return f"{cause['role']}{cause['rank']}@node{cause['node']}", cause["reason"]


@pytest.mark.parametrize("begins", ["with connect() as ps:\n    train(ps, 2, until=3)", "train(connect(), 2, until=3)"])
def test_a_trainer_that_skips_its_goodbye_in_the_middle_of_a_pass_is_restarted(site: Site, begins: str) -> None:
    site.conf(RESTARTS=1)
    leaves = "if RANK == ATTEMPT == '1': os._exit(0)"
    train = TRAIN.replace("            return", f"            {leaves}\n            continue")
    site.ok("start", "--job_dispatch_package", str(site.workspace(f"{train}\n{begins}")))
    status = site.status(newest_job(site))
    assert (status["state"], sum(process["restarts"] for process in status["processes"])) == ("succeeded", 1)


def test_an_exception_behind_a_pipe_fails_the_run_and_is_named(site: Site) -> None:
    site.conf(TRAINER_COMMAND="sh run.sh")
    train = f"{TRAIN}\nwith connect() as ps:\n    train(ps, 2, until=3)\n    raise ValueError('bad shard')"
    package = site.workspace(train, **{"run.sh": "python3 train.py 2>&1 | cat"})
    result = site.run("start", "--job_dispatch_package", str(package))
    assert result.code == 1, result.out + result.err
    assert "ValueError: bad shard" in result.err
    assert explained(site)[1] == "exception"


def test_without_with_the_end_of_the_program_is_the_goodbye(site: Site) -> None:
    """Trainer 1 makes one pass, trainer 0 three: from the second on it waits for nobody."""
    site.ok(
        "start", "--job_dispatch_package", str(site.workspace(f"{TRAIN}\ntrain(connect(), 1 if RANK == '1' else 3)"))
    )
    job = newest_job(site)
    assert site.status(job)["state"] == "succeeded"
    site.assert_nothing_left(job)


@pytest.mark.nodes(1)
def test_a_run_in_which_no_trainer_connects_fails(site: Site) -> None:
    """The shell of a trainer exits and leaves its program in the background."""
    site.conf(TRAINER_COMMAND="sh run.sh")
    files = {"run.sh": "python3 -c 'import time; time.sleep(600)' &"}
    result = site.run("start", "--job_dispatch_package", str(site.workspace("", **files)))
    assert result.code == 1, result.out + result.err
    assert "before it connected to the pservers" in result.err
    assert "PSERVERS = 0" in result.err
    assert explained(site)[1] == "not_connected"
