"""Setup of all nodes: collect their facts, choose versions for each kind of node, send missing wheels, build."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from clusterctl.cluster import AgentCall, Cluster, NodeOutcome
from clusterctl.common.requirements import normal
from clusterctl.common.transfer_messages import (
    BuildOrder,
    KeepEnvironmentOrder,
    OfferOrder,
    ResolvedWheels,
    ResolveOrder,
    SetupEnd,
    SetupFacts,
)
from clusterctl.common.wheels import Wheel, WheelStore
from clusterctl.errors import ClusterctlError, ConfigError, NodeError
from clusterctl.inventory import Node, nodeset
from clusterctl.setup.downloads import Downloads, explain
from clusterctl.setup.locks import LockFile, LockSelection
from clusterctl.setup.platforms import Kind, Platform, kind_of, platform_of
from clusterctl.setup.requirements import Requirements
from clusterctl.setup.transfer import WheelRelay, fetch_files, missing_of, read, send_files
from clusterctl.transport import WorkOutcome

T = TypeVar("T")
OnStep = Callable[[Node | None, str], None]
#: The steps that an agent reports, in our words; the package follows.
STEPS = {"choose": "resolving", "fetch": "fetching", "install": "installing"}
REQUIRED_UV = "uv>=0.5"
WORTH_UV_BYTES = 50_000_000  # of wheels: uv itself takes 20 MB
MOST_CHARS = 500
WORK_S = 3600.0  # packages may have to be downloaded, and built from source


@dataclass(frozen=True)
class NodeSetup:
    """A node that is ready: `environment` is the name of its environment; `built` is True if that is new.

    `builder` is what built it now: "clusterctl", or "uv" and its version. `problem` is why uv could not.
    """

    environment: str
    built: bool
    bytes_sent: int
    builder: str | None = None
    problem: str | None = None


@dataclass
class NodeGroup:
    """Nodes of one kind, which get exactly the same wheels.

    `chosen_by` is the machine that chose them in this setup, if any. `online` is False once the package index is known
    to be unreachable from the nodes. `relayed` is True if nodes forwarded wheels to each other. `urls` has places of
    wheels by sha256, and `options` are for pip. `uv` is the wheel of uv that nodes without it get.
    """

    platform: Platform
    nodes: list[Node]
    lock: list[Wheel] = field(default_factory=list)
    chosen_by: str | None = None
    online: bool = True
    relayed: bool = False
    urls: dict[str, str] = field(default_factory=dict)
    options: list[str] = field(default_factory=list)
    uv: Wheel | None = None

    @property
    def kind(self) -> Kind:
        return self.platform.kind

    @property
    def packages(self) -> dict[str, str]:
        return {normal(wheel.name): wheel.version for wheel in sorted(self.lock)}


@dataclass(frozen=True)
class SetupResult:
    outcomes: list[NodeOutcome[NodeSetup]]
    groups: list[NodeGroup]


@dataclass(frozen=True)
class SetupOptions:
    """The options of a setup. `offline`: nodes use no network. `upgrade`: choose new versions for all nodes.

    `uv`: build with uv, and send it to every node that lacks it (True), only if that pays off (None), or never (False).
    """

    offline: bool = False
    upgrade: bool = False
    uv: bool | None = None


def prepare(
    cluster: Cluster,
    requirements: Requirements,
    options: SetupOptions,
    report: Callable[[str], None],
    cache: Path,
    on_step: OnStep = lambda node, words: None,
) -> SetupResult:
    """Build the environment on every node that does not have it, and return the outcome of every node.

    One SSH command per node stays open from start to end and holds that node's lock. `report` receives messages, and
    `on_step` what a node (None: this machine) is doing. `cache` is the directory of this machine's wheels.
    """
    work = _Setup(cluster, requirements, options, report, Downloads(cache), on_step)
    try:
        return work.run()
    finally:
        for call in work.calls.values():
            call.close()


class _Setup:
    def __init__(
        self,
        cluster: Cluster,
        requirements: Requirements,
        options: SetupOptions,
        report: Callable[[str], None],
        downloads: Downloads,
        on_step: OnStep = lambda node, words: None,
    ) -> None:
        self._cluster = cluster
        self._requirements = list(requirements.lines)
        self._options = requirements.options
        self._lock = requirements.lock
        self._setup_options = options
        self._report = report
        self._downloads = downloads
        self._on_step = on_step
        self._facts: dict[int, SetupFacts] = {}
        self._missing: dict[int, list[Wheel]] = {}
        self._have: dict[int, Mapping[str, int]] = {}  # bytes of missing wheels, by sha256
        self._sent: dict[int, int] = {}  # through the relay
        self._errors: dict[int, ClusterctlError] = {}
        self._began = time.monotonic()
        self.calls: dict[int, AgentCall] = {}

    def run(self) -> SetupResult:
        self._on(self._cluster.nodes, self._inspect)
        groups = self._groups()
        for group in groups:
            self._guard(group, self._choose)
            self._provide_uv(group)
        members = {node.id: group for group in groups for node in group.nodes}
        self._on(self._able(groups), lambda node: self._offer(node, members[node.id]))
        for group in groups:
            self._guard(group, self._gather)
            self._relay(group)
        finished = self._on(self._able(groups), lambda node: self._finish(node, members[node.id]))
        return SetupResult([self._outcome(node, finished) for node in self._cluster.nodes], groups)

    def _on(self, nodes: Sequence[Node], work: Callable[[Node], T]) -> dict[int, T]:
        """Do one step on these nodes. A node that fails takes no part in later steps."""
        outcomes = self._cluster.map(work, nodes)
        self._errors.update({outcome.node.id: outcome.error for outcome in outcomes if outcome.error is not None})
        return {outcome.node.id: outcome.get() for outcome in outcomes if outcome.ok}

    def _guard(self, group: NodeGroup, work: Callable[[NodeGroup], None]) -> None:
        try:
            work(group)
        except ClusterctlError as exc:
            for node in self._able([group]):
                error = type(exc)(exc.message, node=node.label, hint=exc.hint, details=exc.details)
                self._errors[node.id] = error

    def _able(self, groups: Iterable[NodeGroup]) -> list[Node]:
        return [node for group in groups for node in group.nodes if node.id not in self._errors]

    def _outcome(self, node: Node, finished: dict[int, NodeSetup]) -> NodeOutcome[NodeSetup]:
        return WorkOutcome(node, finished.get(node.id), self._errors.get(node.id), time.monotonic() - self._began)

    def _inspect(self, node: Node) -> None:
        call = self.calls[node.id] = self._cluster.call(node, {"op": "setup", "requirements": self._requirements})
        call.on_alive = partial(self._on_alive, node)
        facts: SetupFacts = read(node, SetupFacts, call.receive()["facts"])
        kind_of(facts)
        self._facts[node.id] = facts

    def _on_alive(self, node: Node, message: Mapping[str, object]) -> None:
        """Report the step and the package that an agent names."""
        step, package = str(message.get("step")), message.get("package")
        if step in STEPS and isinstance(package, str):
            self._on_step(node, f"{STEPS[step]} {package}".rstrip())

    def _groups(self) -> list[NodeGroup]:
        kinds: dict[Kind, list[Node]] = {}
        for node in self._cluster.nodes:
            if node.id in self._facts:
                kinds.setdefault(kind_of(self._facts[node.id]), []).append(node)
        return [NodeGroup(platform_of(self._facts[node.id] for node in nodes), nodes) for nodes in kinds.values()]

    def _choose(self, group: NodeGroup) -> None:
        """Choose the wheels that a node of the kind already has, else those of the lock file or of pip."""
        picked = self._lock.pick(group.platform, self._downloads.store) if self._lock else None
        group.options = [*self._options, *(picked.indexes if picked else ())]
        group.urls = picked.urls if picked else {}
        known = self._known_lock(group)
        if known and (picked is None or picked.allows(known, self._requirements[1:])):
            group.lock = known
            return
        if picked and self._lock:
            self._use_lock_file(group, picked, self._lock)
        else:
            self._report(f"{group.kind}  choosing versions")
            group.lock = self._by_pip(group, self._requirements)
        self._report(f"{group.kind}  " + ", ".join(f"{name} {version}" for name, version in group.packages.items()))

    def _use_lock_file(self, group: NodeGroup, picked: LockSelection, lock: LockFile) -> None:
        """Take the files that the lock file names. pip builds those without wheels, and adds what the runtime needs."""
        self._report(f"{group.kind}  versions of {lock.name}")
        wheels = list(picked.wheels)
        if picked.pinned:
            wheels += self._by_pip(group, [*group.options, *picked.pinned], exact=True)
        picked.verify(wheels, lock.name)
        absent = picked.absent(self._requirements[1:])
        if absent:
            self._report(f"{lock.name} lacks {', '.join(absent)}, which the clusterctl runtime needs")
            wheels += self._by_pip(group, absent)
        group.lock = sorted(wheels)
        group.chosen_by = lock.name

    def _by_pip(self, group: NodeGroup, lines: Sequence[str], *, exact: bool = False) -> list[Wheel]:
        """Let pip choose, on a node or here. `exact`: all lines have hashes, and nothing else is needed."""
        wheels: list[Wheel] | None = None
        failed: ClusterctlError | None = None
        if group.online and not self._setup_options.offline:
            wheels, failed = self._choose_on_node(group, lines, exact)
        if wheels is not None:
            return wheels
        self._on_step(None, "choosing versions on this machine")
        try:
            cached = self._setup_options.offline and not self._setup_options.upgrade
            wheels = self._downloads.resolve(lines, group.platform, cached=cached, exact=exact)
        except ClusterctlError as exc:
            raise (failed if isinstance(failed, ConfigError) else exc) from None
        group.chosen_by = "this machine"
        return wheels

    def _choose_on_node(
        self, group: NodeGroup, lines: Sequence[str], exact: bool
    ) -> tuple[list[Wheel] | None, ClusterctlError | None]:
        """Let pip choose on a node of the group. Report why this machine must do it instead, and return the error."""
        bare = [node.id for node in self._able([group]) if not self._facts[node.id]["pip"]]
        if bare:
            self._report(f"{nodeset(bare)}  no pip or uv: using packages from this machine")
        node = self._resolver(group)
        if node is None:
            return None, None
        try:
            wheels = self._resolve_on(node, lines, exact)
        except ClusterctlError as failed:
            group.online = isinstance(failed, ConfigError)  # otherwise the other nodes would also wait for the index
            self._report(f"{failed.message}; trying on this machine")
            return None, failed
        group.chosen_by = node.label
        return wheels, None

    def _known_lock(self, group: NodeGroup) -> list[Wheel] | None:
        """Return the lock that the nodes of the group have in common; None if they have none or differ."""
        locks = [self._facts[node.id]["lock"] for node in group.nodes if self._facts[node.id]["lock"]]
        if self._setup_options.upgrade or not locks or any(lock != locks[0] for lock in locks):
            return None
        return list(locks[0] or ())

    def _resolver(self, group: NodeGroup) -> Node | None:
        """Return the node with pip and the oldest C library: wheels that run there run on the others."""
        able = [node for node in self._able([group]) if self._facts[node.id]["pip"]]
        return min(able, key=lambda node: (self._facts[node.id]["glibc"] or [], node.id), default=None)

    def _resolve_on(self, node: Node, lines: Sequence[str], exact: bool) -> list[Wheel]:
        call = self.calls[node.id]
        self._on_step(node, STEPS["choose"])
        try:
            order: ResolveOrder = {"do": "resolve", "requirements": lines, "exact": exact}
            call.send(order)
            answer: ResolvedWheels = read(node, ResolvedWheels, call.receive(WORK_S))
        except ClusterctlError as exc:
            self._errors[node.id] = exc
            raise
        if "lock" not in answer:
            raise explain(answer.get("failed", ""), f"on {node.label}")
        return answer["lock"]

    def _is_ready(self, node: Node, lock: Sequence[Wheel]) -> bool:
        return self._facts[node.id]["lock"] == list(lock)

    def _provide_uv(self, group: NodeGroup) -> None:
        """Choose the wheel of uv for nodes without it, if they build enough for that to pay off."""
        nodes = [node for node in self._able([group]) if not self._is_ready(node, group.lock)]
        bare = [node for node in nodes if not self._facts[node.id].get("uv")]
        total = sum(wheel.size for wheel in group.lock)
        if not bare or self._setup_options.uv is False or (self._setup_options.uv is None and total < WORTH_UV_BYTES):
            return
        self._on_step(None, "fetching uv to this machine")
        try:
            lines = [*group.options, REQUIRED_UV]
            [group.uv] = self._downloads.resolve(lines, group.platform, cached=not self._setup_options.upgrade)
        except (ClusterctlError, ValueError) as exc:
            self._report(f"{nodeset(node.id for node in bare)}  building without uv: {exc}")

    def _offer(self, node: Node, group: NodeGroup) -> None:
        """Let a node fetch all wheels that it can; record the rest as missing."""
        self._missing[node.id], self._have[node.id] = [], {}
        if self._is_ready(node, group.lock):
            return
        call = self.calls[node.id]
        online = group.online and not self._setup_options.offline
        needs_uv = group.uv is not None and not self._facts[node.id].get("uv")
        order: OfferOrder = {
            "do": "offer",
            "lock": group.lock,
            "online": online,
            "options": group.options,
            "urls": group.urls,
            "uv": group.uv if needs_uv else None,
        }
        call.send(order)
        wheels = [*group.lock, *([group.uv] if group.uv else [])]
        self._missing[node.id], self._have[node.id] = missing_of(call, wheels, call.receive(WORK_S))

    def _gather(self, group: NodeGroup) -> None:
        """Get the wheels that nodes of the group lack onto this machine: from a node that has them, or with pip."""
        store = self._downloads.store
        nodes = [node for node in self._able([group]) if not self._is_ready(node, group.lock)]
        wanted = {wheel for node in nodes for wheel in self._missing[node.id] if not store.has(wheel)}
        for node in nodes:
            has = sorted(wanted - set(self._missing[node.id]))
            try:
                fetch_files(self.calls[node.id], has, store)
            except ClusterctlError as exc:  # only this node fails: another node, or the index, may have the wheels
                self._errors[node.id] = exc
            wanted = {wheel for wheel in wanted if not store.has(wheel)}
        if wanted:
            self._on_step(None, f"fetching {len(wanted)} packages to this machine")
            self._downloads.fetch(sorted(wanted), group.options, group.platform, group.urls)
            _check_all_there(wanted, store)

    def _relay(self, group: NodeGroup) -> None:
        """Send common wheels through the nodes of the group, if that pays off; what they lack then goes directly."""
        calls = {node.id: self.calls[node.id] for node in self._able([group])}
        missing = {id_: self._missing[id_] for id_ in calls}
        relay = WheelRelay(self._cluster.settings, calls, missing, self._have, self._downloads.store)
        if not relay.is_worth_it():
            return
        self._on([node for node in self._able([group]) if node.id in relay.lacking], relay.listen)
        members = relay.plan([node for node in self._able([group]) if node.id in relay.lacking])
        ordered = self._on(members, relay.order)
        self._sent.update(self._on([node for node in members if node.id in ordered], relay.transfer))
        self._missing.update(missing)
        group.relayed = bool(members)

    def _finish(self, node: Node, group: NodeGroup) -> NodeSetup:
        call = self.calls[node.id]
        sent = self._sent.get(node.id, 0)
        if self._is_ready(node, group.lock):
            keep: KeepEnvironmentOrder = {"do": "keep"}
            call.send(keep)
        else:
            report, have = partial(self._on_step, node), self._have[node.id]
            sent += send_files(call, self._missing[node.id], self._downloads.store, report, have)
            with_uv = self._setup_options.uv is not False
            order: BuildOrder = {"do": "build", "lock": group.lock, "with_uv": with_uv, "uv": group.uv}
            call.send(order)
        answer: SetupEnd = read(node, SetupEnd, call.result(WORK_S))
        builder, problem = _text(answer.get("builder")), _text(answer.get("problem"))
        return NodeSetup(answer["environment"], answer["built"], sent, builder, problem)


def _text(value: object) -> str | None:
    """Return a node's text on one line; None if it is no text."""
    return " ".join(value.split())[:MOST_CHARS] if isinstance(value, str) else None


def _check_all_there(wanted: Iterable[Wheel], store: WheelStore) -> None:
    absent = [wheel.file for wheel in sorted(wanted) if not store.has(wheel)]
    if absent:
        hint = "it was built on a node, or the index has replaced it; choose new versions with setup --upgrade"
        raise NodeError(f"{absent[0]} is no longer available", hint=hint)
