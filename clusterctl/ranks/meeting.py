"""How the ranks of one mpirun find each other: by files in a directory that they share.

DIR/clusterctl-jobs/
  conf.py                     the nodes of the newest run, for commands
  node0/JOB/                  the job directory of each node
  ranks/NAMESPACE/            made by rank 0, and removed at the end of the run
    rank-3.json               who a rank is (`RankProcess`)
    plan.json                 which ranks share a node, and the job directory of each (`Plan`)
    failed.json               the exit code of all ranks, if the run could not start
    calls                     the name of the directory of calls, which command lines have and NAMESPACE is not on
  ranks/calls-RANDOM/
    node-0/                   commands for the agent of a node (`calls.py`)

No other account can change DIR, see `private.py`, which opens what is in it.

On NFS a name that was looked for in vain is looked for again only after the directory has been listed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from clusterctl.common.errors import first_of
from clusterctl.common.paths import OF_RANKS
from clusterctl.common.procfs import boot_id, identify
from clusterctl.common.safe_json import dumps, parse
from clusterctl.ranks.errors import USAGE_CODE, RankError
from clusterctl.ranks.private import PrivateDirectory, open_shared

SEEN_S = 30.0  # in which a rank has to see the directory of rank 0
GATHERED_S = 60.0  # in which all others have to come
POLL_S = 0.05
MOST_NAMED = 8
RANK, SIZE = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"
LOCAL_RANK, LOCAL_SIZE = "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"
NAMESPACE = "PMIX_NAMESPACE"
PLAN, FAILED, CALLS = "plan.json", "failed.json", "calls"
RUN_IT = "mpirun -np 8 clusterctl-rank python train.py"


class World(NamedTuple):
    """What mpirun tells a rank. All ranks of one mpirun have the same `namespace`."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    namespace: str

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> World:
        """Return the place of this process. Raises RankError outside mpirun."""
        given = [environ.get(name, "") for name in (RANK, SIZE, LOCAL_RANK, LOCAL_SIZE)]
        namespace = "".join(char if char.isalnum() or char in "-_.@" else "_" for char in environ.get(NAMESPACE, ""))
        if not namespace or not all(number.isdecimal() for number in given):
            raise RankError(f"this is no rank of mpirun: {RANK} or {NAMESPACE} is missing", RUN_IT, USAGE_CODE)
        rank, size, local_rank, local_size = map(int, given)
        return cls(rank, size, local_rank, local_size, f"mpi-{namespace}")


class RankProcess(NamedTuple):
    """A rank and its process: (pid, start ticks, boot id). `machine` differs between machines, `parent` or
    `session` between the daemons of mpirun on one machine. `cpus` are those that mpirun has bound it to. `nonce` tells
    it from a rank of an earlier mpirun with the same namespace.
    """

    rank: int
    local_rank: int
    local_size: int
    host: str
    machine: str
    parent: int
    session: int
    cpus: Sequence[int]
    process: Sequence[Any]
    nonce: str

    @classmethod
    def mine(cls, world: World) -> RankProcess:
        host, process = socket.gethostname(), identify(os.getpid())
        assert process is not None
        machine, nonce = f"{boot_id()} {host}", os.urandom(8).hex()
        local = (world.local_rank, world.local_size)
        cpus = sorted(os.sched_getaffinity(0))
        return cls(world.rank, *local, host, machine, os.getppid(), os.getsid(0), cpus, process, nonce)


class PlannedNode(NamedTuple):
    """A node of the run. `ranks` are by local rank, `cpus` those of all; `front` is the process of the first one."""

    dir: str
    ranks: Sequence[int]
    cpus: Sequence[int]
    front: Sequence[Any]


class Plan(NamedTuple):
    job: str
    nodes: Sequence[PlannedNode]

    def node_of(self, rank: int) -> int:
        return next(number for number, node in enumerate(self.nodes) if rank in node.ranks)


class Meeting:
    """The directory of one mpirun below `shared`, an absolute path.

    Each method raises RankError where another account could have changed what it reads.
    """

    def __init__(self, shared: Path, namespace: str) -> None:
        self.shared = shared
        self.home = shared / OF_RANKS
        self.dir = self.home / "ranks" / namespace
        self.conf = self.home / "conf.py"
        self._ranks: PrivateDirectory | None = None  # open, once it was seen

    def make(self) -> None:
        """Make the directory, in place of one that an earlier mpirun may have left. Raises RankError."""
        try:
            with open_shared(self.shared) as shared, shared.make(OF_RANKS, exist_ok=True) as home:
                self._ranks = home.make("ranks", exist_ok=True)
            self.remove()
            calls = f"calls-{os.urandom(8).hex()}"
            self._ranks.make(calls).close()
            self._ranks.make(self.dir.name).close()
        except OSError as exc:  # `shared` is not made: a disk may not be mounted, or DIR misspelt
            hint = "name a directory that all nodes share and that you may write to: clusterctl-rank --shared DIR"
            where = self.home if exc.filename in (str(self.shared), None) else exc.filename
            raise RankError(f"cannot make {where}: {exc.strerror}", hint) from exc
        with self._open() as here:
            here.write(CALLS, calls.encode())

    def is_seen(self) -> bool:
        """Return True if the directory is there."""
        try:
            with open_shared(self.shared) as shared, shared.open(OF_RANKS) as home:
                home.names()
                with home.open("ranks") as ranks:
                    if self.dir.name not in ranks.names():
                        return False
            self._open().close()
        except OSError:
            return False
        return True

    def is_gone(self) -> bool:
        """Return True if the directory was removed: the run is over."""
        try:
            self._open().close()
        except FileNotFoundError:
            return True
        return False

    def _open(self) -> PrivateDirectory:
        """Open the directory, below one that stays open from the first time on."""
        return self._above().open(self.dir.name)

    def _above(self) -> PrivateDirectory:
        if self._ranks is None:
            with open_shared(self.shared) as shared, shared.open(OF_RANKS) as home:
                self._ranks = home.open("ranks")
        return self._ranks

    def unseen(self) -> RankError:
        hint = "if the nodes do not share it, name a directory that they do: clusterctl-rank --shared DIR"
        return RankError(f"rank 0 made no {self.dir} within {SEEN_S:.0f} s, as seen from {socket.gethostname()}", hint)

    def calls(self, node: int) -> Path:
        with self._open() as here:
            return self.dir.with_name(here.read(CALLS).decode()) / f"node-{node}"

    def enter(self, mine: RankProcess) -> None:
        """Write the entry of a rank, unless it is there."""
        with contextlib.suppress(FileNotFoundError), self._open() as here:  # rank 0 may be making it again
            if _entry(mine.rank) not in here.names():
                here.write(_entry(mine.rank), dumps(mine._asdict()))

    def gather(self, size: int, limit_s: float = GATHERED_S) -> list[RankProcess]:
        """Return the entries of all ranks, in order. Raises RankError naming those that did not come."""
        found: dict[int, RankProcess] = {}
        deadline = time.monotonic() + limit_s
        while True:
            with self._open() as here:
                names = here.names()
                for rank in set(range(size)).difference(found):
                    if _entry(rank) in names and (entry := _value(here, _entry(rank))):
                        found[rank] = RankProcess(**entry)
            if len(found) == size:
                return [found[rank] for rank in range(size)]
            if time.monotonic() > deadline:
                raise _missing(self, sorted(set(range(size)).difference(found)), limit_s)
            time.sleep(POLL_S)

    def publish(self, plan: Plan, entries: Sequence[RankProcess]) -> None:
        """Let all ranks go on, each with its node, whose calls may begin."""
        nodes = [node._asdict() for node in plan.nodes]
        with self._open() as here, self._above().open(here.read(CALLS).decode()) as calls:
            for number in range(len(plan.nodes)):
                calls.make(f"node-{number}").close()
            text = dumps({"job": plan.job, "nodes": nodes, "nonces": _nonces(entries)})
            here.write(PLAN, text, durable=True)

    def plan(self, mine: RankProcess) -> Plan | None:
        """Return the plan, once there is one for this rank."""
        written = self._read(PLAN, mine)
        return Plan(written["job"], [PlannedNode(**node) for node in written["nodes"]]) if written else None

    def fail(self, code: int, entries: Sequence[RankProcess]) -> None:
        """Let all ranks end with this exit code."""
        with self._open() as here:
            here.write(FAILED, dumps({"code": code, "nonces": _nonces(entries)}), durable=True)

    def failure(self, mine: RankProcess) -> int | None:
        """Return the exit code if the run could not start."""
        written = self._read(FAILED, mine)
        return int(written["code"]) if written else None

    def entries(self) -> Iterator[RankProcess]:
        """Yield the entries that are there."""
        with self._open() as here:
            for name in here.names():
                if name.startswith("rank-") and (entry := _value(here, name)):
                    yield RankProcess(**entry)

    def _read(self, name: str, mine: RankProcess) -> Any:
        try:
            with self._open() as here:
                written = _value(here, name) if name in here.names() else None
        except OSError:
            return None
        return written if written and mine.nonce in written["nonces"] else None

    def write_conf(self, text: str) -> None:
        """Write the conf.py for commands."""
        with open_shared(self.shared) as shared, shared.open(OF_RANKS) as home:
            home.write(self.conf.name, text.encode())

    def remove(self) -> None:
        """Remove the directory of this mpirun and its calls, at the end of its run."""
        with contextlib.suppress(OSError):
            above = self._above()
            with contextlib.suppress(OSError, RankError), self._open() as here:
                calls = here.read(CALLS).decode()
                if calls.startswith("calls-") and "/" not in calls:
                    above.remove(calls)
            above.remove(self.dir.name)


def _value(here: PrivateDirectory, name: str) -> Any:
    """Return the content of a JSON file, None if it has none."""
    try:
        return parse(here.read(name))
    except ValueError:
        return None


def _entry(rank: int) -> str:
    return f"rank-{rank}.json"


def _nonces(entries: Sequence[RankProcess]) -> list[str]:
    return [entry.nonce for entry in entries]


def _missing(meeting: Meeting, ranks: Sequence[int], limit_s: float) -> RankError:
    named = first_of([str(rank) for rank in ranks], MOST_NAMED)
    hint = "if not all nodes share it, name a directory that they do: clusterctl-rank --shared DIR"
    return RankError(f"these ranks did not come to {meeting.dir} within {limit_s:.0f} s: {named}", hint)


def nodes_of(entries: Sequence[RankProcess]) -> list[list[RankProcess]]:
    """Return the ranks of each node by local rank. The node of the lowest rank comes first.

    Ranks on one machine are those of one node, unless their local ranks show that several daemons of mpirun run there.
    Raises RankError if that does not explain them.
    """
    nodes: list[list[RankProcess]] = []
    for group in _split(entries, lambda entry: entry.machine):
        ways = ([group], _split(group, lambda entry: entry.parent), _split(group, lambda entry: entry.session))
        found = next((way for way in ways if all(map(_is_a_node, way))), None)
        if found is None:
            ranks = first_of([f"{one.rank} ({one.local_rank} of {one.local_size})" for one in group], MOST_NAMED)
            hint = "start clusterctl-rank itself by mpirun, not by a program that makes a session of its own"
            raise RankError(f"cannot tell the nodes on {group[0].host} apart, from ranks {ranks}", hint)
        nodes += [sorted(node, key=lambda entry: entry.local_rank) for node in found]
    return sorted(nodes, key=lambda group: min(entry.rank for entry in group))


def _split(entries: Sequence[RankProcess], key: Callable[[RankProcess], object]) -> list[list[RankProcess]]:
    groups: dict[object, list[RankProcess]] = {}
    for entry in entries:
        groups.setdefault(key(entry), []).append(entry)
    return list(groups.values())


def _is_a_node(group: Sequence[RankProcess]) -> bool:
    local = sorted(entry.local_rank for entry in group)
    return local == list(range(len(group))) and {entry.local_size for entry in group} == {len(group)}
