"""What the words of a command line before the one that is completed say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clusterctl.cli.completion.known import fields_of


class CommandLine:
    """The command, its arguments and options, by the declarations in `table`."""

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
