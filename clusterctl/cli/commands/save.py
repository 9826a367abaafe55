"""`clusterctl save`: a checkpoint of the running job, now."""

from __future__ import annotations

from clusterctl.cli import style
from clusterctl.cli.invocation import Invocation
from clusterctl.escape import clean

MARGIN_S = 60.0  # for the answer of a node that swaps


def save(invocation: Invocation, job: str | None, *, timeout_s: float) -> None:
    """Ask the lead for a checkpoint and wait until it is complete. Raises if that takes longer than `timeout_s`."""
    from clusterctl.cluster import raise_failures
    from clusterctl.errors import UsageError
    from clusterctl.observe.record.status import find

    with invocation.cluster_of(job, whole=True) as cluster:
        invocation.need_nodes()
        found, members = find(cluster, invocation.job_of(cluster, job))
        if members.run is None:
            raise UsageError(f"{found} was never started", hint=f"clusterctl start --job_workspace {found}")
        request = {"op": "save", "ref": found, "limit_s": timeout_s}
        with invocation.progress.operation("saving"):
            outcomes = cluster.ask(request, members.nodes[:1], answer_s=timeout_s + MARGIN_S)
        (answer,) = raise_failures(outcomes, "save")
    invocation.console.document({name: answer[name] for name in ("job", "run", "tag", "step")})
    words = f" checkpoint {clean(answer['tag'])} of {found} run {int(answer['run'])} is complete"
    invocation.console.say(style.good("saved:") + words)
