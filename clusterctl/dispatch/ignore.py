"""Paths that are not sent: `.clusterctlignore` files, with exactly the semantics of gitignore.

The workspace is walked from the top and an excluded directory is not entered. So each path is matched on its own, as
git does, and no later rule can bring back a path below an excluded directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from clusterctl.common.paths import OF_RANKS
from clusterctl.dispatch.wildmatch import SPECIAL, translate

IGNORE_FILE = ".clusterctlignore"
DEFAULTS = (".git", "__pycache__", ".venv", OF_RANKS)
DEFAULT, RESERVED_NAME = "default", "reserved"


class Ignored(NamedTuple):
    """A path that is not sent, and the reason.

    `source` is the ignore file's path in the workspace, or "default" or "reserved". `line` counts from 1 and is 0 if
    there is no file. `bytes` is None for a directory, because it was not walked.
    """

    path: str
    rule: str
    source: str
    line: int
    bytes: int | None

    @property
    def reason(self) -> str:
        """The rule and its origin, for example `*.raw (.clusterctlignore:3)`."""
        return f"{self.rule} ({self.source}:{self.line})" if self.line else f"{self.rule} ({self.source})"


@dataclass(frozen=True)
class IgnoreRule:
    """One line of an ignore file. A `whole` rule matches the path below the file's directory, others the last name.

    A match begins with `literal`, and the remainder matches `rest`; without `rest` it equals `literal`.
    """

    text: str
    source: str
    line: int
    includes: bool
    only_directories: bool
    whole: bool
    literal: bytes
    rest: re.Pattern[bytes] | None

    def matches(self, path: bytes, name: bytes) -> bool:
        subject = path if self.whole else name
        if self.rest is None:
            return subject == self.literal
        return subject.startswith(self.literal) and self.rest.fullmatch(subject, len(self.literal)) is not None


@dataclass(frozen=True)
class Rules:
    """The rules for one directory: those of its own ignore file take precedence over those of its parents."""

    base: str
    rules: Sequence[IgnoreRule]
    above: Rules | None = None

    def within(self, directory: str, data: bytes) -> Rules:
        """Return the rules for `directory`, whose ignore file contains `data`."""
        base = f"{directory}/" if directory else ""
        return Rules(base, tuple(parse(data, base + IGNORE_FILE)), self)

    def excluding(self, path: str, name: str, is_directory: bool) -> IgnoreRule | None:
        """Return the rule that excludes `path`, whose last part is `name`; None if the path is to be sent."""
        level: Rules | None = self
        while level is not None:
            if level.plain_names is None or name in level.plain_names:
                rule = level._last_match(path, name, is_directory)
                if rule is not None:
                    return None if rule.includes else rule
            level = level.above
        return None

    @cached_property
    def plain_names(self) -> frozenset[str] | None:
        """All names that can match, if every rule is a plain name: a shortcut that settles most paths. Else None."""
        if any(rule.whole or rule.rest for rule in self.rules):
            return None
        return frozenset(os.fsdecode(rule.literal) for rule in self.rules)

    def _last_match(self, path: str, name: str, is_directory: bool) -> IgnoreRule | None:
        below, last = os.fsencode(path[len(self.base) :]), os.fsencode(name)
        for rule in reversed(self.rules):
            if (is_directory or not rule.only_directories) and rule.matches(below, last):
                return rule
        return None


def default_rules() -> Rules:
    """Return the rules that apply unless an ignore file overrides them."""
    return Rules("", tuple(parse("\n".join(DEFAULTS).encode(), DEFAULT)))


def parse(data: bytes, source: str) -> Iterator[IgnoreRule]:
    """Yield the rules of an ignore file in order, including those that can never match, such as `[` or `a//`."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    for number, line in enumerate(data.split(b"\n"), 1):
        if line and not line.startswith(b"#"):
            text = _without_trailing_spaces(line.removesuffix(b"\r").partition(b"\0")[0])
            if text:
                yield _rule(text, source, number if source != DEFAULT else 0)


def _without_trailing_spaces(text: bytes) -> bytes:
    """Strip trailing spaces, except an escaped one."""
    kept = text.rstrip(b" ")
    backslashes = len(kept) - len(kept.rstrip(b"\\"))
    return text[: len(kept) + 1] if backslashes % 2 and len(kept) < len(text) else kept


def _rule(text: bytes, source: str, line: int) -> IgnoreRule:
    pattern = text.removeprefix(b"!")
    includes = pattern != text
    only_directories = pattern.endswith(b"/")
    pattern = pattern.removesuffix(b"/")
    whole = b"/" in pattern
    pattern = pattern.removeprefix(b"/")
    special = SPECIAL.search(pattern)
    literal = pattern[: special.start()] if special else pattern
    rest = translate(pattern[len(literal) :], whole=whole) if special else None
    return IgnoreRule(os.fsdecode(text), source, line, includes, only_directories, whole, literal, rest)
