"""`clusterctl save`: a checkpoint of the running job, now."""

from __future__ import annotations

from clusterctl.api.control import save as ask
from clusterctl.cli import style
from clusterctl.cli.invocation import Invocation
from clusterctl.escape import clean


def save(invocation: Invocation, job: str | None, *, timeout_s: float) -> None:
    """Ask the lead for a checkpoint and wait until it is complete. Raises if that takes longer than `timeout_s`."""
    with invocation.cluster_of(job, whole=True) as cluster:
        invocation.need_nodes()
        ref = invocation.job_of(cluster, job)
        with invocation.progress.operation("saving"):
            saved = ask(cluster, ref, timeout_s=timeout_s)
    invocation.console.document(saved.document)
    words = f" checkpoint {clean(saved.tag)} of {saved.document['job']} run {int(saved.document['run'])} is complete"
    invocation.console.say(style.good("saved:") + words)
