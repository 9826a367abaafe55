"""`clusterctl check` as a user runs it: on healthy clusters, and with each kind of problem."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterctl.cluster.agent_call import Bundle
from support.addresses import needs_ipv6
from support.openssh import openssh_cluster
from support.site import Result, Site

PAUSE = "import time; time.sleep(600)"


def findings(result: Result) -> list[tuple[str, str, list[int]]]:
    return [(finding["check"], finding["severity"], finding["nodes"]) for finding in result.json()["findings"]]


@pytest.mark.nodes(3)
def test_a_healthy_cluster_is_reported_as_such(any_site: Site) -> None:
    done = any_site.ok("check", "--json")
    report = done.json()
    assert [finding for finding in findings(done) if finding[0] != "ports"] == []  # ports may be in use on this machine
    assert report["pairs"] == {"possible": 6, "tried": 6, "ok": 6, "failed": []}
    for node in report["nodes"]:
        assert node["ok"]
        assert abs(node["clock_ahead_s"]) <= node["clock_error_s"] + 0.5


@pytest.mark.nodes(2)
def test_every_finding_names_its_nodes_and_blocking_ones_exit_with_3(site: Site) -> None:
    dead = socket.socket()
    dead.bind(("127.0.0.1", 0))
    gone = f"127.0.0.1:{dead.getsockname()[1]}"
    site.conf(HOSTS=[site.hosts[0], gone], NIC="240.0.0.0/8")
    done = site.run("check", "--json")
    dead.close()
    assert done.code == 3
    assert sorted(findings(done)) == [("address", "stops", [0]), ("ssh", "stops", [1])]
    report = done.json()
    assert [node["ok"] for node in report["nodes"]] == [False] * 2
    assert report["pairs"]["possible"] == 0
    assert "refused" in report["nodes"][1]["error"]["message"]
    (address, _) = sorted(report["findings"], key=lambda finding: str(finding["check"]))
    assert "there is no address in 240.0.0.0/8" in address["message"]
    assert "1 of 2 nodes could not be checked" in report["error"]["message"]


def test_an_unknown_host_key_exits_with_4(site: Site) -> None:
    (site.directory / "nobody").touch()
    site.conf(KNOWN_HOSTS=site.directory / "nobody")
    done = site.run("check", "--json")
    assert done.code == 4
    assert {severity for _, severity, _ in findings(done)} == {"stops"}


@pytest.mark.slow
@pytest.mark.nodes(1)
def test_a_port_in_use_by_another_program_is_a_warning(site: Site) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        site.conf(PORT=min(port, 64_000))
        done = site.ok("check", "--json")
        if port < 64_000:
            matches = [finding for finding in done.json()["findings"] if finding["nodes"] == [0]]
            assert f"port {port} is in use by " in matches[0]["message"]
            assert matches[0]["severity"] == "warns"
            assert done.json()["nodes"][0]["busy"][0]["pid"] == os.getpid()


@pytest.mark.slow
def test_version_mismatches_and_leftovers_are_warnings_of_check_and_start(site: Site, tmp_path: Path) -> None:
    # A python that reports another version on one node, which it recognizes by its home.
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase $HOME in {site.home(2)}) [ "$1" = -c ] && echo 3.11.0 1.0 2.0 && exit 0;; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    site.conf(PYTHON=str(python), PSERVERS=1, ENGINE="none", PSERVER_COMMAND=None)
    job = site.dispatch("print('done')")
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", PAUSE],
        env={"CLUSTERCTL_JOB_DIR": str(site.job_dir(job, 1))},
    )
    try:
        done = site.ok("check", "--json")
    finally:
        child.kill()
        child.wait()
    assert ("versions", "warns", [2]) in findings(done)
    assert ("leftovers", "warns", [1]) in findings(done)
    started = site.ok("start", "--job_workspace", job)
    assert "python differs: " in started.out
    assert "3.11.0 on node 2" in started.out
    assert "succeeded" in started.out


@pytest.mark.slow
@needs_ipv6
@pytest.mark.nodes(2)
def test_a_job_runs_over_ipv6(site: Site) -> None:
    site.conf(NIC="::1/128")
    assert site.ok("check", "--json").json()["nodes"][0]["address"] == "::1"
    train = """
        import numpy as np
        from clusterctl.runtime import SGD, connect
        with connect() as ps:
            w = ps.dense("w", shape=(4,), rule=SGD(0.1))
            for batch in ps.steps(lambda pass_, rng: iter([1, 2]), passes=1):
                ps.push({w: np.ones(4, np.float32)}, samples=1)
    """
    job = site.start("\n".join(line[8:] for line in train.splitlines()))
    assert site.run("logs", "-f", job).code == 0
    assert site.status(job)["state"] == "succeeded"


def test_a_start_up_file_that_prints_is_reported(tmp_path: Path) -> None:
    with openssh_cluster(tmp_path / "sshd", 1) as sshd:
        (sshd.daemons[0].home / ".bashrc").write_text("echo welcome\n")
        if b"welcome" not in _shell_output(sshd):
            pytest.skip("the login shell here reads no start-up file")
        conf = tmp_path / "conf.py"
        sshd.write_conf(conf)
        command = [sys.executable, "-m", "clusterctl", "--conf", str(conf), "check"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 3
        assert "'welcome'" in done.stdout
        assert "start-up file" in done.stdout


def _shell_output(sshd: Any) -> bytes:
    user, _, port = sshd.hosts[0].rpartition(":")
    options = ["-F", str(sshd.ssh_config), "-i", str(sshd.identity), "-o", f"UserKnownHostsFile={sshd.known_hosts}"]
    done = subprocess.run(["ssh", *options, "-p", port, user, "true"], capture_output=True, timeout=180, check=False)
    return done.stdout


@pytest.mark.slow
@pytest.mark.nodes(3)
def test_nodes_that_cannot_reach_each_other_block_a_start_before_anything_runs(site: Site) -> None:
    """Node 2 answers like another program at its address."""
    job = site.dispatch("raise SystemExit('this must not run')")
    reach = site.home(2) / "clusterctl/.clusterctl/lib" / Bundle().digest / "clusterctl/agent/node/reachability.py"
    ours = reach.read_text()
    reach.write_text(ours + "\n_proof = proof\ndef proof(token, nonce):\n    return _proof('another', nonce)\n")
    try:
        started = site.run("start", "--job_workspace", job)
    finally:
        reach.write_text(ours)
    assert started.code == 3
    assert "nothing was started: the nodes cannot reach each other" in started.err
    assert "node 2 is not the machine that answers at 127.0.0.1:" in started.err
    assert "set NIC or Host(address=...) to the right address" in started.err
    assert site.status(job)["state"] == "dispatched"
