"""Elements of HTML. Whatever is not `Html` already is text, and escaped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from clusterctl.escape import for_html

EMPTY = ("br", "hr", "input", "link", "meta", "path", "rect", "line")
LONGEST_TEXT = 2000  # characters of one text from a node or a program


class Html(str):
    """Text that is HTML."""

    __slots__ = ()


Content: TypeAlias = "Html | str | None"


def element(tag: str, *content: Content, **attributes: str | float | bool | None) -> Html:
    """Return an element. Content that is None is left out, and so are attributes that are None or False.

    The names of attributes are given as in Python: `class_` is `class`, and `data_x` is `data-x`.
    """
    given = "".join(
        _attribute(name, value) for name, value in attributes.items() if value is not None and value is not False
    )
    if tag in EMPTY:
        return Html(f"<{tag}{given}>" if tag not in ("path", "rect", "line") else f"<{tag}{given}/>")
    return Html(f"<{tag}{given}>{join(content)}</{tag}>")


def join(content: Iterable[Content]) -> Html:
    """Return several contents one after the other."""
    return Html("".join(part if isinstance(part, Html) else escaped(part) for part in content if part is not None))


def escaped(text: str) -> Html:
    return Html(for_html(shortened(text), keep_newlines=True))


def shortened(text: str, most: int = LONGEST_TEXT) -> str:
    """Return the text, without its end if that is too long."""
    return text if len(text) <= most else f"{text[: most - 1]}\u2026"


def table(
    headings: Iterable[str],
    rows: Iterable[Iterable[Content]],
    *,
    numeric: Iterable[int] = (),
    wide: int | None = None,
) -> Html:
    """Return a table that scrolls sideways if it is too wide.

    The columns `numeric` align to the right. Text in the column `wide` wraps, and so does any on paper.
    """
    classes = {**dict.fromkeys(numeric, "n"), **({} if wide is None else {wide: "w"})}

    def line(cells: Iterable[Content], tag: str) -> Html:
        return element("tr", *(element(tag, cell, class_=classes.get(i)) for i, cell in enumerate(cells)))

    head = element("thead", line(headings, "th"))
    body = element("tbody", *(line(row, "td") for row in rows))
    return element("div", element("table", head, body), class_="scroll")


def _attribute(name: str, value: str | float | bool | None) -> str:
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{value if isinstance(value, Html) else escaped(str(value))}"'
