"""The values that calls of the API return, made from the answers of the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.errors import ClusterctlError
from clusterctl.inventory import Node as InventoryNode
from clusterctl.observe.record.model import ProcessRecord


@dataclass(frozen=True)
class Node:
    """A node of conf.py: its id, `node0` as `label`, its `host`, tags, and the ranks that it has there."""

    id: int
    label: str
    host: str
    tags: tuple[str, ...]
    pservers: tuple[int, ...]
    trainers: tuple[int, ...]

    @classmethod
    def of(cls, node: InventoryNode) -> Node:
        return cls(node.id, node.label, node.where, node.tags, node.pserver_ranks, node.trainer_ranks)


@dataclass(frozen=True)
class LogLine:
    """One line of a process's output. `t` is the time by the clock of its node, in seconds since the epoch."""

    t: float
    node: int
    role: str
    rank: int
    text: str


@dataclass(frozen=True)
class Process:
    """A process of a run and its newest figures, each None until it is known.

    `cpu` is in cores, `memory` in bytes; `values` has the numbers that the program logged last.
    """

    node: int
    host: str
    role: str
    rank: int
    state: str
    restarts: int
    exit_code: int | None
    pid: int | None
    pass_: int | None
    step: int | None
    loss: float | None
    samples_per_s: float | None
    cpu: float | None
    memory: int | None
    values: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """`trainer0`."""
        return f"{self.role}{self.rank}"

    @classmethod
    def of(cls, record: ProcessRecord) -> Process:
        figures = record.figures
        return cls(
            record.node.id,
            record.node.where,
            record.role,
            record.rank,
            record.state,
            record.restarts,
            record.exit_code,
            record.pid,
            figures.get("pass"),
            figures.get("step"),
            figures.get("loss"),
            figures.get("samples_per_s"),
            figures.get("cpu"),
            figures.get("memory"),
            dict(figures.get("values") or {}),
        )


@dataclass(frozen=True)
class Status:
    """The state of a job and of the processes of one of its runs; `run` is None if it was never started.

    `errors` are those of nodes that did not answer. `document` is that of `clusterctl status --json`.
    """

    job: str
    run: int | None
    name: str | None
    state: str
    processes: tuple[Process, ...]
    errors: tuple[ClusterctlError, ...]
    document: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True)
class Executed:
    """A command on one node. `exit_code` is 128 + N after signal N, and None if `error` says why it has none.

    Of `stdout` and `stderr`, the first 16 MiB are kept; `dropped_bytes` more were not.
    """

    node: Node
    exit_code: int | None
    stdout: str
    stderr: str
    dropped_bytes: int
    error: ClusterctlError | None
    seconds: float

    @property
    def ok(self) -> bool:
        """True if the command ran and its exit code is 0."""
        return self.error is None and self.exit_code == 0


@dataclass(frozen=True)
class Collected:
    """The files of a run that `directory` has now. `model` is the file of the merged model of `tag`, if any."""

    directory: Path
    model: Path | None
    tag: str | None
    files: tuple[Path, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Cause:
    """The first cause of a run's end, as `clusterctl why` names it.

    `kind` is what happened, such as "exit"; `reason` why, as in docs/why.md. `lines` are the evidence.
    """

    kind: str
    reason: str
    headline: str
    advice: str | None
    lines: tuple[str, ...]
    notes: tuple[str, ...]
    t: float
    node: int | None
    role: str | None
    rank: int | None


@dataclass(frozen=True)
class Outcome:
    """How a run ended, or its `state` so far. A run that succeeded, or that a user stopped, has no `cause`.

    `checkpoint` is the tag of the newest one from which it can be resumed. `document` is that of `clusterctl why
    --json`, with everything else that happened.
    """

    job: str
    run: int
    name: str | None
    state: str
    cause: Cause | None
    seconds: float | None
    pass_: int | None
    step: int | None
    checkpoint: str | None
    warnings: tuple[str, ...]
    document: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """True if the run succeeded."""
        return self.state == "succeeded"
