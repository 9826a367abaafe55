"""The GPUs of this node, those that trainers may use, and whose processes use them."""

from __future__ import annotations

import hashlib
import os
import pwd
from collections.abc import Iterable
from typing import Any, NamedTuple

from clusterctl.agent.gpus import nvidia_smi
from clusterctl.agent.gpus.nvidia_smi import Gpu, GpuReading, NvidiaSmiError, User
from clusterctl.common.paths import RunPaths
from clusterctl.common.process_environment import inherited_devices, trainer_devices
from clusterctl.common.procfs import boot_id, environment_of, read_of, stat_fields, variable
from clusterctl.common.run_spec import RunSummary

MOST_ANCESTORS = 64
MOST_SHOWN = 64  # users in an answer
MARKS = (b"CLUSTERCTL_JOB_DIR", b"CLUSTERCTL_RUN", b"CLUSTERCTL_ROLE", b"CLUSTERCTL_RANK")


class Owner(NamedTuple):
    """The process of a run that a process is, or descends from."""

    job_dir: str
    run: str
    role: str
    rank: str


def find_devices(limit: int | None) -> dict[str, Any]:
    """Return the `devices` that trainers may use, None if there are none, and the `problem` of nvidia-smi, if any.

    `limit` is their number according to conf.py. Nodes that see the same GPUs give them the same `pool`.
    """
    found, problem = None, None
    allowed, program = inherited_devices(os.environ), nvidia_smi.find_program()
    if limit != 0 and allowed is None and program is not None:
        try:
            found = nvidia_smi.list_devices(program)
        except NvidiaSmiError as exc:
            problem = str(exc)
    devices = choose(found.names if found else None, allowed, limit)
    pool = ",".join(found.uuids) if found else f"{boot_id()} {allowed}"
    return {
        "devices": None if devices is None else list(devices),
        "pool": hashlib.sha256(pool.encode()).hexdigest(),
        "problem": problem,
    }


def choose(found: tuple[str, ...] | None, allowed: tuple[str, ...] | None, limit: int | None) -> tuple[str, ...] | None:
    """Return the devices that trainers may use; None if nothing is known of any.

    conf.py is right about their number even if nvidia-smi does not show so many; but no more are used than
    CUDA_VISIBLE_DEVICES of the account or its scheduler allows.
    """
    devices = found if allowed is None else allowed
    if limit is None:
        return devices or None
    if allowed is None and len(found or ()) < limit:
        return tuple(map(str, range(limit)))
    return (devices or ())[:limit]


def inspect_gpus(limit: int | None) -> dict[str, Any] | None:
    """Return what `check` shows of this node's GPUs; None if conf.py wants none of them, or nvidia-smi is missing."""
    program = nvidia_smi.find_program()
    if limit == 0 or program is None:
        return None
    try:
        reading = nvidia_smi.read(program)
    except NvidiaSmiError as exc:
        return as_answer(problem=str(exc))
    devices = choose(reading.devices.names, inherited_devices(os.environ), limit)
    users = (described(user, reading.gpus, owner_of(user.pid)) for user in reading.users[:MOST_SHOWN])
    return as_answer(devices or (), reading.gpus, users)


def as_answer(
    devices: Iterable[str] = (),
    gpus: Iterable[Gpu] = (),
    users: Iterable[dict[str, Any]] = (),
    problem: str | None = None,
) -> dict[str, Any]:
    """Return the report on this node's GPUs: the `devices` that trainers may use, the GPUs, and the users of them."""
    shown = [gpu.to_json() for gpu in gpus]
    return {"devices": list(devices), "gpus": shown, "users": list(users), "problem": problem}


def described(user: User, gpus: Iterable[Gpu], owner: Owner | None) -> dict[str, Any]:
    """Return a process as answers have it: index of its `gpu`, `pid`, `name`, `account`, `memory`, `job`; or None."""
    name, account = _name_and_account(user.pid)
    return {
        "gpu": next((gpu.number for gpu in gpus if gpu.uuid == user.uuid), None),
        "pid": user.pid,
        "name": name,
        "account": account,
        "memory": user.memory,
        "job": owner.job_dir.rpartition("/")[2] if owner else None,
    }


def owner_of(pid: int) -> Owner | None:
    """Return the process of a run of this account that this one is or descends from; None for those of others.

    A descendant may have cleared its environment.
    """
    for _ in range(MOST_ANCESTORS):
        environment = environment_of(pid) if _status(pid).get("Uid", "").split()[:1] == [str(os.getuid())] else b""
        values = [variable(environment, name) for name in MARKS]
        if all(value is not None for value in values):
            return Owner(*(os.fsdecode(value or b"") for value in values))
        fields = stat_fields(pid)
        pid = int(fields[1]) if fields else 0
        if pid <= 1:
            break
    return None


def _status(pid: int) -> dict[str, str]:
    """Return the entries of /proc/PID/status; none where /proc does not show the process, as in a container."""
    text = (read_of(pid, "status") or b"").decode(errors="replace")
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def _name_and_account(pid: int) -> tuple[str | None, str | None]:
    status = _status(pid)
    uid = status.get("Uid", "").split()[:1]
    if not uid:
        return None, None
    try:
        account = pwd.getpwuid(int(uid[0])).pw_name
    except KeyError:
        account = f"uid {uid[0]}"
    return status.get("Name"), account


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
