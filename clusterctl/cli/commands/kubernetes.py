"""`submit --to kubernetes` and `stop --delete`: pods that are made for a job, and their removal."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.api.operations.origin import OriginOptions, Target
from clusterctl.api.operations.references import job_of
from clusterctl.cli.commands.start import start
from clusterctl.cli.commands.stop import stop_job
from clusterctl.cli.console import plural
from clusterctl.cli.invocation import Invocation
from clusterctl.errors import ClusterctlError, ConfigError, UsageError

if TYPE_CHECKING:
    from clusterctl.config import Settings
    from clusterctl.config.host_sources import KubernetesHosts
    from clusterctl.schedulers.kubernetes.manifest import Submission
    from clusterctl.schedulers.kubernetes.submit import Made


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
    from clusterctl.schedulers.kubernetes.kubectl import Kubectl
    from clusterctl.schedulers.kubernetes.manifest import manifest, objects
    from clusterctl.schedulers.kubernetes.submit import make_ready

    if not_for_pods:
        raise UsageError(f"{not_for_pods[0]} is for --to slurm only")
    if invocation.options.only:
        raise UsageError("this command does not accept --only: a job runs on all its pods")
    source = _in_namespace(invocation, _source(invocation.settings(), "submit --to kubernetes"), namespace)
    submission = _submission(workspace, source, nodes, image, storage)
    text = manifest(submission)
    if plan:
        invocation.console.document({"to": "kubernetes", "manifest": objects(submission)})
        invocation.console.output(text.rstrip("\n"))
        return
    kubectl, console = Kubectl(invocation.environ, submission.namespace), invocation.console
    with invocation.progress.operation("waiting for pods"):
        make_ready(kubectl, submission, console.note, console.warn)
    ready = f"{plural(submission.nodes, 'pod')} of {submission.name} ready"
    console.note(f"{ready}; to delete them: clusterctl stop --delete")
    invocation.pinned["HOSTS"] = replace(source, selector=submission.selector, container=submission.container)
    start(invocation, Target(package=workspace), detach=True, plan=False, origin=OriginOptions())


def _submission(
    workspace: Path, source: KubernetesHosts, nodes: int | None, image: str | None, storage: str | None
) -> Submission:
    from clusterctl.schedulers.kubernetes.manifest import CONTAINER, Submission, name_for

    if not workspace.is_dir():
        raise UsageError(f"{workspace} is not a directory")
    if nodes is None or image is None:
        raise UsageError(f"submit --to kubernetes needs {'--nodes' if nodes is None else '--image'}")
    if source.labels is None:
        raise UsageError(
            f"HOSTS = kubernetes({source.selector!r}): submit cannot give such labels to pods",
            hint='write KEY=VALUE, as in kubernetes("app=train")',
        )
    id_ = secrets.token_hex(4)
    return Submission(
        id=id_,
        name=name_for(workspace.absolute().name, id_),
        image=image,
        nodes=nodes,
        labels=source.labels,
        namespace=source.in_namespace,
        container=str(source.container or CONTAINER),
        storage=storage,
    )


def stop_and_delete(invocation: Invocation, job: str | None) -> None:
    """Stop a job, then delete what `submit` has made, with all jobs on its disks."""
    from clusterctl.schedulers.kubernetes.kubectl import Kubectl
    from clusterctl.schedulers.kubernetes.submit import find, remove

    source = _source(invocation.settings(), "stop --delete")
    if invocation.options.only:
        raise UsageError("stop --delete does not accept --only: it deletes all pods")
    kubectl = Kubectl(invocation.environ, source.in_namespace)
    made = find(kubectl, str(source.selector))
    if made is None:
        invocation.console.say(f"nothing to delete: there is nothing with {source.selector} {kubectl.where}")
    else:
        if made.pods:
            _stop(invocation, job)
        invocation.console.say(_going(made))
        with invocation.progress.operation("deleting"):
            remove(kubectl, made.selector)
        invocation.console.say("deleted")
    invocation.console.document({"deleted": [] if made is None else made.names})


def _source(settings: Settings, command: str) -> KubernetesHosts:
    from clusterctl.config.host_sources import KubernetesHosts

    if not isinstance(settings.hosts_from, KubernetesHosts):
        raise ConfigError(
            f"{settings.place('HOSTS')}{command} needs pods as hosts", hint='write HOSTS = kubernetes("app=train")'
        )
    return settings.hosts_from


def _in_namespace(invocation: Invocation, source: KubernetesHosts, namespace: str | None) -> KubernetesHosts:
    """Return HOSTS with the namespace of the option. Other commands will look where conf.py says."""
    if namespace is None or namespace == source.namespace:
        return source
    if source.namespace is not None:
        raise UsageError(
            f"--namespace {namespace}: HOSTS has the namespace {source.namespace}", hint="give one of them"
        )
    chosen = replace(source, namespace=namespace)
    if problem := chosen.problem():
        raise UsageError(f"--namespace: {problem.removeprefix('= ')}")
    container = f", container={source.container!r}" if source.container else ""
    line = f"HOSTS = kubernetes({source.selector!r}, namespace={namespace!r}{container})"
    invocation.console.warn(f"for status, logs and stop, write into conf.py: {line}")
    return chosen


def _stop(invocation: Invocation, job: str | None) -> None:
    """Stop a job. One that cannot be stopped, or that is not there, ends with its pods."""
    try:
        with invocation.whole_cluster() as cluster:
            stop_job(invocation, cluster, job_of(cluster, job), document=False)
    except ClusterctlError as exc:
        if job is not None and isinstance(exc, UsageError):
            raise
        invocation.console.warn(f"the job could not be stopped, and ends with its pods: {exc}")


def _going(made: Made) -> str:
    things = [*made.sets, *made.services, plural(len(made.pods), "pod")]
    disks = f" and {plural(len(made.disks), 'disk')} (persistentvolumeclaim)" if made.disks else ""
    return f"deleting {', '.join(things)}{disks}, with all jobs and models on them"
