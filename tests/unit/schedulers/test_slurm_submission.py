"""What is known before a job is submitted, and what its script looks for first."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from clusterctl.schedulers.slurm.reasons import refused
from clusterctl.schedulers.slurm.script import look
from clusterctl.schedulers.slurm.submit import file_system

MOUNTS = """\
overlay / overlay rw 0 0
tmpfs /dev/shm tmpfs rw 0 0
server:/home /home nfs4 rw 0 0
x /with\\040space lustre rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "overlay"),
        ("/dev/shm/a/b", "tmpfs"),
        ("/dev/shmem", "overlay"),
        ("/home/none", "nfs4"),
        ("/with space/x", "lustre"),
    ],
)
def test_the_file_system_of_a_directory_that_need_not_exist(path: str, kind: str) -> None:
    assert file_system(Path(path), MOUNTS) == kind


@pytest.mark.parametrize(
    ("stderr", "text", "hint"),
    [
        (
            "sbatch: error: invalid partition specified: x\n"
            "sbatch: error: Batch job submission failed: Invalid partition name specified\n",
            "Invalid partition name specified",
            "sinfo lists the partitions",
        ),
        (
            "sbatch: error: Requested time limit is invalid (missing or exceeds some limit)",
            "Requested time limit is invalid (missing or exceeds some limit)",
            "--time",
        ),
        (
            "sbatch: unrecognized option '--foo'\nTry \"sbatch --help\" for more information\n",
            "unrecognized option '--foo'",
            "SBATCH in conf.py",
        ),
        ("sbatch: error: lua: no jobs on Mondays\n", "lua: no jobs on Mondays", "SBATCH in conf.py"),
        ("", "it printed nothing", "SBATCH in conf.py"),
    ],
)
def test_a_refusal_of_sbatch_in_words(stderr: str, text: str, hint: str) -> None:
    found = refused(stderr)
    assert found.text == text
    assert hint in found.hint


def test_a_shell_reads_the_lines_that_look_for_a_mark() -> None:
    text = look("/a directory/it's/mark")
    assert subprocess.run(["sh", "-n"], input=text, text=True, check=False).returncode == 0
    assert "mark='/a directory/it'\"'\"'s/mark'\n" in text
