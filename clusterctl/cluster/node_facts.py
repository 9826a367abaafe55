"""The facts that nodes report about themselves. `documents/nodes.py` declares how `check --json` shows them."""

from __future__ import annotations

from typing import TypedDict

from clusterctl.cluster.answers import GpuReport, PortHolder


class Disk(TypedDict):
    """The file system of ROOT_DIR, in bytes."""

    free: int
    total: int
    inodes_free: int | None
    read_only: bool


class OpenFiles(TypedDict):
    soft: int | None
    hard: int | None


class System(TypedDict):
    """The properties that decide whether two nodes compute the same bits."""

    machine: str
    cpu: str | None
    simd: list[str]
    libc: str | None
    kernel: str


class Memory(TypedDict):
    total: int
    available: int


class Problem(TypedDict):
    """A problem that a node reports itself."""

    check: str
    message: str
    hint: str | None


class Leftover(TypedDict):
    job: str
    pids: list[int]
    commands: list[str]


class Shim(TypedDict):
    """A wrapper script in place of Python: the interpreter that it runs, and the seconds that it adds to each start."""

    program: str
    seconds: float


class ShownFacts(TypedDict, total=False):
    """The facts about a node that `check --json` shows."""

    address: str
    interface: str | None
    versions: dict[str, str]  # of `python`, `numpy`, `pyzmq` and `cryptography`
    system: System
    cores: int
    memory: Memory
    disk: Disk
    open_files: OpenFiles
    busy: list[PortHolder]
    leftovers: list[Leftover]
    gpus: GpuReport | None  # null without `nvidia-smi` or with `Host(gpus=0)`


class NodeFacts(ShownFacts, total=False):
    """The facts that a node reports about itself, to `check` and in part to `start`.

    `listening`: port and token of each of its listeners.
    """

    clock: float
    listening: list[tuple[int, str]]
    problems: list[Problem]
    half_dispatched: list[str]
    shim: Shim | None
