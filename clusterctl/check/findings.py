"""Derive findings for the user from the facts that nodes report about themselves. Pure functions.

Facts come from the agents, by node id. Every function yields findings about one node or several; `folded` merges
identical ones.
"""

from __future__ import annotations

import ipaddress
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from clusterctl.cluster.node_facts import NodeFacts
from clusterctl.documents.nodes import FindingDocument
from clusterctl.inventory import Node, fold

STOPS, WARNS = True, False  # `Finding.blocks`
SKEW_S = 2.0
GB = 1e9
LITTLE_DISK, NO_DISK = 1.0 * GB, 0.01 * GB
FEW_INODES = 1_000
SLOW_START_S = 0.05
LITTLE_MEMORY = 0.5 * GB
BASE_FILES = 64
MOST_DIGITS = 9
SEALING_SINCE = 47  # the first cryptography that encrypts and decrypts into memory of its caller
NODES_NAMED = 8
AT_LOOPBACK = "was reached at a loopback address, which the other nodes cannot use"
AT_LOOPBACK_HINT = "set its address in the cluster with Host(..., address=...) or NIC in conf.py"


Facts = Mapping[int, NodeFacts]


@dataclass(frozen=True)
class Finding:
    """A problem on `nodes` (ids), or on this machine if `nodes` is empty. It is a warning unless it `blocks` a start.

    `check` is what was checked, and `hint` how to fix it.
    """

    check: str
    blocks: bool
    nodes: tuple[int, ...]
    message: str
    hint: str | None = None

    def to_json(self) -> FindingDocument:
        return {
            "check": self.check,
            "severity": "stops" if self.blocks else "warns",
            "nodes": list(self.nodes),
            "message": self.message,
            "hint": self.hint,
        }


@dataclass(frozen=True)
class Skew:
    """The offset of a node's clock from ours in seconds, and its error bound: half the round trip."""

    ahead_s: float
    error_s: float

    @classmethod
    def measure(cls, requested: float, clock: float, received: float) -> Skew:
        """Estimate the skew from our times of request and response, and the node's time in between."""
        return cls(clock - (requested + received) / 2, (received - requested) / 2)


def folded(findings: Iterable[Finding]) -> list[Finding]:
    """Merge identical findings into one about all their nodes. Those that block `start` come first."""
    groups: dict[tuple[str, bool, str, str | None], set[int]] = {}
    for finding in findings:
        groups.setdefault((finding.check, finding.blocks, finding.message, finding.hint), set()).update(finding.nodes)
    merged = [
        Finding(check, blocks, tuple(sorted(nodes)), message, hint)
        for (check, blocks, message, hint), nodes in groups.items()
    ]
    return sorted(merged, key=lambda finding: (not finding.blocks, finding.nodes[:1]))


def quick(
    facts: Facts, skews: Mapping[int, Skew], *, members: int, open_files: int | None, seals: bool = False
) -> list[Finding]:
    """Return the findings that `start` checks on its own. `members`: the connections a process of the job may have.

    `seals`: True if trainers and pservers of different nodes encrypt what they send to each other.
    """
    found = [*clocks(skews), *disks(facts), *limits(facts, members, open_files), *versions(facts)]
    return folded([*found, *(unsealed(facts) if seals else ())])


def unsealed(facts: Facts) -> Iterator[Finding]:
    """Find nodes whose processes cannot use sealed streams."""
    message = f"no cryptography {SEALING_SINCE} or later (with cffi): trainers and pservers here stay with CURVE"
    for node, info in facts.items():
        major = info["versions"].get("cryptography", "0").partition(".")[0]
        is_recent = major.isdecimal() and len(major) < MOST_DIGITS and int(major) >= SEALING_SINCE
        if "pyzmq" in info["versions"] and not is_recent:
            hint = "run clusterctl setup, which installs it: encryption by AES-256-GCM takes less CPU than CURVE"
            yield Finding("cryptography", WARNS, (node,), message, hint)


def clocks(skews: Mapping[int, Skew]) -> Iterator[Finding]:
    """Find clocks that are certainly off by 2 s or more. If most nodes agree, this machine may be the odd one."""
    middle = statistics.median(skew.ahead_s for skew in skews.values()) if len(skews) > 2 else 0.0
    error_s = statistics.median(skew.error_s for skew in skews.values()) if skews else 0.0
    agree = sum(abs(skew.ahead_s - middle) < SKEW_S for skew in skews.values())
    ours = abs(middle) - error_s >= SKEW_S and 2 * agree > len(skews)
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
    for node, info in facts.items():
        disk = info["disk"]
        hint = "free some space, or set ROOT_DIR to a larger file system"
        if disk["read_only"]:
            yield Finding("disk", STOPS, (node,), "the file system of ROOT_DIR is read-only", "set ROOT_DIR elsewhere")
        elif disk["free"] < NO_DISK:
            yield Finding("disk", STOPS, (node,), "the disk of ROOT_DIR is full", hint)
        elif disk["inodes_free"] == 0:
            yield Finding("disk", STOPS, (node,), "the disk of ROOT_DIR has no inodes left", hint)
        elif disk["free"] < LITTLE_DISK:
            yield Finding("disk", WARNS, (node,), f"only {disk['free'] / 1e6:,.0f} MB free in ROOT_DIR", hint)
        elif disk["inodes_free"] is not None and disk["inodes_free"] < FEW_INODES:
            yield Finding("disk", WARNS, (node,), f"only {disk['inodes_free']:,} inodes free in ROOT_DIR", hint)


def limits(facts: Facts, members: int, open_files: int | None) -> Iterator[Finding]:
    need = BASE_FILES + 2 * members
    hint = "raise nofile in /etc/security/limits.conf of the node"
    for node, info in facts.items():
        soft, hard = info["open_files"]["soft"], info["open_files"]["hard"]
        if open_files is not None:
            if hard is not None and hard < open_files:
                message = f"OPEN_FILES = {open_files:,} is more than the limit of {hard:,}"
                yield Finding("open_files", STOPS, (node,), message, hint)
        elif soft is not None and soft < need:
            message = f"only {soft:,} open files are allowed, but this job may need {need:,}"
            yield Finding("open_files", WARNS, (node,), message, hint)


def _version(name: str) -> Callable[[NodeFacts], str | None]:
    return lambda info: info["versions"].get(name)


def _libc(info: NodeFacts) -> str | None:
    return info["system"].get("libc")


def _machine(info: NodeFacts) -> str | None:
    return info["system"].get("machine")


def _simd(info: NodeFacts) -> str:
    return "+".join(info["system"]["simd"]) or "none"


SAME_SOFTWARE = "run clusterctl setup; results are bit-identical only with the same packages on all nodes"
SAME_MACHINES = "results are bit-identical only if all nodes match in this"
COMPARED: tuple[tuple[str, Callable[[NodeFacts], str | None], str], ...] = (
    ("python", _version("python"), "set PYTHON in conf.py to a version that all nodes have"),
    ("numpy", _version("numpy"), SAME_SOFTWARE),
    ("pyzmq", _version("pyzmq"), SAME_SOFTWARE),
    ("C library", _libc, SAME_MACHINES),
    ("machine", _machine, SAME_MACHINES),
    ("CPU instruction set", _simd, SAME_MACHINES),
)


def versions(facts: Facts) -> Iterator[Finding]:
    """Find differences between nodes. The finding is about the nodes that differ from the majority."""
    for name, read, hint in COMPARED:
        groups: dict[str, list[int]] = {}
        for node, info in facts.items():
            value = read(info)
            if value is not None:
                groups.setdefault(value, []).append(node)
        if len(groups) > 1:
            by_size = sorted(groups.items(), key=lambda group: (-len(group[1]), group[1]))
            values = "; ".join(f"{value} on {on(nodes)}" for value, nodes in by_size)
            odd = tuple(sorted(node for _, nodes in by_size[1:] for node in nodes))
            yield Finding("versions", WARNS, odd, f"{name} differs: {values}", hint)


def on(nodes: Iterable[int]) -> str:
    """Return `node 3` or `nodes 0-2,5`."""
    ids = sorted(set(nodes))
    return f"{'node' if len(ids) == 1 else 'nodes'} {fold(ids)}"


def problems(facts: Facts) -> Iterator[Finding]:
    """Pass on the problems that the nodes report themselves."""
    for node, info in facts.items():
        for problem in info["problems"]:
            hint = problem["hint"]
            if problem["check"] == "ports":
                hint = "set PORT in conf.py to the start of a free range of 1000 ports"
            yield Finding(problem["check"], STOPS, (node,), problem["message"], hint)


def memories(facts: Facts) -> Iterator[Finding]:
    for node, info in facts.items():
        available = info["memory"]["available"]
        if available < LITTLE_MEMORY:
            message = f"only {available / 1e6:,.0f} MB of memory are available"
            yield Finding("memory", WARNS, (node,), message, "run top on the node to see what uses it")


def shims(facts: Facts, python: str) -> Iterator[Finding]:
    """Find nodes where PYTHON is a script, such as those of pyenv, that takes long to start the interpreter."""
    for node, info in facts.items():
        shim = info["shim"]
        if shim is not None and shim["seconds"] >= SLOW_START_S:
            message = f"PYTHON = {python!r} is a script that adds {shim['seconds']:.1f} s to every call of the node"
            yield Finding("python", WARNS, (node,), message, f"set PYTHON = {shim['program']!r} in conf.py")


def busy_ports(facts: Facts) -> Iterator[Finding]:
    """Find ports of the job that are in use. Several processes with one name are shown as one."""
    groups: dict[tuple[int, str], list[tuple[int, int | None]]] = {}
    for node, info in facts.items():
        for holder in info["busy"]:
            process = holder["name"] or f"another account (uid {holder['uid']})"
            groups.setdefault((holder["port"], process), []).append((node, holder["pid"]))
    for (port, process), holders in groups.items():
        pid = f"pid {holders[0][1]}" if len(holders) == 1 and holders[0][1] else ""
        message = f"port {port} is in use by " + (f"{pid} ({process})" if pid else process)
        hint = "the next free port will be used; set PORT in conf.py to use another range"
        yield Finding("ports", WARNS, tuple(node for node, _ in holders), message, hint)


def remains(facts: Facts) -> Iterator[Finding]:
    """Find processes of dead jobs, and partially sent workspaces."""
    by_job: dict[str, dict[int, list[int]]] = {}
    for node, info in facts.items():
        for leftover in info["leftovers"]:
            by_job.setdefault(leftover["job"], {})[node] = leftover["pids"]
    for job, pids in by_job.items():
        count = sum(map(len, pids.values()))
        processes = f"{count} {'process' if count == 1 else 'processes'}"
        message = f"{processes} of {job} left by a dead supervisor: {_pids(pids)}"
        yield Finding("leftovers", WARNS, tuple(sorted(pids)), message, f"clusterctl stop {job}")
    for node, info in facts.items():
        if info["half_dispatched"]:
            message = f"{len(info['half_dispatched'])} partially sent workspaces in ROOT_DIR/.clusterctl/incoming"
            yield Finding("leftovers", WARNS, (node,), message, "the next dispatch removes them")


def _pids(by_node: Mapping[int, list[int]]) -> str:
    """Return `pid 12, 13`, or for several nodes `pid 12, 13 on node 0; pid 7 on node 1`, shortened for many."""
    rows = sorted(by_node.items())
    parts = [f"pid {', '.join(map(str, pids))}" for _, pids in rows]
    if len(rows) > 1:
        parts = [f"{part} on node {node}" for part, (node, _) in zip(parts, rows, strict=True)]
    return "; ".join([*parts[:NODES_NAMED], *["..."] * (len(parts) > NODES_NAMED)])


def addresses(facts: Facts) -> Iterator[Finding]:
    """Find nodes that were reached at a loopback address while others were not."""
    loopback = {node for node, info in facts.items() if is_loopback(info["address"])}
    if loopback and len(loopback) < sum(info["address"] is not None for info in facts.values()):
        yield Finding("address", STOPS, tuple(sorted(loopback)), AT_LOOPBACK, AT_LOOPBACK_HINT)


def in_the_clear(nodes: Iterable[Node]) -> Iterator[Finding]:
    """Find nodes whose carrier does not encrypt."""
    for node in nodes:
        if node.in_the_clear:
            message = f"{node.carrier} does not encrypt what it carries, and a run's keys pass through it"
            hint = "use it on a network that you trust, or reach the nodes by SSH"
            yield Finding("carrier", WARNS, (node.id,), message, hint)


def is_loopback(address: str | None) -> bool:
    """Return True for an address, or the name `localhost`, that only the machine itself can use."""
    try:
        return address is not None and ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
