"""The GPUs of a run on this node, for `status`: who has which, how much memory, and who else uses them."""

from __future__ import annotations

import os
from typing import Any

from clusterctl.agent.gpus import nvidia_smi
from clusterctl.agent.gpus.nvidia_smi import GpuReading, NvidiaSmiError
from clusterctl.agent.gpus.usage import MOST_SHOWN, Owner, as_answer, described, owner_of
from clusterctl.common.paths import RunPaths
from clusterctl.common.process_environment import trainer_devices
from clusterctl.common.run_spec import RunSummary


def add_gpus(run: RunPaths, spec: RunSummary, answer: dict[str, Any], *, live: bool) -> None:
    """Add to the answer of `status` the `gpus` of each trainer; while the run lives also their memory, and all users.

    nvidia-smi is asked only then, as it may take a second.
    """
    trainers = [process for process in answer["processes"] if process["role"] == "trainer"]
    for process in trainers:
        process["gpus"] = list(trainer_devices(spec, process["index"], len(trainers)))
    program = nvidia_smi.find_program() if live and any(process["gpus"] for process in trainers) else None
    if program is None:
        return
    try:
        reading = nvidia_smi.read(program)
    except NvidiaSmiError as exc:
        answer["gpus"] = as_answer(problem=str(exc))
        return
    users = _take_own(run, trainers, reading)
    devices = (spec.gpus.devices if spec.gpus else None) or ()
    answer["gpus"] = as_answer(devices, reading.gpus, users[:MOST_SHOWN])


def _take_own(run: RunPaths, trainers: list[dict[str, Any]], reading: GpuReading) -> list[dict[str, Any]]:
    """Add the memory of the run's own processes to their trainers. Return the other users."""
    used: dict[tuple[str, str], int] = {}
    others = []
    for user in reading.users:
        owner = owner_of(user.pid)
        if owner is None or not _is_of(owner, run):
            others.append(described(user, reading.gpus, owner))
        elif user.memory is not None:
            used[owner.role, owner.rank] = used.get((owner.role, owner.rank), 0) + user.memory
    for process in trainers:
        key = (process["role"], str(process["rank"]))
        if key in used:
            process["gpu_memory"] = used[key]
    return others


def _is_of(owner: Owner, run: RunPaths) -> bool:
    return owner.run == run.run and os.path.realpath(owner.job_dir) == os.path.realpath(run.job.dir)
