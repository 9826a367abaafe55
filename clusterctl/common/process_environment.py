"""The environment of a started process (design section 6), as a pure function; and the GPUs that it sees.

The control machine calls it for `start --plan`, with placeholders for facts that only the node knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from clusterctl.common.engines import ENGINES, Endpoints
from clusterctl.common.run_spec import ProcessSpec, RunSpec, RunSummary

#: What belongs to the SSH command that started the agent, or to its shell.
NOT_OURS = (
    *("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY", "SSH_AUTH_SOCK", "SSH_ASKPASS_REQUIRE"),
    *("PWD", "OLDPWD", "SHLVL", "_"),
)
#: What makes a program take itself for a step of Slurm or a rank of MPI. Those of ENGINE are added later.
OF_A_SCHEDULER = ("SLURM", "PMI_", "PMI2_", "PMIX_", "OMPI_", "PRTE_")
OF_THE_JOB = "SLURM_JOB_"
#: One of these shows that srun or mpirun started the agent, and passed on the whole environment of its caller.
OF_A_STEP = ("SLURM_STEP_ID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
#: What a login over SSH has; with the path of libraries, which goes with PATH; and the devices of a step.
AT_LOGIN = frozenset(
    {
        *("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LD_LIBRARY_PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR", "MAIL"),
        *("XDG_RUNTIME_DIR", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"),
    }
)

#: The devices of a process, by their indices or UUIDs, and the order that the indices are in.
VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
AS_NVIDIA_SMI = "PCI_BUS_ID"  # CUDA's own order begins with the fastest
MIG = "MIG-"
NO_DEVICE = ("-1", "NoDevFiles")


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a process gets of its agent's environment: as much over any carrier as over SSH, and SLURM_JOB_*."""
    if any(name in environ for name in OF_A_STEP):
        return as_at_login(environ, OF_THE_JOB)
    return {
        name: value
        for name, value in environ.items()
        if name not in NOT_OURS and (not name.startswith(OF_A_SCHEDULER) or name.startswith(OF_THE_JOB))
    }


def as_at_login(environ: Mapping[str, str], *others: str) -> dict[str, str]:
    """Return the variables that a login over SSH has too, and those that begin with one of `others`."""
    begins = ("LC_", *others)
    return {name: value for name, value in environ.items() if name in AT_LOGIN or name.startswith(begins)}


class LaunchFacts(NamedTuple):
    """The facts that the node adds to the plan.

    `pservers` is incomplete while our own pservers start. `endpoints` has the processes for which a port was chosen.
    """

    job_dir: str
    lib_dir: str
    cores: int
    pservers: tuple[str, ...]
    control_fd: str
    inherited: Mapping[str, str]
    endpoints: Endpoints = MappingProxyType({})
    attempt: int = 1


def environment(spec: RunSpec, process: ProcessSpec, facts: LaunchFacts) -> dict[str, str]:
    """Return the environment of a process of `spec`. ENV of conf.py overrides inherited variables."""
    gpus = gpu_variables(spec, process, facts.inherited)
    values = {**facts.inherited, **_threads(spec, process, facts), **gpus, **spec.env}
    if spec.ld_library_path:
        values["LD_LIBRARY_PATH"] = spec.ld_library_path
    values.update(_activated(spec, values))
    values["PYTHONPATH"] = ":".join(filter(None, (facts.lib_dir, values.get("PYTHONPATH", ""))))
    values.update(_ours(spec, process, facts), **_old_launcher(spec, process, facts))
    if spec.hosts:
        values["CLUSTERCTL_NODES"] = f"{facts.job_dir}/.clusterctl/runs/{spec.run}/nodes.json"
    values.update(ENGINES[spec.training.engine].variables(spec, process, facts.endpoints))
    return values


def _activated(spec: RunSpec, values: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that `activate` of a virtual environment sets, if `setup` has made one."""
    if not spec.venv:
        return {}
    return {"VIRTUAL_ENV": spec.venv, "PATH": f"{spec.venv}/bin:{values.get('PATH', '/usr/bin:/bin')}"}


def _threads(spec: RunSpec, process: ProcessSpec, facts: LaunchFacts) -> dict[str, str]:
    """Return the BLAS threads of a process: its share of the cores, divided by the threads of a trainer's program."""
    own = (spec.training.trainer_threads or 1) if process.role == "trainer" else 1
    share = str(max(1, facts.cores // (own * max(1, spec.sharing or len(spec.processes)))))
    unset = (name for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS") if name not in facts.inherited)
    return dict.fromkeys(unset, share)


def _ours(spec: RunSpec, process: ProcessSpec, facts: LaunchFacts) -> dict[str, str]:
    return {
        "CLUSTERCTL_JOB": spec.job,
        "CLUSTERCTL_JOB_DIR": facts.job_dir,
        "CLUSTERCTL_RUN": spec.run,
        "CLUSTERCTL_NODE_ID": str(spec.node),
        "CLUSTERCTL_ROLE": process.role,
        "CLUSTERCTL_RANK": str(process.rank),
        "CLUSTERCTL_TRAINERS": str(spec.training.trainers),
        "CLUSTERCTL_PSERVERS": ",".join(facts.pservers),
        "CLUSTERCTL_ATTEMPT": str(facts.attempt),
        "CLUSTERCTL_OUTPUT_DIR": f"{facts.job_dir}/output",
        "CLUSTERCTL_CONTROL_FD": facts.control_fd,
        "PYTHONUNBUFFERED": "1",
    }


def _old_launcher(spec: RunSpec, process: ProcessSpec, facts: LaunchFacts) -> dict[str, str]:
    return {
        "PADDLE_INIT_USE_GPU": str(int(spec.use_gpu)),
        "PADDLE_INIT_TRAINER_COUNT": str(spec.training.trainer_threads or 1),
        "PADDLE_INIT_PORT": _pserver_port(spec, process, facts),
        "PADDLE_INIT_PORTS_NUM": str(spec.ports.ports_num),
        "PADDLE_INIT_PORTS_NUM_FOR_SPARSE": str(spec.ports.ports_num_for_sparse),
        "PADDLE_INIT_NUM_GRADIENT_SERVERS": str(spec.training.trainers),
        "PADDLE_INIT_TRAINER_ID": str(process.rank),
        "PADDLE_INIT_PSERVERS": ",".join(spec.pserver_hosts),
        "PADDLE_CLUSTER_TRAIN": "True",
        "TRAINING_ROLE": process.role.upper(),
    }


def _pserver_port(spec: RunSpec, process: ProcessSpec, facts: LaunchFacts) -> str:
    """Return the port of a pserver; for other processes that of pserver 0; the setting PORT while it is not known."""
    endpoint = facts.endpoints.get(process.name if process.role == "pserver" else "pserver0")
    return endpoint.rpartition(":")[2] if endpoint else str(spec.ports.port)


def inherited_devices(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the devices that CUDA_VISIBLE_DEVICES of the node's account or scheduler allows; None without it."""
    if VISIBLE not in environ:
        return None
    return listed(environ[VISIBLE])


def listed(text: str) -> tuple[str, ...]:
    """Return the devices in a value of CUDA_VISIBLE_DEVICES. CUDA ignores all that follow one that is none."""
    words = [word.strip() for word in text.split(",")]
    end = next((at for at, word in enumerate(words) if not word or word in NO_DEVICE), len(words))
    return tuple(words[:end])


def deal(devices: Sequence[str], share: int, shares: int) -> tuple[str, ...]:
    """Return one of `shares` even, contiguous shares of the devices; of too few devices, one that others have too.

    A process can use one MIG instance only, so none gets more.
    """
    if not devices:
        return ()
    if shares >= len(devices) or any(device.startswith(MIG) for device in devices):
        return (devices[share % len(devices)],)
    each, more = divmod(len(devices), shares)
    begin = share * each + min(share, more)
    return tuple(devices[begin : begin + each + (share < more)])


def trainer_devices(spec: RunSpec | RunSummary, index: int, trainers: int) -> tuple[str, ...]:
    """Return the devices of one of the `trainers` of a node: those that ENV names, else its share.

    Engines with local ranks leave all devices to every trainer.
    """
    if VISIBLE in spec.env:
        return listed(spec.env[VISIBLE])
    gpus, devices = spec.gpus, (spec.gpus.devices if spec.gpus else None) or ()
    if gpus is None or ENGINES[spec.training.engine].local_ranks:
        return devices
    return deal(devices, (gpus.first or 0) + index, gpus.shares or trainers)


def gpu_variables(spec: RunSpec, process: ProcessSpec, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return what limits a process to its devices; nothing if none are known, or ENV names them.

    Only trainers get any.
    """
    gpus = spec.gpus
    if gpus is None or gpus.devices is None or VISIBLE in spec.env:
        return {}
    if ENGINES[spec.training.engine].local_ranks and gpus.limit is None:
        return {}
    trainers = sum(other.role == "trainer" for other in spec.processes)
    own = trainer_devices(spec, process.index, trainers) if process.role == "trainer" else ()
    ordered = {ORDER: AS_NVIDIA_SMI} if own and VISIBLE not in inherited else {}
    return {VISIBLE: ",".join(own), **ordered}
