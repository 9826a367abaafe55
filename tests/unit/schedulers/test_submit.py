"""`clusterctl submit --plan`: the script on the screen, and what it needs."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support import forked


def submit(directory: Path, *argv: str, hosts: str = "slurm()") -> subprocess.CompletedProcess[str]:
    (directory / "conf.py").write_text(f'HOSTS = {hosts}\nSBATCH = ["--partition=gpu"]\n')
    (directory / "work space").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "clusterctl", "submit", "work space", *argv]
    return forked.run(command, cwd=directory)


def test_the_plan_of_a_submission_is_its_script(tmp_path: Path) -> None:
    options = ("--to", "slurm", "--nodes", "4", "--time", "2:00:00", "--requeue", "--plan", "--", "--text=it's")
    done = submit(tmp_path, *options)
    assert (done.returncode, done.stderr) == (0, "")
    subprocess.run(["sh", "-n"], input=done.stdout, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")] == [
        '"--job-name=work space"',
        f"--output={tmp_path}/slurm-%j.out",
        "--open-mode=append",
        "--nodes=4",
        "--time=2:00:00",
        "--requeue",
        "--signal=B:USR1@120",
        "--no-kill",
        "--partition=gpu",
    ]
    save, resume, start = (shlex.split(line.rstrip(" &")) for line in lines if " -m clusterctl " in line)
    base = [sys.executable, "-m", "clusterctl", "--conf", f"{tmp_path}/conf.py"]
    name = "slurm-$SLURM_JOB_ID"
    package = ["--job_dispatch_package", f"{tmp_path}/work space"]
    assert any(line.startswith("# submit adds lines here") for line in lines)
    assert save == ["timeout", "75", *base, "save", name, "--timeout", "60"]
    assert start == [*base, "start", *package, "--name", name, "--", "--text=it's"]
    assert resume == [*base, "start", *package, "--name", name, "--resume", "--", "--text=it's"]


@pytest.mark.parametrize(
    ("options", "hosts", "message"),
    [
        (("--plan",), '["h"]', "conf.py:1: submit --to slurm needs HOSTS = slurm()"),
        (("--to", "pbs", "--plan"), "slurm()", "--to pbs: not a scheduler that clusterctl knows"),
        (("--plan", "--only", "node0"), "slurm()", "does not accept --only"),
        (("--plan", "--image", "train:1"), "slurm()", "--image, --namespace and --storage are for --to kubernetes"),
        (("--plan",), 'kubernetes("app=train")', "for pods, add --to kubernetes"),
    ],
)
def test_what_cannot_be_submitted_is_an_error_of_usage(
    tmp_path: Path, options: tuple[str, ...], hosts: str, message: str
) -> None:
    done = submit(tmp_path, *options, hosts=hosts)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


def test_a_command_outside_an_allocation_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "conf.py").write_text("HOSTS = slurm()\n")
    command = [sys.executable, "-m", "clusterctl", "status"]
    done = forked.run(command, cwd=tmp_path, env={"PATH": "/nonexistent"})
    assert done.returncode == 2
    assert "conf.py:1: HOSTS = slurm(), but this is not inside a Slurm job" in " ".join(done.stderr.split())


def test_without_slurm_on_this_machine_nothing_is_submitted_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "conf.py").write_text(f"HOSTS = slurm()\nROOT_DIR = '{tmp_path}/root'\n")
    (tmp_path / "workspace").mkdir()
    command = [sys.executable, "-m", "clusterctl", "submit"]
    done = forked.run(command, cwd=tmp_path, env={"PATH": "/nonexistent"})
    assert done.returncode == 2
    assert "Slurm's commands are not installed on this machine" in " ".join(done.stderr.split())
    assert list((tmp_path / "root").glob(".clusterctl/slurm/*")) == []


PODS = ("--to", "kubernetes", "--nodes", "2", "--image", "train:1", "--plan")


def test_the_plan_of_pods_is_a_manifest_and_runs_no_program(tmp_path: Path) -> None:
    done = submit(tmp_path, *PODS, hosts='kubernetes("app=train,tier=big", namespace="research")')
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines.count("---") == 1
    assert [line for line in lines if line.startswith("kind:")] == ["kind: Service", "kind: StatefulSet"]
    assert lines.count("  namespace: research") == 2
    assert {"    app: train", "    tier: big", "  replicas: 2"} <= set(lines)


def test_each_plan_has_an_id_of_its_own(tmp_path: Path) -> None:
    plans = [submit(tmp_path, *PODS, hosts='kubernetes("app=train")').stdout for _ in range(2)]
    ids = [set(re.findall(r"clusterctl/submission: (\S+)", plan)) for plan in plans]
    assert [len(one) for one in ids] == [1, 1]
    assert ids[0] != ids[1]


def test_the_objects_are_in_the_json_document(tmp_path: Path) -> None:
    document = json.loads(submit(tmp_path, *PODS, "--json", hosts='kubernetes("app=train")').stdout)
    assert document["to"] == "kubernetes"
    assert [one["kind"] for one in document["manifest"]] == ["Service", "StatefulSet"]


@pytest.mark.parametrize(
    ("options", "hosts", "message"),
    [
        (PODS, '["h"]', 'conf.py:1: submit --to kubernetes needs pods as hosts write HOSTS = kubernetes("app=train")'),
        (PODS, 'kubernetes("app")', "HOSTS = kubernetes('app'): submit cannot give such labels to pods"),
        (PODS[:2], 'kubernetes("app=train")', "submit --to kubernetes needs --nodes"),
        (PODS[:4], 'kubernetes("app=train")', "submit --to kubernetes needs --image"),
        ((*PODS, "--time", "5"), 'kubernetes("app=train")', "--time is for --to slurm only"),
        ((*PODS, "--namespace", "b"), 'kubernetes("app=train", namespace="a")', "HOSTS has the namespace a"),
    ],
)
def test_what_cannot_be_made_is_an_error_of_usage(
    tmp_path: Path, options: tuple[str, ...], hosts: str, message: str
) -> None:
    done = submit(tmp_path, *options, hosts=hosts)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


def test_a_namespace_of_the_command_line_only_is_to_be_written_into_conf_py(tmp_path: Path) -> None:
    done = submit(tmp_path, *PODS, "--namespace", "research", hosts='kubernetes("app=train")')
    assert done.returncode == 0
    assert "write into conf.py: HOSTS = kubernetes('app=train', namespace='research')" in done.stderr


def test_stop_delete_is_for_pods(tmp_path: Path) -> None:
    (tmp_path / "conf.py").write_text('HOSTS = ["h"]\n')
    command = [sys.executable, "-m", "clusterctl", "stop", "--delete"]
    done = forked.run(command, cwd=tmp_path)
    assert done.returncode == 2
    assert "conf.py:1: stop --delete needs pods as hosts" in " ".join(done.stderr.split())
