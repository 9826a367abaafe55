"""`HOSTS = slurm()`: the nodes of a running job, its tasks as trainers, and srun as their carrier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from clusterctl.config import Host, Settings
from clusterctl.config.host_sources import SlurmHosts
from clusterctl.errors import ConfigError, UnreachableError
from clusterctl.schedulers.slurm.commands import Slurm
from clusterctl.schedulers.slurm.jobs import Job, deal
from clusterctl.schedulers.slurm.reasons import ending, waiting_for


def with_hosts(settings: Settings, source: SlurmHosts, environ: Mapping[str, str]) -> Settings:
    """Return the settings with the nodes of the job as hosts, in Slurm's order, and a ROOT_DIR for each node.

    A node keeps its data under its id, not under the name of a machine: after a requeue it may be another machine.
    """
    named = source.job if source.job is not None else environ.get("SLURM_JOB_ID")
    if named is None:
        raise ConfigError(
            f"{settings.place('HOSTS')}HOSTS = slurm(), but this is not inside a Slurm job",
            hint="run this in an allocation (salloc --nodes 4), or name a job: HOSTS = slurm(job=12345)",
        )
    slurm = Slurm(environ)
    job = running(slurm, str(named))
    names = slurm.host_names(job.node_list)
    trainers = _trainers(slurm, job, names) if "TRAINERS_PER_NODE" not in {*settings.lines, *settings.chosen} else {}
    addresses = slurm.addresses(job.node_list) if settings.nic is None else {}
    via = carrier(job.id)
    hosts = tuple(Host(name, trainers=trainers.get(name), address=addresses.get(name), via=via) for name in names)
    root = settings.root_dir if "{node}" in settings.root_dir else f"{settings.root_dir.rstrip('/')}/node{{node}}"
    return replace(settings, hosts=hosts, root_dir=root)


def carrier(job: str) -> tuple[str, ...]:
    """Return the words that run a command on a node of the job; `{host}` stands for the node.

    Without -u srun holds back what follows the last line end; without --overlap it waits for the CPUs of other steps.
    """
    return ("srun", "--jobid", job, "--overlap", "-u", "-N1", "-n1", "-w", "{host}")


def running(slurm: Slurm, named: str) -> Job:
    """Return the job if commands can run on its nodes. Raises UnreachableError with the reason if not."""
    job = slurm.job(named)
    if job.is_queued:
        raise UnreachableError(
            f"Slurm job {named} is queued: {waiting_for(job)}", hint=f"see squeue --start -j {named}"
        )
    end = ending(job)
    if end is not None:
        raise UnreachableError(f"Slurm job {named} has ended: {end.text}", hint=end.hint)
    if job.state in ("SUSPENDED", "STOPPED"):
        raise UnreachableError(f"Slurm job {named} is suspended", hint=f"scontrol resume {named}")
    if job.state in ("COMPLETING", "STAGE_OUT", "CONFIGURING"):
        raise UnreachableError(
            f"Slurm job {named} is {'being set up' if job.state == 'CONFIGURING' else 'ending'}",
            hint=f"try again when squeue -j {named} shows another state",
        )
    return job


def _trainers(slurm: Slurm, job: Job, names: tuple[str, ...]) -> dict[str, int]:
    """Return the number of tasks on each node, as far as Slurm says how many there are."""
    if job.tasks == 0:
        return {}
    rooms, most = slurm.rooms(job.id)
    room = {
        name: min(group.cpus // job.cpus_per_task, most or group.cpus)
        for group in rooms
        for name in (slurm.host_names(group.node_list) if len(rooms) > 1 else names)
    }
    return dict(zip(names, deal(job.tasks, [room.get(name, most or 0) for name in names]), strict=True))
