"""`clusterctl start --rejoin`: let nodes that a run is waiting for rejoin it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterctl.api.operations.references import job_of
from clusterctl.cli.invocation import Invocation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.cluster import NodeOutcome

WORDS = {
    "joined": "has rejoined run {run}",
    "told": "is already in run {run}; restarting any trainer that failed there",
    "ended": "cannot rejoin: run {run} has ended ({state})",
}


def rejoin(invocation: Invocation, job_workspace: str | None, others: Sequence[str]) -> None:
    """Ask all nodes, or those of --only, to rejoin; raise if one cannot. `others` are options that do not apply."""
    from clusterctl.cluster import combined
    from clusterctl.errors import RefusedError, UsageError
    from clusterctl.observe.record.status import find

    if others:
        raise UsageError(
            f"--rejoin cannot be combined with {others[0]}: the run continues with the options it was started with"
        )
    with invocation.cluster() as cluster:
        ref = job_of(cluster, job_workspace) or find(cluster, None)[0]
        nic = cluster.settings.nic
        outcomes = cluster.ask(
            lambda node: {"op": "rejoin", "ref": ref, "address": node.address, "nic": nic}, cluster.nodes
        )
        errors = [outcome.error for outcome in outcomes if outcome.error is not None]
        for outcome in outcomes:
            if outcome.ok:
                answer = outcome.get()
                run = {"run": int(answer["run"]), "state": answer.get("state")}
                invocation.console.say(f"{outcome.node.label} {WORDS[answer['did']].format(**run)}")
        problem = combined(errors, len(outcomes), "rejoin") if errors else None
        if problem is None and all(outcome.get()["did"] == "ended" for outcome in outcomes):
            problem = RefusedError(f"{ref} is not running", hint=f"clusterctl start --resume --job_workspace {ref}")
        invocation.console.finish({"job": ref, "nodes": [_node(outcome) for outcome in outcomes]}, problem)


def _node(outcome: NodeOutcome[dict[str, Any]]) -> dict[str, Any]:
    view: dict[str, Any] = {"node": outcome.node.id, "host": outcome.node.where, "ok": outcome.ok}
    if outcome.error is not None:
        return {**view, "error": outcome.error.to_json()}
    return {**view, "run": outcome.get()["run"], "did": outcome.get()["did"]}
