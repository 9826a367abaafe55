"""The environment of a started process (design section 6), as a pure function.

The control machine calls it for `start --plan`, with placeholders for facts that only the node knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from clusterctl.common.engines import ENGINES, Endpoints
from clusterctl.common.gpus import gpu_variables
from clusterctl.common.run_spec import ProcessSpec, RunSpec

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


class NodeFacts(NamedTuple):
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


def environment(spec: RunSpec, process: ProcessSpec, facts: NodeFacts) -> dict[str, str]:
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


def _threads(spec: RunSpec, process: ProcessSpec, facts: NodeFacts) -> dict[str, str]:
    """Return the BLAS threads of a process: its share of the cores, divided by the threads of a trainer's program."""
    own = (spec.training.trainer_threads or 1) if process.role == "trainer" else 1
    share = str(max(1, facts.cores // (own * max(1, spec.sharing or len(spec.processes)))))
    unset = (name for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS") if name not in facts.inherited)
    return dict.fromkeys(unset, share)


def _ours(spec: RunSpec, process: ProcessSpec, facts: NodeFacts) -> dict[str, str]:
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


def _old_launcher(spec: RunSpec, process: ProcessSpec, facts: NodeFacts) -> dict[str, str]:
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


def _pserver_port(spec: RunSpec, process: ProcessSpec, facts: NodeFacts) -> str:
    """Return the port of a pserver; for other processes that of pserver 0; the setting PORT while it is not known."""
    endpoint = facts.endpoints.get(process.name if process.role == "pserver" else "pserver0")
    return endpoint.rpartition(":")[2] if endpoint else str(spec.ports.port)
