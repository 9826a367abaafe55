"""Commands over connections and agents that the command before has left (KEEP_CONNECTIONS_S)."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.cluster import Cluster
from clusterctl.config import load
from clusterctl.inventory import Node, build
from e2e.programs import SLEEP
from e2e.test_agent_starts import Counted, counted  # noqa: F401 - a fixture
from support.kept import freeze, helpers
from support.processes import is_alive, kill_all, processes_with_environment, wait_until
from support.site import Site
from support.wires import wires_to

pytestmark = pytest.mark.nodes(2)

KEPT = {"KEEP_CONNECTIONS_S": 120, "ENGINE": "none"}


@pytest.fixture(autouse=True)
def kept(site: Site) -> Iterator[None]:
    site.conf(**KEPT)
    yield
    site.ok("disconnect")
    assert wait_until(lambda: not running(site))


def running(site: Site) -> list[int]:
    return helpers(site.nodes_directory / "cache" / "clusterctl" / "connections")


def idle_agents(site: Site) -> list[int]:
    """Return the agents that wait on the nodes."""
    homes = [str(site.home(node)) for node in range(2)]
    return [proc.pid for proc in processes_with_environment("HOME", *homes) if "_signal.alarm" in proc.command]


def without_times(document: Any) -> Any:
    if isinstance(document, dict):
        return {name: without_times(value) for name, value in document.items() if name not in ("seconds", "t")}
    return [without_times(value) for value in document] if isinstance(document, list) else document


def test_commands_start_no_agent_where_the_one_before_has_left_one(site: Site, counted: Counted) -> None:  # noqa: F811
    site.conf(**KEPT)
    starts: dict[str, int] = {}

    def run(*words: str) -> None:
        site.ok(*words)
        starts[" ".join(words)] = counted()

    package = str(site.workspace(SLEEP))
    run("jobs")
    run("dispatch", package)
    run("dispatch", package, "-q")  # nothing has changed
    run("exec", "--", "true")
    (site.directory / "workspace" / "train.py").write_text(f"{SLEEP}\n# edited")
    run("dispatch", package, "-v")
    run("status")
    assert starts.pop("jobs") == 1
    assert set(starts.values()) == {0}, starts
    assert wait_until(lambda: len(idle_agents(site)) == 2)
    job = site.ok("jobs", "--json").json()["jobs"][0]["job"]
    counted()
    run("start", "--job_workspace", job, "--detach")  # its agent leaves processes, and ends
    run("status", job)
    run("logs", job)
    run("stop", job)
    assert [starts[name] for name in (f"status {job}", f"logs {job}", f"stop {job}")] == [1, 0, 0]
    site.assert_nothing_left(job)


@pytest.mark.slow
def test_their_results_are_those_of_commands_that_connect_themselves(site: Site) -> None:
    package = str(site.workspace(SLEEP))
    first = site.ok("dispatch", package, "--json").json()
    calls = (("status",), ("jobs",), ("exec", "--", "echo out; echo err >&2; exit 3"), ("dispatch", package))
    kept = [site.run("--json", *words) for words in (*calls, *calls)]
    site.conf(**{**KEPT, "KEEP_CONNECTIONS_S": 0})
    direct = [site.run("--json", *words) for words in (*calls, *calls)]
    for one, other in zip(kept, direct, strict=True):
        assert (one.code, without_times(one.json())) == (other.code, without_times(other.json()))
    assert first["job"] == kept[-1].json()["job"]


def test_agents_that_have_ended_in_the_meantime_are_replaced_silently(site: Site) -> None:
    site.ok("exec", "--", "true")
    agents = idle_agents(site)
    kill_all(agents)
    done = site.ok("--json", "exec", "--", "echo hi >>~/his; cat ~/his; rm ~/his")
    assert [node["stdout"] for node in done.json()["nodes"]] == ["hi\n", "hi\n"]


def test_agents_whose_code_was_removed_are_replaced_too(site: Site) -> None:
    site.ok("jobs")
    for node in range(2):
        shutil.rmtree(site.home(node) / "clusterctl")
    assert site.ok("dispatch", str(site.workspace(SLEEP))).err == ""
    assert site.ok("status").err == ""


def test_connections_that_were_cut_are_replaced_silently(site: Site) -> None:
    ports = [int(host.rpartition(":")[2]) for host in site.hosts]
    with wires_to(ports) as wires:
        hosts = [f"127.0.0.1:{wire.port}" for wire in wires]
        site.conf(**KEPT, HOSTS=hosts, STRICT_HOST_KEYS=False)
        site.ok("exec", "--", "true")
        for wire in wires:
            wire.cut()
        assert site.ok("exec", "--", "true").err == ""
        for wire in wires:
            wire.silence()
        done = site.ok("--json", "exec", "--", "echo hi >>~/his; cat ~/his; rm ~/his")
        assert [node["stdout"] for node in done.json()["nodes"]] == ["hi\n", "hi\n"]
        site.ok("disconnect")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_a_command_that_ends_early_ends_on_the_nodes_as_without_a_helper(site: Site, number: int) -> None:
    site.ok("exec", "--", "true")
    (helper,) = running(site)
    began = [site.home(node) / "began" for node in range(2)]
    with site.popen(
        "exec", "--", "trap '' PIPE; touch ~/began; while echo x; do sleep 0.05; done; rm ~/began"
    ) as process:
        assert wait_until(lambda: all(path.exists() for path in began))
        process.send_signal(number)
        process.communicate(timeout=180)
    assert wait_until(lambda: not any(path.exists() for path in began))
    assert running(site) == [helper]
    site.ok("exec", "--", "true")


@pytest.mark.slow
def test_two_commands_at_the_same_time_both_succeed(site: Site) -> None:
    site.ok("jobs")
    processes = [site.popen("exec", "--", "echo", str(number)) for number in range(4)]
    for number, process in enumerate(processes):
        out, err = process.communicate(timeout=180)
        assert (process.returncode, err) == (0, "")
        assert out.endswith(f"\n{number}\n")
    assert len(running(site)) == 1
    assert wait_until(lambda: len(idle_agents(site)) == 2)


def test_disconnect_says_what_it_has_closed(site: Site) -> None:
    site.ok("jobs")
    said = site.ok("disconnect").out
    assert said.startswith("closed 2 connections: ")
    assert all(host in said for host in site.hosts[:2])
    assert site.ok("disconnect").out == "no connections were kept; KEEP_CONNECTIONS_S in conf.py keeps them\n"
    site.ok("jobs")
    (helper,) = running(site)
    document = site.ok("disconnect", "--json").json()
    assert [(one["pid"], len(one["closed"])) for one in document["helpers"]] == [(helper, 2)]
    assert site.ok("disconnect", "--json").json()["helpers"] == []


def test_the_helper_lets_go_of_the_terminal_and_the_directory(site: Site) -> None:
    site.ok("jobs")
    (helper,) = running(site)
    assert os.getsid(helper) == helper
    assert Path(f"/proc/{helper}/cwd").resolve() == Path("/")
    assert {str(Path(f"/proc/{helper}/fd/{fd}").readlink()) for fd in range(3)} == {"/dev/null"}


@pytest.mark.parametrize("op", ["exec", pytest.param("jobs", marks=pytest.mark.slow)])
def test_what_an_idle_agent_may_have_begun_is_repeated_only_if_that_does_no_harm(site: Site, op: str) -> None:
    """The agent gets the request, and the connection breaks before it has greeted."""
    (port,) = (int(host.rpartition(":")[2]) for host in site.hosts[:1])
    with wires_to([port]) as (wire,):
        conf = site.conf(**KEPT, HOSTS=[f"127.0.0.1:{wire.port}"], STRICT_HOST_KEYS=False)
        settings = load(conf, os.environ)
        inventory = build(settings)
        request = {"op": op, "script": "echo x >>~/marks"} if op == "exec" else {"op": op}
        with Cluster(settings, inventory, inventory.nodes) as cluster:
            assert cluster.ask({"op": "jobs"})[0].ok
            (agent,) = idle_agents(site)
            freeze(agent)
            timer = threading.Timer(0.5, wire.cut)
            timer.start()
            outcome = cluster.map(lambda node: outcome_of(cluster, node, request))[0]
            timer.join()
            os.kill(agent, signal.SIGCONT)
            assert outcome.ok == (op == "jobs")
            assert outcome.ok or outcome.error.details["reason"] == "lost"
    marks = site.home(0) / "marks"
    assert wait_until(lambda: not is_alive(agent))
    assert not marks.exists() or marks.read_text() == "x\n"
    marks.unlink(missing_ok=True)


def outcome_of(cluster: Cluster, node: Node, request: dict[str, Any]) -> Any:
    with cluster.call(node, request) as call:
        return call.result()
