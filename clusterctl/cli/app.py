"""The commands, their options and their help. What they do is imported when they are called: `--help` is quick."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.exceptions import TyperException

from clusterctl import __version__
from clusterctl.cli import INTERRUPTED
from clusterctl.cli.arguments import Arguments, split, take_program_options
from clusterctl.cli.console import Console, exit_code
from clusterctl.cli.session import Session, fail_on_broken_pipe
from clusterctl.errors import ClusterctlError, InterruptedRun, UsageError

Function = TypeVar("Function", bound=Callable[..., Any])
GLOBAL_HELP = (
    "Options of every command: --conf PATH (default conf.py, or CLUSTERCTL_CONF), --only NODESET (node[0-3], host "
    "names, tags), --json, --quiet, --verbose."
)
app = typer.Typer(
    name="clusterctl",
    help="Train models on plain SSH machines.",
    epilog=GLOBAL_HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
fake_app = typer.Typer(
    help="A fake cluster on this machine: no root, no sshd, no Docker.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(fake_app, name="fake")

JobArgument = Annotated[
    str | None, typer.Argument(metavar="JOB", help="An id, its unique prefix, or its directory. Default: newest.")
]
RoleOption = Annotated[str | None, typer.Option("--role", help="pserver or trainer.")]
FakeDir = Annotated[Path, typer.Option("--dir", help="Where it lives.")]


def _version(value: bool) -> None:
    if value:
        print(f"clusterctl {__version__}")
        raise typer.Exit


@app.callback()
def _global(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def command(group: typer.Typer, name: str, example: str) -> Callable[[Function], Function]:
    """Registers a command with an example in its help."""
    return group.command(name, epilog=f"\b\nExample: {example}\n\n{GLOBAL_HELP}")


@command(app, "init", "clusterctl init mnist && cd mnist")
def init(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Made if missing.")] = Path(),
) -> None:
    """Write a conf.py and a workspace to begin with."""
    from clusterctl.cli.commands.local import init

    init(context.obj, directory)


@command(app, "trust", "clusterctl trust --yes")
def trust(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Record unknown keys without asking.")] = False,
) -> None:
    """Show the hosts' keys, and record those that you accept."""
    from clusterctl.cli.commands.trust import trust

    trust(context.obj, yes=yes)


@command(app, "dispatch", "clusterctl dispatch workspace")
def dispatch(
    context: typer.Context,
    workspace: Annotated[Path, typer.Argument(metavar="WORKSPACE", help="The directory to send.")] = Path("workspace"),
) -> None:
    """Send the workspace to all nodes; print the job directory."""
    from clusterctl.cli.commands.dispatch import dispatch

    dispatch(context.obj, workspace)


@command(app, "start", "clusterctl start --job_workspace JOB20261121-081530 -- --num_passes=5")
def start(
    context: typer.Context,
    job_workspace: Annotated[
        str | None,
        typer.Option("--job_workspace", "--job-workspace", metavar="DIR", help="A dispatched job: directory or id."),
    ] = None,
    job_dispatch_package: Annotated[
        Path | None,
        typer.Option(
            "--job_dispatch_package",
            "--job-dispatch-package",
            metavar="WORKSPACE",
            help="Dispatch this, then start it.",
        ),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return when all processes run.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Print what would run where, and do nothing.")] = False,
) -> None:
    """Start a run on all nodes and follow it.

    Ctrl-C stops it everywhere.

    Everything after -- and any unknown --key=value goes to the training program.
    """
    from clusterctl.cli.commands.start import start

    start(context.obj, job_workspace, job_dispatch_package, detach=detach, plan=plan)


@command(app, "status", "clusterctl status --watch")
def status(
    context: typer.Context,
    job: JobArgument = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Until the run ends; Ctrl-C only leaves.")] = False,
) -> None:
    """Show every process of the newest run."""
    from clusterctl.cli.commands.status import status

    status(context.obj, job, watch=watch)


@command(app, "jobs", "clusterctl jobs")
def jobs(context: typer.Context) -> None:
    """List jobs and runs found on the nodes, newest first."""
    from clusterctl.cli.commands.status import jobs

    jobs(context.obj)


@command(app, "logs", "clusterctl logs -f --role trainer --grep perplexity")
def logs(
    context: typer.Context,
    job: JobArgument = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come, until the run ends.")] = False,
    role: RoleOption = None,
    rank: Annotated[int | None, typer.Option("--rank", help="Only this rank.")] = None,
    node: Annotated[str | None, typer.Option("--node", help="Only these nodes; same as --only.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="90s, 5m, 2h, or 2026-11-21T08:15.")] = None,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="The last N lines of each.")] = None,
    grep: Annotated[str | None, typer.Option("--grep", help="Only lines that match this.")] = None,
    fold: Annotated[bool, typer.Option("--fold", help="Show lines that many processes wrote once.")] = False,
) -> None:
    """Show the logs of all processes, labelled, in time order."""
    from clusterctl.cli.commands.logs import logs

    logs(context.obj, job, follow=follow, role=role, rank=rank, node=node, since=since, tail=tail, grep=grep, fold=fold)


@command(app, "stop", "clusterctl stop")
def stop(context: typer.Context, job: JobArgument = None) -> None:
    """End everything of a job; prove that nothing is left."""
    from clusterctl.cli.commands.stop import stop

    stop(context.obj, job)


@command(app, "collect", "clusterctl collect -o results")
def collect(
    context: typer.Context,
    job: JobArgument = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="DIR", help="Default: ./JOB...")] = None,
) -> None:
    """Bring logs and outputs home, checked, and merge the model."""
    from clusterctl.cli.commands.collect import collect

    collect(context.obj, job, output)


@command(app, "exec", "clusterctl exec -- df -h .")
def exec_(context: typer.Context) -> None:
    """Run a command on the nodes, output folded.

    One word after -- is a shell command line ('ls | wc -l'); several are a program and its arguments.
    """
    from clusterctl.cli.commands.exec import exec_

    exec_(context.obj)


@command(fake_app, "up", "clusterctl fake up -n 4 --dir fake")
def fake_up(
    context: typer.Context,
    nodes: Annotated[int, typer.Option("-n", "--nodes", min=1, max=1000, help="How many nodes.")] = 4,
    directory: FakeDir = Path("fake"),
) -> None:
    """Start one, and write a conf.py for it."""
    from clusterctl.cli.commands.fake import up

    up(context.obj, nodes, directory)


@command(fake_app, "down", "clusterctl fake down --dir fake")
def fake_down(context: typer.Context, directory: FakeDir = Path("fake")) -> None:
    """End it and every process on it, and remove its nodes."""
    from clusterctl.cli.commands.fake import down

    down(context.obj, directory)


@command(fake_app, "status", "clusterctl fake status --dir fake")
def fake_status(context: typer.Context, directory: FakeDir = Path("fake")) -> None:
    """Show its nodes."""
    from clusterctl.cli.commands.fake import status

    status(context.obj, directory)


@command(app, "demo", "clusterctl demo")
def demo(
    context: typer.Context,
    nodes: Annotated[int, typer.Option("-n", "--nodes", min=1, max=16, help="How many fake nodes.")] = 4,
    passes: Annotated[int, typer.Option("--passes", min=1, max=50, help="How often over the data.")] = 4,
    directory: Annotated[Path | None, typer.Option("--dir", help="Where results go.")] = None,
) -> None:
    """Train a real model on a fake cluster, here and now."""
    from clusterctl.cli.commands.demo import demo

    demo(context.obj, nodes, passes, directory)


START_OPTIONS = (
    "--job_workspace",
    "--job-workspace",
    "--job_dispatch_package",
    "--job-dispatch-package",
    "--detach",
    "--plan",
    "--help",
    "--conf",
    "--only",
    "--json",
    "--quiet",
    "--verbose",
    "--version",
)
TAKES_PROGRAM = ("start", "exec")
NOT_YET = ("check", "setup", "why", "report", "prune")


def parse(argv: list[str]) -> Arguments:
    """The command line, with what is the training program's taken out."""
    arguments = split(argv)
    name = next((word for word in arguments.ours if not word.startswith("-")), None)
    if name in NOT_YET:
        raise UsageError(f"{name} is not in this version", hint="clusterctl --help lists what is")
    if name == "exec" and not arguments.program and not {"-h", "--help"} & set(arguments.ours):
        words = " ".join(word for word in arguments.ours if word != "exec") or "uptime"
        raise UsageError("exec needs a command after --", hint=f"clusterctl exec -- {words}")
    if name == "start":
        arguments.ours, options = take_program_options(arguments.ours, START_OPTIONS)
        arguments.program = [*options, *arguments.program]
    elif name not in TAKES_PROGRAM and arguments.program:
        raise UsageError(f"{name or 'clusterctl'} takes nothing after --", hint="start and exec do")
    return arguments


def run(argv: list[str] | None = None) -> int:
    """Runs one command, and returns the exit code of the process."""
    argv = sys.argv[1:] if argv is None else argv
    arguments = Arguments()
    arguments.options.json = "--json" in argv[: argv.index("--") if "--" in argv else None]
    console = Console(arguments.options)
    try:
        arguments = parse(argv)
        session = Session(arguments.options, arguments.program)
        console = session.console
        code = app(args=arguments.ours, prog_name="clusterctl", standalone_mode=False, obj=session)
        if code == INTERRUPTED:  # typer made it of a KeyboardInterrupt
            raise KeyboardInterrupt
    except ClusterctlError as exc:
        console.error(exc)
        code = exit_code(exc)
    except TyperException as exc:
        console.error(_usage_error(exc, arguments))
        code = UsageError.exit_code
    except (KeyboardInterrupt, typer.Abort):
        console.error(InterruptedRun("interrupted"))
        code = INTERRUPTED
    except BrokenPipeError:
        fail_on_broken_pipe()
        code = 141
    except OSError as exc:
        console.error(ClusterctlError(f"{exc.strerror or exc}" + (f": {exc.filename}" if exc.filename else "")))
        code = ClusterctlError.exit_code
    return code if isinstance(code, int) else 0


def _usage_error(exc: TyperException, arguments: Arguments) -> UsageError:
    message = exc.format_message()
    if type(exc).__name__ == "NoArgsIsHelpError":  # the message is the help
        return UsageError(message)
    hint = "clusterctl --help"
    if arguments.ours[:1] == ["start"] and "extra argument" in message:
        hint = "--job_workspace JOB starts a dispatched job, --job_dispatch_package WORKSPACE sends one first"
    return UsageError(message, hint=hint)
