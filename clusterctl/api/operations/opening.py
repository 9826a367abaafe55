"""From settings to the connections to their nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from clusterctl.cluster import Cluster
from clusterctl.config import Settings
from clusterctl.inventory import build, select
from clusterctl.schedulers import JobWatch, resolve, resolve_all, resolve_job
from clusterctl.transport import Ask


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

    def _open(self, settings: Settings) -> Cluster:
        inventory = build(settings)
        chosen = select(inventory, self.only, self.failed_last(settings)) if self.only else inventory.nodes
        return Cluster(settings, inventory, chosen, self.ask)
