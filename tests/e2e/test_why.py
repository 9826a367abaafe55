"""`clusterctl why` on a fake cluster: real failures of real processes, and the end of an attached start."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

import clusterctl.observe.why.report as module
from clusterctl.cluster import Cluster
from clusterctl.config import load
from clusterctl.inventory import build
from clusterctl.observe.why.first_cause import explain
from e2e.programs import READY, REGRESSION, SLEEP
from observe.rewording import assert_wording_does_not_matter
from support.processes import wait_until
from support.site import Site

pytestmark = pytest.mark.nodes(3)

ON_ONE_NODE = """
import os
if os.environ["CLUSTERCTL_RANK"] == "2":
    import nosuchmodule
"""
# Trainer 1 kills the pserver of node 2, which trainers then miss.
KILLER = """
    import os, signal
    if ps.rank == 1 and ps.n == 6:
        def words(pid, name):
            try:
                return open(f"/proc/{pid}/{name}", "rb").read()
            except OSError:  # it has ended meanwhile
                return b""
        mine = [int(p) for p in os.listdir("/proc") if p.isdigit() and b"runtime.pserver" in words(p, "cmdline")]
        job = os.environ["CLUSTERCTL_JOB"].encode()
        (pid,) = [p for p in mine if b"NODE_ID=2\\0" in words(p, "environ") and job in words(p, "environ")]
        os.kill(pid, signal.SIGSEGV)
"""


def why(site: Site, job: str, code: int = 0) -> Any:
    done = site.run("why", job, "--json")
    assert done.code == code, done.out + done.err
    assert_it_goes_by_no_text(site, job)
    return done.json()


def assert_it_goes_by_no_text(site: Site, job: str) -> None:
    """The nodes' own answers, with every text of ours reworded, lead to the same."""
    asked: list[Any] = []
    settings = load(site.conf_path, os.environ)
    inventory = build(settings)
    with pytest.MonkeyPatch.context() as patch, Cluster(settings, inventory, inventory.nodes) as cluster:
        patch.setattr(module, "explain", lambda *given: asked.append(given) or explain(*given))  # type: ignore[func-returns-value]
        found = module.why(cluster, job)
    assert_wording_does_not_matter(*asked[0], found.explanation)


def test_an_import_that_fails_on_one_node(site: Site) -> None:
    done = site.run("start", "--job_dispatch_package", str(site.workspace(ON_ONE_NODE + REGRESSION)))
    assert done.code == 1
    assert "exited with code 1: import error: No module named 'nosuchmodule'\n  | Traceback" in done.err
    job = site.ok("jobs", "--json").json()["jobs"][0]["job"]
    found = why(site, job)
    cause = found["cause"]
    expected = {"role": "trainer", "rank": 2, "node": 2, "reason": "import_error", "subject": "nosuchmodule"}
    assert {name: cause[name] for name in expected} == expected
    assert cause["where"] == "train.py:4"
    assert cause["lines"][-1]["line"] == "ModuleNotFoundError: No module named 'nosuchmodule'"
    assert found["state"] == "failed"
    assert {clock["node"] for clock in found["clocks"]} == {0, 1, 2}
    assert all(abs(clock["offset_s"]) <= clock["margin_s"] + 0.05 for clock in found["clocks"])
    said = site.ok("why", job).out
    assert "first cause: trainer2@node2" in said
    assert "what to do: clusterctl setup" in said


def test_a_crash_of_a_pserver_while_trainers_run(site: Site) -> None:
    site.conf(RESTARTS=0, SAVE_EVERY=2)
    step = "    for x, y, ids in ps.steps(reader, passes=options.num_passes, on_pass=on_pass):\n"
    assert step in REGRESSION
    kill = "".join(f"    {line}\n" for line in KILLER.strip("\n").splitlines())
    program = REGRESSION.replace(step, f"    ps.n = 0\n{step}        ps.n += 1\n{kill}".replace("ps.n", "reader.n"))
    done = site.run("start", "--job_dispatch_package", str(site.workspace(program)), "--num_passes=1000")
    assert done.code == 1, done.out + done.err
    assert "first cause: pserver2@node2" in done.err
    job = site.ok("jobs", "--json").json()["jobs"][0]["job"]
    found = why(site, job)
    assert (found["cause"]["reason"], found["cause"]["signal"]) == ("segfault", "SIGSEGV")
    assert found["cause"]["exit_code"] == -signal.SIGSEGV
    said = site.ok("why", job).out
    assert "crashed with signal 11 (segmentation fault)\n" in said
    if found["checkpoint"]:
        assert f"clusterctl start --job_workspace {job} --resume" in said


@pytest.mark.parametrize("node", [0, 2])
def test_a_supervisor_killed_by_minus_9(site: Site, node: int) -> None:
    """Also the lead's, of which no last word is left."""
    job = site.start(SLEEP)
    os.kill(site.supervisor(job, node), signal.SIGKILL)
    site.assert_nothing_left(job, 30)
    assert wait_until(lambda: site.status(job)["state"] in ("failed", "lost"), 20)
    cause = why(site, job)["cause"]
    assert (cause["kind"], cause["reason"], cause["node"]) == ("node_lost", "supervisor_killed", node)


@pytest.mark.nodes(2)
def test_jobs_that_have_not_failed(site: Site) -> None:
    dispatched = site.dispatch(SLEEP)
    assert "was never started" in site.ok("why", dispatched).out
    job = site.start(SLEEP)
    assert "has been running for" in site.ok("why", job).out
    site.ok("stop", job)
    assert "was stopped by the user after" in site.ok("why", job).out
    found = why(site, job)
    assert (found["state"], found["cause"]["kind"]) == ("stopped", "stopped")
    refused = site.run("why", "JOB20000101-000000")
    assert refused.code == 2, refused.err


def test_nodes_that_cannot_be_reached_now_are_told_with_what_is_known(site: Site) -> None:
    job = site.start(SLEEP)
    os.kill(site.supervisor(job, 2), signal.SIGKILL)
    site.assert_nothing_left(job, 30)
    hosts = [*site.hosts]
    hosts[2] = hosts[2].rpartition(":")[0] + ":1"  # where nobody listens
    site.conf(HOSTS=hosts)
    found = why(site, job, code=3)
    assert (found["cause"]["kind"], found["cause"]["reason"], found["cause"]["node"]) == ("node_lost", "node_down", 2)
    assert [one["node"] for one in found["unknown"]] == ["node2"]
    said = site.run("why", job)
    assert said.code == 3
    assert "first cause: node2 is lost" in said.out


STOPS_ITSELF = f"""
import os, signal, time
if os.environ["CLUSTERCTL_RANK"] == "1":
    {READY.strip().splitlines()[-1]}
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(600)
"""
GREEDY = """
import os
if os.environ["CLUSTERCTL_RANK"] == "1":
    bytearray(10**12)
import time; time.sleep(600)
"""


@pytest.mark.nodes(2)
@pytest.mark.parametrize(
    ("program", "settings", "expected", "advice"),
    [
        (GREEDY, {"MEMORY_LIMIT_MB": 3000}, ("exit", "out_of_memory", 1), "MEMORY_LIMIT_MB"),
        (SLEEP, {"TRAINER_COMMAND": "./nosuch.sh"}, ("failure", "missing_program", None), "install it"),
        (STOPS_ITSELF, {"STALL_S": 2, "ON_STALL": "fail"}, ("stalled", "stalled", 1), "kill -CONT"),
    ],
    ids=["memory limit", "no such command", "stopped by a signal"],
)
def test_what_supervisors_found_out_is_known_without_reading_their_messages(
    site: Site, program: str, settings: dict[str, Any], expected: tuple[Any, ...], advice: str
) -> None:
    site.conf(**settings)
    done = site.run("start", "--job_dispatch_package", str(site.workspace(program)))
    assert done.code == 1, done.err
    found = why(site, site.ok("jobs", "--json").json()["jobs"][0]["job"])
    cause = found["cause"]
    rank = cause["rank"] if expected[2] is not None else None  # each of them fails, and one is the first
    assert (cause["kind"], cause["reason"], rank) == expected
    assert advice in found["advice"]
