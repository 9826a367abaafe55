"""The schema of what nodes report about their GPUs; for the checks of answers see `answers.py`."""

from __future__ import annotations

from typing import Any, TypedDict

from clusterctl.cluster.shapes import Shape, count, list_of, maybe, record, text, up_to

MOST_DEVICES = 1024  # GPUs, or their MIG instances
MOST_USERS = 256
MOST_CHARS = 500


class Gpu(TypedDict):
    """A GPU: sizes in bytes, `utilization` in percent; None where its driver does not report them."""

    index: int
    uuid: str
    name: str
    total: int | None
    used: int | None
    utilization: int | None


class GpuUser(TypedDict):
    """A process on the GPU with the index `gpu`, as far as the node can see it. `job`: the job that it belongs to."""

    gpu: int | None
    pid: int
    name: str | None
    account: str | None
    memory: int | None
    job: str | None


class GpuReport(TypedDict):
    """The GPUs of a node and the processes on them; in `status` without those of the run.

    `devices`: those that trainers may use, as CUDA_VISIBLE_DEVICES names them. `problem`: the failure of nvidia-smi.
    """

    devices: list[str]
    gpus: list[Gpu]
    users: list[GpuUser]
    problem: str | None


class FoundDevices(TypedDict):
    """The devices of a node that is ready to start, None without GPUs. Nodes with the same `pool` share them."""

    devices: list[str] | None
    pool: str
    problem: str | None


def words(value: Any) -> bool:
    return text(value) and len(value) <= MOST_CHARS


DEVICES: Shape = up_to(MOST_DEVICES, list_of(words))
REPORT: Shape = record(
    devices=DEVICES,
    gpus=up_to(
        MOST_DEVICES,
        list_of(
            record(index=count, uuid=words, name=words, total=maybe(count), used=maybe(count), utilization=maybe(count))
        ),
    ),
    users=up_to(
        MOST_USERS,
        list_of(
            record(
                gpu=maybe(count),
                pid=count,
                name=maybe(words),
                account=maybe(words),
                memory=maybe(count),
                job=maybe(words),
            )
        ),
    ),
    problem=maybe(words),
)
FOUND: Shape = record(devices=maybe(DEVICES), pool=words, problem=maybe(words))


def gpu_report(value: Any) -> GpuReport | None:
    """Return a node's report, or None if it has none. Raises ValueError if it is malformed."""
    if not maybe(REPORT)(value):
        raise ValueError("malformed report of GPUs")
    report: GpuReport | None = value
    return report


def found_devices(value: Any) -> FoundDevices:
    """Return the devices that a node found. Raises ValueError if they are malformed."""
    if not FOUND(value):
        raise ValueError("malformed list of GPUs")
    found: FoundDevices = value
    return found
