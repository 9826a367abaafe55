"""Hide secrets in texts that leave this machine: values of ENV, and whatever is named like a secret."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

HIDDEN = "[hidden]"
#: The words of which a name for a secret has one: HF_TOKEN, --api-key, accessKey. `tokens` and `KeyError` are none.
WORDS = ("token", "key", "secret", "password", "passwd", "pwd", "passphrase", "credential", "credentials", "apikey")
JOINED = ("token", "secret", "password", "passwd", "apikey")  # the ends of names such as `dbpassword`
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
#: The beginning of `name=value`, `'name': value`, `--name value` and `Bearer value`.
GIVEN = re.compile(r"""["']?([A-Za-z_][\w.-]*)["']?\s*[=:]\s*|(?<!\S)--([A-Za-z][\w.-]*)\s+(?!-)|\bBearer\s+""")
VALUE = re.compile(r""""[^"]*"|'[^']*'|Bearer\s+\S+|[^\s,;)\]}&]+""")
SHORTEST = 6  # characters of a value of ENV that is looked for in texts: shorter ones are in every log


def is_secret(name: str) -> bool:
    """Return True if a setting, a variable or an option of this name holds a secret."""
    words = [word.lower() for word in WORD.findall(name)]
    return any(word in WORDS or word.endswith(JOINED) for word in words) and "error" not in words


def _hide_given(text: str) -> str:
    parts: list[str] = []
    at = 0
    for match in GIVEN.finditer(text):
        name = match[1] or match[2]
        value = VALUE.match(text, match.end()) if name is None or is_secret(name) else None
        if value is not None and match.start() >= at:
            parts += (text[at : match.end()], HIDDEN)
            at = value.end()
    return "".join([*parts, text[at:]])


class Secrets:
    """The values to hide: those of the variables in `env`, wherever they are, and those that a text names itself."""

    def __init__(self, *envs: Mapping[str, str]) -> None:
        """`envs`: ENV on each node; a variable may have another value on each."""
        self._env: dict[str, set[str]] = {}
        for name, value in (item for env in envs for item in env.items()):
            self._env.setdefault(name, set()).add(value)
        pairs = [(name, value) for name, values in self._env.items() for value in values]
        longest_first = sorted(pairs, key=lambda item: (-len(item[1]), item))
        self._values = {value: name for name, value in longest_first if len(value) >= SHORTEST}
        self._pattern = re.compile("|".join(map(re.escape, self._values))) if self._values else None

    def has_same(self, name: str, other: Secrets) -> bool:
        """Return True if the variable has the same values in both, or is in neither."""
        return self._env.get(name) == other._env.get(name)

    def hide(self, text: str) -> str:
        """Return the text with `$NAME` in place of each value of ENV, and without values that are named as secrets."""
        if self._pattern is not None:
            text = self._pattern.sub(lambda match: f"${self._values[match[0]]}", text)
        return _hide_given(text)

    def arguments(self, words: Iterable[str]) -> tuple[str, ...]:
        """Hide the values of options such as `--token X` and `--api-key=X` in a program's arguments."""
        hidden: list[str] = []
        follows_name = False
        for word in words:
            name, sign, _ = word.partition("=")
            hidden.append(HIDDEN if follows_name and not word.startswith("-") else self.hide(word))
            follows_name = not sign and name.startswith("-") and is_secret(name)
        return tuple(hidden)
