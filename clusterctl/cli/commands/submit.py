"""`clusterctl submit`: hand a job to a scheduler, or show the script with which it would run it."""

from __future__ import annotations

from pathlib import Path

from clusterctl.cli import style
from clusterctl.cli.commands import kubernetes
from clusterctl.cli.invocation import Invocation
from clusterctl.documents.local import SubmissionDocument
from clusterctl.errors import UsageError
from clusterctl.schedulers.slurm.submit import Order, order


def submit(
    invocation: Invocation,
    workspace: Path,
    *,
    to: str,
    nodes: int | None,
    time: str | None,
    requeue: bool,
    image: str | None,
    namespace: str | None,
    storage: str | None,
    plan: bool,
) -> None:
    if to == "kubernetes":
        of_slurm = {"--time": time, "--requeue": requeue}
        kubernetes.submit(
            invocation,
            workspace,
            nodes=nodes,
            image=image,
            namespace=namespace,
            storage=storage,
            plan=plan,
            not_for_pods=[option for option, given in of_slurm.items() if given],
        )
        return
    if to != "slurm":
        raise UsageError(
            f"--to {to}: not a scheduler that clusterctl knows", hint="write --to slurm or --to kubernetes"
        )
    if image or namespace or storage:
        raise UsageError("--image, --namespace and --storage are for --to kubernetes only")
    if invocation.options.only:
        raise UsageError("this command does not accept --only: Slurm chooses the nodes")
    args = invocation.program_args
    wanted = order(invocation.settings(), workspace, args, nodes=nodes, time=time, requeue=requeue)
    if plan:
        text = wanted.script()
        planned: SubmissionDocument = {"to": to, "script": text}
        invocation.console.document(planned)
        invocation.console.say(text.rstrip("\n"))
        return
    _submit(invocation, wanted)


def _submit(invocation: Invocation, wanted: Order) -> None:
    console, submission = invocation.console, wanted.submission
    done, run = wanted.submit(invocation.environ)
    for line in done.notes:
        console.warn(line)
    document: SubmissionDocument = {
        "to": "slurm",
        "id": done.id,
        "run": run,
        "output": done.output,
        "root_dir": wanted.settings.root_dir,
        "script": done.script,
    }
    console.document(document)
    nodes = f"{submission.nodes} {'node' if submission.nodes == 1 else 'nodes'}" if submission.nodes else ""
    limit = f"time limit {submission.time}" if submission.time else ""
    asked = ", ".join(word for word in (nodes, limit) if word)
    console.say(style.good(f"submitted: Slurm job {done.id}") + (f"  {asked}" if asked else ""))
    console.say(f"what its script prints: {done.output}")
    console.say(f"next: clusterctl status {done.id}     clusterctl logs -f {done.id}     clusterctl stop {done.id}")
