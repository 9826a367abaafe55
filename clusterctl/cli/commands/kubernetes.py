"""`submit --to kubernetes` and `stop --delete`: pods that are made for a job, and their removal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clusterctl.api.start import OriginOptions, StartTarget
from clusterctl.cli.commands.start import start
from clusterctl.cli.commands.stop import stop_job
from clusterctl.cli.console import plural
from clusterctl.cli.invocation import Invocation
from clusterctl.config.host_sources import KubernetesHosts
from clusterctl.documents.local import DeletedDocument, ManifestDocument
from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.schedulers.kubernetes.submit import CreatedObjects, find_made, hosts_of, in_namespace, pods_for


def submit(
    invocation: Invocation,
    workspace: Path,
    *,
    nodes: int | None,
    image: str | None,
    namespace: str | None,
    storage: str | None,
    plan: bool,
    not_for_pods: Sequence[str] = (),
) -> None:
    """Make pods and start a job on them, or print the manifest. Returns once all processes are running."""
    if not_for_pods:
        raise UsageError(f"{not_for_pods[0]} is for --to slurm only")
    if invocation.options.only:
        raise UsageError("this command does not accept --only: a job runs on all its pods")
    hosts = _in_namespace(invocation, hosts_of(invocation.settings(), "submit --to kubernetes"), namespace)
    pods = pods_for(workspace, hosts, nodes=nodes, image=image, storage=storage)
    text = pods.manifest
    if plan:
        planned: ManifestDocument = {"to": "kubernetes", "manifest": pods.objects}
        invocation.console.document(planned)
        invocation.console.output(text.rstrip("\n"))
        return
    console = invocation.console
    with invocation.progress.operation("waiting for pods"):
        made = pods.make(invocation.environ, console.note, console.warn)
    ready = f"{plural(pods.submission.nodes, 'pod')} of {pods.submission.name} ready"
    console.note(f"{ready}; to delete them: clusterctl stop --delete")
    invocation.pinned["HOSTS"] = made
    start(invocation, StartTarget(package=workspace), detach=True, plan=False, origin=OriginOptions())


def stop_and_delete(invocation: Invocation, job: str | None) -> None:
    """Stop a job, then delete what `submit` has made, with all jobs on its disks."""
    hosts = hosts_of(invocation.settings(), "stop --delete")
    if invocation.options.only:
        raise UsageError("stop --delete does not accept --only: it deletes all pods")
    there = find_made(hosts, invocation.environ)
    made = there.made
    if made is None:
        invocation.console.say(f"nothing to delete: there is nothing with {hosts.selector} {there.where}")
    else:
        if made.pods:
            _stop(invocation, job)
        invocation.console.say(_going(made))
        with invocation.progress.operation("deleting"):
            there.delete()
        invocation.console.say("deleted")
    document: DeletedDocument = {"deleted": [] if made is None else made.names}
    invocation.console.document(document)


def _in_namespace(invocation: Invocation, hosts: KubernetesHosts, namespace: str | None) -> KubernetesHosts:
    """Return HOSTS with the namespace of the option. Other commands will look where conf.py says."""
    chosen = in_namespace(hosts, namespace)
    if chosen != hosts:
        container = f", container={hosts.container!r}" if hosts.container else ""
        line = f"HOSTS = kubernetes({hosts.selector!r}, namespace={namespace!r}{container})"
        invocation.console.warn(f"for status, logs and stop, write into conf.py: {line}")
    return chosen


def _stop(invocation: Invocation, job: str | None) -> None:
    """Stop a job. One that cannot be stopped, or that is not there, ends with its pods."""
    try:
        with invocation.whole_cluster() as cluster:
            stop_job(invocation, cluster, invocation.job_of(cluster, job))
    except ClusterctlError as exc:
        if job is not None and isinstance(exc, UsageError):
            raise
        invocation.console.warn(f"the job could not be stopped, and ends with its pods: {exc}")


def _going(made: CreatedObjects) -> str:
    things = [*made.sets, *made.services, plural(len(made.pods), "pod")]
    disks = f" and {plural(len(made.disks), 'disk')} (persistentvolumeclaim)" if made.disks else ""
    return f"deleting {', '.join(things)}{disks}, with all jobs and models on them"
