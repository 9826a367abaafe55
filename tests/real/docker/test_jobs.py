"""Jobs on the compose cluster: one that succeeds, nodes that die or are cut off, and work from inside the network."""

from __future__ import annotations

import subprocess
from pathlib import Path

from clusterctl.runtime import load_model
from contract.e2e.programs import REGRESSION
from real.docker.compose import Compose, Node, docker, wait_for_a_pass
from support.processes import wait_until
from support.site import Site

ENDLESS = "--num_passes=1000000"


def test_check_finds_no_problems(site: Site) -> None:
    result = site.ok("check")
    assert "6/6 pairs can reach each other" in result.out
    assert "no problems found" in result.out


def test_a_job_trains_on_three_containers_and_is_collected(site: Site) -> None:
    job = site.dispatch(REGRESSION)
    assert "succeeded after" in site.ok("start", "--job_workspace", job, "--num_passes=2").out
    status = site.status(job)
    assert status["state"] == "succeeded"
    assert len({process["host"] for process in status["processes"]}) == 3
    assert site.ok("logs", job, "--role", "trainer", "--grep", "done with").out.count("done with") == 3
    collected = site.ok("collect", job, "-o", "home", "--json").json()
    assert load_model(Path(site.directory, collected["model"]))["w"].shape == (4,)


def test_a_killed_container_fails_the_run_everywhere(site: Site, cluster: Compose) -> None:
    *others, killed = cluster.nodes
    with training(site) as starting:
        docker("kill", killed.name)
        output = wait_for_end(starting)
    assert starting.returncode == 1, output
    assert "node2" in first_cause(output)
    assert_nothing_runs(others)


def test_a_container_cut_off_fails_the_run_on_both_sides(site: Site, cluster: Compose) -> None:
    """Nothing is left running on the other side of the cut either."""
    cut = cluster.nodes[1]
    with training(site) as starting:
        docker("network", "disconnect", cluster.network, cut.name)
        output = wait_for_end(starting)
    assert starting.returncode == 1, output
    assert "node1" in output
    assert_nothing_runs(cluster.nodes)


def test_jobs_can_be_controlled_from_inside_the_network(cluster: Compose) -> None:
    control = cluster.control
    control.run("sh", "-c", "mkdir -p inside && cat >inside/train.py", input=REGRESSION)
    assert "6/6 pairs can reach each other" in control.run("clusterctl", "check")
    assert "is on 3/3 nodes" in control.run("clusterctl", "dispatch", "inside")
    started = control.run("clusterctl", "start", "--job_dispatch_package", "inside", "--num_passes=1")
    assert "succeeded after" in started
    assert "model of pass-00000" in control.run("clusterctl", "collect", "-o", "home")
    names = [node.name for node in cluster.nodes]
    assert [line for line in names if f"@{line}" in control.run("cat", "conf.py")] == names


def training(site: Site) -> subprocess.Popen[str]:
    """Return an attached start whose trainers have finished a pass."""
    package = str(site.workspace(REGRESSION))
    starting = site.popen("start", "--job_dispatch_package", package, ENDLESS)
    wait_for_a_pass(starting)
    return starting


def wait_for_end(starting: subprocess.Popen[str]) -> str:
    out, err = starting.communicate(timeout=180)
    return out + err


def first_cause(output: str) -> str:
    (line,) = [line for line in output.splitlines() if "first cause" in line]
    return line


def assert_nothing_runs(nodes: list[Node]) -> None:
    wait_until(lambda: not any(node.processes() for node in nodes))
    assert {node.name: left for node in nodes if (left := node.processes())} == {}
