"""Slurm's commands on this machine: questions to its controller, each with a deadline, and errors in words."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

from clusterctl.errors import ClusterctlError, ConfigError, UnreachableError, UsageError
from clusterctl.schedulers.programs import run
from clusterctl.schedulers.slurm.jobs import (
    ALIVE,
    SACCT_FORMAT,
    SQUEUE_FORMAT,
    CpuAllocation,
    SlurmJob,
    parse_rooms,
    parse_sacct,
    parse_squeue,
)
from clusterctl.schedulers.slurm.reasons import refused

#: They retry by themselves: for about 18 s while the controller is away, for 60 s without a configuration.
DEADLINE_S = 30.0
QUEUE = "see squeue --me: the job may have been submitted all the same"
CONTROLLER = (
    r"Unable to contact slurm controller|Unable to establish controller|Socket timed out|Zero Bytes were transmitted"
    r"|temporarily unable to accept job"
)
#: Variables that change what the commands select or print.
UNWANTED = ("SQUEUE_", "SACCT_", "SINFO_", "SCONTROL_", "SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN")


class UnknownSlurmJob(UsageError):  # noqa: N818 - named for what Slurm does not know
    """Slurm does not know a job, or no longer."""


class Slurm:
    """The commands that `environ` finds, for the cluster that it names. Safe to use from several threads."""

    def __init__(self, environ: Mapping[str, str], deadline_s: float = DEADLINE_S) -> None:
        kept = {name: value for name, value in environ.items() if not name.startswith(UNWANTED)}
        self._environ, self._exported = {**kept, "LC_ALL": "C"}, dict(environ)
        self._deadline_s = deadline_s

    def job(self, job: str) -> SlurmJob:
        """Return a job as the controller knows it, else as the accounting does, where there is one.

        The controller forgets a job some minutes after its end (MinJobAge). Raises UnknownSlurmJob.
        """
        try:
            found = parse_squeue(self._ask("squeue", "-h", "-t", "all", "-j", job, "-O", SQUEUE_FORMAT))
        except UnknownSlurmJob:
            found = self._accounted(job)
        except ValueError as exc:
            raise UnreachableError(f"squeue: {exc}", hint="clusterctl needs Slurm 20.11 or newer") from exc
        if not found:
            raise _unknown(job)
        chosen = next((one for one in found if one.id == job), found[-1])
        if chosen.is_component:
            raise UsageError(f"Slurm job {job} is heterogeneous, which clusterctl does not support")
        if chosen.id != job and len({one.id for one in found}) > 1:
            ids = ", ".join(one.id for one in found)
            raise UsageError(f"Slurm job {job} is an array", hint=f"name one of its jobs: {ids}")
        return chosen

    def alive(self) -> frozenset[str]:
        """Return the ids of this account's jobs that have nodes."""
        return frozenset(self._ask("squeue", "-h", "--me", "-t", ",".join(sorted(ALIVE)), "-o", "%A").split())

    def queued(self) -> list[SlurmJob]:
        """Return this account's jobs that wait for nodes."""
        found = parse_squeue(self._ask("squeue", "-h", "--me", "-t", "PENDING", "-O", SQUEUE_FORMAT))
        return [job for job in found if job.is_queued]

    def _accounted(self, job: str) -> list[SlurmJob]:
        try:
            return parse_sacct(self._ask("sacct", "-X", "-n", "-P", "-j", job, "-o", SACCT_FORMAT))
        except (ClusterctlError, ValueError):  # not installed, or there is no accounting
            return []

    def host_names(self, node_list: str) -> tuple[str, ...]:
        """Return the names that `n[1-3]` stands for, in its order."""
        return tuple(self._ask("scontrol", "show", "hostnames", node_list).split())

    def rooms(self, job: str) -> tuple[list[CpuAllocation], int | None]:
        """Return the CPUs of a running job on its nodes, and its limit of tasks per node."""
        return parse_rooms(self._ask("scontrol", "show", "job", "-d", job))

    def addresses(self, node_list: str) -> dict[str, str]:
        """Return the address of each node by its name: a name or an IP address that other nodes know."""
        text = self._ask("scontrol", "show", "node", "-o", node_list)
        return dict(re.findall(r"^NodeName=(\S+) .*? NodeAddr=(\S+) ", text, re.MULTILINE))

    def machines(self) -> set[str]:
        """Return the host names of all nodes of the cluster, without their domains."""
        text = self._ask("scontrol", "show", "node", "-o")
        return {name.partition(".")[0] for name in re.findall(r" NodeHostName=(\S+) ", text)}

    def submit(self, script: str) -> tuple[str, list[str]]:
        """Submit a script. Return the id of its job, and the warnings of sbatch.

        Raises UsageError with the reason if Slurm does not take it.
        """
        done = self._run("sbatch", "--parsable", text=script)
        job = done.stdout.strip().partition(";")[0]  # "12;cluster" in a federation
        if not job.isdecimal():
            raise UnreachableError(f"sbatch printed {done.stdout.strip()[:200]!r} in place of a job id", hint=QUEUE)
        return job, [line.removeprefix("sbatch: ").strip() for line in done.stderr.splitlines() if line.strip()]

    def output_of(self, job: str) -> str | None:
        """Return the file for what the script of a job prints; None if Slurm does not say."""
        found = re.search(r"^\s+StdOut=(.+)$", self._ask("scontrol", "show", "job", job), re.MULTILINE)
        return found[1] if found else None

    def cancel(self, job: str, *, only_queued: bool = False) -> None:
        """Cancel a job; with `only_queued` only if it has not been given nodes in the meantime."""
        self._ask("scancel", *(("--state=PENDING",) if only_queued else ()), job)

    def _ask(self, *argv: str) -> str:
        return self._run(*argv).stdout

    def _run(self, *argv: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command with `text` as its input. Raises the error that its words stand for if it fails."""
        environ = self._exported if argv[0] == "sbatch" else self._environ  # which the job gets
        try:
            done = run(argv, environ, text=text, deadline_s=self._deadline_s)
        except OSError as exc:
            raise ConfigError(
                f"cannot run {argv[0]}: Slurm's commands are not installed on this machine, or not in PATH",
                hint="log in to a machine of the cluster, or load its module, such as module load slurm",
            ) from exc
        except subprocess.TimeoutExpired as exc:
            said = exc.stderr or b""  # bytes, whatever the encoding
            hint = QUEUE if argv[0] == "sbatch" else "try scontrol ping"
            silence = UnreachableError(f"{argv[0]} did not answer within {self._deadline_s:g} s", hint=hint)
            raise known_failure(argv, said.decode(errors="replace")) or silence from exc
        if done.returncode:
            raise failure(argv, done.stderr)
        return done


def failure(argv: tuple[str, ...], stderr: str) -> ClusterctlError:
    """Return the error for a command of Slurm that failed with these words."""
    known = known_failure(argv, stderr)
    if known is None and argv[0] == "sbatch":
        refusal = refused(stderr)
        return UsageError(f"sbatch refused the job: {refusal.text}", hint=refusal.hint)
    said = [line.strip() for line in stderr.splitlines() if line.strip()]
    unknown = UnreachableError(f"{' '.join(argv[:3])} failed: {said[-1] if said else 'it printed nothing'}")
    return known or unknown


def known_failure(argv: tuple[str, ...], stderr: str) -> ClusterctlError | None:
    if "Invalid job id specified" in stderr:
        return _unknown(argv[argv.index("-j") + 1] if "-j" in argv else argv[-1])
    if re.search(CONTROLLER, stderr):
        return UnreachableError("the Slurm controller does not answer", hint="try scontrol ping")
    if re.search(r"cannot stat file|Unable to process configuration file|Could not establish a configuration", stderr):
        return ConfigError(
            "Slurm's commands find no configuration on this machine",
            hint="log in to a machine of the cluster, or set SLURM_CONF to its slurm.conf",
        )
    return None


def _unknown(job: str) -> UnknownSlurmJob:
    return UnknownSlurmJob(
        f"Slurm does not know job {job}",
        hint="squeue --me lists your jobs; Slurm forgets one some minutes after its end",
    )
