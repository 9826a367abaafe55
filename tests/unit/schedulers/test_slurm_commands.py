"""Slurm's commands, played by scripts that print what the real ones were seen to print."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.config import Settings, from_values, load
from clusterctl.config.host_sources import slurm
from clusterctl.errors import ClusterctlError, ConfigError, UnreachableError, UsageError
from clusterctl.schedulers import resolve
from clusterctl.schedulers.slurm.commands import Slurm, UnknownSlurmJob

RUNNING = "12|N/A|RUNNING|None|2|5|1|0|2026-11-23T21:38:05|2026-11-23T22:38:05|1:00:00|0|n[1-2]|"
DETAILS = "JobId=12 JobName=x\n   Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*\n     Nodes=n1 CPU_IDs=0-3 Mem=1 GRES=\n     Nodes=n2 CPU_IDs=0 Mem=1 GRES=\n"  # noqa: E501
NODES = "NodeName=n1 Arch=x86_64 NodeAddr=10.0.0.1 NodeHostName=a \nNodeName=n2 Arch=x86_64 NodeAddr=10.0.0.2 NodeHostName=b \n"  # noqa: E501
UNKNOWN = "slurm_load_jobs error: Invalid job id specified"
NO_CONTROLLER = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
NO_CONF = "squeue: error: s_p_parse_file: cannot stat file /nonexistent: No such file or directory, retrying in 1sec up to 60sec"  # noqa: E501
NO_ACCOUNTING = "Slurm accounting storage is disabled"

Environ = dict[str, str]
Play = Callable[..., Environ]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Return an environment in which the named commands print these texts; `None` says on stderr and fails."""

    def program(name: str, *cases: str) -> None:
        path = tmp_path / name
        path.write_text("\n".join(["#!/bin/sh", *cases, ""]))
        path.chmod(0o755)

    def make(queue: str = "", *, error: str = "", accounts: str = "", sleep_s: int = 0) -> Environ:
        answer = f"printf '%s\\n' {shlex.quote(error)} >&2" if error else f"printf '%s\\n' {shlex.quote(queue)}"
        program("squeue", answer, f"exec sleep {sleep_s}" if sleep_s else f"exit {int(bool(error))}")
        if accounts:
            program("sacct", f"printf '%s\\n' {shlex.quote(accounts)}")
        else:
            program("sacct", f"echo {NO_ACCOUNTING!r} >&2; exit 1")
        program(
            "scontrol",
            'case "$2 $3" in',
            '"hostnames n[1-2]") printf "n1\\nn2\\n" ;;',
            '"hostnames "*) echo "$3" ;;',
            f'"job -d") printf %s {shlex.quote(DETAILS)} ;;',
            f'"node -o") printf %s {shlex.quote(NODES)} ;;',
            "esac",
        )
        return {"PATH": f"{tmp_path}:/usr/bin:/bin"}

    return make


def conf(**values: object) -> Settings:
    return from_values({"HOSTS": slurm(job=12), **values})


def fails(environ: Environ, kind: type[ClusterctlError], deadline_s: float = 30) -> str:
    with pytest.raises(kind) as caught:
        Slurm(environ, deadline_s).job("12")
    return f"{caught.value}; {caught.value.hint}"


def test_the_nodes_of_a_job_become_hosts_with_its_tasks_as_trainers(play: Play) -> None:
    settings = resolve(conf(), play(RUNNING))
    assert [host.hostname for host in settings.hosts] == ["n1", "n2"]
    assert [host.trainers for host in settings.hosts] == [4, 1]
    assert [host.address for host in settings.hosts] == ["10.0.0.1", "10.0.0.2"]
    assert settings.root_dir == "~/clusterctl/node{node}"


def test_what_conf_py_says_of_trainers_network_and_directories_stands(play: Play, tmp_path: Path) -> None:
    path = tmp_path / "conf.py"
    path.write_text('HOSTS = slurm(12)\nTRAINERS_PER_NODE = 2\nNIC = "ib0"\nROOT_DIR = "/scratch/{node}/c"\n')
    settings = resolve(load(path, {}), play(RUNNING))
    assert [(host.trainers, host.address) for host in settings.hosts] == [(None, None)] * 2
    assert settings.root_dir == "/scratch/{node}/c"


def test_inside_an_allocation_the_job_is_its_own(play: Play) -> None:
    environ = {**play(RUNNING), "SLURM_JOB_ID": "12"}
    assert len(resolve(from_values({"HOSTS": slurm()}), environ).hosts) == 2


def test_outside_an_allocation_a_job_has_to_be_named(play: Play) -> None:
    with pytest.raises(ConfigError, match="not inside a Slurm job") as caught:
        resolve(from_values({"HOSTS": slurm()}), play(RUNNING))
    assert "slurm(job=12345)" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("12|N/A|PENDING|Resources|2|2|1|0|N/A|N/A|UNLIMITED|0||", "is queued: waiting for free nodes (Resources)"),
        ("12|N/A|TIMEOUT|TimeLimit|2|2|1|15|N/A|N/A|1:00|0|n[1-2]|", "has ended: it reached its time limit of 1:00"),
        ("12|N/A|COMPLETING|None|2|2|1|15|N/A|N/A|1:00|0|n2|", "is ending"),
    ],
)
def test_a_job_that_is_not_running_has_no_nodes_to_offer(play: Play, line: str, message: str) -> None:
    with pytest.raises(UnreachableError) as caught:
        resolve(conf(), play(line))
    assert message in str(caught.value)


def test_a_job_that_the_controller_forgot_is_asked_of_the_accounting(play: Play) -> None:
    line = "12|CANCELLED by 1000|0:15|2026-11-23T21:29:41|2026-11-23T21:29:43|UNLIMITED|2|n[1-2]"
    assert Slurm(play(error=UNKNOWN, accounts=line)).job("12").state == "CANCELLED"


def test_a_job_that_nobody_knows(play: Play) -> None:
    assert "does not know job 12; squeue --me" in fails(play(error=UNKNOWN), UnknownSlurmJob)


def test_the_jobs_of_an_array_have_to_be_named_one_by_one(play: Play) -> None:
    lines = "\n".join(RUNNING.replace("12|", f"{number}|", 1) for number in (13, 14))
    assert "is an array; name one of its jobs: 13, 14" in fails(play(lines), UsageError)
    own = "\n".join([RUNNING.replace("12|", "13|", 1), RUNNING])  # the last of an array has the number of the whole
    assert Slurm(play(own)).job("12").id == "12"


def test_a_heterogeneous_job_is_refused(play: Play) -> None:
    assert "is heterogeneous" in fails(play(RUNNING.replace("N/A", "12", 1)), UsageError)


def test_a_controller_that_is_away(play: Play) -> None:
    assert (
        fails(play(error=NO_CONTROLLER), UnreachableError) == "the Slurm controller does not answer; try scontrol ping"
    )


def test_a_command_that_does_not_end_is_killed(play: Play) -> None:
    assert "squeue did not answer within 0.2 s" in fails(play(RUNNING, sleep_s=60), UnreachableError, 0.2)


def test_a_command_that_retries_says_why(play: Play) -> None:
    assert "find no configuration" in fails(play(error=NO_CONF, sleep_s=60), ConfigError, 1)


def test_a_machine_without_slurm() -> None:
    assert "cannot run squeue" in fails({"PATH": "/nonexistent"}, ConfigError)


def test_output_of_another_form_is_refused(play: Play) -> None:
    assert "squeue: not a line of squeue: 'JOBID'; clusterctl needs Slurm" in fails(play("JOBID"), UnreachableError)


def test_variables_that_change_the_output_do_not_reach_the_commands(play: Play, tmp_path: Path) -> None:
    environ = play(RUNNING)
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/sh\nenv > {tmp_path}/seen\n" + squeue.read_text())
    unwanted = {"SQUEUE_STATES": "FAILED", "SLURM_TIME_FORMAT": "%s", "LC_ALL": "de_DE.UTF-8"}
    Slurm({**environ, **unwanted, "SLURM_CONF": "/etc/slurm.conf"}).job("12")
    seen = (tmp_path / "seen").read_text().splitlines()
    assert {"LC_ALL=C", "SLURM_CONF=/etc/slurm.conf"} <= set(seen)
    assert not [line for line in seen if line.startswith(("SQUEUE_", "SLURM_TIME"))]
