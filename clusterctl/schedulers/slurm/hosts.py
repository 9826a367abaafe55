"""`HOSTS = slurm()`: the nodes of a running job, its tasks as trainers, and srun as their carrier."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from clusterctl.config import Host, Settings
from clusterctl.config.host_sources import SlurmHosts
from clusterctl.errors import ConfigError, UnreachableError
from clusterctl.schedulers.slurm.commands import Slurm
from clusterctl.schedulers.slurm.jobs import SlurmJob, deal
from clusterctl.schedulers.slurm.reasons import ending, waiting_for
from clusterctl.schedulers.slurm.records import JobNode, Records
from clusterctl.schedulers.slurm.script import RUN_PREFIX

INSIDE = "SLURM_JOB_ID"  # the variable that names the job in whose allocation a command runs


def with_hosts(settings: Settings, source: SlurmHosts, environ: Mapping[str, str]) -> Settings:
    """Return the settings with the nodes of the job as hosts, in Slurm's order, and a ROOT_DIR for each node.

    A node keeps its data under its id, not under the name of a machine: after a requeue it may be another machine.
    What the job's record lacks is written there: the nodes are asked for inside the job, and read when it is over.
    """
    records = Records(settings.root_dir)
    last = records.last()
    named = source.job if source.job is not None else environ.get(INSIDE) or (last.id if last else None)
    if named is None:
        raise outside(settings)
    slurm = Slurm(environ)
    job = running(slurm, str(named))
    nodes = _nodes(settings, slurm, job)
    record = records.find(job.id)
    if record is not None:
        record.save_allocation(job.restarts, nodes)
    return with_nodes(settings, job.id, nodes)


def outside(settings: Settings) -> ConfigError:
    """Return the error for a command that no Slurm job is meant by."""
    return ConfigError(
        f"{settings.place('HOSTS')}HOSTS = slurm(), but this is not inside a Slurm job, and none was submitted",
        hint="submit one (clusterctl submit), run this in an allocation (salloc --nodes 4), "
        "or name a job: HOSTS = slurm(job=12345)",
    )


def _nodes(settings: Settings, slurm: Slurm, job: SlurmJob) -> tuple[JobNode, ...]:
    names = slurm.host_names(job.node_list)
    trainers = _trainers(slurm, job, names) if "TRAINERS_PER_NODE" not in {*settings.lines, *settings.chosen} else {}
    addresses = slurm.addresses(job.node_list) if settings.nic is None else {}
    return tuple(JobNode(name, trainers.get(name), addresses.get(name)) for name in names)


def with_nodes(settings: Settings, job: str, nodes: Sequence[JobNode]) -> Settings:
    """Return the settings with these nodes of a job as hosts, and the job as their source."""
    via = carrier(job)
    hosts = tuple(Host(node.name, trainers=node.trainers, address=node.address, via=via) for node in nodes)
    root_dir = root_of_nodes(settings.root_dir)
    return replace(settings, hosts=hosts, hosts_from=SlurmHosts(job), root_dir=root_dir)


def root_of_nodes(root_dir: str) -> str:
    """Return the ROOT_DIR of a job's nodes, with `{node}` in it."""
    return root_dir if "{node}" in root_dir else f"{root_dir.rstrip('/')}/node{{node}}"


def carrier(job: str) -> tuple[str, ...]:
    """Return the words that run a command on a node of the job; `{host}` stands for the node.

    Without -u srun holds back what follows the last line end; without --overlap it waits for the CPUs of other steps.
    """
    return ("srun", "--jobid", job, "--overlap", "-u", "-N1", "-n1", "-w", "{host}")


def running(slurm: Slurm, named: str) -> SlurmJob:
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


def _trainers(slurm: Slurm, job: SlurmJob, names: tuple[str, ...]) -> dict[str, int]:
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


RUNNING, LOST, UNKNOWN = "running", "lost", "unknown"


def look_at_all(settings: Settings, environ: Mapping[str, str]) -> tuple[Settings, Callable[[str | None], str]]:
    """Return the settings with a host for each directory of a node, to be read here; no hosts if there is none.

    Also return a function for the state of a run by its name, if the run has not recorded its own end: unknown if it
    was not submitted. It raises UnreachableError if Slurm does not answer.
    """
    root = root_of_nodes(settings.root_dir)
    directories = (Path(root.replace("{node}", str(node))).expanduser() for node in itertools.count())
    count = sum(1 for _ in itertools.takewhile(Path.is_dir, directories))
    hosts = tuple(Host(f"node{node}") for node in range(count))
    alive = functools.cache(Slurm(environ).alive)

    def state_of(run: str | None) -> str:
        job = (run or "").removeprefix(RUN_PREFIX)
        if not job.isdecimal() or job == run:
            return UNKNOWN
        return RUNNING if job in alive() else LOST

    return replace(settings, hosts=hosts, root_dir=root, pservers=None, trainers=None), state_of
