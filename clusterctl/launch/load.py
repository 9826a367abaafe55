"""Chooses the saved model that a run starts with: `start --load`. Its pieces stay on their nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clusterctl.cluster import Cluster
from clusterctl.cluster.answers import Resumed
from clusterctl.errors import RefusedError, UsageError
from clusterctl.inventory import Node
from clusterctl.launch.plan import LaunchPlan, require_our_pservers
from clusterctl.launch.saved import FoundSave, Holders, Manifest, find, sources, verify


@dataclass(frozen=True)
class SavedModel:
    """A complete model of `job`. `holders`: for each piece the nodes that have a verified copy."""

    job: str
    run: str
    manifest: Manifest
    holders: Holders
    warnings: tuple[str, ...] = ()

    def to_json(self) -> Resumed:
        """The form used in JSON documents."""
        step, pass_ = self.manifest["step"], self.manifest["pass"]
        return {"job": self.job, "run": self.run, "tag": self.manifest["tag"], "step": step, "pass": pass_}

    def __str__(self) -> str:
        return f"model {self.manifest['tag']} of {self.job} run {int(self.run)} (step {self.manifest['step']:,})"

    def applied_to(self, launch: LaunchPlan) -> LaunchPlan:
        return launch

    def word(self, launch: LaunchPlan, node: Node) -> dict[str, Any]:
        """The message for one node that accompanies its spec."""
        return {}

    def in_spec(self, job: str, run: str, launch: LaunchPlan, node: Node) -> dict[str, Any]:
        """The arguments of `LaunchPlan.spec` for one node of the new `run`."""
        known = sources(self.job, self.run, self.manifest["tag"], self.manifest["files"], self.holders)
        return {"load": known.name, "sources": known}


def choose_model(
    cluster: Cluster, ref: str, nodes: Sequence[Node], launch: LaunchPlan, *, run: int | None, tag: str | None
) -> SavedModel:
    """Return the newest complete model of job `ref`, or that of `run` or `tag`. Raises if none is complete."""
    require_our_pservers(launch.settings, "--load")
    job, found = find(cluster, "model", ref, nodes)
    wanted = [one for one in found if run in (None, int(one.run)) and tag in (None, one.tag)]
    if not wanted:
        raise _unknown(job, found, run, tag)
    warnings: list[str] = []
    for one in wanted:
        holders, problem = verify(cluster, job, nodes, one) if one.manifest else ({}, one.reason)
        if one.manifest is not None and problem is None:
            return SavedModel(job, one.run, one.manifest, holders, tuple(warnings))
        warnings.append(f"skipped {one.name}: {problem}")
    lines = [f"{job} has no complete model to load", *warnings]
    raise RefusedError("\n  ".join(lines), hint="name another job, or start without --load")


def _unknown(job: str, found: Sequence[FoundSave], run: int | None, tag: str | None) -> UsageError:
    """Return the error for a model that was named, or for a job that has none; its hint lists those that there are."""
    words = ["no model", *([tag] if tag is not None else []), *([f"in run {run}"] if run is not None else [])]
    there = [f"{one.tag} (run {int(one.run)})" for one in found if one.manifest]
    return UsageError(f"{job} has {' '.join(words)}", hint=f"complete models: {', '.join(there) or 'none'}")
