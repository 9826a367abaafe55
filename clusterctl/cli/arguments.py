"""Pure functions that separate our arguments from those of the training program.

Global options are accepted before and after the command. `start` passes everything after `--`, and any unknown
`--key=value`, to the training program, as the old launcher did.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from clusterctl.errors import UsageError

VALUE_OPTIONS = {"--conf": "conf", "--only": "only"}
SHORT = 4  # letters of an option; a shorter one has too many neighbours for a typo to be recognized
FLAGS = {"--json": "json", "--quiet": "quiet", "-q": "quiet", "--verbose": "verbose", "-v": "verbose"}


@dataclass
class GlobalOptions:
    conf: str | None = None
    only: str | None = None
    json: bool = False
    quiet: bool = False
    verbose: bool = False


@dataclass
class Arguments:
    """`ours` goes to the option parser, `program` to the training program or to the command of `exec`.

    `program` is None if no arguments were given; after a bare `--` it is empty.
    """

    options: GlobalOptions = field(default_factory=GlobalOptions)
    ours: list[str] = field(default_factory=list)
    program: list[str] | None = None


def split(argv: Sequence[str]) -> Arguments:
    """Extract the global options, which may be anywhere before `--`."""
    arguments = Arguments()
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            arguments.program = rest
            break
        if name in VALUE_OPTIONS:
            if not equals:
                if not rest:
                    raise UsageError(f"{name} needs a value", hint=f"{name} VALUE")
                value = rest.pop(0)
            setattr(arguments.options, VALUE_OPTIONS[name], value)
        elif word in FLAGS:
            setattr(arguments.options, FLAGS[word], True)
        else:
            arguments.ours.append(word)
    return arguments


def take_program_options(words: Sequence[str], known: Collection[str]) -> tuple[list[str], list[str]]:
    """Split the arguments of `start` into (ours, unknown `--key=value` for the training program).

    Raises UsageError for an unknown option without `=`, and for one within edit distance 1 of one of ours.
    """
    ours: list[str] = []
    program: list[str] = []
    for word in words:
        name, equals, _ = word.partition("=")
        if not word.startswith("--") or name in known:
            ours.append(word)
            continue
        near = _one_edit_away(name, known)
        if near:
            raise UsageError(
                f"{name} is not an option; did you mean {near}?", hint="to pass it to the program, put it after --"
            )
        if not equals:
            raise UsageError(
                f"{name} is not an option of start",
                hint=f"{suggest(name, known)}to pass it to the program, write {name}=VALUE or put it after --",
            )
        program.append(word)
    return ours, program


def suggest(word: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]}? " if near else ""


def _one_edit_away(name: str, known: Collection[str]) -> str | None:
    plain = _plain(name)
    long = [option for option in sorted(known) if len(_plain(option)) >= SHORT]
    near = [option for option in long if plain == _plain(option) or edit_distance_is_one(plain, _plain(option))]
    return min(near, key=lambda option: ("_" in option) != ("_" in name), default=None)


def _plain(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def edit_distance_is_one(a: str, b: str) -> bool:
    """Return True if one insertion, deletion, substitution or swap of neighbours turns `a` into `b`."""
    if a == b:
        return False
    if len(a) > len(b):
        a, b = b, a
    if len(b) - len(a) > 1:
        return False
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
    if len(a) < len(b):
        return a[start:] == b[start + 1 :]
    swapped = a[start : start + 2] == b[start : start + 2][::-1] and a[start + 2 :] == b[start + 2 :]
    return a[start + 1 :] == b[start + 1 :] or swapped
