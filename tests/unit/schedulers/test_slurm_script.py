"""The script for sbatch: its text, its syntax, and what a shell makes of it."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.errors import UsageError
from clusterctl.schedulers.slurm.script import ScriptOptions, script, seconds
from support.processes import wait_until

PLAIN = ScriptOptions(
    name="wikitext",
    directory="/home/me/project",
    output="/shared/clusterctl/slurm-%j.out",
    start=("clusterctl", "start", "workspace", "--name", ScriptOptions.RUN, "--", "--text=it's"),
    resume=("clusterctl", "start", "--resume", ScriptOptions.RUN),
    save=("clusterctl", "save", ScriptOptions.RUN),
    nodes=4,
    time="2:00:00",
)
TEXT = """\
#!/bin/sh
# Written by clusterctl for sbatch. It ends with the exit code of the run.
#SBATCH --job-name=wikitext
#SBATCH --output=/shared/clusterctl/slurm-%j.out
#SBATCH --open-mode=append
#SBATCH --nodes=4
#SBATCH --time=2:00:00
#SBATCH --no-requeue
#SBATCH --partition=gpu
#SBATCH "--comment=a \\"big\\" one"

cd /home/me/project || exit
exec clusterctl start workspace --name "slurm-$SLURM_JOB_ID" -- '--text=it'"'"'s'
"""


def test_the_script_of_a_job_is_readable() -> None:
    assert script(replace(PLAIN, options=("--partition=gpu", '--comment=a "big" one'))) == TEXT


def test_a_job_that_may_be_requeued_hears_of_its_end_and_resumes() -> None:
    text = script(replace(PLAIN, requeue=True))
    assert "#SBATCH --requeue\n#SBATCH --signal=B:USR1@120\n" in text
    assert '  clusterctl start --resume "slurm-$SLURM_JOB_ID" &\n' in text
    assert "--no-requeue" not in text


def test_a_job_whose_run_outlives_its_nodes_is_not_killed_with_one() -> None:
    assert "#SBATCH --no-kill\n" in script(replace(PLAIN, outlives_nodes=True))
    assert "--no-kill" not in script(PLAIN)


@settings(max_examples=20)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1), min_size=1), st.booleans())
def test_any_command_makes_a_script_that_a_shell_reads(words: list[str], requeue: bool) -> None:
    text = script(replace(PLAIN, start=words, requeue=requeue))
    done = subprocess.run(["sh", "-n"], input=text.encode(), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("requeue", [False, True])
def test_the_syntax_is_that_of_every_shell(shell: str, requeue: bool) -> None:
    subprocess.run([shell, "-n"], input=script(replace(PLAIN, requeue=requeue)), text=True, check=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": 0}, "--nodes 0: must be 1 or more"),
        ({"time": "2h"}, "--time 2h: not a time"),
        ({"options": ("gpu",)}, "'gpu' is not an option of sbatch"),
        ({"options": ("--comment=a\n#SBATCH --x",)}, "is not an option of sbatch"),
        ({"options": ("-Jx",)}, "is set by clusterctl itself"),
        ({"output": "/a\nb"}, "cannot hold"),
    ],
)
def test_what_sbatch_would_misread_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        script(replace(PLAIN, **change))  # type: ignore[arg-type]
    assert message in str(caught.value)


@pytest.mark.parametrize("time", ["30", "2:00:00", "1-12:30"])
def test_times_have_the_forms_of_slurm(time: str) -> None:
    assert f"--time={time}\n" in script(replace(PLAIN, time=time))


def life(
    directory: Path, submission: ScriptOptions, restarts: str | None = None, *, refused: bool = False
) -> subprocess.Popen[str]:
    """Run the script as a batch job does, with a scontrol that only records, and fails if it is `refused`."""
    scontrol = directory / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {directory}/calls\nexit {int(refused)}\n')
    scontrol.chmod(0o755)
    count = {} if restarts is None else {"SLURM_RESTART_COUNT": restarts}
    environ = {"PATH": f"{directory}:{os.environ['PATH']}", "SLURM_JOB_ID": "12", **count}
    text = script(replace(submission, directory=str(directory)))
    return subprocess.Popen(["sh", "-c", text], env=environ, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("requeue", [False, True])
def test_the_script_ends_with_the_exit_code_of_the_run(tmp_path: Path, requeue: bool) -> None:
    with life(tmp_path, replace(PLAIN, start=("sh", "-c", "exit 7"), requeue=requeue)) as process:
        assert process.wait(30) == 7


def test_the_run_has_the_number_of_the_slurm_job_in_its_name(tmp_path: Path) -> None:
    with life(tmp_path, replace(PLAIN, start=("echo", ScriptOptions.RUN, "$HOME"))) as process:
        assert process.communicate(timeout=30)[0] == "slurm-12 $HOME\n"


def test_only_a_life_after_the_first_resumes(tmp_path: Path) -> None:
    lives = replace(PLAIN, start=("echo", "start"), resume=("echo", "resume"), requeue=True)
    words = []
    for restarts in (None, "0", "1"):
        with life(tmp_path, lives, restarts) as process:
            words.append(process.communicate(timeout=30)[0])
    assert words == ["start\n", "start\n", "resume\n"]


def noticed(directory: Path, save: str, *, refused: bool = False) -> tuple[int, list[str]]:
    """Send the notice of the end to a life that runs until the file `go` exists; return its exit code and its calls.

    `save` is a script that stands for the command.
    """
    run = ("sh", "-c", f"echo up; while ! [ -e {directory}/go ]; do sleep 0.05; done; exit 5")
    saving = ("sh", "-c", f"echo save $SLURM_JOB_ID >> {directory}/calls; {save}")
    lives = replace(PLAIN, start=run, save=saving, requeue=True)
    with life(directory, lives, refused=refused) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGUSR1)
        calls = directory / "calls"
        over = f"{directory}/go" in save
        assert wait_until(lambda: over or (calls.exists() and "requeue" in calls.read_text()))
        (directory / "go").touch()
        return process.wait(30), calls.read_text().splitlines()


def test_a_notice_of_the_end_saves_and_queues_the_job_again(tmp_path: Path) -> None:
    """Slurm ends the script after that; here it is the run that ends."""
    assert noticed(tmp_path, "exit 0") == (5, ["save 12", "requeue 12"])


def test_the_job_is_queued_again_even_if_the_command_that_saves_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterctl.schedulers.slurm.script.MOST_S", 1)
    assert noticed(tmp_path, "exec sleep 300") == (5, ["save 12", "requeue 12"])


def test_a_run_that_is_over_by_then_ends_the_job_with_its_exit_code(tmp_path: Path) -> None:
    assert noticed(tmp_path, f"touch {tmp_path}/go; exit 4") == (5, ["save 12"])


def test_a_job_that_cannot_be_queued_again_goes_on(tmp_path: Path) -> None:
    assert noticed(tmp_path, "exit 0", refused=True) == (5, ["save 12", "requeue 12"])


@pytest.mark.parametrize("time", ["9:59"])
def test_a_life_that_would_hear_of_its_end_at_its_beginning_is_refused(time: str) -> None:
    assert "--time" in script(replace(PLAIN, time=time))
    with pytest.raises(UsageError, match="too short for --requeue"):
        script(replace(PLAIN, time=time, requeue=True))


@pytest.mark.parametrize(
    ("time", "expected"),
    [("30", 1800), ("30:05", 1805), ("2:00:05", 7205), ("1-12", 129600), ("1-0:30", 88200), ("1-00:00:07", 86407)],
)
def test_times_of_slurm_are_understood(time: str, expected: int) -> None:
    assert seconds(time) == expected
