"""The words of a line of bash that is being typed, and values quoted for it."""

from __future__ import annotations

BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=@%+,^")
ESCAPED_IN_QUOTES = '"\\$`\n'
SPACE = " \t\n"


class Word:
    """A word: as typed, and without its quotes. `in_quotes` is True if it has any but backslashes."""

    __slots__ = ("in_quotes", "raw", "text")

    def __init__(self, raw: str = "", text: str = "", in_quotes: bool = False) -> None:
        self.raw = raw
        self.text = text
        self.in_quotes = in_quotes


def split_line(line: str) -> list[Word]:
    """Return the words; the last is the one at the end of the line, and may be empty or have an open quote."""
    words, word, quote, is_escaped = [], Word(), "", False
    for char in line:
        if not quote and not is_escaped and char in SPACE:
            if word.raw:
                words.append(word)
            word = Word()
            continue
        word.raw += char
        if is_escaped:
            word.text += char if not quote or char in ESCAPED_IN_QUOTES else f"\\{char}"
            is_escaped = False
        elif char == "\\" and quote != "'":
            is_escaped = True
        elif char == quote or (not quote and char in "\"'"):
            quote = "" if quote else char
            word.in_quotes = True
        else:
            word.text += char
    return [*words, word]


def quoted(value: str) -> str:
    """Return a printable value as one word of bash in which nothing has a meaning."""
    return "".join(char if char in BARE or char > "\x7f" else f"\\{char}" for char in value)
