"""What srun does, and what it prints: the facts on which the carrier and the step that stays stand."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from real.slurm.lab import SLURMD_TIMEOUT_S, Lab, wait_until
from support.processes import is_alive, kill_all

pytestmark = pytest.mark.slurm
ECHO = ("python3", "-uc", "import os\nwhile data := os.read(0, 65536): os.write(1, b'<' + data.strip() + b'>')")
EVERY_BYTE = bytes(range(256)) * 4096
PROBE = "for n in 0 1 2; do test -t $n && echo $n; done; true"


@contextmanager
def begun(lab: Lab, job: str, node: str, *argv: str) -> Iterator[subprocess.Popen[bytes]]:
    step = lab.begin_step(job, node, *argv)
    with step:
        try:
            yield step
        finally:
            step.kill()


def answer(step: subprocess.Popen[bytes], within_s: float) -> bytes:
    assert step.stdout is not None
    ready, _, _ = select.select([step.stdout], [], [], within_s)
    return os.read(step.stdout.fileno(), 65536) if ready else b""


def ask(step: subprocess.Popen[bytes], line: bytes, within_s: float) -> bytes:
    assert step.stdin is not None
    step.stdin.write(line)
    step.stdin.flush()
    return answer(step, within_s)


def last_words(step: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Return the exit code and what is left on stderr."""
    _, stderr = step.communicate(timeout=60)
    return step.returncode, stderr.decode()


def test_with_u_bytes_are_exchanged_before_a_line_ends_and_without_it_they_are_held_back(lab: Lab) -> None:
    job = lab.allocate("-N1")
    with begun(lab, job, lab.node_of(job), *ECHO) as step:
        assert ask(step, b"hello\n", 30) == b"<hello>"
        assert ask(step, b"again\n", 30) == b"<again>"
    held = ["srun", "--jobid", job, "--overlap", "-N1", "-n1", *ECHO]
    pipe = subprocess.PIPE
    with subprocess.Popen(held, stdin=pipe, stdout=pipe, env=lab.environment) as step:
        assert ask(step, b"hello\n", 2) == b""
        assert step.stdin is not None
        step.stdin.close()
        assert answer(step, 30) == b"<hello>"


def test_with_u_the_output_is_a_raw_terminal_that_changes_no_byte(lab: Lab) -> None:
    job = lab.allocate("-N1")
    node = lab.node_of(job)
    assert lab.step(job, node, "sh", "-c", PROBE).stdout == "1\n"
    with begun(lab, job, node, "cat") as step:
        output, _ = step.communicate(EVERY_BYTE, timeout=60)
    assert output == EVERY_BYTE


def test_a_step_sees_its_own_node_in_place_of_those_of_its_job(lab: Lab) -> None:
    job = lab.allocate("-N3")
    node = lab.nodes_of(job)[1]
    seen = lab.step(job, node, "sh", "-c", "echo $SLURM_JOB_NODELIST $SLURM_JOB_NUM_NODES").stdout.split()
    assert seen == [node]
    assert len(lab.nodes_of(job)) == 3


def test_srun_passes_on_the_environment_and_the_directory_of_its_caller(lab: Lab) -> None:
    job = lab.allocate("-N1")
    foreign = {"PMIX_RANK": "7", "OMPI_COMM_WORLD_RANK": "7", "PMI_RANK": "7", "SLURM_PROCID": "7", "MINE": "x y"}
    seen = lab.step(job, lab.node_of(job), "sh", "-c", "env; pwd", HOME="/nowhere", **foreign).stdout.splitlines()
    assert {"PMIX_RANK=7", "OMPI_COMM_WORLD_RANK=7", "PMI_RANK=7", "MINE=x y", "HOME=/nowhere"} <= set(seen)
    assert "SLURM_PROCID=0" in seen  # of the step itself
    assert seen[-1] == str(Path.cwd())
    ours = {line.partition("=")[0] for line in seen if line.startswith(("SLURM_JOB", "SLURM_STEP"))}
    assert {"SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_STEP_ID", "SLURM_STEP_NODELIST"} <= ours


def leave_a_child(lab: Lab, job: str) -> int:
    """Return the pid of a process with a session and descriptors of its own, whose step has ended."""
    script = "setsid sleep 300 >/dev/null 2>&1 </dev/null & echo $!"
    return int(lab.step(job, lab.node_of(job), "sh", "-c", f"{script}; sleep 0.2").stdout)


def test_the_end_of_a_step_leaves_children_alone_under_linuxproc_and_so_does_the_end_of_the_job(lab: Lab) -> None:
    job = lab.allocate("-N1")
    child = leave_a_child(lab, job)
    lab.run("scancel", job)
    lab.wait_for(job, "CANCELLED")
    assert is_alive(child)
    kill_all([child])


def test_the_end_of_a_step_kills_its_children_under_cgroup(cgroup_lab: Lab) -> None:
    job = cgroup_lab.allocate("-N1")
    child = leave_a_child(cgroup_lab, job)
    assert wait_until(lambda: not is_alive(child), 30)
    assert cgroup_lab.state(job) == "RUNNING"


def test_exit_codes_are_those_of_the_command_and_of_the_shell_for_signals(lab: Lab) -> None:
    job = lab.allocate("-N1")
    node = lab.node_of(job)
    ends = [lab.step(job, node, "sh", "-c", script) for script in ("exit 7", "kill -9 $$", "kill -TERM $$")]
    assert [end.returncode for end in ends] == [7, 137, 143]
    assert f"srun: error: {node}: task 0: Exited with exit code 7" in ends[0].stderr
    assert f"srun: error: {node}: task 0: Killed" in ends[1].stderr
    absent = lab.step(job, node, "/nonexistent")
    assert absent.returncode == 2
    assert "execve(): /nonexistent: No such file or directory" in absent.stderr


def test_the_words_for_an_allocation_that_is_not_there(lab: Lab) -> None:
    node = lab.nodes[0]
    unknown = lab.step("999999", node, "true")
    assert (unknown.returncode, unknown.stderr) == (
        1,
        "srun: error: Unable to confirm allocation for job 999999: Invalid job id specified\n"
        "srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 999999\n",
    )
    held = lab.submit("true", "--hold")
    assert f"allocation for job {held}: Job is pending execution" in lab.step(held, node, "true").stderr
    over = lab.submit("true")
    lab.wait_for(over, "COMPLETED")
    ended = lab.step(over, node, "true")
    assert (ended.returncode, f"srun: error: Slurm job {over} has expired" in ended.stderr) == (1, True)


def test_the_words_for_a_node_that_is_not_of_the_job(lab: Lab) -> None:
    job = lab.allocate("-N1", "-w", lab.nodes[0])
    for node in (lab.nodes[1], "nonexistent"):
        end = lab.step(job, node, "true")
        assert end.returncode == 1
        assert f"Unable to create step for job {job}: Requested node configuration is not available" in end.stderr


def test_scancel_of_a_job_ends_its_steps_by_a_signal_without_a_reason(lab: Lab) -> None:
    """The line of slurmstepd may get lost on a busy machine; that of srun does not."""
    job = lab.allocate("-N2")
    with begun(lab, job, lab.nodes_of(job)[1], "sh", "-c", "echo up; exec sleep 300") as step:
        assert answer(step, 30) == b"up\n"
        lab.run("scancel", job)
        code, words = last_words(step)
    assert code == 143
    assert "srun: Job step aborted" in words
    assert "DUE TO" not in words


def test_srun_exits_with_0_or_with_the_code_of_a_killed_program_when_a_node_goes_down(lab: Lab) -> None:
    job = lab.allocate("-N2", "--no-requeue")
    node = lab.nodes_of(job)[1]
    with begun(lab, job, node, "sh", "-c", "echo up; exec sleep 300") as step:
        assert answer(step, 30) == b"up\n"
        lab.output("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        code, words = last_words(step)
    assert f"srun: error: Node failure on {node}" in words
    assert code in (0, 128 + signal.SIGTERM)  # the slurmd of the node lives, and may report what it killed
    lab.wait_for(job, "NODE_FAIL")


def test_a_drain_leaves_a_running_job_alone(lab: Lab) -> None:
    job = lab.allocate("-N1")
    node = lab.node_of(job)
    lab.output("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    lab.wait_for_nodes(node, state="draining")
    assert lab.state(job) == "RUNNING"
    assert lab.step(job, node, "echo", "still here").stdout == "still here\n"


def test_a_killed_slurmd_ends_the_job_elsewhere_and_leaves_its_own_processes(lab: Lab) -> None:
    job = lab.allocate("-N2", "--no-requeue")
    node = lab.nodes_of(job)[1]
    with begun(lab, job, node, "sh", "-c", "echo $$; exec sleep 300") as step:
        left = int(answer(step, 30))
        lab.kill(node)
        refused = lab.step(job, node, "true")  # until Slurm takes the node for down
        assert refused.returncode == 233
        assert f"failed on node {node}: Communication connection failure" in refused.stderr
        lab.wait_for(job, "NODE_FAIL", deadline_s=5 * SLURMD_TIMEOUT_S)
        code, words = last_words(step)
    assert (code, f"Node failure on {node}" in words) == (0, True)
    assert is_alive(left)
    kill_all([left])
