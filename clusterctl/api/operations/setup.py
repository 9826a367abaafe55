"""The Python environment of a job on the nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clusterctl.cluster import Cluster, NodeOutcome, combined, failures
from clusterctl.config import Settings
from clusterctl.documents.nodes import EnvironmentDocument, FailedNode, PreparedNode, SetupDocument, head
from clusterctl.errors import ClusterctlError
from clusterctl.inventory import Node
from clusterctl.setup import NodeGroup, NodeSetup, Requirements, SetupOptions, SetupResult, prepare, read_requirements


@dataclass(frozen=True)
class SetUp:
    """The outcome of a setup. `problem` is the error to report if nodes are not ready."""

    requirements: Requirements
    done: SetupResult
    problem: ClusterctlError | None

    def to_json(self) -> SetupDocument:
        """The document of `setup --json`."""
        lock = self.requirements.lock
        return {
            "requirements": self.requirements.packages,
            "lock": lock.name if lock else None,
            "environments": [_group(group) for group in self.done.groups],
            "nodes": [_node(outcome) for outcome in self.done.outcomes],
        }


def requirements_of(workspace: Path, settings: Settings) -> Requirements:
    """Read the requirements of a workspace, and what the engine needs besides. Raises ConfigError."""
    return read_requirements(workspace, runtime=settings.engine == "clusterctl")


def setup(
    cluster: Cluster,
    requirements: Requirements,
    *,
    offline: bool = False,
    upgrade: bool = False,
    uv: bool | None = None,
    say: Callable[[str], None],
    cache: Path,
    on_step: Callable[[Node | None, str], None] = lambda node, words: None,
) -> SetUp:
    """Build the environment on every node that lacks it. See `clusterctl.setup.prepare` and `SetupOptions`."""
    done = prepare(cluster, requirements, SetupOptions(offline, upgrade, uv), say, cache, on_step)
    return SetUp(requirements, done, _partial_failure(done))


def _partial_failure(done: SetupResult) -> ClusterctlError | None:
    errors = [outcome.error for outcome in failures(done.outcomes) if outcome.error]
    if not errors:
        return None
    of = len(done.outcomes)
    error = combined(errors, of, "setup")
    if len(errors) < of:
        error.message += f"\n{of - len(errors)}/{of} nodes ready; run setup again for the others"
    return error


def _group(group: NodeGroup) -> EnvironmentDocument:
    return {
        "python": group.kind.python,
        "machine": group.kind.machine,
        "packages": group.packages,
        "chosen_by": group.chosen_by,
        "relayed": group.relayed,
        "nodes": [node.id for node in group.nodes],
    }


def _node(outcome: NodeOutcome[NodeSetup]) -> PreparedNode | FailedNode:
    seconds = round(outcome.seconds, 3)
    if outcome.error is not None:
        node, error = outcome.node, outcome.error.to_json()
        return {"node": node.id, "host": node.where, "ok": False, "seconds": seconds, "error": error}
    ready = outcome.get()
    return {
        **head(outcome),
        "seconds": seconds,
        "environment": ready.environment,
        "built": ready.built,
        "built_by": ready.builder,
        "uv_problem": ready.problem,
        "bytes_sent": ready.bytes_sent,
    }
