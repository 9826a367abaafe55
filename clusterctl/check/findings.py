"""From what nodes say of themselves to what a person should know. Pure functions.

Facts are an agent's, by node id. Every function gives findings for one node each or for several at once; `folded`
makes one of those that say the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from clusterctl.inventory import fold

Facts = Mapping[int, Mapping[str, Any]]

STOPS, WARNS = "stops", "warns"
SKEW_S = 2.0
GB = 1e9
LITTLE_DISK, NO_DISK = 1.0 * GB, 0.01 * GB
FEW_INODES = 1_000
LITTLE_MEMORY = 0.5 * GB
BASE_FILES = 64
NODES_NAMED = 8


@dataclass(frozen=True)
class Finding:
    """Something that stops `start`, or a warning. `nodes` are ids; none of them means this machine."""

    check: str
    severity: str
    nodes: tuple[int, ...]
    message: str
    hint: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "severity": self.severity,
            "nodes": list(self.nodes),
            "message": self.message,
            "hint": self.hint,
        }


@dataclass(frozen=True)
class Skew:
    """How far a node's clock is ahead of ours in seconds, and half the round trip, by which that may be wrong."""

    ahead_s: float
    error_s: float

    @classmethod
    def measure(cls, asked: float, clock: float, answered: float) -> Skew:
        """From our times when we asked and had the answer, and the node's in between."""
        return cls(clock - (asked + answered) / 2, (answered - asked) / 2)


def folded(findings: Iterable[Finding]) -> list[Finding]:
    """Findings that say the same are one, about all their nodes; those that stop come first."""
    groups: dict[tuple[str, str, str, str | None], set[int]] = {}
    for found in findings:
        groups.setdefault((found.check, found.severity, found.message, found.hint), set()).update(found.nodes)
    merged = [
        Finding(check, severity, tuple(sorted(nodes)), message, hint)
        for (check, severity, message, hint), nodes in groups.items()
    ]
    return sorted(merged, key=lambda found: (found.severity != STOPS, found.nodes[:1]))


def quick(facts: Facts, skews: Mapping[int, Skew], *, members: int, open_files: int | None) -> list[Finding]:
    """What `start` looks at by itself. `members`: how many connections a process of the job may have."""
    return folded([*clocks(skews), *disks(facts), *limits(facts, members, open_files), *versions(facts)])


def clocks(skews: Mapping[int, Skew]) -> Iterator[Finding]:
    """Clocks that are off by 2 s or more for certain. When most nodes agree, the odd one may be this machine."""
    middle = statistics.median(skew.ahead_s for skew in skews.values()) if len(skews) > 2 else 0.0
    agree = sum(abs(skew.ahead_s - middle) < SKEW_S for skew in skews.values())
    ours = abs(middle) >= SKEW_S and 2 * agree > len(skews)
    hint = "chronyc makestep, or timedatectl set-ntp true; logs are ordered by these clocks"
    if ours:
        message = f"the clock of this machine is {_off(-middle)} the nodes'"
        yield Finding("clock", WARNS, (), message, hint)
    for node, skew in skews.items():
        off = skew.ahead_s - (middle if ours else 0.0)
        if abs(off) - skew.error_s >= SKEW_S:
            yield Finding("clock", WARNS, (node,), f"clock is {_off(off).removesuffix(' of')}", hint)


def _off(seconds: float) -> str:
    amount = f"{abs(seconds):,.0f} s" if abs(seconds) < 7_200 else f"{abs(seconds) / 3_600:,.1f} hours"
    return f"{amount} {'ahead of' if seconds > 0 else 'behind'}"


def disks(facts: Facts) -> Iterator[Finding]:
    for node, of in facts.items():
        disk = of["disk"]
        hint = "free some space, or set ROOT_DIR to a larger file system"
        if disk["read_only"]:
            yield Finding("disk", STOPS, (node,), "the file system of ROOT_DIR is read-only", "set ROOT_DIR elsewhere")
        elif disk["free"] < NO_DISK:
            yield Finding("disk", STOPS, (node,), "the disk of ROOT_DIR is full", hint)
        elif disk["inodes_free"] == 0:
            yield Finding("disk", STOPS, (node,), "the disk of ROOT_DIR has no inode left", hint)
        elif disk["free"] < LITTLE_DISK:
            yield Finding("disk", WARNS, (node,), f"only {disk['free'] / 1e6:,.0f} MB free in ROOT_DIR", hint)
        elif disk["inodes_free"] is not None and disk["inodes_free"] < FEW_INODES:
            yield Finding("disk", WARNS, (node,), f"only {disk['inodes_free']:,} inodes free in ROOT_DIR", hint)


def limits(facts: Facts, members: int, open_files: int | None) -> Iterator[Finding]:
    need = BASE_FILES + 2 * members
    hint = "raise nofile in /etc/security/limits.conf of the node"
    for node, of in facts.items():
        soft, hard = of["open_files"]["soft"], of["open_files"]["hard"]
        if open_files is not None:
            if hard is not None and hard < open_files:
                message = f"OPEN_FILES = {open_files:,}, and only {hard:,} are allowed"
                yield Finding("open_files", STOPS, (node,), message, hint)
        elif soft is not None and soft < need:
            message = f"only {soft:,} open files are allowed, and this job may need {need:,}"
            yield Finding("open_files", WARNS, (node,), message, hint)


def _version(name: str) -> Callable[[Mapping[str, Any]], str | None]:
    return lambda of: of["versions"].get(name)


def _system(name: str) -> Callable[[Mapping[str, Any]], str | None]:
    return lambda of: of["system"].get(name)


def _simd(of: Mapping[str, Any]) -> str:
    return "+".join(of["system"]["simd"]) or "none"


SAME_SOFTWARE = "clusterctl setup makes one environment everywhere; results are equal to the bit only then"
SAME_MACHINES = "results are equal to the bit only among machines that are alike here"
ALIKE: tuple[tuple[str, Callable[[Mapping[str, Any]], str | None], str], ...] = (
    ("python", _version("python"), "PYTHON in conf.py names one that all nodes have"),
    ("numpy", _version("numpy"), SAME_SOFTWARE),
    ("pyzmq", _version("pyzmq"), SAME_SOFTWARE),
    ("C library", _system("libc"), SAME_MACHINES),
    ("machine", _system("machine"), SAME_MACHINES),
    ("CPU instruction set", _simd, SAME_MACHINES),
)


def versions(facts: Facts) -> Iterator[Finding]:
    """What is not the same on all nodes; the finding is about those that differ from the most."""
    for name, read, hint in ALIKE:
        groups: dict[str, list[int]] = {}
        for node, of in facts.items():
            value = read(of)
            if value is not None:
                groups.setdefault(value, []).append(node)
        if len(groups) > 1:
            by_size = sorted(groups.items(), key=lambda group: (-len(group[1]), group[1]))
            said = "; ".join(f"{value} on {on(nodes)}" for value, nodes in by_size)
            odd = tuple(sorted(node for _, nodes in by_size[1:] for node in nodes))
            yield Finding("versions", WARNS, odd, f"{name} differs: {said}", hint)


def on(nodes: Iterable[int]) -> str:
    """`node 3`, `nodes 0-2,5`."""
    ids = sorted(set(nodes))
    return f"{'node' if len(ids) == 1 else 'nodes'} {fold(ids)}"


def problems(facts: Facts) -> Iterator[Finding]:
    """What the node itself says that it cannot do."""
    for node, of in facts.items():
        for problem in of["problems"]:
            hint = problem["hint"]
            if problem["check"] == "ports":
                hint = "PORT in conf.py, a range of a thousand that is free"
            yield Finding(problem["check"], STOPS, (node,), problem["message"], hint)


def memories(facts: Facts) -> Iterator[Finding]:
    for node, of in facts.items():
        available = of["memory"]["available"]
        if available < LITTLE_MEMORY:
            message = f"only {available / 1e6:,.0f} MB of memory are available"
            yield Finding("memory", WARNS, (node,), message, "what takes it? top on the node shows")


def busy_ports(facts: Facts) -> Iterator[Finding]:
    """Ports of the job that others have; a number of processes of one name are shown as one."""
    groups: dict[tuple[int, str], list[tuple[int, int | None]]] = {}
    for node, of in facts.items():
        for holder in of["busy"]:
            who = holder["name"] or f"another account (uid {holder['uid']})"
            groups.setdefault((holder["port"], who), []).append((node, holder["pid"]))
    for (port, who), places in groups.items():
        pid = f"pid {places[0][1]}" if len(places) == 1 and places[0][1] else ""
        by = f"{pid} ({who})" if pid else who
        message = f"port {port} is in use by {by}"
        hint = "the next free one will be used; PORT in conf.py moves all"
        yield Finding("ports", WARNS, tuple(node for node, _ in places), message, hint)


def remains(facts: Facts) -> Iterator[Finding]:
    """Processes of dead jobs, and half-sent workspaces."""
    by_job: dict[str, dict[int, list[int]]] = {}
    for node, of in facts.items():
        for left in of["leftovers"]:
            by_job.setdefault(left["job"], {})[node] = left["pids"]
    for job, pids in by_job.items():
        count = sum(map(len, pids.values()))
        processes = f"{count} {'process' if count == 1 else 'processes'}"
        message = f"{processes} of {job} left by a dead supervisor: {_pids(pids)}"
        yield Finding("leftovers", WARNS, tuple(sorted(pids)), message, f"clusterctl stop {job}")
    for node, of in facts.items():
        if of["half_dispatched"]:
            message = f"{len(of['half_dispatched'])} half-sent workspaces in ROOT_DIR/.clusterctl/incoming"
            yield Finding("leftovers", WARNS, (node,), message, "the next dispatch removes them")


def _pids(by_node: Mapping[int, list[int]]) -> str:
    """`pid 12, 13`; of several nodes `pid 12, 13 on node 0; pid 7 on node 1`, of many only the first ones."""
    rows = sorted(by_node.items())
    said = [f"pid {', '.join(map(str, pids))}" for _, pids in rows]
    if len(rows) > 1:
        said = [f"{pids} on node {node}" for pids, (node, _) in zip(said, rows, strict=True)]
    return "; ".join([*said[:NODES_NAMED], *["..."] * (len(said) > NODES_NAMED)])


def addresses(facts: Facts) -> Iterator[Finding]:
    """A loopback address is of no use among others, and one address cannot be two machines'."""
    loopback = {node for node, of in facts.items() if _is_loopback(of["address"])}
    if loopback and len(loopback) < sum(of["address"] is not None for of in facts.values()):
        message = "was reached at a loopback address, which the other nodes cannot use"
        hint = "Host(..., address=...) or NIC in conf.py tells its address in the cluster"
        yield Finding("address", STOPS, tuple(sorted(loopback)), message, hint)


def _is_loopback(address: str | None) -> bool:
    return address is not None and (address.startswith("127.") or address == "::1")
