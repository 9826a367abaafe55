"""Whole jobs over other carriers than SSH."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from contract.e2e.programs import REGRESSION, SLEEP
from support.processes import processes_below, wait_until
from support.site import Site

pytestmark = pytest.mark.nodes(2)

#: A clean shell, in the home of a node of the fake cluster. It notes its command line.
CLEAN = """#!/bin/sh
home="{nodes}/$1"
shift
cd /
printf "%s\n" "$@" >>{lines}
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
"""


def carrier(site: Site, name: str = "clean", text: str = CLEAN) -> str:
    path = site.directory / name
    values = {"{nodes}": site.home(0).parent, "{path}": os.environ["PATH"], "{lines}": site.directory / "lines"}
    for key, value in values.items():
        text = text.replace(key, str(value))
    path.write_text(text)
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


@pytest.mark.slow
def test_every_command_works_over_a_carrier_without_a_secret_on_its_command_line(site: Site) -> None:
    use(site, "clean", ENV={"TOKEN": "a-secret-value"})
    assert "nodes 0,1     clean ok, python" in site.ok("check").out
    job = site.start(REGRESSION, "--num_passes=2")
    assert not processes_below(site.directory), "carriers are left"
    site.wait_for_end(job)
    assert "end of pass 1 on trainer 1" in site.ok("logs", job).out
    assert str(site.home(0).parent.resolve()) in site.ok("exec", "--", "pwd", "-P").out
    site.ok("collect", job, "-o", "home")
    assert (site.directory / "home/model/model.safetensors").exists()
    lines = (site.directory / "lines").read_text()
    assert lines.count("/bin/sh") >= 4
    assert [secret for secret in ("TOKEN", "a-secret-value", "PRIVATE KEY") if secret in lines] == []


@pytest.mark.slow
@pytest.mark.nodes(1)
def test_ctrl_c_stops_a_run_over_a_carrier(site: Site) -> None:
    """The interrupt goes to the whole foreground group, as at a terminal."""
    site.conf(HOSTS=["node0"], PYTHON=sys.executable, ENGINE="none", VIA=(carrier(site), "{host}"))
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


@pytest.mark.nodes(1)
def test_programs_do_not_get_the_environment_of_the_caller_of_a_carrier(site: Site) -> None:
    """srun and mpirun pass on the whole environment of their caller, and add their own."""
    foreign = {"SECRET": "x", "SLURM_STEP_ID": "3", "SLURM_PROCID": "0", "PMI_RANK": "0"}
    foreign |= {"PMIX_RANK": "0", "OMPI_COMM_WORLD_RANK": "0", "PMI2_X": "0", "SLURM_CONF": "/etc/slurm.conf"}
    site.environment |= {**foreign, "SLURM_JOB_ID": "7"}
    via = (carrier(site, "srun", PASSING), "-u", "{host}")
    site.conf(HOSTS=["node0"], PYTHON=sys.executable, ENGINE="none", PSERVERS=0, VIA=via)
    job = site.start(ENVIRONMENT)
    site.wait_for_end(job)
    printed = (site.job_dir(job, 0) / "log/train.log").read_text()
    names = set(json.loads(printed.partition("environment ")[2]))
    assert "SLURM_JOB_ID" in names
    assert names.isdisjoint(foreign)


PASSING = """#!/bin/sh
shift
export HOME="{nodes}/$1"
shift
cd /
exec "$@"
"""


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


@pytest.mark.slow
def test_the_hosts_and_slots_of_a_hostfile_train_on_this_machine(site: Site) -> None:
    use(site, "local")
    (site.directory / "hosts").write_text("a slots=2\nb\n")
    site.conf_path.write_text(site.conf_path.read_text() + 'HOSTS = openmpi("hosts")\n')
    site.ok("start", str(site.workspace(REGRESSION)), "--num_passes=1")
    status = site.ok("status", "--json").json()
    assert status["state"] == "succeeded"
    trainers = sorted((row["node"], row["rank"]) for row in status["processes"] if row["role"] == "trainer")
    assert trainers == [(0, 0), (0, 1), (1, 2)]
    site.ok("collect", f"{site.home(0)}/local/node1/{status['job']}", "-o", "home")
    assert (site.directory / "home/model/model.safetensors").exists()
    done = site.ok("trust")
    assert "2 hosts without a host key: VIA reaches them by other means than SSH" in done.out + done.err
    (site.directory / "tasks.py").write_text("from fabric import task\n@task\ndef look(c):\n    c.run('true')\n")
    done = site.run("task", "look")
    assert done.code == 2
    assert "this needs SSH, but VIA reaches a by local" in done.err
