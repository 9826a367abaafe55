"""`clusterctl start --rejoin`: let nodes that a run is waiting for rejoin it."""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl.api.control import rejoin as ask
from clusterctl.cli.invocation import Invocation
from clusterctl.errors import UsageError

WORDS = {
    "joined": "has rejoined run {run}",
    "told": "is already in run {run}; restarting any trainer that failed there",
    "ended": "cannot rejoin: run {run} has ended ({state})",
}


def rejoin(invocation: Invocation, job_workspace: str | None, others: Sequence[str]) -> None:
    """Ask all nodes, or those of --only, to rejoin; raise if one cannot. `others` are options that do not apply."""
    if others:
        raise UsageError(
            f"--rejoin cannot be combined with {others[0]}: the run continues with the options it was started with"
        )
    with invocation.cluster() as cluster:
        done = ask(cluster, job_workspace)
        for outcome in done.outcomes:
            if outcome.ok:
                answer = outcome.get()
                run = {"run": int(answer["run"]), "state": answer.get("state")}
                invocation.console.say(f"{outcome.node.label} {WORDS[answer['did']].format(**run)}")
        invocation.console.finish(done.document, done.problem)
