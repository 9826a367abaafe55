"""Our additions to typer: an invalid command line is a UsageError with our message and a suggestion."""

from __future__ import annotations

import inspect
import io
import os
import sys
from collections.abc import Callable, MutableMapping
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, TypeVar, cast

import typer
from typer.core import TyperCommand, TyperGroup

from clusterctl.cli.arguments import suggest
from clusterctl.cli.completion import ASKS
from clusterctl.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])
GLOBAL_HELP = (
    "Global options: --conf PATH (default: CLUSTERCTL_CONF, else conf.py), --only NODESET (node[0-3], host names, "
    "tags, failed@last), --json, --quiet, --verbose."
)
# click's UsageError; typer bundles its own copy of click and does not export this class
ParserError = cast("type[Exception]", typer.BadParameter.__base__)
AFTER_OURS = f"{__name__}.after_ours"  # in the `meta` of a context: the arguments are those of another program
OTHERS = "Commands"  # the heading of commands without a panel
STRAY_HINTS = {
    "start": "--job_workspace JOB starts a dispatched job; --job_dispatch_package WORKSPACE dispatches one first",
    "task": "put the arguments of the task after --",
}


class Command(TyperCommand):
    """One command."""

    allow_extra_args = True  # refused here, with a hint

    def get_params(self, ctx: Any) -> Any:
        """Return the options and arguments; for a shell that asks, the global options too, and none after `--`."""
        params = super().get_params(ctx)
        if not ctx.resilient_parsing:
            return params
        more = [param for param in ctx.find_root().command.params if not param.name.endswith("_completion")]
        return [] if ctx.meta.get(AFTER_OURS) else [*params, *more]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        shown = [param for param in self.get_params(ctx) if not getattr(param, "hidden", False)]
        return [self.options_metavar or "", *(piece for param in shown for piece in param.get_usage_pieces(ctx))]

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return the options that fit; all of them for an empty word, which no argument is left to take."""
        return super().shell_complete(ctx, incomplete or "--")

    def invoke(self, ctx: Any) -> Any:
        """Check conf.py, then call the function, which loads the command. The command line is valid."""
        ctx.obj.check_conf(overridden=bool(ctx.params.get("engine") or ctx.params.get("settings")))
        return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:
            ctx.meta[AFTER_OURS] = "--" in args
            if any(args[-1:] == [name] for param in self.get_params(ctx) if _has_value(param) for name in param.opts):
                args = args[:-1]  # its value is being typed; without it, typer would not parse the arguments
        try:
            rest = super().parse_args(ctx, args)
        except ParserError as exc:
            raise _usage_error(exc, ctx) from exc
        if rest and not ctx.resilient_parsing:
            hint = STRAY_HINTS.get(ctx.info_name, f"{ctx.command_path} --help")
            raise UsageError(f"{ctx.command_path}: unexpected argument {rest[0]!r}", hint=hint)
        return rest


class CommandGroup(TyperGroup):
    """A group of commands. Without a command it raises its help as a UsageError."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            raise UsageError(ctx.get_help())
        try:
            return super().parse_args(ctx, args)
        except ParserError as exc:
            raise _usage_error(exc, ctx) from exc

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands by their panels, in the order of the first of each; those without one come last."""
        panels: dict[str, list[Any]] = {}
        for name in self.list_commands(ctx):
            command = self.commands[name]
            if not command.hidden:
                panel = getattr(command, "rich_help_panel", None)
                panels.setdefault(panel if isinstance(panel, str) else OTHERS, []).append((name, command))
        width = max((len(name) for some in panels.values() for name, _ in some), default=0)
        limit = formatter.width - 6 - width
        for panel in sorted(panels, key=lambda one: one == OTHERS):
            with formatter.section(panel):
                formatter.write_dl([(f"{name:<{width}}", one.get_short_help_str(limit)) for name, one in panels[panel]])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is None and not ctx.resilient_parsing:
            hint = f"{suggest(cmd_name, self.commands)}{ctx.command_path} --help"
            raise UsageError(f"{cmd_name} is not a command of {ctx.command_path}", hint=hint)
        return command


def command(
    group: typer.Typer, name: str, example: str, *, panel: str | None = None, hidden: bool = False
) -> Callable[[Function], Function]:
    """Register a function as a command, with an example for its help. A hidden one is in no list of commands.

    `panel` is the heading under which it is listed.
    """

    def register(function: Function) -> Function:
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        epilog = f"\b\nExample: {example}\n\n{GLOBAL_HELP}"
        options: Any = {"rich_help_panel": panel, "hidden": hidden}
        return group.command(name, cls=Command, short_help=summary, epilog=epilog, **options)(function)

    return register


def complete(app: typer.Typer, name: str) -> int:
    """Answer a shell that asks for completions through the environment, as typer's scripts do; return the exit code.

    The scripts of older versions ask otherwise, and get nothing.
    """
    if "_" not in os.environ[ASKS]:
        return 0
    sys.modules["rich"] = None  # type: ignore[assignment]  # typer would import it, for 100 ms, to render each help
    answer, code = io.StringIO(), 0
    with redirect_stdout(answer), redirect_stderr(io.StringIO()):
        try:
            before = _join_arguments(os.environ)
            typer.main.get_command(app).main(args=[], prog_name=name)
        except SystemExit as exc:  # fish asks for the code
            code = int(exc.code or 0)
    for line in filter(None, answer.getvalue().splitlines()):
        print(line.removeprefix(before))
    return code


def _join_arguments(environ: MutableMapping[str, str]) -> str:
    """Join the words that bash divides at `=`; return what stays of the last one, as bash replaces only its end."""
    words = environ.get("COMP_WORDS", "").split("\n")[: int(environ.get("COMP_CWORD", 0)) + 1]
    joined: list[str] = []
    for word in words:
        if joined and (word == "=" or joined[-1].endswith("=")):
            joined[-1] += word
        else:
            joined.append(word)
    environ.update(COMP_WORDS="\n".join(joined), COMP_CWORD=str(len(joined) - 1))
    return joined[-1][: joined[-1].rfind("=") + 1]


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


def _has_value(param: Any) -> bool:
    return param.param_type_name == "option" and not param.is_flag


def _label(param: Any) -> str:
    return str(param.opts[0] if param.param_type_name == "option" else param.metavar)


def _bad_number(exc: Any) -> str:
    """Describe a bad value, which is always a number: the commands check all others themselves."""
    value, _, _ = exc.message.partition(" is not ")
    if "in the range" not in exc.message:
        return f"must be a whole number, not {value}"
    low, high = exc.param.type.min, exc.param.type.max
    return f"must be at least {low}, not {value}" if high is None else f"must be {low} to {high}, not {value}"
