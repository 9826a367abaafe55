"""The script for sbatch, as a real Slurm takes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.schedulers.slurm.commands import Slurm
from clusterctl.schedulers.slurm.script import ScriptOptions, script
from real.slurm.lab import Lab, wait_until
from support.processes import is_alive

pytestmark = pytest.mark.slurm


@pytest.fixture
def plain(tmp_path: Path) -> ScriptOptions:
    return ScriptOptions(
        name="wikitext",
        directory=str(tmp_path),
        output=str(tmp_path / "the output.log"),
        start=("sh", "-c", "echo start; pwd; exit 7"),
        resume=("sh", "-c", "echo resume; exit 3"),
        save=("sh", "-c", "echo save"),
        nodes=2,
        time="1:00:00",
    )


def written(submission: ScriptOptions) -> str:
    path = Path(submission.directory, "script")
    path.write_text(script(submission))
    return str(path)


def test_sbatch_accepts_it(lab: Lab, plain: ScriptOptions) -> None:
    for requeue in (False, True):
        done = lab.run("sbatch", "--test-only", written(replace(plain, requeue=requeue)))
        assert done.returncode == 0, done
        assert "using 2 processors" in done.stderr


def test_options_reach_sbatch_as_they_are(lab: Lab, plain: ScriptOptions) -> None:
    for text in ("a  b", "it's", '"q" \\', "x#y", "$HOME `x`", "ü"):
        submission = replace(plain, options=(f"--comment={text}", "--hold", "--nodes=3"))
        job = lab.output("sbatch", "--parsable", written(submission))
        shown = [line.strip() for line in lab.output("scontrol", "show", "job", job).splitlines()]
        assert f"Comment={text}" in shown
        assert f"StdOut={plain.output}" in shown
        assert f"JobId={job} JobName={plain.name}" in shown
        assert any(line.startswith("NumNodes=3") for line in shown)


def test_the_job_ends_with_the_exit_code_of_the_run(lab: Lab, plain: ScriptOptions) -> None:
    job = lab.output("sbatch", "--parsable", written(plain))
    lab.wait_for(job, "FAILED")
    assert Slurm(lab.environment).job(job).exit_code == 7
    assert Path(plain.output).read_text() == f"start\n{plain.directory}\n"


def test_a_job_with_notice_of_its_end_is_requeued_and_resumes(lab: Lab, plain: ScriptOptions) -> None:
    """Slurm sends USR1 to the script, and ends what is left; the next life appends to the output of the one before."""
    waiting = ("sh", "-c", "echo $$ > run; echo start; exec sleep 300")
    job = lab.output("sbatch", "--parsable", written(replace(plain, start=waiting, requeue=True)))
    output = Path(plain.output)
    assert wait_until(lambda: output.exists() and output.read_text() == "start\n")
    lab.output("scancel", "--batch", "--signal=USR1", job)
    lab.wait_for(job, "FAILED")
    ended = Slurm(lab.environment).job(job)
    assert (ended.restarts, ended.exit_code) == (1, 3)
    assert not is_alive(int(Path(plain.directory, "run").read_text()))
    lines = output.read_text().splitlines()
    assert (lines[:2], lines[-1]) == (["start", "save"], "resume")


def test_a_job_that_slurm_does_not_queue_again_goes_on(lab: Lab, plain: ScriptOptions) -> None:
    waiting = ("sh", "-c", "echo start; while ! [ -e go ]; do sleep 0.1; done; exit 5")
    options = ("--no-requeue",)  # of the user; the later option wins
    job = lab.output("sbatch", "--parsable", written(replace(plain, start=waiting, requeue=True, options=options)))
    output = Path(plain.output)
    assert wait_until(lambda: output.exists() and output.read_text() == "start\n")
    lab.output("scancel", "--batch", "--signal=USR1", job)
    assert wait_until(lambda: "the run goes on to the time limit" in output.read_text()), output.read_text()
    Path(plain.directory, "go").touch()
    lab.wait_for(job, "FAILED")
    assert Slurm(lab.environment).job(job).exit_code == 5
