"""What every operation takes and returns: the opened nodes of settings, and a result with its document."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from clusterctl.cluster import Cluster
from clusterctl.config import Settings
from clusterctl.errors import ClusterctlError
from clusterctl.inventory import Node as InventoryNode
from clusterctl.inventory import build, select
from clusterctl.schedulers import JobWatch, ScheduledJob, queued, resolve, resolve_all, resolve_job
from clusterctl.transport import Ask

R = TypeVar("R", bound="CallResult")


@dataclass(frozen=True, kw_only=True)
class CallResult:
    """What a call returns. `document` is what the command of the same name prints with `--json`.

    `problem` is the error of nodes that failed; a method of the API raises it, unless it returns their errors.
    """

    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    problem: ClusterctlError | None = field(default=None, repr=False, compare=False)

    def or_raise(self: R) -> R:
        """Return this result. Raises its problem, if there is one."""
        if self.problem is not None:
            raise self.problem
        return self


@dataclass(frozen=True)
class Node:
    """A node of conf.py: its id, `node0` as `label`, its `host`, tags, and the ranks that it has there."""

    id: int
    label: str
    host: str
    tags: tuple[str, ...]
    pservers: tuple[int, ...]
    trainers: tuple[int, ...]


def public(node: InventoryNode) -> Node:
    return Node(node.id, node.label, node.where, node.tags, node.pserver_ranks, node.trainer_ranks)


@dataclass(frozen=True)
class ClusterOpener:
    """How to open the nodes of settings: those that `only` selects, None for all.

    `environ` is for the commands of schedulers, `ask` prompts for secrets, and `failed_last` are the ids that
    `failed@last` means.
    """

    environ: Mapping[str, str]
    only: str | None
    ask: Ask
    failed_last: Callable[[Settings], Collection[int]] = lambda settings: ()

    def nodes(self, settings: Settings) -> Cluster:
        """Return the nodes of the settings; a scheduler is asked for its own."""
        return self._open(resolve(settings, self.environ))

    def nodes_of_job(self, settings: Settings, job: str | None) -> tuple[Cluster, JobWatch | None]:
        """Return the nodes of a job to look at, and the job if a scheduler has it and this is not on its nodes.

        If the scheduler has released the job's nodes, its files are read locally. Raises NoRunError if it has none.
        """
        settings, scheduled = resolve_job(settings, self.environ, job)
        cluster = self._open(settings)
        if scheduled is not None:
            cluster.is_over = scheduled.is_over
        return cluster, scheduled

    def nodes_of_all_jobs(self, settings: Settings) -> tuple[Cluster | None, Callable[[str | None], str] | None]:
        """Return the nodes on which to look for all jobs, None if there is no trace of any.

        Where their files are read here, also return what tells the state of a run, by its name, that has not ended.
        """
        settings, state_of = resolve_all(settings, self.environ)
        if not settings.hosts:
            return None, None
        cluster = self._open(settings)
        if state_of is not None:
            cluster.is_over = lambda: True
        return cluster, state_of

    def waiting(self, settings: Settings) -> list[ScheduledJob]:
        """Return the jobs that were handed to a scheduler and wait for nodes."""
        return queued(settings, self.environ)

    def _open(self, settings: Settings) -> Cluster:
        inventory = build(settings)
        chosen = select(inventory, self.only, self.failed_last(settings)) if self.only else inventory.nodes
        return Cluster(settings, inventory, chosen, self.ask)
