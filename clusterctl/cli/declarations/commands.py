"""The commands that prepare, run, watch and end jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clusterctl.cli import completion
from clusterctl.cli.declarations.fake import BackendOption
from clusterctl.cli.declarations.options import (
    AdoptOption,
    DeleteOption,
    EngineOption,
    ImageOption,
    JobArgument,
    JobWorkspaceOption,
    LeaveOutOption,
    LoadOption,
    LoadRunOption,
    LoadTagOption,
    NameOption,
    NamespaceOption,
    PackageOption,
    ResumeFromOption,
    ResumeOption,
    RoleOption,
    RunArgument,
    RunOption,
    SetOption,
    StorageOption,
    TargetArgument,
)
from clusterctl.cli.declarations.root import LOOK, MORE, PREPARE, RUN, app
from clusterctl.cli.typer_adapter import command


@command(app, "init", "clusterctl init mnist && cd mnist", panel=PREPARE)
def init(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Created if missing.")] = Path(),
    template: Annotated[
        str,
        typer.Option(
            "--template",
            metavar="NAME",
            help="ngram (a language model), ctr (click-through) or torch (a transformer).",
            autocompletion=completion.templates,
        ),
    ] = "ngram",
) -> None:
    """Write a conf.py and a workspace to start from."""
    from clusterctl.cli.commands.init import init

    init(context.obj.console, directory, template)


@command(app, "setup", "clusterctl setup workspace", panel=PREPARE)
def setup(
    context: typer.Context,
    workspace: Annotated[
        Path, typer.Argument(metavar="WORKSPACE", help="Directory with requirements.txt, uv.lock or pylock.toml.")
    ] = Path("workspace"),
    offline: Annotated[bool, typer.Option("--offline", help="Download here and send; nodes need no network.")] = False,
    upgrade: Annotated[bool, typer.Option("--upgrade", help="Choose package versions again.")] = False,
    uv: Annotated[bool | None, typer.Option("--uv/--no-uv", help="Send uv to nodes, or never use it.")] = None,
    engine: EngineOption = None,
) -> None:
    """Create the job's Python environment on the nodes."""
    from clusterctl.cli.commands.setup import setup

    setup(context.obj.invocation(), workspace, offline=offline, upgrade=upgrade, uv=uv, engine=engine)


@command(app, "dispatch", "clusterctl dispatch workspace", panel=PREPARE)
def dispatch(
    context: typer.Context,
    workspace: Annotated[Path, typer.Argument(metavar="WORKSPACE", help="The directory to send.")] = Path("workspace"),
    plan: Annotated[
        bool, typer.Option("--plan", help="Show what would be sent, deleted and ignored; change nothing.")
    ] = False,
    rehash: Annotated[bool, typer.Option("--rehash", help="Read every file again, here and on the nodes.")] = False,
    allow_partial: Annotated[bool, typer.Option("--allow-partial", help="Only warn about nodes that fail.")] = False,
) -> None:
    """Send the workspace, or the changes to it, to all nodes and print the job directory.

    With --only, complete the last dispatch.
    """
    from clusterctl.cli.commands.dispatch import dispatch

    dispatch(context.obj.invocation(), workspace, rehash=rehash, plan=plan, allow_partial=allow_partial)


@command(app, "start", "clusterctl start workspace --name first -- --num_passes=5", panel=RUN)
def start(
    context: typer.Context,
    workspace_or_job: TargetArgument = None,
    job_workspace: JobWorkspaceOption = None,
    job_dispatch_package: PackageOption = None,
    name: NameOption = None,
    engine: EngineOption = None,
    settings: SetOption = None,
    resume: ResumeOption = False,
    adopt: AdoptOption = False,
    resume_from: ResumeFromOption = None,
    load: LoadOption = None,
    load_run: LoadRunOption = None,
    load_tag: LoadTagOption = None,
    rejoin: Annotated[bool, typer.Option("--rejoin", help="Let nodes that a run is waiting for rejoin it.")] = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return once all processes are running.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="With --detach: leave a keeper here.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Print what would run where; start nothing.")] = False,
    allow_partial: LeaveOutOption = False,
) -> None:
    """Start a run on all nodes and follow it.

    Ctrl-C stops it everywhere.

    Everything after -- and any unknown --key=value goes to the training program.
    """
    from clusterctl.cli.commands.start import start_or_rejoin

    start_or_rejoin(
        context.obj.invocation(),
        workspace_or_job,
        job_workspace=job_workspace,
        package=job_dispatch_package,
        name=name,
        engine=engine,
        chosen=settings,
        resume=resume,
        adopt=adopt,
        resume_from=resume_from,
        load=load,
        load_run=load_run,
        load_tag=load_tag,
        rejoin=rejoin,
        detach=detach,
        keep=keep,
        plan=plan,
        allow_partial=allow_partial,
    )


@command(app, "keep", "clusterctl keep JOB20261121-081530", panel=RUN)
def keep(
    context: typer.Context,
    job: JobArgument = None,
    status: Annotated[bool, typer.Option("--status", help="Show the keepers on this machine and their logs.")] = False,
) -> None:
    """Watch a run, and resume it on the machines that are left when it loses its first one.

    Any machine with the conf.py can do this. Ctrl-C ends the watching only.
    """
    from clusterctl.cli.commands.keep import keep

    keep(context.obj.invocation(), job, status=status)


@command(app, "submit", "clusterctl submit workspace --to slurm --nodes 4 --time 2:00:00", panel=RUN)
def submit(
    context: typer.Context,
    workspace: Annotated[Path, typer.Argument(metavar="WORKSPACE", help="The directory to send.")] = Path("workspace"),
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="SCHEDULER",
            help="The scheduler: slurm or kubernetes.",
            autocompletion=completion.one_of("slurm", "kubernetes"),
        ),
    ] = "slurm",
    nodes: Annotated[int | None, typer.Option("--nodes", metavar="N", help="The number of nodes.")] = None,
    time: Annotated[
        str | None, typer.Option("--time", metavar="TIME", help="The time limit: minutes, 2:00:00 or 1-12:00:00.")
    ] = None,
    requeue: Annotated[
        bool, typer.Option("--requeue", help="Queue it again before its time ends, and resume.")
    ] = False,
    image: ImageOption = None,
    namespace: NamespaceOption = None,
    storage: StorageOption = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print the script or manifest; submit nothing.")] = False,
) -> None:
    """Submit a job to Slurm, which starts it once there are nodes, or make pods in Kubernetes and start it on them.

    Everything after -- goes to the training program.
    """
    from clusterctl.cli.commands.submit import submit

    submit(
        context.obj.invocation(),
        workspace,
        to=to,
        nodes=nodes,
        time=time,
        requeue=requeue,
        image=image,
        namespace=namespace,
        storage=storage,
        plan=plan,
    )


@command(app, "status", "clusterctl status --watch", panel=LOOK)
def status(
    context: typer.Context,
    job: RunArgument = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh until the run ends; Ctrl-C does not stop the run.")
    ] = False,
) -> None:
    """Show every process of the newest run."""
    from clusterctl.cli.commands.status import status

    status(context.obj.invocation(), job, watch=watch)


@command(app, "jobs", "clusterctl jobs", panel=LOOK)
def jobs(context: typer.Context) -> None:
    """List the jobs and runs on the nodes, newest first."""
    from clusterctl.cli.commands.jobs import jobs

    jobs(context.obj.invocation())


@command(app, "logs", "clusterctl logs -f --role trainer --grep perplexity", panel=LOOK)
def logs(
    context: typer.Context,
    job: RunArgument = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until the run ends.")] = False,
    role: RoleOption = None,
    rank: Annotated[int | None, typer.Option("--rank", metavar="N", help="Only this rank.")] = None,
    node: Annotated[
        str | None,
        typer.Option(
            "--node", metavar="TEXT", help="Only these nodes; same as --only.", autocompletion=completion.nodes
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TEXT", help="Lines since 90s, 5m or 2h ago, or since 2026-11-21T08:15."),
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", min=0, metavar="N", help="Last N lines of each process.")
    ] = None,
    grep: Annotated[str | None, typer.Option("--grep", metavar="TEXT", help="Only lines matching this regex.")] = None,
    fold: Annotated[bool, typer.Option("--fold", help="Show identical lines of several processes once.")] = False,
) -> None:
    """Show the logs of all processes, labelled, in time order."""
    from clusterctl.cli.commands.logs import logs

    logs(
        context.obj.invocation(),
        job,
        follow=follow,
        role=role,
        rank=rank,
        node=node,
        since=since,
        tail=tail,
        grep=grep,
        fold=fold,
    )


@command(app, "why", "clusterctl why", panel=LOOK)
def why(context: typer.Context, job: RunArgument = None) -> None:
    """Find the first cause of a failure across all nodes, and suggest what to do."""
    from clusterctl.cli.commands.why import why

    why(context.obj.invocation(), job)


@command(app, "save", "clusterctl save", panel=RUN)
def save(
    context: typer.Context,
    job: JobArgument = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, metavar="SECONDS", help="Give up if it is not complete by then.")
    ] = 300.0,
) -> None:
    """Save a checkpoint of the running job now, and wait until it is complete."""
    from clusterctl.cli.commands.save import save

    save(context.obj.invocation(), job, timeout_s=timeout)


@command(app, "stop", "clusterctl stop", panel=RUN)
def stop(
    context: typer.Context,
    job: JobArgument = None,
    delete: DeleteOption = False,
) -> None:
    """Stop every process of a job and verify that none is left."""
    if delete:
        from clusterctl.cli.commands.kubernetes import stop_and_delete

        stop_and_delete(context.obj.invocation(), job)
        return
    from clusterctl.cli.commands.stop import stop

    stop(context.obj.invocation(), job)


@command(app, "split", "clusterctl split data/train.txt --count 16", panel=PREPARE)
def split_file(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Data file of records; .gz is decompressed.")],
    count: Annotated[
        int,
        typer.Option(
            "--count", "-n", min=1, max=100_000, metavar="N", help="Number of shards, usually one per trainer."
        ),
    ],
    delimiter: Annotated[
        str, typer.Option("--delimiter", metavar="TEXT", help=r"Record terminator: \n, \n\n, \0, \x1e.")
    ] = r"\n",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Default: directory of FILE.")
    ] = None,
    header: Annotated[
        bool, typer.Option("--header", help="The first record is a header: every shard begins with it.")
    ] = False,
) -> None:
    """Split a data file into shards, record by record."""
    from clusterctl.cli.commands.split import split

    split(context.obj.console, file, count, delimiter, output, has_a_header=header)


@command(app, "collect", "clusterctl collect -o results", panel=LOOK)
def collect(
    context: typer.Context,
    job: RunArgument = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="DIR", help="Default: ./JOB...")] = None,
    run: RunOption = None,
    tag: Annotated[
        str | None,
        typer.Option("--tag", metavar="TEXT", help="This model instead of the newest.", autocompletion=completion.tags),
    ] = None,
    of_pass: Annotated[int | None, typer.Option("--pass", min=0, metavar="N", help="The model of this pass.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every model, not only the newest.")] = False,
) -> None:
    """Download logs, outputs and the newest model, verify them, and merge the model."""
    from clusterctl.cli.commands.collect import collect

    collect(context.obj.invocation(), job, output, run=run, tag=tag, of_pass=of_pass, every=every)


@command(app, "demo", "clusterctl demo", panel=MORE)
def demo(
    context: typer.Context,
    nodes: Annotated[int, typer.Option("-n", "--nodes", min=1, max=16, metavar="N", help="Number of fake nodes.")] = 4,
    passes: Annotated[int, typer.Option("--passes", min=1, max=50, metavar="N", help="Passes over the data.")] = 4,
    backend: BackendOption = "embedded",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", "--dir", metavar="DIR", help="Directory for the results.")
    ] = None,
) -> None:
    """Train a real model on a fake cluster on this machine."""
    from clusterctl.cli.commands.demo import demo

    demo(context.obj.invocation(), nodes, passes, backend, output)
