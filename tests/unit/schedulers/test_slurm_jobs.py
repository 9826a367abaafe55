"""The output of Slurm's commands about jobs, recorded with Slurm 22.05.8 as `tests/real/slurm/lab.py` sets it up."""

from __future__ import annotations

import pytest

from clusterctl.schedulers.slurm.jobs import CpuAllocation, SlurmJob, deal, parse_rooms, parse_sacct, parse_squeue

DETAILS = """\
JobId=4 JobName=a b|c JobState=FAILED
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   NodeList=n[1-2]
   NumNodes=2 NumCPUs=5 NumTasks=5 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*
   JOB_GRES=(null)
     Nodes=n1 CPU_IDs=0-3 Mem=200 GRES=
     Nodes=n2 CPU_IDs=0 Mem=200 GRES=
   MinCPUsNode=1 MinMemoryNode=200M MinTmpDiskNode=0
"""


def squeue(line: str) -> SlurmJob:
    (job,) = parse_squeue(line + "\n")
    return job


def test_a_running_job() -> None:
    line = "4|N/A|RUNNING|None|2|5|1|0|2026-11-23T21:38:05|2026-11-23T22:38:05|1:00:00|0|n[1-2]|"
    assert squeue(line) == SlurmJob(
        id="4",
        state="RUNNING",
        node_list="n[1-2]",
        nodes=2,
        tasks=5,
        started="2026-11-23T21:38:05",
        ended="2026-11-23T22:38:05",
        time_limit="1:00:00",
    )


def test_a_queued_job_has_no_nodes_and_a_reason() -> None:
    job = squeue("6|N/A|PENDING|Resources|3|6|2|0|N/A|N/A|UNLIMITED|1||")
    assert (job.is_queued, job.is_over, job.reason, job.node_list) == (True, False, "Resources", "")
    assert (job.cpus_per_task, job.started, job.time_limit, job.restarts) == (2, None, None, 1)


@pytest.mark.parametrize(
    ("status", "exit_code", "signal"),
    [("0", 0, 0), ("2304", 9, 0), ("15", None, 15), ("253", None, 125)],
    ids=["0:0", "9:0", "0:15", "0:125, out of memory"],
)
def test_the_exit_code_is_that_of_wait(status: str, exit_code: int | None, signal: int) -> None:
    job = squeue(f"3|N/A|FAILED|NonZeroExitCode|1|1|1|{status}|N/A|N/A|UNLIMITED|0|n1|")
    assert (job.exit_code, job.signal, job.is_over) == (exit_code, signal, True)


def test_a_job_that_is_ending_is_not_over() -> None:
    job = squeue("33|N/A|COMPLETING|NodeDown|3|3|1|15|N/A|N/A|UNLIMITED|0|n3|")
    assert not job.is_over
    assert not job.is_queued


def test_a_part_of_a_heterogeneous_job_is_recognised() -> None:
    assert squeue("10|9|PENDING|Resources|1|1|1|0|N/A|N/A|UNLIMITED|0||").is_component


def test_text_that_is_not_of_squeue_is_refused() -> None:
    with pytest.raises(ValueError, match="not a line of squeue"):
        parse_squeue("JOBID PARTITION\n")


def test_accounting_knows_who_cancelled_and_the_parser_the_state_alone() -> None:
    first, second = parse_sacct(
        "12|CANCELLED by 1000|0:15|2026-11-23T21:29:41|2026-11-23T21:29:43|UNLIMITED|2|n[1-2]\n"
        "12|TIMEOUT|0:0|2026-11-23T21:32:03|2026-11-23T21:33:30|00:01:00|1|n4\n"
    )
    assert (first.state, first.signal, first.time_limit, first.node_list) == ("CANCELLED", 15, None, "n[1-2]")
    assert (second.state, second.exit_code, second.time_limit) == ("TIMEOUT", 0, "00:01:00")
    with pytest.raises(ValueError, match="not a line of sacct"):
        parse_sacct("no accounting here\n")


def test_the_cpus_of_a_job_are_read_whatever_its_name_is() -> None:
    assert parse_rooms(DETAILS) == ([CpuAllocation("n1", 4), CpuAllocation("n2", 1)], None)
    limited = DETAILS.replace("NtasksPerN:B:S:C=0:", "NtasksPerN:B:S:C=3:").replace("IDs=0 ", "IDs=0-2,5,7-8 ")
    assert parse_rooms(limited) == ([CpuAllocation("n1", 4), CpuAllocation("n2", 6)], 3)
    assert parse_rooms("") == ([], None)


@pytest.mark.parametrize(
    ("tasks", "room", "counts"),
    [
        (6, [4, 4, 4], [2, 2, 2]),
        (5, [4, 1], [4, 1]),
        (5, [3, 2], [3, 2]),
        (5, [1, 1], [3, 2]),
        (2, [4, 4], [1, 1]),
        (3, [], []),
        (0, [4], [0]),
    ],
)
def test_tasks_are_dealt_to_the_nodes_that_have_room(tasks: int, room: list[int], counts: list[int]) -> None:
    assert deal(tasks, room) == counts
