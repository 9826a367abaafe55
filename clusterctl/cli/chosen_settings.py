"""`start --set KEY=VALUE`, and arguments of the program that look like settings."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from clusterctl.config.loader import choose
from clusterctl.config.settings import BY_SPELLING
from clusterctl.errors import UsageError


def parse_chosen(words: Sequence[str], engine: str | None = None) -> dict[str, str]:
    """Return the text of each `KEY=VALUE`; the last one counts. Raises UsageError for what cannot be set this way."""
    return choose(_pair(word, engine) for word in words)


def _pair(word: str, engine: str | None) -> tuple[str, str]:
    name, equals, text = word.partition("=")
    if not equals or not name:
        raise UsageError(f"--set needs KEY=VALUE, not {word!r}", hint="for example: --set MODE=async")
    if name == "ENGINE" and engine is not None:
        raise UsageError("--engine and --set ENGINE were both given", hint=f"keep one of them: --engine {engine}")
    return name, text


def shown_option(name: str, text: str) -> str:
    """Return a `--set` as one would type it, without the value of a secret setting."""
    setting = BY_SPELLING.get(name)
    return f"--set {name}=..." if setting and setting.secret else f"--set {shlex.quote(f'{name}={text}')}"


def named_like_settings(program_args: Sequence[str]) -> Iterable[str]:
    """Yield a warning for each argument of the program that is named like a setting, which it does not change."""
    for word, follower in zip(program_args, [*program_args[1:], ""], strict=False):
        name, equals, text = word.partition("=")
        setting = BY_SPELLING.get(name.removeprefix("--").replace("-", "_").upper()) if name.startswith("--") else None
        if setting is None:
            continue
        value = text if equals else follower if follower[:2] != "--" else ""
        change = "in conf.py" if setting.fixed else shown_option(setting.name, value or "VALUE")
        yield f"{word} goes to the program; the setting {setting.name} does not change. To change it: {change}"
