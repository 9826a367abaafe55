"""Failed starts, later runs and broken listeners do not damage earlier results."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.cluster import FIRST_LINE
from clusterctl.cluster.agent_call import Bundle, boot_program
from contract.e2e.programs import REGRESSION, SLEEP
from support.addresses import alone
from support.processes import wait_until
from support.site import Site

pytestmark = pytest.mark.copies


@pytest.mark.slow
@pytest.mark.nodes(2)
def test_a_refused_start_leaves_the_previous_outputs_in_place(site: Site) -> None:
    job = site.dispatch(REGRESSION)
    site.ok("start", "--job_workspace", job, "--num_passes=1")
    with (
        alone("last-ports"),
        socket.create_server(("0.0.0.0", 65534)),
        socket.create_server(("0.0.0.0", 65535)),
    ):
        site.conf(PORT=65534)
        refused = site.run("start", "--job_workspace", job, "--json")
    assert refused.code == 4, refused.err
    assert "no free port" in refused.json()["error"]["message"]
    site.conf()
    status = site.status(job)
    assert (status["run"], status["state"]) == ("0001", "succeeded")
    assert site.ok("collect", job, "-o", "home", "--json").json()["model"]
    assert site.ok("logs", job, "--role=trainer").out


@pytest.mark.slow  # `stop` waits 20 seconds for such a start
def test_a_start_whose_control_machine_vanished_is_ended_by_stop(site: Site) -> None:
    """The agent of a vanished machine waits, holding the job's lock. Here it waits on a pipe that stays open."""
    job = site.dispatch(SLEEP)
    home = site.home(1)
    request = {"op": "start", "ref": job, "node": 1, "nodes": 4, "python": "python3", "runtime": False}
    request.update(port=7164, count=1, lead=False, address=None, nic=None, gpus=None, locked=None)
    request.update(pserver_port=False, host_name=False)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    agent = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", FIRST_LINE, Bundle().digest, "~/clusterctl"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"HOME": str(home), "PATH": path, "SSH_CONNECTION": "127.0.0.1 1 127.0.0.1 2"},
    )
    with agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        agent.stdin.write(boot_program() + json.dumps(request).encode() + b"\n")
        agent.stdin.flush()
        assert b"have" in agent.stdout.readline()
        assert b"ready" in agent.stdout.readline()
        assert site.run("start", "--job_workspace", job).code == 4
        assert site.ok("stop", job, "--json").json()["survivors"] == 0
        assert wait_until(lambda: agent.poll() is not None)
    site.ok("start", "--job_workspace", job, "--detach")
    site.ok("stop", job)


@pytest.mark.nodes(1)
def test_code_in_a_directory_writable_by_others_is_not_run(site: Site) -> None:
    root = site.directory / "shared"
    lib = root / ".clusterctl/lib"
    lib.mkdir(parents=True)
    lib.chmod(0o777)
    site.conf(ROOT_DIR=str(root))
    result = site.run("jobs")
    assert result.code == 3
    assert "can be written by others" in result.err


@pytest.mark.slow
@pytest.mark.nodes(2)
def test_collect_brings_everything_that_is_safe_and_names_the_rest(site: Site) -> None:
    site.conf(ENGINE="none", PSERVERS=0)
    job = site.start("import os\nopen(f'output/made-{os.environ[\"CLUSTERCTL_NODE_ID\"]}', 'w').write('x')")
    site.wait_for_end(job)
    output = site.job_dir(job, 1) / "output"
    (output / "empty/inside").mkdir(parents=True)
    (output / ".hidden").write_text("hidden")
    (output / "tool.sh").write_text("true")
    (output / "tool.sh").chmod(0o4755)
    os.utime(output / "tool.sh", ns=(10**18, 10**18 + 123_000))
    (output / ".pserver-00000.safetensors-ab12").write_text("half")
    (output / "link").symlink_to("tool.sh")
    home = site.directory / "home"
    done = site.ok("collect", job, "-o", str(home))
    brought = home / "node-1/output"
    assert sorted(path.name for path in brought.iterdir()) == [".hidden", "empty", "made-1", "tool.sh"]
    assert (brought / "empty/inside").is_dir()
    status = (brought / "tool.sh").stat()
    assert (status.st_mode & 0o7777, status.st_mtime_ns) == (0o755, 10**18 + 123_000)
    assert "not collected, since links could lead anywhere: node1:output/link\n" in done.err
    (output / "bad\x07name").write_text("x")
    (site.job_dir(job, 0) / "output/also-\u202e").write_text("x")
    again = site.run("collect", job, "-o", str(home), "--json")
    assert again.code == 3
    assert "some files were not collected because of their names" in again.err
    assert {(one["node"], one["kind"]) for one in again.json()["left"]} == {(0, "name"), (1, "name"), (1, "link")}
    assert {file["path"] for file in again.json()["files"]} >= {"node-0/output/made-0", "node-1/output/.hidden"}
