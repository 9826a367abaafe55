"""The trainers on the nodes of a Slurm job are the tasks that Slurm has room for there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.schedulers.slurm.hosts import _trainers
from clusterctl.schedulers.slurm.jobs import CpuAllocation, SlurmJob

NAMES = ("n1", "n2")


def trainers(rooms: list[CpuAllocation], most: int | None, **facts: int) -> dict[str, int]:
    slurm: Any = SimpleNamespace(rooms=lambda job: (rooms, most), host_names=lambda node_list: [node_list])
    return _trainers(slurm, SlurmJob("4", "RUNNING", node_list="n[1-2]", nodes=2, **facts), NAMES)


@pytest.mark.parametrize(
    ("rooms", "most", "tasks", "cpus_per_task", "counts"),
    [
        ([CpuAllocation("n1", 2), CpuAllocation("n2", 6)], None, 5, 1, [2, 3]),
        ([CpuAllocation("n1", 2), CpuAllocation("n2", 6)], None, 4, 2, [1, 3]),
        ([CpuAllocation("n1", 1), CpuAllocation("n2", 6)], 3, 4, 1, [1, 3]),
        ([CpuAllocation("n[1-2]", 4)], None, 4, 2, [2, 2]),
        ([], None, 3, 1, [2, 1]),
    ],
)
def test_each_node_has_as_many_trainers_as_tasks_fit(
    rooms: list[CpuAllocation], most: int | None, tasks: int, cpus_per_task: int, counts: list[int]
) -> None:
    assert trainers(rooms, most, tasks=tasks, cpus_per_task=cpus_per_task) == dict(zip(NAMES, counts, strict=True))


def test_without_a_number_of_tasks_slurm_says_nothing_of_trainers() -> None:
    assert trainers([CpuAllocation("n1", 4)], None, tasks=0) == {}
