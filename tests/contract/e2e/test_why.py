"""`clusterctl why` on a fake cluster: real failures of real processes, and the report of an attached start."""

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
from contract.e2e.programs import READY, REGRESSION, SLEEP
from support.processes import wait_until
from support.site import Site
from unit.observe.rewording import assert_wording_does_not_matter

pytestmark = pytest.mark.nodes(3)

ON_ONE_NODE = """
import os
if os.environ["CLUSTERCTL_RANK"] == "2":
    import nosuchmodule
"""
# Trainer 1 kills the pserver of node 2, and the trainers then lose it.
KILLER = """
    import os, signal
    if ps.rank == 1 and ps.n == 6:
        def words(pid, name):
            try:
                return open(f"/proc/{pid}/{name}", "rb").read()
            except OSError:  # it has exited meanwhile
                return b""
        mine = [int(p) for p in os.listdir("/proc") if p.isdigit() and b"runtime.pserver" in words(p, "cmdline")]
        # Not by the id of the job: another cluster on this machine may have one of this second.
        place = os.environ["CLUSTERCTL_JOB_DIR"].replace("/node1/", "/node2/").encode()
        (pid,) = [p for p in mine if b"CLUSTERCTL_JOB_DIR=" + place + b"\\0" in words(p, "environ")]
        os.kill(pid, signal.SIGSEGV)
"""


WITHOUT_GUARD = """
import multiprocessing as mp
from clusterctl.runtime import connect
def square(x): return x * x
with connect() as ps:
    with mp.get_context("spawn").Pool(2) as pool:
        print(pool.map(square, [3]))
"""


# Nothing in the lines of the first tells that it was handled, nor in those of the second that it was not.
HANDLED = """
import sys, traceback
from clusterctl.runtime import connect
with connect():
    try:
        {}["old_name"]
    except KeyError:
        traceback.print_exc()
    print("using new_name instead", flush=True)
    sys.exit("loader: schema 4 is not supported, giving up")
"""
SPEAKS_LAST = """
import atexit
from clusterctl.runtime import connect
with connect():
    atexit.register(print, "tracker: the end of this run was not reported, giving up", flush=True)
    {}["new_name"]
"""


# Trainer 1 fails when it finds a file, and node 2 takes long to stop.
FAILS_WHEN_ASKED = f"""
import os, signal, time
rank = os.environ["CLUSTERCTL_RANK"]
if rank == "2":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
{READY}
while rank != "1" or not os.path.exists("fail"):
    time.sleep(0.01)
raise ValueError("labels must be 0 or 1")
"""


def why(site: Site, job: str, code: int = 0) -> Any:
    done = site.run("why", job, "--json")
    assert done.code == code, done.out + done.err
    assert_wording_of_answers_does_not_matter(site, job)
    return done.json()


def assert_wording_of_answers_does_not_matter(site: Site, job: str) -> None:
    """Assert that the nodes' answers lead to the same conclusion with all of our texts reworded."""
    calls: list[Any] = []
    settings = load(site.conf_path, os.environ)
    inventory = build(settings)
    with pytest.MonkeyPatch.context() as patch, Cluster(settings, inventory, inventory.nodes) as cluster:
        patch.setattr(module, "explain", lambda *args: calls.append(args) or explain(*args))  # type: ignore[func-returns-value]
        report = module.why(cluster, job)
    assert_wording_does_not_matter(*calls[0], report.explanation)


def test_a_failed_import_on_one_node_is_the_cause(site: Site) -> None:
    done = site.run("start", "--job_dispatch_package", str(site.workspace(ON_ONE_NODE + REGRESSION)))
    assert done.code == 1
    assert "exited with code 1: import error: No module named 'nosuchmodule'\n  | Traceback" in done.err
    job = site.ok("jobs", "--json").json()["jobs"][0]["job"]
    report = why(site, job)
    cause = report["cause"]
    expected = {"role": "trainer", "rank": 2, "node": 2, "reason": "import_error", "subject": "nosuchmodule"}
    assert {name: cause[name] for name in expected} == expected
    assert cause["where"] == "train.py:4"
    assert cause["lines"][-1]["line"] == "ModuleNotFoundError: No module named 'nosuchmodule'"
    assert report["state"] == "failed"
    assert {clock["node"] for clock in report["clocks"]} == {0, 1, 2}
    assert all(abs(clock["offset_s"]) <= clock["margin_s"] + 0.05 for clock in report["clocks"])
    output = site.ok("why", job).out
    assert "first cause: trainer2@node2" in output
    assert "what to do: clusterctl setup" in output


@pytest.mark.slow
def test_a_crash_of_a_pserver_during_training_is_the_cause(site: Site) -> None:
    site.conf(RESTARTS=0, SAVE_EVERY=2)
    step = "    for x, y, ids in ps.steps(reader, passes=options.num_passes, on_pass=on_pass):\n"
    assert step in REGRESSION
    kill = "".join(f"    {line}\n" for line in KILLER.strip("\n").splitlines())
    program = REGRESSION.replace(step, f"    ps.n = 0\n{step}        ps.n += 1\n{kill}".replace("ps.n", "reader.n"))
    done = site.run("start", "--job_dispatch_package", str(site.workspace(program)), "--num_passes=1000")
    assert done.code == 1, done.out + done.err
    assert "first cause: pserver2@node2" in done.err
    job = site.ok("jobs", "--json").json()["jobs"][0]["job"]
    report = why(site, job)
    assert (report["cause"]["reason"], report["cause"]["signal"]) == ("segfault", "SIGSEGV")
    assert report["cause"]["exit_code"] == -signal.SIGSEGV
    output = site.ok("why", job).out
    assert "crashed with signal 11 (segmentation fault)\n" in output
    if report["checkpoint"]:
        assert f"clusterctl start --job_workspace {job} --resume" in output


@pytest.mark.slow
def test_a_lead_killed_by_sigkill_is_the_cause(site: Site) -> None:
    """It leaves no final event."""
    job = site.start(SLEEP)
    os.kill(site.supervisor(job, 0), signal.SIGKILL)
    site.assert_nothing_left(job)
    assert wait_until(lambda: site.status(job)["state"] in ("failed", "lost"))
    cause = why(site, job)["cause"]
    assert (cause["kind"], cause["reason"], cause["node"]) == ("node_lost", "supervisor_killed", 0)


@pytest.mark.slow
@pytest.mark.parametrize("killed_first", [False, True])
def test_of_an_exception_and_a_killed_supervisor_the_earlier_one_is_the_cause(site: Site, killed_first: bool) -> None:
    """The last sign of life of the supervisor is older than both."""
    site.conf(ENGINE="none", RESTARTS=0, GRACE_S=3)
    job = site.start(FAILS_WHEN_ASKED)
    supervisor = site.supervisor(job, 2)
    of_lead, events = (site.job_dir(job, node) / ".clusterctl/runs/0001/events.jsonl" for node in (0, 1))

    def kill() -> bool:
        os.kill(supervisor, signal.SIGKILL)
        return not killed_first or wait_until(lambda: '"event":"lost"' in of_lead.read_text())

    def fail() -> bool:
        (site.job_dir(job, 1) / "fail").touch()
        return wait_until(lambda: '"event":"exited"' in events.read_text())

    assert all(step() for step in ((kill, fail) if killed_first else (fail, kill)))
    assert wait_until(lambda: site.has_ended(job))
    cause = why(site, job)["cause"]
    assert (cause["node"], cause["reason"]) == ((2, "supervisor_killed") if killed_first else (1, "exception"))
    site.assert_nothing_left(job)


@pytest.mark.slow
def test_a_supervisor_that_a_signal_from_outside_ended_is_not_a_stop_by_the_user(site: Site) -> None:
    job = site.start(SLEEP)
    os.kill(site.supervisor(job, 1), signal.SIGTERM)
    assert wait_until(lambda: site.has_ended(job))
    report = why(site, job)
    cause = report["cause"]
    assert (report["state"], cause["reason"], cause["node"]) == ("stopped", "supervisor_ended", 1)
    assert "the supervisor of node1 was ended by SIGTERM" in site.ok("why", job).out


@pytest.mark.slow
def test_a_program_that_its_own_processes_import_again_ends_with_that_cause(site: Site) -> None:
    site.conf(PSERVERS=1, TRAINERS=1, RESTARTS=3)
    job = site.dispatch(WITHOUT_GUARD)
    done = site.run("start", "--job_workspace", job)
    assert done.code == 1
    report = why(site, job)
    assert "MainGuardError" in report["cause"]["error"]
    assert "__main__" in report["advice"]
    assert "is not an open socket" not in site.ok("logs", job).out
    site.assert_nothing_left(job)


@pytest.mark.slow
@pytest.mark.nodes(1)
@pytest.mark.parametrize(("program", "words"), [(HANDLED, '"loader: schema 4'), (SPEAKS_LAST, "KeyError: 'new_name'")])
def test_an_exception_is_the_cause_only_if_it_ended_the_program(site: Site, program: str, words: str) -> None:
    site.conf(PSERVERS=1, TRAINERS=1, RESTARTS=0)
    assert site.run("start", "--job_dispatch_package", str(site.workspace(program))).code == 1
    job = site.ok("jobs", "--json").json()["jobs"][0]["job"]
    assert f"exited with code 1: {words}" in site.ok("why", job).out


@pytest.mark.slow
@pytest.mark.nodes(2)
def test_jobs_that_have_not_failed_are_described(site: Site) -> None:
    dispatched = site.dispatch(SLEEP)
    assert "was never started" in site.ok("why", dispatched).out
    job = site.start(SLEEP)
    assert "has been running for" in site.ok("why", job).out
    site.ok("stop", job)
    assert "was stopped by the user after" in site.ok("why", job).out
    report = why(site, job)
    assert (report["state"], report["cause"]["kind"]) == ("stopped", "stopped")
    refused = site.run("why", "JOB20000101-000000")
    assert refused.code == 2, refused.err


@pytest.mark.slow
def test_nodes_that_are_unreachable_now_are_reported_with_what_is_known(site: Site) -> None:
    site.conf(ON_NODE_LOSS="fail")
    job = site.start(SLEEP)
    os.kill(site.supervisor(job, 2), signal.SIGKILL)
    site.assert_nothing_left(job)
    hosts = [*site.hosts]
    hosts[2] = hosts[2].rpartition(":")[0] + ":1"  # which refuses connections
    site.conf(HOSTS=hosts)
    report = why(site, job, code=3)
    assert (report["cause"]["kind"], report["cause"]["reason"], report["cause"]["node"]) == (
        "node_lost",
        "node_down",
        2,
    )
    assert [one["node"] for one in report["unknown"]] == ["node2"]
    result = site.run("why", job)
    assert result.code == 3
    assert "first cause: node2 is lost" in result.out


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


@pytest.mark.slow
@pytest.mark.nodes(2)
@pytest.mark.parametrize(
    ("program", "settings", "expected", "advice"),
    [
        (GREEDY, {"MEMORY_LIMIT_MB": 3000}, ("exit", "out_of_memory", 1), "MEMORY_LIMIT_MB"),
        pytest.param(
            SLEEP,
            {"TRAINER_COMMAND": "nosuch-program"},
            ("failure", "missing_program", None),
            "install it",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            STOPS_ITSELF,
            {"STALL_S": 2, "ON_STALL": "fail"},
            ("stalled", "stalled", 1),
            "kill -CONT",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["memory limit", "no such command", "stopped by a signal"],
)
def test_findings_of_supervisors_are_known_from_fields_not_messages(
    site: Site, program: str, settings: dict[str, Any], expected: tuple[Any, ...], advice: str
) -> None:
    site.conf(**settings)
    done = site.run("start", "--job_dispatch_package", str(site.workspace(program)))
    assert done.code == 1, done.err
    report = why(site, site.ok("jobs", "--json").json()["jobs"][0]["job"])
    cause = report["cause"]
    rank = cause["rank"] if expected[2] is not None else None  # all of them fail, and any may be first
    assert (cause["kind"], cause["reason"], rank) == expected
    assert advice in report["advice"]


@pytest.mark.slow
def test_a_start_that_a_killed_agent_broke_is_not_called_a_stop_by_the_user(site: Site) -> None:
    site.conf(ROOT_DIR="~/elsewhere")
    job = site.dispatch(SLEEP)
    (entry,) = (site.home(2) / "elsewhere/.clusterctl/lib").glob("*/clusterctl/agent/entry.py")
    entry.write_text("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n")  # the agent is about to launch it
    started = site.run("start", "--job_workspace", job, "--detach")
    assert started.code == 3
    assert "node2: the agent " in started.err
    report = why(site, job)
    assert (report["state"], report["cause"]["kind"], report["cause"]["reason"]) == (
        "stopped",
        "stopped",
        "start_failed",
    )
    assert report["cause"]["message"].startswith("the start failed: node2: the agent ")
    assert "was stopped because the start failed: node2: the agent " in site.ok("why", job).out
