"""Resumes a run from the checkpoints on the nodes: finds the newest usable one and brings its pieces to every node.

If pservers and lanes are unchanged, a node needs the pieces of its own pservers, otherwise all pieces. Missing pieces
travel from a node with a verified copy through this machine, one at a time and never held in memory.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from clusterctl.cluster import AgentCall, Cluster, combined, raise_failures
from clusterctl.common.manifest import is_piece_name, is_tag
from clusterctl.common.paths import META
from clusterctl.common.run_spec import ResumePoint
from clusterctl.config import Settings
from clusterctl.config.declarations import BY_SPELLING
from clusterctl.errors import ClusterctlError, NodeError, RefusedError
from clusterctl.inventory import Node, nodeset
from clusterctl.launch.plan import OUR_ENGINE, LaunchPlan

CHUNK_BYTES = 1 << 20
ON_DISK_S = 600.0  # for a received piece to reach the disk
ANEW = "to start over, run start without --resume"


class Piece(TypedDict, total=False):
    """One file of a checkpoint. `node` is missing from old manifests."""

    file: str
    pserver: int
    bytes: int
    sha256: str
    node: int


#: The manifest of a checkpoint, described in common/manifest.py; only the keys that are read here.
Manifest = TypedDict(
    "Manifest",
    {
        "tag": str,
        "pass": int,
        "step": int,
        "mode": str,
        "seed": int,
        "pservers": int,
        "checkpoint": bool,
        "trainers": int,
        "lanes": list[int],
        "arguments": list[str],
        "settings": dict[str, str],
        "files": list[Piece],
    },
    total=False,
)


class CheckpointRow(TypedDict):
    """A checkpoint on one node. `reason`: why its manifest cannot be read, if so."""

    run: str
    tag: str
    manifest: Manifest | None
    reason: str | None


@dataclass(frozen=True)
class Found:
    """A checkpoint on the nodes: complete if it has a `manifest`; otherwise `reason` explains why it is unusable."""

    run: str
    tag: str
    manifest: Manifest | None
    reason: str = ""

    @property
    def name(self) -> str:
        return f"checkpoint {self.tag} of run {int(self.run)}"

    @property
    def order(self) -> tuple[int, int, str]:
        return int(self.run), len(self.tag), self.tag  # tags end with the zero-padded step


@dataclass(frozen=True)
class Resume:
    """The checkpoint to resume from. `holders`: for each piece the nodes that have a verified copy.

    `warnings` name newer checkpoints that are unusable, and differences from the run that wrote this one.
    """

    run: str
    manifest: Manifest
    holders: Mapping[str, frozenset[int]]
    warnings: tuple[str, ...] = field(default=())

    @property
    def tag(self) -> str:
        return self.manifest["tag"]

    def to_json(self) -> dict[str, Any]:
        """The form used in JSON documents and in specs."""
        return {"run": self.run, "tag": self.tag, "step": self.manifest["step"], "pass": self.manifest["pass"]}

    def __str__(self) -> str:
        pass_, step = self.manifest["pass"], self.manifest["step"]
        return f"checkpoint {self.tag} of run {int(self.run)} (pass {pass_}, step {step:,})"

    @property
    def arguments(self) -> tuple[str, ...] | None:
        """The program's arguments in the run that wrote the checkpoint; None if the manifest does not have them."""
        arguments = self.manifest.get("arguments")
        return tuple(map(str, arguments)) if isinstance(arguments, list) else None

    @property
    def settings(self) -> dict[str, str]:
        """The text of each setting that the run was given with `--set`."""
        return _settings_of(self.manifest)

    def applied_to(self, launch: LaunchPlan) -> LaunchPlan:
        """Return the plan with the arguments of the run before, if none were given."""
        return launch.with_arguments(self.arguments or ()) if launch.program_args is None else launch

    def spec(self, run: str) -> ResumePoint:
        """The entry in the spec of the new `run`."""
        step, pass_ = self.manifest["step"], self.manifest["pass"]
        directory = f"{META}/runs/{run}/checkpoints/{self.tag}"
        return ResumePoint(run=self.run, tag=self.tag, step=step, pass_=pass_, dir=directory)

    def word(self, launch: LaunchPlan, node: Node) -> dict[str, Any]:
        """The message for one node that accompanies its spec."""
        return {"run": self.run, "tag": self.tag, "files": self.needed(launch, node), "manifest": self.manifest}

    def needed(self, launch: LaunchPlan, node: Node) -> list[str]:
        """The names of the pieces that a node must have."""
        ranks = {process.rank for process in launch.on(node) if process.role == "pserver"}
        unchanged = self._is_placed_as(launch)
        return [f["file"] for f in self.manifest["files"] if ranks and (not unchanged or f["pserver"] in ranks)]

    def _is_placed_as(self, launch: LaunchPlan) -> bool:
        lanes = [launch.settings.ports_num, launch.settings.ports_num_for_sparse]
        return bool(self.manifest["pservers"] == launch.count("pserver") and self.manifest.get("lanes") == lanes)


def choose(cluster: Cluster, job: str, nodes: Sequence[Node], launch: LaunchPlan) -> Resume:
    """Return the newest complete and undamaged checkpoint of the job's runs; raise RefusedError if there is none.

    Every piece is read and hashed on its node.
    """
    settings = launch.settings
    if settings.engine != OUR_ENGINE or settings.pserver_command is not None:
        raise RefusedError(
            "--resume works with the built-in parameter server only: other programs keep their own checkpoints",
            hint=ANEW,
        )
    warnings: list[str] = []
    for found in _find(cluster, job, nodes):
        holders, problem = _verify(cluster, job, nodes, found) if found.manifest else ({}, found.reason)
        if found.manifest is None or problem:
            warnings.append(f"skipped {found.name}: {problem}")
            continue
        _refuse_another_seed(found, found.manifest, settings)
        warnings += _differences(found.manifest, launch)
        return Resume(found.run, found.manifest, holders, tuple(warnings))
    lines = [f"{job} has no checkpoint to resume from", *warnings]
    raise RefusedError("\n  ".join(lines), hint=ANEW)


def kept_settings(cluster: Cluster, job: str, given: Collection[str]) -> dict[str, str]:
    """Return the `--set`s of the newest checkpoint that a resume repeats: all but those that the user has `given`.

    Nodes are not trusted with settings that decide what runs, or whom this machine trusts. Nodes that fail are ignored.
    """
    outcomes = cluster.ask({"op": "find_checkpoints", "ref": job}, cluster.nodes)
    found = _checkpoints(outcome.get() for outcome in outcomes if outcome.ok)
    newest = next((one.manifest for one in found if one.manifest is not None), None)
    names = {BY_SPELLING[name].name for name in given if name in BY_SPELLING}
    texts = _settings_of(newest) if newest else {}
    return {
        name: text
        for name, text in texts.items()
        if name in BY_SPELLING and BY_SPELLING[name].kept and BY_SPELLING[name].name not in names
    }


def _settings_of(manifest: Manifest) -> dict[str, str]:
    settings: object = manifest.get("settings")
    pairs = settings.items() if isinstance(settings, dict) else ()
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}


def _find(cluster: Cluster, job: str, nodes: Sequence[Node]) -> list[Found]:
    """Return all checkpoints that any node has, newest first; a manifest on one node is enough."""
    answers = raise_failures(cluster.ask({"op": "find_checkpoints", "ref": job}, nodes), "find checkpoints")
    return _checkpoints(answers)


def _checkpoints(answers: Iterable[Mapping[str, Any]]) -> list[Found]:
    """Return the checkpoints in the nodes' answers, newest first."""
    found: dict[tuple[str, str], Found] = {}
    for row in (row for answer in answers for row in answer["checkpoints"] if _is_sound(row)):
        key = (str(row["run"]), str(row["tag"]))
        manifest, reason = row["manifest"], row["reason"] or "it is incomplete (no manifest)"
        if manifest is not None and not _is_of(manifest, row["tag"]):
            manifest, reason = None, "its manifest does not describe a checkpoint"
        if manifest is not None or key not in found or (row["reason"] and found[key].manifest is None):
            found[key] = Found(*key, manifest, reason)
    return sorted(found.values(), key=lambda one: one.order, reverse=True)


def _is_of(manifest: Manifest, tag: str) -> bool:
    """True if it is a checkpoint's manifest and lists valid piece names, which become paths on all nodes."""
    numbers = all(isinstance(manifest.get(name), int) for name in ("step", "pass", "seed", "pservers"))
    files = manifest.get("files")
    sound = isinstance(files, list) and all(map(_is_listed, files))
    return bool(manifest.get("checkpoint") and manifest.get("tag") == tag and "mode" in manifest and numbers and sound)


def _is_listed(file: Any) -> bool:
    """True if an entry of a manifest's `files` describes a piece."""
    if not isinstance(file, dict) or not {"file", "pserver", "bytes", "sha256"} <= set(file):
        return False
    size = file["bytes"]
    return is_piece_name(file["file"]) and isinstance(file["pserver"], int) and isinstance(size, int) and size >= 0


def _is_sound(row: CheckpointRow) -> bool:
    return str(row["run"]).isdigit() and is_tag(row["tag"]) and isinstance(row["manifest"], dict | None)


def _verify(
    cluster: Cluster, job: str, nodes: Sequence[Node], found: Found
) -> tuple[dict[str, frozenset[int]], str | None]:
    """Return the nodes that have each piece, and the problem if no node has one of them."""
    assert found.manifest is not None
    files = found.manifest["files"]
    request = {"op": "verify_checkpoint", "ref": job, "run": found.run, "tag": found.tag, "files": files}
    answers = raise_failures(cluster.ask(request, nodes), "verify the checkpoint")
    holders: dict[str, frozenset[int]] = {}
    for file in files:
        reports = {node.id: a["pieces"].get(file["file"], "") for node, a in zip(nodes, answers, strict=True)}
        good = frozenset(node for node, reason in reports.items() if reason is None)
        if not good:
            bad = [f"{file['file']} on node{node} {reason}" for node, reason in reports.items() if reason]
            return {}, "; ".join(bad) or f"{file['file']} is missing" + _was_on(file)
        holders[file["file"]] = good
    return holders, None


def _was_on(file: Piece) -> str:
    return f" (written by node{file['node']})" if "node" in file else ""


def _refuse_another_seed(found: Found, manifest: Manifest, settings: Settings) -> None:
    if manifest["seed"] != settings.seed:
        raise RefusedError(
            f"{found.name} was made with SEED = {manifest['seed']}, but "
            f"{'--set' if 'SEED' in settings.chosen else 'conf.py'} sets {settings.seed}",
            hint=f"resume with --set SEED={manifest['seed']}; {ANEW}",
        )


def _differences(manifest: Manifest, launch: LaunchPlan) -> list[str]:
    """Describe the differences from the run that wrote the checkpoint."""
    before, mode = manifest["mode"], str(launch.settings.mode)
    trainers, now = manifest.get("trainers"), launch.count("trainer")
    lines = []
    if before != mode:
        lines.append(f"the checkpoint was made in mode {before}, now it is {mode}: state kept in trainers is reset")
    if trainers != now:
        lines.append(f"the checkpoint was made with {trainers} trainers, now there are {now}: its pass restarts")
    old, new = manifest.get("arguments"), launch.program_args
    if isinstance(old, list) and new is not None and old != list(new):
        lines.append(f"the program's arguments change from {_quoted(old)} to {_quoted(new)}")
    elif not isinstance(old, list) and new is None:
        lines.append("the checkpoint does not record the program's arguments: if it had any, pass them after --")
    for name, text in _settings_of(manifest).items():
        if name not in launch.settings.chosen:
            option = f"--set {shlex.quote(f'{name}={text}')}"
            lines.append(f"the checkpoint was made with {option}, which does not apply now: repeat it if it should")
    return lines


def _quoted(arguments: Sequence[object]) -> str:
    return f"`{shlex.join(map(str, arguments))}`" if arguments else "none"


def bring(cluster: Cluster, job: str, resume: Resume, launch: LaunchPlan) -> None:
    """Bring every node the pieces that it needs and lacks."""
    needed = {node.id: resume.needed(launch, node) for node in launch.nodes}
    by_id = {node.id: node for node in launch.nodes}
    for file in resume.manifest["files"]:
        name = file["file"]
        lacking = [by_id[n] for n, names in needed.items() if name in names and n not in resume.holders[name]]
        if lacking:
            _move(cluster, job, resume, file, lacking)


def _move(cluster: Cluster, job: str, resume: Resume, file: Piece, targets: Sequence[Node]) -> None:
    """Copy one piece from a node that has it to all that lack it. Raises with the errors of all nodes that failed."""
    about: dict[str, Any] = {"ref": job, "run": resume.run, "tag": resume.tag, "file": file["file"]}
    about |= {"bytes": file["bytes"], "sha256": file["sha256"]}
    source = next(node for node in cluster.nodes if node.id in resume.holders[file["file"]])
    with contextlib.ExitStack() as stack:
        sending = stack.enter_context(cluster.call(source, {"op": "send_piece", **about}))
        taking = [stack.enter_context(cluster.call(node, {"op": "take_piece", **about})) for node in targets]
        left = sending.receive()["bytes"]
        if left != file["bytes"]:
            raise NodeError(f"{file['file']} changed size during the resume", node=source.label, hint="run it again")
        while left:
            data = sending.read(min(left, CHUNK_BYTES))
            left -= len(data)
            for call in taking:
                call.write(data)
        errors = [error for error in map(_error_of, taking) if error]
    if errors:
        raise combined(errors, len(targets), f"copying {file['file']} to {nodeset([node.id for node in targets])}")


def _error_of(call: AgentCall) -> ClusterctlError | None:
    try:
        call.result(ON_DISK_S)
    except NodeError as exc:
        return exc
    return None
