"""The candidates for one word of a command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterctl.cli.completion.command_line import CommandLine
from clusterctl.cli.completion.known import Known, fields_of
from clusterctl.cli.completion.values import Values
from clusterctl.common.safe_json import loads

Found = list[tuple[str, str]]

NOT_FILES = "none"


def table() -> dict[str, Any]:
    """Return the commands, their options and the words of closed sets; tests/cli/make_completions.py makes them."""
    return fields_of(loads(Path(__file__).with_name("table.json").read_bytes()))


def complete(words: Sequence[str], current: str, environ: Mapping[str, str]) -> tuple[str, Found]:
    """Return which files the shell may offer besides, and the candidates for the `current` word with descriptions."""
    commands = table()
    line = CommandLine(commands, words)
    if line.is_over:
        return "files", []
    values = Values(commands["words"], commands["settings"], Known.of(line.options, environ), line.options)
    if line.pending is not None:
        return values.of(line.known[line.pending]["value"], current, line.arguments)
    if current.startswith("-"):
        return _option(line, values, current)
    if not line.arguments and (below := list(_commands(commands, line.command, current))):
        return NOT_FILES, below
    if len(line.arguments) < len(line.kinds):
        return values.of(line.kinds[len(line.arguments)], current, line.arguments)
    return NOT_FILES, list(_options(line, "--")) if line.command and not current else []


def _option(line: CommandLine, values: Values, current: str) -> tuple[str, Found]:
    """Complete an option, or its value after `=`."""
    name, equals, typed = current.partition("=")
    option = line.option(name) if equals and name.startswith("--") else None
    if option is None:
        return NOT_FILES, list(_options(line, current))
    files, found = values.of(option[1]["value"] or NOT_FILES, typed, line.arguments)
    return files, [(f"{name}={value}", about) for value, about in found]


def _commands(table: Mapping[str, Any], above: str, current: str) -> Iterable[tuple[str, str]]:
    for name, command in table["commands"].items():
        group, _, last = name.rpartition(" ")
        if name and group == above and last.startswith(current):
            yield last, command["about"]


def _options(line: CommandLine, current: str) -> Iterable[tuple[str, str]]:
    """Yield the options that are not given yet, each in the first long spelling that fits."""
    for name, option in line.known.items():
        fitting = [one for one in (name, *option["also"]) if one.startswith(current) and one.startswith("--")]
        if fitting and (name not in line.options or option["repeated"]):
            yield fitting[0], option["about"]
