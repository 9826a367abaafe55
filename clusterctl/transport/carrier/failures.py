"""The words with which each carrier reports a failure, and the error that we make of them."""

from __future__ import annotations

import errno
import re
from typing import NamedTuple

from clusterctl.errors import NodeError, UnreachableError

LAST_WORDS_CHARS = 400
MOST_NOISE = 200


class FailurePattern(NamedTuple):
    """What a carrier prints on standard error, and the message and hint that stand for it.

    `late`: it may also end a command that has begun. `{host}` and groups of the pattern are filled in.
    """

    carriers: tuple[str, ...]
    pattern: str
    message: str
    hint: str
    late: bool = False


DOCKER = ("docker", "podman", "nerdctl")
KUBECTL = ("kubectl", "oc")
SSH = ("ssh",)
SRUN = ("srun",)
MPIRUN = ("mpirun", "mpiexec", "orterun", "prterun", "prun")

#: The first match counts.
TABLE: tuple[FailurePattern, ...] = (
    FailurePattern(
        DOCKER,
        r"No such container|no container with (?:name|ID)",
        "there is no container {host}",
        "put the name of a running container into HOSTS; {carrier} ps lists them",
    ),
    FailurePattern(
        DOCKER,
        r"is not running|container state improper|only create exec sessions on running",
        "the container {host} is not running",
        "{carrier} start {host}",
        late=True,
    ),
    FailurePattern(DOCKER, r"is paused", "the container {host} is paused", "{carrier} unpause {host}"),
    FailurePattern(
        DOCKER,
        r"permission denied while trying to connect|dial unix .*: permission denied",
        "this user may not use the Docker daemon",
        "ask for membership in the group docker, and log in again",
    ),
    FailurePattern(
        DOCKER,
        r"Cannot connect to the Docker daemon|error during connect",
        "the Docker daemon does not answer",
        "check that it is running, and DOCKER_HOST",
        late=True,
    ),
    FailurePattern(
        (*DOCKER, *KUBECTL),
        r"not a TTY|Unable to use a TTY",
        "it was asked for a terminal, and there is none",
        "leave out -t in VIA: write exec -i",
    ),
    FailurePattern(
        (*DOCKER, *KUBECTL),
        r"/bin/sh\"?: (?:stat|no such file|executable file not found)|/bin/sh: no such file",
        "{host} has no /bin/sh",
        "use an image with a shell and python3",
    ),
    FailurePattern(
        KUBECTL,
        r"\(NotFound\)|pods? .* not found",
        "there is no pod {host}",
        "see kubectl get pods; is the namespace (-n) right?",
    ),
    FailurePattern(
        KUBECTL,
        r"\(Forbidden\)|is forbidden",
        "this account may not run commands in the pod {host}",
        "try kubectl auth can-i create pods/exec",
    ),
    FailurePattern(
        KUBECTL,
        r"does not have a host assigned",
        "the pod {host} has not started",
        "see kubectl describe pod {host}",
    ),
    FailurePattern(
        KUBECTL,
        r"error dialing backend",
        "the machine of the pod {host} does not answer",
        "see kubectl get pod {host} -o wide, and kubectl get nodes",
    ),
    FailurePattern(
        KUBECTL,
        r"Unauthorized|must be logged in",
        "the API server does not accept this account",
        "log in again; try kubectl auth whoami",
    ),
    FailurePattern(
        KUBECTL,
        r"container \S+ is not valid for pod|container not found|completed pod|current phase is (?:Succeeded|Failed)",
        "the container of the pod {host} is not running",
        "see kubectl describe pod {host}",
    ),
    FailurePattern(
        KUBECTL,
        r"Unable to connect to the server|connection to the server .* was refused|no such host|i/o timeout",
        "the API server does not answer",
        "try kubectl cluster-info",
        late=True,
    ),
    FailurePattern(
        KUBECTL,
        r"unexpected EOF|lost connection to pod|error stream|websocket: close",
        "lost the connection to the pod {host}",
        "see kubectl get pod {host}; the command may still be running there",
        late=True,
    ),
    FailurePattern(
        SRUN,
        r"DUE TO TIME LIMIT",
        "the Slurm job has reached its time limit",
        "submit it with more time",
        late=True,
    ),
    FailurePattern(SRUN, r"DUE TO PREEMPTION", "the Slurm job was preempted", "submit it again", late=True),
    FailurePattern(
        SRUN,
        r"DUE TO NODE FAILURE|Node failure on|Required node not available|[Nn]odes? \S+ .*(?:DOWN|not responding)"
        r"|error: .*node.* down|Communication connection failure|No route to host",
        "the Slurm node {host} is down",
        "see sinfo -R -n {host}",
        late=True,
    ),
    FailurePattern(
        SRUN,
        r"Unable to confirm allocation for job (?P<job>\d+)|Invalid job id|Job/step already completing or completed"
        r"|has expired|Expired or invalid job|is no longer valid|Job credential revoked",
        "there is no allocation: the Slurm job{job} is not running",
        "see squeue --me; start it again, or correct --jobid",
    ),
    FailurePattern(SRUN, r"CANCELLED AT", "the Slurm job step was cancelled", "see squeue --me, and why", late=True),
    FailurePattern(
        SRUN,
        r"Requested nodes? (?:configuration|list|not)|[Nn]ode count specification|Invalid node name",
        "{host} is not a node of the allocation",
        "compare HOSTS with the job's nodes: squeue --me -O NodeList",
    ),
    FailurePattern(
        SRUN,
        r"Requested nodes are busy|step creation temporarily disabled",
        "the allocation is in use by another step",
        "add --overlap to VIA",
    ),
    FailurePattern(
        SRUN,
        r"Unable to contact slurm controller|Unable to establish controller",
        "the Slurm controller does not answer",
        "try scontrol ping",
        late=True,
    ),
    FailurePattern(
        SRUN,
        r"Access/permission denied|Invalid account|User not found",
        "Slurm denied access",
        "the job must belong to this account",
    ),
    FailurePattern(
        MPIRUN,
        r"not enough slots|no allocated resources|not enough resources",
        "there is no slot for a command on {host}",
        "add --host {host}:64 or --oversubscribe to VIA",
    ),
    FailurePattern(
        MPIRUN,
        r"(?:daemon|prted|orted).*(?:unexpectedly|not able|unable|died)|unable to reliably start",
        "no daemon of Open MPI could be started on {host}",
        "try ssh {host} true",
        late=True,
    ),
    FailurePattern(
        SSH,
        r"Permission denied",
        "{host} denied the login",
        "ssh may not ask for a password here: load a key with ssh-add",
    ),
    FailurePattern(
        SSH,
        r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED",
        "ssh does not know the host key of {host}, or it has changed",
        "connect once by hand, and compare the fingerprint: ssh {host} true",
    ),
    FailurePattern(
        SSH,
        r"Could not resolve hostname",
        "cannot resolve the host name {host}",
        "correct the name in HOSTS; try: getent hosts {host}",
    ),
    FailurePattern(
        SSH,
        r"Connection refused|Connection timed out|No route to host|Network is unreachable|Operation timed out",
        "{host} does not answer",
        "check that the machine is up and that sshd is running",
    ),
    FailurePattern(
        SSH,
        r"client_loop: send disconnect|Timeout, server .* not responding|Connection to .* closed by remote host",
        "lost the connection to {host}",
        "check that the machine is up; the command may still be running there",
        late=True,
    ),
)


class CarrierExit(NamedTuple):
    """How a carrier ended: its exit code, None if it goes on, and its last words on standard error."""

    carrier: str
    host: str
    code: int | None
    stderr: bytes

    @property
    def last_words(self) -> str:
        return " ".join(self.stderr.decode(errors="replace").split())[-LAST_WORDS_CHARS:]


def before_it_began(ending: CarrierExit, label: str, noise: bytes = b"") -> UnreachableError:
    """Return the error for a carrier that ended before the command began. `noise` is what it printed instead."""
    known = _known(ending, label, only_late=False)
    if known is not None:
        return known
    words = _output_text(ending, noise)
    carrier = ending.carrier
    if ending.code == 0:  # kubectl may cut its output short and report success
        message = f"lost the connection to {ending.host} over {carrier} before the command began"
    else:  # a wrong VIA fails in the same words on all nodes, if no host is named
        how = "" if ending.code is None else f" (exit code {ending.code})" if ending.code > 0 else " (killed)"
        message = f"{carrier} did not start a command{how}"
    return UnreachableError(
        message + words,
        node=label,
        hint="try VIA by hand, with the name of the host, and the command true at its end",
        details={"reason": "lost" if ending.code == 0 else "carrier", "carrier": carrier},
    )


def _output_text(ending: CarrierExit, noise: bytes) -> str:
    """Return what the carrier printed, to follow a message."""
    words = ending.last_words or " ".join(noise.decode(errors="replace").split())[:MOST_NOISE]
    return f": {words}" if words else ""


def after_it_began(ending: CarrierExit, label: str) -> UnreachableError | None:
    """Return the error if it was the carrier that failed, rather than the command, as far as its words show."""
    return _known(ending, label, only_late=True)


def _known(ending: CarrierExit, label: str, *, only_late: bool) -> UnreachableError | None:
    text = ending.stderr.decode(errors="replace")
    if only_late:
        text = "\n".join(line for line in text.splitlines() if _is_of(ending.carrier, line))
    for words in TABLE:
        match = re.search(words.pattern, text) if ending.carrier in words.carriers else None
        if match is None or (only_late and not words.late):
            continue
        job = match.groupdict().get("job")
        values = {"host": ending.host, "carrier": ending.carrier, "job": f" {job}" if job else ""}
        message = f"{ending.carrier}: {words.message.format(**values)}"
        details = {"reason": "lost" if only_late else "carrier", "carrier": ending.carrier}
        return UnreachableError(message, node=label, hint=words.hint.format(**values), details=details)
    return None


def _is_of(carrier: str, line: str) -> bool:
    """Return True if the carrier itself printed this line, as far as it can be told: commands print to it too."""
    marks = {"srun": ("srun:", "slurmstepd"), "ssh": ("client_loop:", "Timeout,", "Connection to ")}
    return line.startswith(marks.get(carrier, (f"{carrier}:", "Error", "error:", "Unable to connect", "PRTE", "ORTE")))


def not_started(program: str, label: str, exc: OSError) -> UnreachableError:
    """Return the error for a carrier that this machine cannot run."""
    hint = f"install {program} on this machine, or write its full path in VIA"
    if "/" in program:
        hint = "correct VIA: a path in it begins at the directory of conf.py, and names a program"
    if exc.errno in (errno.EMFILE, errno.ENFILE):
        hint = "raise the limit in this shell and try again: ulimit -n 4096"
    elif exc.errno in (errno.EAGAIN, errno.ENOMEM):
        hint = "this machine is short of processes or memory: see ulimit -u, and free"
    return UnreachableError(
        f"cannot run {program}, the carrier in VIA: {exc.strerror or exc}",
        node=label,
        hint=hint,
        details={"reason": "carrier", "carrier": program.rpartition("/")[2]},
    )


def too_slow(ending: CarrierExit, label: str, limit_s: float, noise: bytes) -> UnreachableError:
    """Return the error for a carrier that did not begin the command in time. `noise`: what it printed meanwhile."""
    known = _known(ending, label, only_late=False)
    if known is not None:
        return known
    return UnreachableError(
        f"{ending.carrier} did not start a command within {limit_s:g} s{_output_text(ending, noise)}",
        node=label,
        hint="check that the host answers, that the carrier does not wait for a password or for resources, and that no "
        "start-up file of the account (~/.bashrc, ~/.profile) starts another shell without a terminal",
        details={"reason": "carrier", "carrier": ending.carrier},
    )


def on_a_terminal(carrier: str, label: str) -> NodeError:
    """Return the error for a carrier that runs commands on a terminal."""
    return NodeError(
        f"{carrier} runs commands on a terminal, which changes the bytes that pass",
        node=label,
        hint="leave out -t, -tt or --pty in VIA",
    )
