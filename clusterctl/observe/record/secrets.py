"""Hide secrets in texts that leave this machine: values of ENV, and whatever is named like a secret."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

HIDDEN = "[hidden]"
#: The words of which a name for a secret has one: HF_TOKEN, --api-key, accessKey. `tokens` and `KeyError` are none.
WORDS = ("token", "key", "secret", "password", "passwd", "pwd", "passphrase", "credential", "credentials", "apikey")
JOINED = ("token", "secret", "password", "passwd", "apikey")  # the ends of names such as `dbpassword`
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
MOST_CHARS = 1 << 20  # of a text; the rest of a longer one is left out
#: A run of the characters of names. What follows decides whether it names a value: `name=value`, `'name': value`,
#: `--name value` and `Bearer value`. Each run is looked at once, so that long ones take linear time.
RUN = re.compile(r"[\w.-]+")
NAME = re.compile(r"[A-Za-z_][\w.-]*")
SIGN = re.compile(r"""["']?\s*[=:]\s*""")
OPTION = re.compile(r"--[A-Za-z][\w.-]*")
GAP = re.compile(r"\s+")
BEARER = re.compile(r"\bBearer\Z")
VALUE = re.compile(r""""[^"]*"|'[^']*'|Bearer\s+\S+|[^\s,;)\]}&]+""")
SHORTEST = 6  # characters of a value of ENV that is looked for in texts: shorter ones are in every log


def is_secret(name: str) -> bool:
    """Return True if a setting, a variable or an option of this name holds a secret."""
    words = [word.lower() for word in WORD.findall(name)]
    return any(word in WORDS or word.endswith(JOINED) for word in words) and "error" not in words


def _hide_given(text: str) -> str:
    parts: list[str] = []
    at = 0
    for run in RUN.finditer(text):
        begin = _value_after(run, text) if run.start() >= at else None
        value = VALUE.match(text, begin) if begin is not None else None
        if value is not None:
            parts += (text[at : value.start()], HIDDEN)
            at = value.end()
    return "".join([*parts, text[at:]])


def _value_after(run: re.Match[str], text: str) -> int | None:
    """Return where the secret value begins that a run of characters names, if it names one."""
    word, end = run[0], run.end()
    if sign := SIGN.match(text, end):
        name = NAME.search(word)
        return sign.end() if name is not None and is_secret(name[0]) else None
    gap = GAP.match(text, end)
    if gap is None:
        return None
    if word.endswith("Bearer") and BEARER.search(word, max(0, len(word) - 8)):
        return gap.end()
    is_option = OPTION.fullmatch(word) and not text[run.start() - 1 : run.start()].strip()
    return gap.end() if is_option and text[gap.end() : gap.end() + 1] != "-" and is_secret(word) else None


class Redactor:
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

    def has_same(self, name: str, other: Redactor) -> bool:
        """Return True if the variable has the same values in both, or is in neither."""
        return self._env.get(name) == other._env.get(name)

    def hide(self, text: str) -> str:
        """Return the text with `$NAME` in place of each value of ENV, and without values that are named as secrets."""
        if len(text) > MOST_CHARS:
            text = f"{text[:MOST_CHARS]}... ({len(text) - MOST_CHARS:,} more characters)"
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
