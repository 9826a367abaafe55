"""The candidates for one word of a command line."""

from __future__ import annotations

from clusterctl.cli.completion.known import Known, fields_of
from clusterctl.cli.completion.values import Values
from clusterctl.common.fastjson import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    Found = list[tuple[str, str]]

NOT_FILES = "none"


def table() -> dict[str, Any]:
    """Return the commands, their options and the words of closed sets; tests/cli/make_completions.py makes them."""
    with open(__file__.replace("candidates.py", "table.json"), "rb") as file:  # noqa: PTH123 - pathlib is slow
        return fields_of(loads(file.read()))


class _Line:
    """What the words before the current one say."""

    def __init__(self, table: Mapping[str, Any], words: Sequence[str]) -> None:
        self._table = table
        self.command = ""
        self.arguments: list[str] = []
        self.options: dict[str, str] = {}
        self.pending: str | None = None  # an option whose value is the current word
        self.is_over = False  # after `--`
        for word in words:
            self._take(word)

    @property
    def known(self) -> Mapping[str, Any]:
        """The options of the command, the global ones among them."""
        of_all = self._about("")["options"]
        if self.command:
            of_all = {name: option for name, option in of_all.items() if not name.endswith("-completion")}
        return {**of_all, **self._about(self.command)["options"]}

    def _about(self, command: str) -> Mapping[str, Any]:
        return fields_of(self._table["commands"].get(command) or {"options": {}, "arguments": []})

    @property
    def kinds(self) -> Sequence[str]:
        return self._about(self.command)["arguments"]  # type: ignore[no-any-return]

    def option(self, word: str) -> tuple[str, Mapping[str, Any]] | None:
        """Return the name and the description of the option that `word`, without a value, spells."""
        for name, option in self.known.items():
            if word == name or word in option["also"]:
                return name, option
        return None

    def _take(self, word: str) -> None:
        if self.is_over:
            return
        if self.pending is not None:
            self.options[self.pending], self.pending = word, None
        elif word == "--":
            self.is_over = True
        elif word.startswith("-") and word != "-":
            self._take_option(word)
        else:
            deeper = f"{self.command} {word}".strip()
            if not self.arguments and deeper in self._table["commands"]:
                self.command = deeper
            else:
                self.arguments.append(word)

    def _take_option(self, word: str) -> None:
        name, equals, value = word.partition("=")
        if not word.startswith("--"):  # -f, -fn5 or -n 5
            name, equals, value = next(
                ((f"-{char}", word[at + 1 :], word[at + 1 :]) for at, char in enumerate(word) if self._has_value(char)),
                (word[:2], "", ""),
            )
        found = self.option(name)
        if found is None:
            return
        self.options[found[0]] = value
        if found[1]["value"] and not equals:
            self.pending = found[0]

    def _has_value(self, letter: str) -> bool:
        found = self.option(f"-{letter}")
        return found is not None and bool(found[1]["value"])


def complete(words: Sequence[str], current: str, environ: Mapping[str, str]) -> tuple[str, Found]:
    """Return which files the shell may offer besides, and the candidates for the `current` word with descriptions."""
    commands = table()
    line = _Line(commands, words)
    if line.is_over:
        return "files", []
    values = Values(commands["words"], commands["settings"], Known.of(line.options, environ), line.options)
    if line.pending is not None:
        return values.of(line.known[line.pending]["value"], current, line.arguments)
    name, equals, typed = current.partition("=")
    option = line.option(name) if equals and name.startswith("--") else None
    if option is not None:
        files, found = values.of(option[1]["value"] or NOT_FILES, typed, line.arguments)
        return files, [(f"{name}={value}", about) for value, about in found]
    if current.startswith("-"):
        return NOT_FILES, list(_options(line, current))
    if not line.arguments and (below := list(_commands(commands, line.command, current))):
        return NOT_FILES, below
    if len(line.arguments) < len(line.kinds):
        return values.of(line.kinds[len(line.arguments)], current, line.arguments)
    return NOT_FILES, list(_options(line, "--")) if line.command and not current else []


def _commands(table: Mapping[str, Any], above: str, current: str) -> Iterable[tuple[str, str]]:
    for name, command in table["commands"].items():
        group, _, last = name.rpartition(" ")
        if name and group == above and last.startswith(current):
            yield last, command["about"]


def _options(line: _Line, current: str) -> Iterable[tuple[str, str]]:
    """Yield the options that are not given yet, each in the first long spelling that fits."""
    for name, option in line.known.items():
        fitting = [one for one in (name, *option["also"]) if one.startswith(current) and one.startswith("--")]
        if fitting and (name not in line.options or option["repeated"]):
            yield fitting[0], option["about"]
