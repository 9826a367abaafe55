"""Remove old jobs and unused content from the nodes, after a look at them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterctl import prune
from clusterctl.cluster import Cluster, combined, failures
from clusterctl.documents.nodes import PruneDocument
from clusterctl.errors import ClusterctlError
from clusterctl.prune import PrunePlan


@dataclass(frozen=True)
class PruneProposal:
    """The jobs and content on the nodes, and the `plan` of what to remove. `errors`: from nodes that did not answer."""

    plan: PrunePlan
    errors: Sequence[ClusterctlError]
    of: int

    @property
    def is_empty(self) -> bool:
        """True if nothing can go."""
        return not (self.plan.going or self.plan.content)

    def problem(self, more: Sequence[ClusterctlError] = ()) -> ClusterctlError | None:
        """Return the error to report, given those of the removal."""
        errors = [*self.errors, *more]
        return combined(errors, self.of, "prune") if errors else None

    def document(self, *, removed: bool) -> PruneDocument:
        """Return the document of `prune --json`."""
        return PruneDocument(tuple(self.plan.jobs), tuple(self.plan.content), self.plan.bytes, removed)


def look(cluster: Cluster, *, keep: int, older_than_s: float) -> PruneProposal:
    """Ask every node, and choose what can go: all but the newest `keep` jobs and what was used in `older_than_s`."""
    outcomes = prune.look(cluster)
    errors = [outcome.error for outcome in failures(outcomes) if outcome.error]
    answers = {outcome.node.id: outcome.get() for outcome in outcomes if outcome.ok}
    return PruneProposal(prune.choose(answers, keep, older_than_s), errors, len(outcomes))


def remove(cluster: Cluster, found: PruneProposal) -> list[ClusterctlError]:
    """Remove what can go; return the errors of nodes that failed or where something was still in use."""
    return prune.remove(cluster, found.plan)
