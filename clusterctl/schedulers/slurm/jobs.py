"""A Slurm job as `squeue` and `sacct` print it, and how its tasks lie on its nodes. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

#: The field that is last may contain anything but a line end; no field here is chosen by the user, as names are.
FIELDS = (
    *("JobID", "HetJobID", "State", "Reason", "NumNodes", "NumTasks", "cpus-per-task", "exit_code"),
    *("StartTime", "EndTime", "TimeLimit", "RestartCnt", "NodeList"),
)
SQUEUE_FORMAT = ",".join(f"{name}:|" for name in FIELDS)
SACCT_FORMAT = "JobIDRaw,State,ExitCode,Start,End,Timelimit,NNodes,NodeList"

QUEUED = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
ALIVE = frozenset({"CONFIGURING", "RESIZING", "RUNNING", "SIGNALING", "STOPPED", "SUSPENDED"})
#: It ends or gives back its nodes; NodeList has only those that it still holds.
ENDING = frozenset({"COMPLETING", "STAGE_OUT"})


@dataclass(frozen=True)
class SlurmJob:
    """One job of Slurm.

    `state` and `reason` are Slurm's words, such as PENDING and Resources. `node_list` is Slurm's short form, such as
    `n[1-3]`, "" while queued, and incomplete while `COMPLETING`. `tasks` is 0 if unknown. `exit_code` is None, and
    `signal` the number, if a signal ended the batch script. Times are local, such as 2026-11-23T21:29:52; None if
    unknown. `restarts` counts how often it was requeued and began again.
    """

    id: str
    state: str
    reason: str = ""
    node_list: str = ""
    nodes: int = 0
    tasks: int = 0
    cpus_per_task: int = 1
    exit_code: int | None = 0
    signal: int = 0
    started: str | None = None
    ended: str | None = None
    time_limit: str | None = None
    restarts: int = 0
    is_component: bool = False

    @property
    def is_queued(self) -> bool:
        return self.state in QUEUED

    @property
    def is_over(self) -> bool:
        """True once the outcome is known; not yet while it is ending."""
        return self.state not in QUEUED | ALIVE | ENDING


def parse_squeue(text: str) -> list[SlurmJob]:
    """Return the jobs that `squeue -h -t all -O SQUEUE_FORMAT` prints. Raises ValueError for other text."""
    return [_from_fields(line) for line in text.splitlines() if line.strip()]


def _from_fields(line: str) -> SlurmJob:
    parts = line.split("|")
    if len(parts) != len(FIELDS) + 1:
        raise ValueError(f"not a line of squeue: {line!r}")
    given = dict(zip(FIELDS, parts, strict=False))
    status = _number(given["exit_code"])  # as wait() returns it, where 128 stands for a core dump
    signal = status & 0x7F
    return SlurmJob(
        id=given["JobID"],
        state=given["State"],
        reason=_word(given["Reason"]) or "",
        node_list=_word(given["NodeList"]) or "",
        nodes=_number(given["NumNodes"]),
        tasks=_number(given["NumTasks"]),
        cpus_per_task=_number(given["cpus-per-task"]) or 1,
        exit_code=None if signal else status >> 8,
        signal=signal,
        started=_word(given["StartTime"]),
        ended=_word(given["EndTime"]),
        time_limit=_word(given["TimeLimit"]),
        restarts=_number(given["RestartCnt"]),
        is_component=_word(given["HetJobID"]) is not None,
    )


def parse_sacct(text: str) -> list[SlurmJob]:
    """Return the jobs that `sacct -X -n -P -o SACCT_FORMAT` prints. Raises ValueError for other text.

    The last attempt of a requeued job comes last.
    """
    return [_from_accounting(line) for line in text.splitlines() if line.strip()]


def _from_accounting(line: str) -> SlurmJob:
    try:
        id_, state, exit_code, start, end, limit, nodes, node_list = line.split("|")
        code, signal = (int(number) for number in exit_code.split(":"))
    except ValueError as exc:
        raise ValueError(f"not a line of sacct: {line!r}") from exc
    return SlurmJob(
        id=id_,
        state=state.split()[0],  # "CANCELLED by 1000"
        node_list=_word(node_list) or "",
        nodes=_number(nodes),
        exit_code=None if signal else code,
        signal=signal,
        started=_word(start),
        ended=_word(end),
        time_limit=_word(limit),
    )


def _word(text: str) -> str | None:
    """Return a field, None for the ways in which Slurm leaves one empty."""
    bare = text.strip()
    return None if bare in ("", "N/A", "NONE", "None", "(null)", "Unknown", "UNLIMITED", "None assigned") else bare


def _number(text: str) -> int:
    return int(text) if text.strip().isdecimal() else 0


@dataclass(frozen=True)
class CpuAllocation:
    """Equal nodes of a job, in Slurm's short form, and the number of CPUs that it has on each."""

    node_list: str
    cpus: int


def parse_rooms(text: str) -> tuple[list[CpuAllocation], int | None]:
    """Return the nodes in what `scontrol show job -d` prints, and the limit of tasks per node, None without one."""
    found = re.findall(r"^\s+Nodes=(\S+) CPU_IDs=([0-9,-]+) Mem=", text, re.MULTILINE)
    limit = re.search(r" NtasksPerN:B:S:C=([0-9]+):", text)
    return [CpuAllocation(nodes, _count(ids)) for nodes, ids in found], (int(limit[1]) or None) if limit else None


def _count(ranges: str) -> int:
    """Return how many numbers there are in `0-3,7`."""
    ends = [part.partition("-") for part in ranges.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)


def deal(tasks: int, room: Sequence[int]) -> list[int]:
    """Return the number of tasks on each node, dealt in turn to the nodes that have room, as Slurm does.

    What finds no room (with --overcommit) is dealt to all nodes.
    """
    counts = [0] * len(room)
    while tasks > 0 and room:
        open_ = [node for node, most in enumerate(room) if counts[node] < most] or range(len(room))
        for node in list(open_)[:tasks]:
            counts[node] += 1
        tasks -= len(open_)
    return counts
