"""Resumes a run from the checkpoints on the nodes, perhaps those of another job: finds the newest usable one.

Its pieces stay on their nodes. If pservers and lanes are unchanged, a pserver needs its own piece, otherwise parts of
all pieces; it reads those that its node lacks from other nodes.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clusterctl.cluster import Cluster
from clusterctl.cluster.answers import Resumed
from clusterctl.common.manifest import all_files
from clusterctl.common.paths import META, is_label
from clusterctl.common.run_spec import ResumePoint
from clusterctl.config import Settings
from clusterctl.config.settings import BY_SPELLING
from clusterctl.errors import RefusedError
from clusterctl.inventory import Node
from clusterctl.launch.plan import LaunchPlan, require_our_pservers
from clusterctl.launch.saved import FoundSave, Holders, Manifest, Piece, find, saves_in, sources, verify

ANEW = "to start over, run start without --resume"


@dataclass(frozen=True)
class Resume:
    """The checkpoint to resume from. `holders`: for each piece the nodes that have a verified copy.

    `warnings` name newer checkpoints that are unusable, and differences from the run that wrote this one. `job` is the
    job that wrote it, None for the one that is started.
    """

    run: str
    manifest: Manifest
    holders: Holders
    warnings: tuple[str, ...] = field(default=())
    job: str | None = None

    @property
    def tag(self) -> str:
        return self.manifest["tag"]

    def to_json(self) -> Resumed:
        """The form used in JSON documents."""
        step, pass_ = self.manifest["step"], self.manifest["pass"]
        if self.job:
            return {"job": self.job, "run": self.run, "tag": self.tag, "step": step, "pass": pass_}
        return {"run": self.run, "tag": self.tag, "step": step, "pass": pass_}

    def __str__(self) -> str:
        pass_, step = self.manifest["pass"], self.manifest["step"]
        of = f"{self.job} run" if self.job else "run"
        return f"checkpoint {self.tag} of {of} {int(self.run)} (pass {pass_}, step {step:,})"

    @property
    def arguments(self) -> tuple[str, ...] | None:
        """The program's arguments in the run that wrote the checkpoint; None if the manifest does not have them."""
        arguments = self.manifest.get("arguments")
        return tuple(map(str, arguments)) if isinstance(arguments, list) else None

    @property
    def settings(self) -> dict[str, str]:
        """The text of each setting that the run was given with `--set`."""
        return _settings_of(self.manifest)

    @property
    def name(self) -> str | None:
        """The name of the run that wrote the checkpoint, unless that is a run of another job."""
        name: object = self.manifest.get("name")
        return name if self.job is None and isinstance(name, str) and is_label(name) else None

    def applied_to(self, launch: LaunchPlan) -> LaunchPlan:
        """Return the plan with the arguments and the name of the run before, if none were given."""
        launch = replace(launch, name=launch.name or self.name)
        return launch.with_arguments(self.arguments or ()) if launch.program_args is None else launch

    def in_spec(self, job: str, run: str, launch: LaunchPlan, node: Node) -> dict[str, Any]:
        """The arguments of `LaunchPlan.spec` for one node of the new `run`, whose directory has the pieces then.

        If a node lacks some that it needs, all nodes have sources: the others serve theirs. So they have if processes
        may move; then the lead knows those of all files.
        """
        step, pass_ = self.manifest["step"], self.manifest["pass"]
        directory = f"{META}/runs/{run}/checkpoints/{self.tag}"
        point = ResumePoint(run=self.run, tag=self.tag, step=step, pass_=pass_, dir=directory, job=self.job)
        moves, leads = launch.node_loss == "move", node == launch.nodes[0]
        here = all(node.id in self.holders[f["file"]] for node in launch.nodes for f in self.needed(launch, node))
        if here and not moves:
            return {"resume": point}
        files = all_files(self.manifest) if moves and leads else self.needed(launch, node)
        return {"resume": point, "sources": sources(job, run, self.tag, files, self.holders)}

    def word(self, launch: LaunchPlan, node: Node) -> dict[str, Any]:
        """The message for one node that accompanies its spec: it takes over the pieces that it has."""
        of = {"job": self.job} if self.job else {}
        here = [f["file"] for f in all_files(self.manifest) if node.id in self.holders[f["file"]]]
        return {"resume": {**of, "run": self.run, "tag": self.tag, "files": here, "manifest": self.manifest}}

    def needed(self, launch: LaunchPlan, node: Node) -> list[Piece]:
        """The pieces of which a node's pservers need parts, and the states of its trainers."""
        own = [(process.role, process.rank) for process in launch.on(node)]
        serves = any(role == "pserver" for role, _ in own)
        unchanged = self._is_placed_as(launch)
        pieces = [f for f in self.manifest["files"] if serves and (not unchanged or ("pserver", f["pserver"]) in own)]
        return [*pieces, *(f for f in self.manifest.get("states", ()) if ("trainer", f["trainer"]) in own)]

    def _is_placed_as(self, launch: LaunchPlan) -> bool:
        lanes = [launch.settings.ports_num, launch.settings.ports_num_for_sparse]
        return bool(self.manifest["pservers"] == launch.count("pserver") and self.manifest.get("lanes") == lanes)


def choose(cluster: Cluster, job: str, nodes: Sequence[Node], launch: LaunchPlan, of: str | None = None) -> Resume:
    """Return the newest complete and undamaged checkpoint of the runs of `job`, or of the other job `of`.

    Raises RefusedError if there is none. Every file is read and hashed on its node.
    """
    settings = launch.settings
    require_our_pservers(settings, "--resume", hint=ANEW)
    source, checkpoints = find(cluster, "checkpoint", of or job, nodes)
    warnings: list[str] = []
    for whole in checkpoints:
        found = _without_states(whole, launch)
        holders, problem = verify(cluster, source, nodes, found) if found.manifest else ({}, found.reason)
        if whole.manifest is None or found.manifest is None or problem:
            warnings.append(f"skipped {found.name}: {problem}")
            continue
        _refuse_another_seed(found, found.manifest, settings)
        warnings += _differences(whole.manifest, launch)
        return Resume(found.run, found.manifest, holders, tuple(warnings), None if source == job else source)
    lines = [f"{source} has no checkpoint to resume from", *warnings]
    raise RefusedError("\n  ".join(lines), hint=ANEW)


def has_checkpoint(cluster: Cluster, job: str) -> bool:
    """Return True if a run of the job has made a complete checkpoint, usable or not. Raises if a node fails."""
    return any(one.manifest is not None for one in find(cluster, "checkpoint", job, cluster.nodes)[1])


def may_have_checkpoint(cluster: Cluster, job: str, nodes: Sequence[Node], *, with_lead: bool) -> bool:
    """Return False if a run of the job cannot have completed a checkpoint, as far as `nodes` know. Raises if one fails.

    The lead of the newest run, if it is among them, has the manifests of all that are complete. Without it, one that is
    incomplete may have been the first one, which was being written.
    """
    found = find(cluster, "checkpoint", job, nodes)[1]
    return any(one.manifest is not None for one in found) or (len(found) > 1 and not with_lead)


def _without_states(found: FoundSave, launch: LaunchPlan) -> FoundSave:
    """Return a checkpoint without the states of trainers if it was made with another number of them."""
    if found.manifest is None or found.manifest.get("trainers") == launch.count("trainer"):
        return found
    rest: Any = {name: value for name, value in found.manifest.items() if name != "states"}
    return replace(found, manifest=rest)


def recorded_settings(cluster: Cluster, job: str, given: Collection[str]) -> dict[str, str]:
    """Return the `--set`s of the newest checkpoint that a resume repeats: all but those that the user has `given`.

    Nodes that fail are ignored.
    """
    outcomes = cluster.ask({"op": "find_checkpoints", "ref": job}, cluster.nodes)
    found = saves_in("checkpoint", [outcome.get() for outcome in outcomes if outcome.ok])
    newest = next((one.manifest for one in found if one.manifest is not None), None)
    return repeated_settings(_settings_of(newest) if newest else {}, given)


def repeated_settings(texts: Mapping[str, str], given: Collection[str] = ()) -> dict[str, str]:
    """Return those of a run's `--set`s that another run of it repeats, but for those `given` anew.

    Nodes are not trusted with settings that decide what runs, or whom this machine trusts.
    """
    names = {BY_SPELLING[name].name for name in given if name in BY_SPELLING}
    return {
        name: text
        for name, text in texts.items()
        if name in BY_SPELLING and BY_SPELLING[name].kept and BY_SPELLING[name].name not in names
    }


def _settings_of(manifest: Manifest) -> dict[str, str]:
    settings: object = manifest.get("settings")
    pairs = settings.items() if isinstance(settings, dict) else ()
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}


def _refuse_another_seed(found: FoundSave, manifest: Manifest, settings: Settings) -> None:
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
    if trainers != now and (states := len(manifest.get("states", ()))):
        lines.append(f"the state of {states} trainers is dropped: the run has {now}")
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
