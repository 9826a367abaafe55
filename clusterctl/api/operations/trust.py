"""The host keys of the nodes: look at them, and record those that a person has accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from clusterctl.cluster import Cluster, combined, failures
from clusterctl.documents.nodes import HostKeyDocument, TrustDocument
from clusterctl.errors import ClusterctlError
from clusterctl.inventory import Node
from clusterctl.transport import HostKey, Verdict


class PresentedKey(NamedTuple):
    """The key that a node presented, and what the known keys say about it."""

    node: Node
    key: HostKey
    verdict: Verdict


@dataclass(frozen=True)
class HostKeys:
    """The keys of the nodes that answered. `errors` are those of the others, and of keys that are refused.

    `without` counts nodes that are reached by other means than SSH.
    """

    scanned: Sequence[PresentedKey]
    errors: Sequence[ClusterctlError]
    of: int
    without: int

    @property
    def unknown(self) -> list[PresentedKey]:
        return [one for one in self.scanned if one.verdict.state == "unknown"]

    @property
    def known(self) -> int:
        """The number of nodes whose keys were accepted before."""
        return sum(one.verdict.state not in ("unknown", "changed", "revoked") for one in self.scanned)

    def problem(self, *unaccepted: ClusterctlError) -> ClusterctlError | None:
        """Return the error to report, given one about keys that were not accepted, if any."""
        errors = [*self.errors, *unaccepted]
        return combined(errors, self.of, "trust") if errors else None

    def to_json(self, *, recorded: bool) -> TrustDocument:
        """The document of `trust --json`."""
        return {"nodes": [_view(*one, recorded) for one in self.scanned]}


def look(cluster: Cluster) -> HostKeys:
    """Ask every node for its host key; nothing is recorded."""

    def scan(node: Node) -> PresentedKey:
        key = cluster.transport.scan_host_key(node)
        return PresentedKey(node, key, cluster.transport.host_key_verdict(node, key))

    by_ssh = [node for node in cluster.nodes if node.via == "ssh"]
    outcomes = cluster.map(scan, by_ssh)
    scanned = [outcome.get() for outcome in outcomes if outcome.ok]
    errors = [outcome.error for outcome in failures(outcomes) if outcome.error]
    refused = [one for one in scanned if one.verdict.state in ("changed", "revoked")]
    errors += [cluster.transport.host_key_refusal(*one) for one in refused]
    return HostKeys(scanned, errors, len(outcomes), len(cluster.nodes) - len(by_ssh))


def record(cluster: Cluster, keys: Sequence[PresentedKey]) -> None:
    """Record keys as those of their nodes. A person has to have compared them."""
    for node, key, _ in keys:
        cluster.transport.record_host_key(node, key)


def _view(node: Node, key: HostKey, verdict: Verdict, recorded: bool) -> HostKeyDocument:
    state = "recorded" if recorded and verdict.state == "unknown" else verdict.state
    return {"node": node.id, "host": node.where, "type": key.type, "fingerprint": key.fingerprint, "state": state}
