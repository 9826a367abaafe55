"""Our additions to typer: an invalid command line is a UsageError with our message and a suggestion."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import typer
from typer.core import TyperCommand, TyperGroup

from clusterctl.cli.arguments import suggest
from clusterctl.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])
GLOBAL_HELP = (
    "Global options: --conf PATH (default: CLUSTERCTL_CONF, else conf.py), --only NODESET (node[0-3], host names, "
    "tags, failed@last), --json, --quiet, --verbose."
)
# click's UsageError; typer bundles its own copy of click and does not export this class
ParserError = cast("type[Exception]", typer.BadParameter.__base__)
STRAY_HINTS = {
    "start": "--job_workspace JOB starts a dispatched job; --job_dispatch_package WORKSPACE dispatches one first",
    "task": "put the arguments of the task after --",
}


class Command(TyperCommand):
    """One command."""

    allow_extra_args = True  # refused here, with a hint

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            rest = super().parse_args(ctx, args)
        except ParserError as exc:
            raise _usage_error(exc, ctx) from exc
        if rest and not ctx.resilient_parsing:
            hint = STRAY_HINTS.get(ctx.info_name, f"{ctx.command_path} --help")
            raise UsageError(f"{ctx.command_path}: unexpected argument {rest[0]!r}", hint=hint)
        return rest


class Group(TyperGroup):
    """A group of commands. Without a command it raises its help as a UsageError."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            raise UsageError(ctx.get_help())
        try:
            return super().parse_args(ctx, args)
        except ParserError as exc:
            raise _usage_error(exc, ctx) from exc

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is None and not ctx.resilient_parsing:
            hint = f"{suggest(cmd_name, self.commands)}{ctx.command_path} --help"
            raise UsageError(f"{cmd_name} is not a command of {ctx.command_path}", hint=hint)
        return command


def command(group: typer.Typer, name: str, example: str, *, hidden: bool = False) -> Callable[[Function], Function]:
    """Register a function as a command, with an example for its help. A hidden one is in no list of commands."""

    def register(function: Function) -> Function:
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        epilog = f"\b\nExample: {example}\n\n{GLOBAL_HELP}"
        return group.command(name, cls=Command, short_help=summary, epilog=epilog, hidden=hidden)(function)

    return register


def use_scripts(scripts: Mapping[str, str]) -> None:
    """Replace the scripts that typer's `--install-completion` installs for these shells."""
    from typer import _completion_shared

    for shell, script in scripts.items():
        _completion_shared._completion_scripts[shell] = script.replace("%", "%%")  # typer replaces names in it


def _usage_error(exc: Any, ctx: Any) -> UsageError:
    """Translate a ParserError of the command of `ctx`."""
    path = ctx.command_path
    hint = f"{path} --help"
    option = getattr(exc, "option_name", "")
    match type(exc).__name__:
        case "NoSuchOption":
            known = [name for param in ctx.command.params for name in (*param.opts, *param.secondary_opts)]
            hint = STRAY_HINTS["task"] if ctx.info_name == "task" else hint
            return UsageError(f"{option} is not an option of {path}", hint=suggest(option, known) + hint)
        case "BadOptionUsage":
            problem = "takes no value" if "not take a value" in exc.message else "needs a value"
            return UsageError(f"{option} {problem}", hint=hint)
        case "MissingParameter":
            return UsageError(f"{path} needs {_label(exc.param)}", hint=hint)
        case "BadParameter":
            return UsageError(f"{_label(exc.param)} {_bad_number(exc)}")
    return UsageError(exc.format_message(), hint=hint)


def _label(param: Any) -> str:
    return str(param.opts[0] if param.param_type_name == "option" else param.metavar)


def _bad_number(exc: Any) -> str:
    """Describe a bad value, which is always a number: the commands check all others themselves."""
    value, _, _ = exc.message.partition(" is not ")
    if "in the range" not in exc.message:
        return f"must be a whole number, not {value}"
    low, high = exc.param.type.min, exc.param.type.max
    return f"must be at least {low}, not {value}" if high is None else f"must be {low} to {high}, not {value}"
