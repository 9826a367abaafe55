"""One call of the program: parse the command line, run the command, and turn its end into an exit code."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from copy import copy
from itertools import takewhile
from pathlib import Path

import typer

from clusterctl import __version__
from clusterctl.cli.arguments import Arguments, split, take_program_options
from clusterctl.cli.call import CommandLine
from clusterctl.cli.console import Console
from clusterctl.cli.declarations import NAME, app
from clusterctl.cli.hints import READ_CONF
from clusterctl.common.tree import shortened
from clusterctl.errors import ClusterctlError, InterruptedRun, UsageError

START_OPTIONS = (
    "--job_workspace",
    "--job-workspace",
    "--job_dispatch_package",
    "--job-dispatch-package",
    "--name",
    "--engine",
    "--set",
    "--resume",
    "--resume-from",
    "--load",
    "--load-run",
    "--load-tag",
    "--rejoin",
    "--keep",
    "--adopt",
    "--detach",
    "--plan",
    "--allow-partial",
    "--help",
    "--conf",
    "--only",
    "--json",
    "--quiet",
    "--verbose",
    "--version",
)
TAKES_PROGRAM = ("start", "submit", "exec", "task")


def parse(argv: list[str]) -> Arguments:
    """Parse the command line and separate the arguments of the training program."""
    return checked(split(argv))


def command_name(arguments: Arguments) -> str | None:
    return next((word for word in arguments.ours if not word.startswith("-")), None)


def checked(arguments: Arguments) -> Arguments:
    """Separate the arguments of the training program. Raises UsageError for a command that takes none."""
    name = command_name(arguments)
    if name == "exec" and not arguments.program and not {"-h", "--help"} & set(arguments.ours):
        words = [word for word in arguments.ours if word != "exec"]
        options = list(takewhile(lambda word: word.startswith("-"), words))
        hint = " ".join([*options, "--", *(words[len(options) :] or ["uptime"])])
        raise UsageError("exec needs a command after --", hint=f"clusterctl exec {hint}")
    if name == "start":
        arguments.ours, options = take_program_options(arguments.ours, START_OPTIONS)
        if options:
            arguments.program = [*options, *(arguments.program or [])]
    elif name not in TAKES_PROGRAM and arguments.program:
        raise UsageError(
            f"{name or 'clusterctl'} takes no arguments after --", hint="only start, submit, exec and task do"
        )
    return arguments


def call(words: Sequence[str], asked: CommandLine) -> None:
    """Run the command that `words` name, or show help. Raises UsageError for an invalid command line."""
    group = typer.main.get_command(_only(words[0]) if words else app)
    try:
        with group.make_context(NAME, list(words), obj=asked) as context:  # `main` would swallow interrupts
            group.invoke(context)
    except typer.Exit:  # help was shown
        pass


def _only(name: str) -> typer.Typer:
    """Return the app with only the command `name`, or with all if it is unknown; typer prepares every command."""
    reduced = copy(app)
    reduced.registered_commands = [info for info in app.registered_commands if info.name == name]
    reduced.registered_groups = [info for info in app.registered_groups if info.name == name]
    return reduced if reduced.registered_commands or reduced.registered_groups else app


def run(argv: list[str] | None = None) -> int:
    """Run one command and return the exit code of the process."""
    argv = sys.argv[1:] if argv is None else argv
    arguments = Arguments()
    arguments.options.json = "--json" in argv[: argv.index("--") if "--" in argv else None]
    console = Console(arguments.options)
    asked: CommandLine | None = None
    try:
        arguments = split(argv)
        reads_conf = command_name(arguments) in READ_CONF
        console = Console(arguments.options, reads_conf=reads_conf)
        arguments = checked(arguments)
        if "--version" in arguments.ours:
            print(f"{NAME} {__version__}")
            return 0
        asked = CommandLine(arguments.options, arguments.program, console, reads_conf=reads_conf)
        call(arguments.ours, asked)
        code = 0
        asked.remember(None)
    except ClusterctlError as exc:
        if asked is not None:
            asked.remember(exc)
        code = console.error(exc)
    except (KeyboardInterrupt, EOFError):
        console.error(InterruptedRun("interrupted"))
        code = InterruptedRun.exit_code
    except BrokenPipeError:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - the flush at exit must not fail
        code = 141
    except OSError as exc:
        error = _of_system(exc)
        console.error(error)
        code = error.exit_code
    except Exception as exc:  # noqa: BLE001 - its text may come from a node and contain escape sequences
        console.traceback(exc)
        hint = "a bug in clusterctl or a malformed answer from a node; the traceback above shows where it surfaced"
        console.error(ClusterctlError(f"{type(exc).__name__}: {exc}", hint=hint))
        code = ClusterctlError.exit_code
    return code


def _of_system(exc: OSError) -> ClusterctlError:
    """Return a system error for the user. A path that is too long came from the command line."""
    about = f"{exc.strerror or exc}" + (f": {shortened(str(exc.filename))}" if exc.filename else "")
    if exc.errno == errno.ENAMETOOLONG:
        return UsageError(about, hint="shorten the path")
    return ClusterctlError(about)
