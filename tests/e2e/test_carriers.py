"""Whole jobs over other carriers than SSH."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.templates import copy_workspace
from e2e.programs import REGRESSION, SLEEP
from e2e.test_agent_starts import FOLLOWED, release
from support.models import assert_same_bits, model_bits
from support.processes import processes_below, wait_until
from support.site import Site

pytestmark = pytest.mark.nodes(2)

#: A clean shell, in the home of a node of the fake cluster.
CLEAN = """#!/bin/sh
home="{nodes}/$1"
shift
cd /
exec env -i HOME="$home" PATH="{path}" LANG=C.UTF-8 "$@"
"""
#: Runs COMMAND, passes on BYTES bytes of its output, and exits with 0 while the command goes on.
CUT = """\
pipe=$(mktemp -u)
mkfifo "$pipe"
COMMAND <&0 >"$pipe" &
dd bs=1 count=BYTES <"$pipe" 2>/dev/null
rm "$pipe"
exit 0"""
ENVIRONMENT = """
import json, os
print("environment", json.dumps(sorted(os.environ)), flush=True)
from clusterctl.runtime import connect
with connect():
    pass
"""


def carrier(site: Site, name: str = "clean", text: str = CLEAN) -> str:
    path = site.directory / name
    path.write_text(text.replace("{nodes}", str(site.home(0).parent)).replace("{path}", os.environ["PATH"]))
    path.chmod(0o755)
    return str(path)


def use(site: Site, kind: str, **settings: Any) -> None:
    """Reach the nodes over this carrier, in the same homes as over SSH, or `local`, all in the first one's."""
    hosts = {"HOSTS": ["node0", "node1"], "PYTHON": sys.executable}
    if kind == "local":
        site.environment["HOME"] = str(site.home(0))
        site.conf(**hosts, VIA="local", ROOT_DIR="~/local/node{node}", **settings)
    else:
        site.conf(**hosts, VIA=(carrier(site), "{host}"), **settings)


@pytest.fixture(autouse=True)
def own_environment(site: Site) -> Iterator[None]:
    yield
    site.environment.clear()


def trained(site: Site, workspace: Path, home: str, *args: str) -> Path:
    """Dispatch, train, collect; return the model."""
    job = site.ok("dispatch", str(workspace), "--json").json()["job"]
    site.ok("start", job, *args, timeout_s=170)
    site.ok("collect", job, "-o", home)
    return site.directory / home / "model"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_demo_trains_the_same_tensors_over_all_carriers(site: Site) -> None:
    workspace = site.directory / "ngram"
    copy_workspace(workspace)
    prepare = [sys.executable, "prepare_data.py", "--shards", "2"]
    subprocess.run(prepare, cwd=workspace, check=True, capture_output=True, timeout=100)
    site.conf(SHARDS=["train.txt-*", "test.txt-*"], PYTHON=sys.executable)
    expected = model_bits(trained(site, workspace, "by-ssh", "--num_passes=1"))
    for kind in ("local", "clean"):
        use(site, kind, SHARDS=["train.txt-*", "test.txt-*"])
        site.environment["OMP_NUM_THREADS"] = "3"  # of the user's shell, not of the nodes
        assert_same_bits(trained(site, workspace, f"by-{kind}", "--num_passes=1"), expected)


@pytest.mark.parametrize("kind", ["local", "clean"])
def test_every_command_works_over_a_carrier(site: Site, kind: str) -> None:
    use(site, kind)
    checked = site.ok("check").out
    assert f"nodes 0,1     {kind} ok, python" in checked
    assert "2/2 pairs can reach each other" in checked
    job = site.start(REGRESSION, "--num_passes=2")
    assert wait_until(lambda: site.status(job)["state"] == "succeeded")
    assert "end of pass 1 on trainer 1" in site.ok("logs", job).out
    assert site.ok("jobs", "--json").json()["jobs"][0]["job"] == job
    home = site.home(0).resolve() if kind == "local" else site.home(0).parent.resolve()
    assert str(home) in site.ok("exec", "--", "pwd", "-P").out
    site.ok("stop", job)
    site.ok("collect", job, "-o", "home")
    assert (site.directory / "home/model/model.safetensors").exists()


def test_detached_processes_outlive_their_carrier_and_stop_ends_them(site: Site) -> None:
    use(site, "clean")
    job = site.start(SLEEP)
    assert not processes_below(site.directory), "carriers are left"
    assert site.status(job)["state"] == "running"
    site.ok("stop", job)
    site.assert_nothing_left(job)


def test_ctrl_c_stops_a_run_over_a_carrier(site: Site) -> None:
    """The interrupt goes to the whole foreground group, as at a terminal."""
    use(site, "clean")
    with site.popen("start", str(site.workspace(SLEEP)), start_new_session=True) as popen:
        assert popen.stderr is not None
        assert wait_until(
            lambda: any("time.sleep(600)" in p.command or "train.py" in p.command for p in site.leftovers())
        )
        assert wait_until(lambda: any("supervisor" in p.command for p in site.leftovers()))
        os.killpg(popen.pid, signal.SIGINT)
        out, err = popen.communicate(timeout=60)
    assert popen.returncode == 130, out + err
    assert wait_until(lambda: not site.leftovers())


def test_programs_get_what_they_get_over_ssh(site: Site) -> None:
    """srun and mpirun pass on the whole environment of their caller, and add their own."""
    extra = {"SECRET": "x", "SLURM_STEP_ID": "3", "SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "PMI_RANK": "0"}
    extra |= {"PMIX_RANK": "0", "OMPI_COMM_WORLD_RANK": "0", "PMI2_X": "0", "SLURM_CONF": "/etc/slurm.conf"}
    site.environment |= extra

    def names(job: str) -> set[str]:
        assert wait_until(lambda: site.status(job)["state"] == "succeeded"), site.run("logs", job).out
        lines = [line for line in site.ok("logs", job, "--role", "trainer").out.splitlines() if "environment [" in line]
        return set(lines[0].partition("environment ")[2].strip("[]").replace('"', "").split(", "))

    over_ssh = names(site.start(ENVIRONMENT))
    site.conf(HOSTS=["node0", "node1"], PYTHON=sys.executable, VIA=(carrier(site, "srun", PASSING), "-u", "{host}"))
    over_srun = names(site.start(ENVIRONMENT))
    assert over_srun - over_ssh <= {"SLURM_JOB_ID", "LANG", "LD_LIBRARY_PATH", "TMPDIR", "TZ", "LC_ALL", "LC_CTYPE"}
    assert "SLURM_JOB_ID" in over_srun
    assert "does not encrypt what it carries, and a run's keys pass through it" in site.run("check").out


PASSING = """#!/bin/sh
shift
export HOME="{nodes}/$1"
shift
cd /
exec "$@"
"""


def test_no_secret_is_on_the_command_line_of_a_carrier(site: Site) -> None:
    noting = CLEAN.replace("cd /\n", f'cd /\nprintf "%s\\n" "$@" >>{site.directory}/lines\n')
    site.conf(
        HOSTS=["node0", "node1"],
        PYTHON=sys.executable,
        ENV={"TOKEN": "a-secret-value"},
        VIA=(carrier(site, "noting", noting), "{host}"),
    )
    job = site.start(REGRESSION)
    assert wait_until(lambda: site.status(job)["state"] == "succeeded")
    lines = (site.directory / "lines").read_text()
    assert lines.count("/bin/sh") >= 4
    assert "TOKEN" not in lines
    assert "a-secret-value" not in lines
    assert "PRIVATE KEY" not in lines


def test_a_command_starts_few_carriers_on_a_node_however_long_it_lasts(site: Site) -> None:
    counting = CLEAN.replace("shift\n", f'echo >>"{site.directory}/starts-$1"\nshift\n')
    nodes = {"HOSTS": ["node0", "node1"], "PYTHON": sys.executable, "ENGINE": "none"}
    site.conf(**nodes, VIA=(carrier(site, "counting", counting), "{host}"))

    def starts() -> int:
        files = list(site.directory.glob("starts-*"))
        most = max(len(file.read_text()) for file in files)
        for file in files:
            file.unlink()
        return most

    with site.popen("start", str(site.workspace(FOLLOWED))) as starting:
        assert starting.stdout is not None
        job = next(line for line in starting.stdout if "supervisors are up" in line).split()[0].rpartition("/")[2]
        next(line for line in starting.stdout if "begun" in line)
        assert starts() <= 2
        with site.popen("status", "--watch", "--json", job) as watching:
            assert watching.stdout is not None
            for _ in range(4):
                assert watching.stdout.readline()
            release(site, job)
            watching.communicate(timeout=60)
        assert starts() == 1
        starting.communicate(timeout=60)
    assert not list(site.directory.glob("starts-*"))
    for words in (["status"], ["logs", "-f"], ["why"], ["stop"], ["collect", "-o", "home"]):
        site.ok(*words, job)
        assert starts() == 1, words
    site.ok("exec", "--", "true")
    assert starts() == 1
    assert not processes_below(site.directory)


def test_an_agent_that_ends_well_without_its_last_line_is_a_lost_connection(site: Site) -> None:
    """kubectl may cut its output short and exit with 0."""
    cut = CUT.replace("COMMAND", CLEAN.splitlines()[-1].removeprefix("exec ")).replace("BYTES", "60")
    cut = CLEAN.replace(CLEAN.splitlines()[-1], cut)
    site.conf(HOSTS=["node0", "node1"], PYTHON=sys.executable, VIA=(carrier(site, "kubectl2", cut), "{host}"))
    done = site.run("jobs", "--json")
    assert done.code == 3
    assert "lost the connection to node0 over kubectl2" in done.out + done.err


def test_so_is_one_over_ssh(site: Site) -> None:
    cut = CUT.replace("COMMAND", f'{sys.executable} "$@"').replace("BYTES", "40")
    python = carrier(site, "python", f"#!/bin/sh\n{cut}\n")
    site.conf(PYTHON=python)
    done = site.run("jobs", "--json")
    assert done.code == 3
    assert {node["kind"] for node in done.json()["error"]["details"]["nodes"]} == {"unreachable"}
    assert "lost the connection to" in done.err


def test_a_carrier_that_is_not_found_is_one_clear_error(site: Site) -> None:
    site.conf(HOSTS=["node0", "node1"], VIA=("dockr", "exec", "-i", "{host}"))
    done = site.run("check")
    assert done.code == 3
    assert "nodes 0,1     blocks start: cannot run dockr, the carrier in VIA: No such file" in done.out
    done = site.run("status")
    assert done.code == 3
    assert "install dockr on this machine, or write its full path in VIA" in done.err


def test_commands_that_need_ssh_say_so(site: Site) -> None:
    use(site, "local")
    done = site.ok("trust")
    assert "2 hosts without a host key: VIA reaches them by other means than SSH" in done.out + done.err
    (site.directory / "tasks.py").write_text("from fabric import task\n@task\ndef look(c):\n    c.run('true')\n")
    done = site.run("task", "look")
    assert done.code == 2
    assert "this needs SSH, but VIA reaches node0 by local" in done.err


def test_a_job_directory_below_a_root_with_the_id_of_the_node_is_recognised(site: Site) -> None:
    use(site, "local")
    job = site.dispatch(REGRESSION)
    assert site.ok("status", f"{site.home(0)}/local/node1/{job}", "--json").json()["job"] == job
    assert site.ok("status", f"~/local/node0/{job}", "--json").json()["job"] == job


def test_the_hosts_and_slots_of_a_hostfile_train(site: Site) -> None:
    use(site, "local")
    (site.directory / "hosts").write_text("a slots=2\nb\n")
    site.conf_path.write_text(site.conf_path.read_text() + 'HOSTS = openmpi("hosts")\n')
    job = site.start(REGRESSION, "--num_passes=1")
    assert wait_until(lambda: site.status(job)["state"] == "succeeded"), site.run("logs", job).out
    rows = site.status(job)["processes"]
    assert sorted((row["node"], row["rank"]) for row in rows if row["role"] == "trainer") == [(0, 0), (0, 1), (1, 2)]
