"""Commands declared by annotated functions, and the parser and the help that follow from them.

A parameter is `name: Annotated[type, Option("--name", "-n", help=...)] = default` or `Annotated[type, Argument(...)]`;
types are str, int, Path and bool, each also with None. A bool is a flag. The first parameter takes the `Context`.
Nothing is imported for it that the rest of the program does not need: the command line must start fast.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, TypeVar, get_args

from clusterctl.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])
HELP = ("-h", "--help")
INDENT = 2
HELP_COLUMN = 26


class Context(NamedTuple):
    """What a command is called with: `obj` is what `Group.run` was given."""

    obj: Any


class Option:
    """`names` are all spellings; a flag may have an opposite: `--fold/--no-fold`. Numbers may have bounds."""

    def __init__(
        self, *names: str, help: str, metavar: str | None = None, min: int | None = None, max: int | None = None
    ) -> None:
        self.names = tuple(name.partition("/")[0] for name in names)
        self.opposites = tuple(name.partition("/")[2] for name in names if "/" in name)
        self.help = help
        self.metavar = metavar
        self.bounds = (min, max)


class Argument:
    """A word that is no option."""

    def __init__(self, *, metavar: str, help: str) -> None:
        self.metavar = metavar
        self.help = help
        self.bounds = (None, None)


class Parameter:
    """One option or argument of a command."""

    def __init__(self, parameter: inspect.Parameter) -> None:
        self.name = parameter.name
        self.declared: Option | Argument = parameter.annotation.__metadata__[0]
        hint = parameter.annotation.__origin__
        self.kind: type = next((one for one in get_args(hint) if one is not NoneType), hint)
        self.required = parameter.default is inspect.Parameter.empty

    @property
    def opts(self) -> tuple[str, ...]:
        """All spellings of an option; none for an argument."""
        return (*self.declared.names, *self.declared.opposites) if isinstance(self.declared, Option) else ()

    @property
    def label(self) -> str:
        """How messages name it."""
        return self.declared.names[0] if isinstance(self.declared, Option) else self.declared.metavar

    @property
    def usage(self) -> str:
        """How help shows it."""
        if isinstance(self.declared, Argument):
            return self.declared.metavar
        metavar = self.declared.metavar or {int: "N", Path: "PATH"}.get(self.kind, "TEXT")
        return ", ".join(self.opts) + ("" if self.kind is bool else f" {metavar}")

    def convert(self, text: str) -> Any:
        """Raises UsageError for what is no number, or out of bounds."""
        if self.kind is not int:
            return self.kind(text)
        try:
            number = int(text)
        except ValueError:
            raise UsageError(f"{self.label} {text!r} is not a whole number") from None
        low, high = self.declared.bounds
        if (low is not None and number < low) or (high is not None and number > high):
            allowed = f"at least {low}" if high is None else f"{low} to {high}"
            raise UsageError(f"{self.label} {number} must be {allowed}")
        return number


class Command:
    """A function with its name, an example for its help, and what to say of a word too many."""

    def __init__(self, function: Callable[..., Any], path: str, epilog: str, stray_hint: str | None) -> None:
        self.function = function
        self.path = path
        self.epilog = epilog
        self.stray_hint = stray_hint

    @property
    def help(self) -> str:
        return inspect.getdoc(self.function) or ""

    @property
    def params(self) -> list[Parameter]:
        parameters = list(inspect.signature(self.function, eval_str=True).parameters.values())
        return [Parameter(parameter) for parameter in parameters[1:]]

    def run(self, words: Sequence[str], obj: Any) -> None:
        params = self.params
        if set(HELP) & set(words):
            print(self._help_page(params))
            return
        self.function(Context(obj), **self.parse(words, params))

    def parse(self, words: Sequence[str], params: Sequence[Parameter]) -> dict[str, Any]:
        """The values of the parameters that the words give. Raises UsageError for any word that is none of ours."""
        places = [param for param in params if isinstance(param.declared, Argument)]
        values: dict[str, Any] = {}
        rest = list(words)
        while rest:
            word = rest.pop(0)
            if word.startswith("-") and word != "-":
                self._take_option(word, rest, params, values)
            elif places:
                place = places.pop(0)
                values[place.name] = place.convert(word)
            else:
                raise UsageError(f"{self.path} takes no further {word!r}", hint=self.stray_hint or self._see)
        for param in params:
            if param.required and param.name not in values:
                raise UsageError(f"{self.path} needs {param.label}", hint=self._see)
        return values

    @property
    def _see(self) -> str:
        return f"{self.path} --help"

    def _take_option(self, word: str, rest: list[str], params: Sequence[Parameter], values: dict[str, Any]) -> None:
        """Reads one option, and its value from `rest` where that is the next word; puts joined short flags back."""
        long = word.startswith("--")
        name, equals, text = word.partition("=") if long else (word[:2], word[2:], word[2:])
        param = next((param for param in params if name in param.opts), None)
        if param is None:
            from clusterctl.cli.arguments import suggest

            known = [opt for param in params for opt in param.opts]
            raise UsageError(f"{name} is not an option of {self.path}", hint=suggest(name, known) + self._see)
        if param.kind is bool:
            if long and equals:
                raise UsageError(f"{name} takes no value", hint=self._see)
            if text:
                rest.insert(0, f"-{text}")
            values[param.name] = not (isinstance(param.declared, Option) and name in param.declared.opposites)
            return
        if not equals and not rest:
            raise UsageError(f"{name} needs a value", hint=self._see)
        values[param.name] = param.convert(text if equals else rest.pop(0))

    def _help_page(self, params: Sequence[Parameter]) -> str:
        arguments = [param for param in params if isinstance(param.declared, Argument)]
        options = [param for param in params if isinstance(param.declared, Option)]
        words = [param.label if param.required else f"[{param.label}]" for param in arguments]
        return _page(
            " ".join([self.path, "[OPTIONS]", *words]),
            self.help,
            {
                "Arguments": [(param.usage, param.declared.help) for param in arguments],
                "Options": [
                    *[(param.usage, param.declared.help) for param in options],
                    (", ".join(HELP), "Show this and exit."),
                ],
            },
            self.epilog,
        )


class Group:
    """Commands by name, and groups of them."""

    def __init__(self, path: str, help: str, epilog: str = "", options: Sequence[tuple[str, str]] = ()) -> None:
        self.path = path
        self.help = help
        self.epilog = epilog
        self.options = options
        self.commands: dict[str, Command | Group] = {}

    def add(self, name: str, help: str) -> Group:
        group = Group(f"{self.path} {name}", help, self.epilog)
        self.commands[name] = group
        return group

    def command(self, name: str, example: str, stray_hint: str | None = None) -> Callable[[Function], Function]:
        """Registers a function as a command, with an example for its help."""

        def register(function: Function) -> Function:
            epilog = f"Example: {example}\n\n{self.epilog}"
            self.commands[name] = Command(function, f"{self.path} {name}", epilog, stray_hint)
            return function

        return register

    def run(self, words: Sequence[str], obj: Any) -> None:
        """Calls the command that the words name, or prints help. Raises UsageError where they make no sense."""
        if not words:
            raise UsageError(self._help_page())
        name, *rest = words
        if name in HELP:
            print(self._help_page())
            return
        if name not in self.commands:
            from clusterctl.cli.arguments import suggest

            what = "an option" if name.startswith("-") else "a command"
            hint = suggest(name, list(self.commands)) + f"{self.path} --help"
            raise UsageError(f"{name} is not {what} of {self.path}", hint=hint)
        self.commands[name].run(rest, obj)

    def _help_page(self) -> str:
        commands = [(name, command.help.partition("\n")[0]) for name, command in self.commands.items()]
        options = [*self.options, (", ".join(HELP), "Show this and exit.")]
        usage = f"{self.path} [OPTIONS] COMMAND [ARGS]..."
        return _page(usage, self.help, {"Options": options, "Commands": commands}, self.epilog)


def _page(usage: str, text: str, sections: dict[str, list[tuple[str, str]]], epilog: str) -> str:
    import shutil
    import textwrap

    width = min(shutil.get_terminal_size().columns, 100)

    def wrapped(paragraphs: str, indent: int) -> Iterator[str]:
        for paragraph in paragraphs.split("\n\n"):
            pad = " " * indent
            yield textwrap.fill(" ".join(paragraph.split()), width, initial_indent=pad, subsequent_indent=pad)
            yield ""

    lines = [f"Usage: {usage}", "", *wrapped(text, INDENT)]
    for title, entries in sections.items():
        lines += [f"{title}:", *(line for entry in entries for line in _entry(*entry, width)), ""] if entries else []
    return "\n".join([*lines, *wrapped(epilog, 0)]).rstrip()


def _entry(usage: str, text: str, width: int) -> list[str]:
    """A line of a section: what is written, and beside or below it what it does."""
    import textwrap

    head = f"{' ' * INDENT}{usage}"
    body = textwrap.wrap(text, width - HELP_COLUMN)
    if len(head) + 2 <= HELP_COLUMN and body:
        head = head.ljust(HELP_COLUMN) + body.pop(0)
    return [head, *(" " * HELP_COLUMN + line for line in body)]
