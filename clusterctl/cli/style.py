"""Colours of outcomes and processes: strings that keep them until the console prints them.

Text of programs and nodes cannot add a colour: it is cleaned first, and only then the colours of ours are added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import SupportsIndex

from clusterctl.escape import clean

GOOD, BAD, WARNING = "32", "1;31", "33"  # parameters of the escape sequence "select graphic rendition"
OF_STATE = {
    "succeeded": GOOD,
    "failed": BAD,
    "lost": BAD,
    "unknown": WARNING,
    "stalled": WARNING,
    "suspect": WARNING,
    "restarting": WARNING,
    "rejoined": GOOD,
}
OF_ROLE = {"pserver": "35", "trainer": "36", "scheduler": "34"}
NOT_CAPABLE = ("", "dumb", "unknown")  # values of TERM
Span = tuple[int, int, str]


class Styled(str):
    """A string with colours. Code that does not know about them sees the plain string.

    `spans`: (begin, end, style), in order and without overlaps. They survive `+`, `rstrip`, `join` and `changed`; an
    f-string and all other methods return the plain string.
    """

    __slots__ = ("spans",)
    spans: tuple[Span, ...]

    def __new__(cls, text: str, spans: Iterable[Span] = ()) -> Styled:
        made = super().__new__(cls, text)
        made.spans = tuple(spans)
        return made

    def __add__(self, other: str) -> Styled:
        return join("", (self, other))

    def __radd__(self, other: str) -> Styled:
        return join("", (other, self))

    def rstrip(self, chars: str | None = None, /) -> Styled:
        kept = super().rstrip(chars)
        return cut(self, len(kept))

    def ljust(self, width: SupportsIndex, fill: str = " ", /) -> Styled:
        return Styled(super().ljust(width, fill), self.spans)


def paint(text: str, style: str | None) -> str:
    """Return the whole text in one style; unchanged if there is none."""
    return Styled(text, [(0, len(text), style)]) if style else text


def good(text: str) -> str:
    return paint(text, GOOD)


def bad(text: str) -> str:
    return paint(text, BAD)


def warning(text: str) -> str:
    return paint(text, WARNING)


def state(name: str, text: str | None = None) -> str:
    """Return the name of a state, or `text`, in the colour of the state."""
    return paint(name if text is None else text, OF_STATE.get(str(name)))


def process(role: str | None, name: str) -> str:
    """Return the name of a process in the colour of its role."""
    return paint(name, OF_ROLE.get(str(role)))


def join(separator: str, parts: Iterable[str]) -> Styled:
    """Join strings as `str.join` does, and keep their colours."""
    spans: list[Span] = []
    texts: list[str] = []
    at = 0
    for part in parts:
        for piece in (separator, part) if texts else (part,):
            spans.extend((at + begin, at + end, style) for begin, end, style in getattr(piece, "spans", ()))
            texts.append(piece)
            at += len(piece)
    return Styled("".join(texts), spans)


def cut(text: str, width: int) -> Styled:
    """Return the beginning of a string, of at most `width` characters, in its colours."""
    spans = getattr(text, "spans", ())
    return Styled(text[:width], ((begin, min(end, width), style) for begin, end, style in spans if begin < width))


def pieces(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield the parts of a string in order, each with its style."""
    at = 0
    for begin, end, style in getattr(text, "spans", ()):
        if begin > at:
            yield text[at:begin], None
        if end > begin:
            yield text[begin:end], style
        at = end
    if at < len(text):
        yield text[at:], None


def changed(text: str, change: Callable[[str], str]) -> str:
    """Apply a change of the text to each part, and keep the colours."""
    if not isinstance(text, Styled):
        return change(text)
    return join("", (paint(change(piece), style) for piece, style in pieces(text)))


def render(text: str, *, colour: bool, keep_newlines: bool = False) -> str:
    """Return a string for a terminal: with its escape sequences made harmless, and then, with `colour`, its colours."""
    cleaned = clean(text, keep_newlines=keep_newlines)
    if not colour or not isinstance(text, Styled):
        return cleaned
    assert len(cleaned) == len(text)
    return "".join(_coloured(piece, style) for piece, style in pieces(Styled(cleaned, text.spans)))


def _coloured(piece: str, style: str | None) -> str:
    """Return the piece with its style, which ends at each line, so that a pager shows every line correctly."""
    return "\n".join(f"\x1b[{style}m{line}\x1b[0m" if style and line else line for line in piece.split("\n"))


def is_capable(environment: Mapping[str, str]) -> bool:
    """Return True if a terminal understands escape sequences, by its TERM."""
    return environment.get("TERM", "") not in NOT_CAPABLE


def wants_colour(environment: Mapping[str, str], *, is_terminal: bool) -> bool:
    """Return True if output is to have colours: on a capable terminal, or with FORCE_COLOR, but not with NO_COLOR."""
    if environment.get("NO_COLOR"):
        return False
    is_forced = environment.get("FORCE_COLOR", "0") not in ("", "0")
    return is_forced or (is_terminal and is_capable(environment))
