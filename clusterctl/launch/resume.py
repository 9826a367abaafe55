"""From the checkpoints on the nodes to a run that goes on: finds the newest good one, and brings its pieces.

A node needs the pieces of its own pservers when pservers and lanes are as they were, else all. What it lacks travels
through this machine, one piece at a time and never held in memory, from a node whose copy is verified.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterctl.cluster import AgentCall, Cluster, Message, combined, raise_failures
from clusterctl.common.manifest import is_piece_name, is_tag
from clusterctl.common.paths import META
from clusterctl.common.run_spec import ResumePoint
from clusterctl.config import Settings
from clusterctl.errors import ClusterctlError, NodeError, RefusedError
from clusterctl.inventory import Node, nodeset
from clusterctl.launch.plan import OUR_ENGINE, LaunchPlan

CHUNK_BYTES = 1 << 20
ON_DISK_S = 600.0  # a piece that has come must reach the disk
ANEW = "start without --resume begins anew"


@dataclass(frozen=True)
class Found:
    """A checkpoint that a manifest calls complete, or one that is not (`manifest` None, with the reason)."""

    run: str
    tag: str
    manifest: Message | None
    reason: str = ""

    @property
    def name(self) -> str:
        return f"checkpoint {self.tag} of run {int(self.run)}"

    @property
    def order(self) -> tuple[int, int, str]:
        return int(self.run), len(self.tag), self.tag  # tags end with the step, zeros before it


@dataclass(frozen=True)
class Resume:
    """The checkpoint to go on from. `holders`: for each piece the nodes that have it, verified.

    `warnings` name newer checkpoints that are no good, and what will not be as it was.
    """

    run: str
    manifest: Message
    holders: Mapping[str, frozenset[int]]
    warnings: tuple[str, ...] = field(default=())

    @property
    def tag(self) -> str:
        return str(self.manifest["tag"])

    def to_json(self) -> Message:
        """As documents have it."""
        return {"run": self.run, **{name: self.manifest[name] for name in ("tag", "step", "pass")}}

    def __str__(self) -> str:
        pass_, step = self.manifest["pass"], self.manifest["step"]
        return f"checkpoint {self.tag} of run {int(self.run)} (pass {pass_}, step {step:,})"

    def spec(self, run: str) -> ResumePoint:
        """What the spec of the new `run` says."""
        step, pass_ = self.manifest["step"], self.manifest["pass"]
        directory = f"{META}/runs/{run}/checkpoints/{self.tag}"
        return ResumePoint(run=self.run, tag=self.tag, step=step, pass_=pass_, dir=directory)

    def word(self, launch: LaunchPlan, node: Node) -> Message:
        """What a node is told besides its spec."""
        return {"run": self.run, "tag": self.tag, "files": self.needed(launch, node), "manifest": self.manifest}

    def needed(self, launch: LaunchPlan, node: Node) -> list[str]:
        """The pieces that a node must have."""
        ranks = {process.rank for process in launch.on(node) if process.role == "pserver"}
        alike = self._is_placed_as(launch)
        return [f["file"] for f in self.manifest["files"] if ranks and (not alike or f["pserver"] in ranks)]

    def _is_placed_as(self, launch: LaunchPlan) -> bool:
        lanes = [launch.settings.ports_num, launch.settings.ports_num_for_sparse]
        return bool(self.manifest["pservers"] == launch.count("pserver") and self.manifest.get("lanes") == lanes)


def choose(cluster: Cluster, job: str, nodes: Sequence[Node], launch: LaunchPlan) -> Resume:
    """The newest complete and undamaged checkpoint of the job's runs; raises RefusedError when there is none.

    Every piece is read and hashed on its node.
    """
    settings = launch.settings
    if settings.engine != OUR_ENGINE or settings.pserver_command is not None:
        raise RefusedError("--resume needs our own parameter server: others keep their own checkpoints", hint=ANEW)
    warnings: list[str] = []
    for found in _find(cluster, job, nodes):
        holders, trouble = _verify(cluster, job, nodes, found) if found.manifest else ({}, found.reason)
        if found.manifest is None or trouble:
            warnings.append(f"{found.name} is passed over: {trouble}")
            continue
        _refuse_another_seed(found, found.manifest, settings)
        warnings += _differences(found.manifest, launch)
        return Resume(found.run, found.manifest, holders, tuple(warnings))
    lines = [f"{job} has no checkpoint to go on from", *warnings]
    raise RefusedError("\n  ".join(lines), hint=ANEW)


def _find(cluster: Cluster, job: str, nodes: Sequence[Node]) -> list[Found]:
    """All that any node knows, the newest first; a manifest on one node speaks for all."""
    answers = raise_failures(cluster.ask({"op": "find_checkpoints", "ref": job}, nodes), "find checkpoints")
    found: dict[tuple[str, str], Found] = {}
    for row in (row for answer in answers for row in answer["checkpoints"] if _is_sound(row)):
        key = (str(row["run"]), str(row["tag"]))
        manifest, reason = row["manifest"], row["reason"] or "it is not complete (no manifest)"
        if manifest is not None and not _is_of(manifest, row["tag"]):
            manifest, reason = None, "its manifest is not that of a checkpoint"
        if manifest is not None or key not in found or (row["reason"] and found[key].manifest is None):
            found[key] = Found(*key, manifest, reason)
    return sorted(found.values(), key=lambda one: one.order, reverse=True)


def _is_of(manifest: Message, tag: str) -> bool:
    """Whether it is that of a checkpoint, and what it names are names: they become paths on all nodes."""
    numbers = all(isinstance(manifest.get(name), int) for name in ("step", "pass", "seed", "pservers"))
    files = manifest.get("files")
    sound = isinstance(files, list) and all(map(_is_listed, files))
    return bool(manifest.get("checkpoint") and manifest.get("tag") == tag and "mode" in manifest and numbers and sound)


def _is_listed(file: Any) -> bool:
    """Whether an entry of a manifest's files tells of a piece."""
    if not isinstance(file, dict) or not {"file", "pserver", "bytes", "sha256"} <= set(file):
        return False
    size = file["bytes"]
    return is_piece_name(file["file"]) and isinstance(file["pserver"], int) and isinstance(size, int) and size >= 0


def _is_sound(row: Message) -> bool:
    return str(row["run"]).isdigit() and is_tag(row["tag"]) and isinstance(row["manifest"], dict | None)


def _verify(
    cluster: Cluster, job: str, nodes: Sequence[Node], found: Found
) -> tuple[dict[str, frozenset[int]], str | None]:
    """Who has each piece, and what is wrong if one is nowhere."""
    assert found.manifest is not None
    files = found.manifest["files"]
    request = {"op": "verify_checkpoint", "ref": job, "run": found.run, "tag": found.tag, "files": files}
    answers = raise_failures(cluster.ask(request, nodes), "verify the checkpoint")
    holders: dict[str, frozenset[int]] = {}
    for file in files:
        said = {node.id: a["pieces"].get(file["file"], "") for node, a in zip(nodes, answers, strict=True)}
        good = frozenset(node for node, reason in said.items() if reason is None)
        if not good:
            bad = [f"{file['file']} on node{node} {reason}" for node, reason in said.items() if reason]
            return {}, "; ".join(bad) or f"{file['file']} is missing" + _was_on(file)
        holders[file["file"]] = good
    return holders, None


def _was_on(file: Message) -> str:
    return f" (node{file['node']} wrote it)" if "node" in file else ""


def _refuse_another_seed(found: Found, manifest: Message, settings: Settings) -> None:
    if manifest["seed"] != settings.seed:
        raise RefusedError(
            f"{found.name} was made with SEED = {manifest['seed']}, and conf.py says {settings.seed}",
            hint=f"set SEED = {manifest['seed']}; {ANEW}",
        )


def _differences(manifest: Message, launch: LaunchPlan) -> list[str]:
    """What will not be as it was."""
    before, mode = manifest["mode"], str(launch.settings.mode)
    trainers, now = manifest.get("trainers"), launch.count("trainer")
    lines = []
    if before != mode:
        lines.append(f"the checkpoint was made in mode {before}, now it is {mode}: what trainers keep starts anew")
    if trainers != now:
        lines.append(f"the checkpoint is of {trainers} trainers, now there are {now}: its pass starts again")
    had, has = manifest.get("arguments"), list(launch.program_args)
    if isinstance(had, list) and had != has:
        lines.append(f"the program had the arguments {_words(had)}, now it has {_words(has)}")
    return lines


def _words(arguments: Sequence[object]) -> str:
    return f"`{shlex.join(map(str, arguments))}`" if arguments else "none"


def bring(cluster: Cluster, job: str, resume: Resume, launch: LaunchPlan) -> None:
    """Makes sure that every node has the pieces that it needs."""
    needed = {node.id: resume.needed(launch, node) for node in launch.nodes}
    by_id = {node.id: node for node in launch.nodes}
    for file in resume.manifest["files"]:
        name = file["file"]
        lacking = [by_id[n] for n, names in needed.items() if name in names and n not in resume.holders[name]]
        if lacking:
            _move(cluster, job, resume, file, lacking)


def _move(cluster: Cluster, job: str, resume: Resume, file: Message, targets: Sequence[Node]) -> None:
    """One piece, from a node that has it to all that lack it; a node that fails does not hide the others."""
    about = {"ref": job, "run": resume.run, "tag": resume.tag, **{k: file[k] for k in ("file", "bytes", "sha256")}}
    source = next(node for node in cluster.nodes if node.id in resume.holders[file["file"]])
    with contextlib.ExitStack() as stack:
        sending = stack.enter_context(cluster.call(source, {"op": "send_piece", **about}))
        taking = [stack.enter_context(cluster.call(node, {"op": "take_piece", **about})) for node in targets]
        left = sending.receive()["bytes"]
        if left != file["bytes"]:
            raise NodeError(f"{file['file']} has other bytes than before", node=source.label, hint="resume again")
        while left:
            data = sending.read(min(left, CHUNK_BYTES))
            left -= len(data)
            for call in taking:
                call.write(data)
        errors = [error for error in map(_error_of, taking) if error]
    if errors:
        raise combined(errors, len(targets), f"bringing {file['file']} to {nodeset([node.id for node in targets])}")


def _error_of(call: AgentCall) -> ClusterctlError | None:
    try:
        call.result(ON_DISK_S)
    except NodeError as exc:
        return exc
    return None
