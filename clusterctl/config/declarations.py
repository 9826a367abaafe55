"""How a field of `Settings` declares a setting: its values, its default, its meaning, and where it goes.

All else that is known about a setting is read from its declaration: what conf.py may contain, the rows of
docs/configuration.md and the passages of conf.py.example (docs/make_settings.py), the words that a shell completes, its
place in the spec of a run, and whether `start --set` and `start --resume` may change it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, TypeVar, cast

from clusterctl.config.parsers import OneOf, Parser, flag

T = TypeVar("T")


class Topic(Enum):
    """The topics of settings in the order of the documentation, each with its title."""

    MACHINES = "Machines"
    PROGRAMS = "What runs"
    NETWORK = "Network and SSH"
    TRAINING = "Training"
    CHECKPOINTS = "Checkpoints"
    FAILURES = "Failures"
    RARE = "Rarely needed"


@dataclass(frozen=True)
class Setting:
    """One setting. `default` is written as in conf.py; `parse` turns that form into the field of Settings.

    `meaning` says briefly what it is, for conf.py.example and for completion, too; `more` is added to it in the
    documentation. Both are Markdown, and only `more` has links.

    `old`       its name in the Paddle launcher
    `secret`    no message contains its value
    `fixed`     why a run cannot change it (`start --set`); "" if it can
    `kept`      a resume may take it from what the nodes have recorded about the run before. Those that decide what runs
                on the nodes or on this machine, or whom it trusts, are not kept
    `recorded`  nodes may learn it. If not, a run does not record it, either
    `spec`      its place in the spec of a run, such as `timing.grace_s`; `as_spec` returns the value for that place
    """

    topic: Topic
    parse: Parser[Any]
    default: object
    meaning: str
    more: str = ""
    old: str = ""
    secret: bool = False
    fixed: str = ""
    kept: bool = True
    recorded: bool = True
    spec: str = ""
    as_spec: Callable[[Any], object] = lambda value: value
    field: str = ""

    @property
    def name(self) -> str:
        """The name in conf.py."""
        return self.field.upper()

    @property
    def spellings(self) -> tuple[str, ...]:
        """The names allowed in conf.py, the preferred one first."""
        return (self.name, self.old) if self.old else (self.name,)

    @property
    def doc(self) -> str:
        """The meaning as plain text."""
        return self.meaning.replace("`", "")

    @property
    def written(self) -> str:
        """The default as conf.py has it."""
        value = list(self.default) if isinstance(self.default, tuple) else self.default
        return f'"{value}"' if isinstance(value, str) else repr(value)

    @property
    def examples(self) -> Sequence[str]:
        """Values for completion: all of them if they are words, else those that the meaning has in quotes."""
        if isinstance(self.parse, OneOf):
            return self.parse.words
        return ("True", "False") if self.parse is flag else re.findall(r'"([^"]+)"', self.meaning)


def setting(
    topic: Topic, parse: Parser[T], default: object, meaning: str, more: str = "", *, secret: bool = False, **where: Any
) -> T:
    """Declare a field of Settings; the arguments are those of `Setting`. Nothing shows or hashes a secret value."""
    declared = Setting(topic, parse, default, meaning, more, secret=secret, **where)
    return cast("T", field(metadata={"setting": declared}, hash=not secret, repr=not secret))


def settings_in(kind: type) -> tuple[Setting, ...]:
    """Return the settings that the fields of a dataclass declare, by topic, and within a topic in their order."""
    found = [replace(one.metadata["setting"], field=one.name) for one in fields(kind) if "setting" in one.metadata]
    return tuple(one for topic in Topic for one in found if one.topic is topic)


def by_place(settings: Sequence[Setting]) -> dict[str, dict[str, Setting]]:
    """Return the settings that each part of the spec of a run has, by their names there; the part "" is its top."""
    places: dict[str, dict[str, Setting]] = {}
    for one in settings:
        part, _, name = one.spec.rpartition(".")
        if name:
            places.setdefault(part, {})[name] = one
    return places
