"""What the nodes have saved: the manifests of a job, and the nodes that have a verified copy of each piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from clusterctl.cluster import Cluster, raise_failures
from clusterctl.common.manifest import all_files, is_piece_name, is_tag, state_name
from clusterctl.common.paths import is_job_name
from clusterctl.common.requests import AgentRequest, RunName, SavedFile, VerifyCheckpointRequest
from clusterctl.common.run_spec import PieceSource, PieceSources
from clusterctl.common.schema import Count, fits
from clusterctl.errors import RefusedError
from clusterctl.inventory import Node

ASKED_FOR_COPIES = 3  # nodes: each manifest is on all of them, in case the lead's node has lost it
Holders = Mapping[str, frozenset[int]]


class Piece(SavedFile, total=False):
    """One file of a save, of a pserver or with the state of a trainer. `node` may be missing."""

    pserver: int
    trainer: int
    node: int


#: The manifest of a save, described in common/manifest.py; only the keys that are read here.
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
        "name": str,
        "files": list[Piece],
        "states": list[Piece],
    },
    total=False,
)


class SavedRow(TypedDict):
    """A save on one node. `reason`: why its manifest cannot be read, if so."""

    run: str
    tag: str
    manifest: Manifest | None
    reason: str | None


@dataclass(frozen=True)
class FoundSave:
    """A save on the nodes: complete if it has a `manifest`; otherwise `reason` explains why it is unusable."""

    kind: str
    run: str
    tag: str
    manifest: Manifest | None
    reason: str = ""

    @property
    def name(self) -> str:
        return f"{self.kind} {self.tag} of run {int(self.run)}"

    @property
    def order(self) -> tuple[int, int, int, str]:
        """Sorts saves by their age. Tags of checkpoints end with the zero-padded step."""
        step = self.manifest["step"] if self.manifest and self.kind == "model" else 0
        return int(self.run), step, len(self.tag), self.tag


def find(cluster: Cluster, kind: str, ref: str, nodes: Sequence[Node]) -> tuple[str, list[FoundSave]]:
    """Return the job and all its saves of a kind, "checkpoint" or "model", newest first.

    A manifest on one node is enough. Raises an error if no node has the job.
    """
    answers = _find(cluster, kind, ref, nodes, nodes[:ASKED_FOR_COPIES])
    if not any(one.manifest for one in saves_in(kind, answers.values())):
        answers = _find(cluster, kind, ref, nodes, nodes)
    jobs = sorted({str(answer["job"]) for answer in answers.values()})
    if len(jobs) > 1 or not is_job_name(jobs[0]):
        raise RefusedError(f"{ref} means different jobs on the nodes: {', '.join(jobs)}", hint="give the full job id")
    return jobs[0], saves_in(kind, answers.values())


def _find(
    cluster: Cluster, kind: str, ref: str, nodes: Sequence[Node], asked: Sequence[Node]
) -> dict[int, dict[str, Any]]:
    def request(node: Node) -> AgentRequest:
        if kind == "checkpoint":
            return {"op": "find_checkpoints", "ref": ref, "copies": node in asked}
        return {"op": "find_models", "ref": ref, "copies": node in asked}

    return _ask(cluster, request, nodes, f"find {kind}s")


def _ask(
    cluster: Cluster, request: AgentRequest | Callable[[Node], AgentRequest], nodes: Sequence[Node], doing: str
) -> dict[int, dict[str, Any]]:
    """Return the answers of all nodes that have the job. Raises if none has it, or a node fails."""
    outcomes = cluster.ask(request, nodes)
    lacking = [one for one in outcomes if one.error and one.error.details.get("reason") == "no_job"]
    have = [one for one in outcomes if one not in lacking]
    answers = raise_failures(have or outcomes, doing)
    return {one.node.id: answer for one, answer in zip(have, answers, strict=True)}


def saves_in(kind: str, answers: Iterable[Mapping[str, Any]]) -> list[FoundSave]:
    """Return the saves in the nodes' answers, newest first."""
    found: dict[tuple[str, str], FoundSave] = {}
    for row in (row for answer in answers for row in answer[f"{kind}s"] if _is_sound(row)):
        key = (str(row["run"]), str(row["tag"]))
        manifest, reason = row["manifest"], row["reason"] or "it is incomplete (no manifest)"
        if manifest is not None and not _describes(manifest, kind, row["tag"]):
            manifest, reason = None, f"its manifest does not describe a {kind}"
        if manifest is not None or key not in found or (row["reason"] and found[key].manifest is None):
            found[key] = FoundSave(kind, *key, manifest, reason)
    return sorted(found.values(), key=lambda one: one.order, reverse=True)


def _is_sound(row: SavedRow) -> bool:
    if not isinstance(row, dict) or not {"run", "tag", "manifest", "reason"} <= row.keys():
        return False
    reason = row["reason"] is None or isinstance(row["reason"], str)
    return fits(RunName, row["run"]) and is_tag(row["tag"]) and isinstance(row["manifest"], dict | None) and reason


def _describes(manifest: Manifest, kind: str, tag: str) -> bool:
    """True if it is the manifest of such a save and lists valid piece names, which become paths on all nodes."""
    numbers = all(isinstance(manifest.get(name), int) for name in ("step", "pass", "seed", "pservers"))
    files = manifest.get("files")
    if not numbers or not isinstance(files, list) or not all(map(_is_listed, files)):
        return False
    whole = len({file["file"] for file in files}) == len(files) == manifest["pservers"] > 0
    states = manifest.get("states", [])
    if not isinstance(states, list) or not all(map(_is_state, states)):
        return False
    whole = whole and len({state["file"] for state in states}) == len(states)
    is_kind = bool(manifest.get("checkpoint")) == (kind == "checkpoint")
    return is_kind and manifest.get("tag") == tag and "mode" in manifest and whole


def _is_listed(file: Any) -> bool:
    """True if an entry of a manifest's `files` describes a piece."""
    return _is_file(file, "pserver") and is_piece_name(file["file"])


def _is_state(file: Any) -> bool:
    """True if an entry of a manifest's `states` describes the state of a trainer."""
    return _is_file(file, "trainer") and file["trainer"] >= 0 and file["file"] == state_name(file["trainer"])


def _is_file(file: Any, writer: str) -> bool:
    if not isinstance(file, dict) or not {"file", writer, "bytes", "sha256"} <= set(file):
        return False
    return isinstance(file[writer], int) and isinstance(file["sha256"], str) and fits(Count, file["bytes"])


def verify(cluster: Cluster, job: str, nodes: Sequence[Node], found: FoundSave) -> tuple[Holders, str | None]:
    """Return the nodes that have each piece, and the problem if no node has one of them.

    Every file is read and hashed on its node.
    """
    assert found.manifest is not None
    files: list[Piece] = all_files(found.manifest)
    request: VerifyCheckpointRequest = {
        "op": "verify_checkpoint",
        "ref": job,
        "run": found.run,
        "tag": found.tag,
        "files": files,
    }
    answers = _ask(cluster, request, nodes, f"verify the {found.kind}")
    holders: dict[str, frozenset[int]] = {}
    for file in files:
        reports = {node: answer["pieces"].get(file["file"], "") for node, answer in answers.items()}
        good = frozenset(node for node, reason in reports.items() if reason is None)
        if not good:
            bad = [f"{file['file']} on node{node} {reason}" for node, reason in reports.items() if reason]
            return {}, "; ".join(bad) or f"{file['file']} is missing" + _was_on(file)
        holders[file["file"]] = good
    return holders, None


def _was_on(file: Piece) -> str:
    return f" (written by node{file['node']})" if "node" in file else ""


def sources(job: str, run: str, tag: str, files: Iterable[Piece], holders: Holders) -> PieceSources:
    """Return the entry in a node's spec for these pieces, which are below `job` on the nodes that hold them."""
    pieces = [
        PieceSource(file=f["file"], bytes=f["bytes"], sha256=f["sha256"], nodes=tuple(sorted(holders[f["file"]])))
        for f in files
    ]
    return PieceSources(job=job, run=run, tag=tag, pieces=tuple(pieces))
