"""The schema of what nodes report about their GPUs; for the checks of answers see `answers.py`."""

from __future__ import annotations

from typing import Annotated, TypedDict

from clusterctl.common.schema import Count, at_most

ShortText = Annotated[str, at_most(500)]
Devices = Annotated[list[ShortText], at_most(1024)]


class GpuAnswer(TypedDict):
    """A GPU: sizes in bytes, `utilization` in percent; None where its driver does not report them."""

    index: Count
    uuid: ShortText
    name: ShortText
    total: Count | None
    used: Count | None
    utilization: Count | None


class GpuUser(TypedDict):
    """A process on the GPU with the index `gpu`, as far as the node can see it. `job`: the job that it belongs to."""

    gpu: Count | None
    pid: Count
    name: ShortText | None
    account: ShortText | None
    memory: Count | None
    job: ShortText | None


Gpus = Annotated[list[GpuAnswer], at_most(1024)]  # or their MIG instances
GpuUsers = Annotated[list[GpuUser], at_most(256)]


class GpuReport(TypedDict):
    """The GPUs of a node and the processes on them; in `status` without those of the run.

    `devices`: those that trainers may use, as CUDA_VISIBLE_DEVICES names them. `problem`: the failure of nvidia-smi.
    """

    devices: Devices
    gpus: Gpus
    users: GpuUsers
    problem: ShortText | None


class FoundDevices(TypedDict):
    """The devices of a node that is ready to start, None without GPUs. Nodes with the same `pool` share them."""

    devices: Devices | None
    pool: ShortText
    problem: ShortText | None
