"""Text of programs and nodes in the languages of our outputs: terminal, HTML, script, CSV and labels.

Such text is hostile: whoever controls a node chooses its log lines, and a program the names of its metrics. Every
output of ours uses these functions.
"""

from __future__ import annotations

import html
import json
import math
import re
from typing import Any

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # text direction
#: Characters without a width, line separators, and tags. Joiners stay: scripts and emoji need them.
INVISIBLE = "\xad\u180e\u200b\u2028\u2029\u2060-\u2064\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
HARMFUL = re.compile(f"[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff{BIDI}{INVISIBLE}]")
#: Characters with which a spreadsheet begins a formula.
FORMULA = "=+-@\t\r"
IN_SCRIPTS = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\x7f": "\\u007f"})
LONGEST_LABEL = 200


def clean(text: str, *, keep_newlines: bool = False) -> str:
    """Make text safe for a terminal by replacing control and invisible characters with visible ones."""
    if (text.replace("\n", "") if keep_newlines else text).isprintable():
        return text
    return HARMFUL.sub(lambda match: _harmless(match[0], keep_newlines), text)


def _harmless(char: str, keep_newlines: bool) -> str:
    code = ord(char)
    if char == "\n" and keep_newlines:
        return char
    if code < 0x20:
        return chr(0x2400 + code)  # the Unicode pictures of control characters
    return "\ufffd"


def for_html(text: str, *, keep_newlines: bool = False) -> str:
    """Return text as the content of an HTML element, or as the value of an attribute in quotes."""
    return html.escape(clean(text, keep_newlines=keep_newlines))


def for_script(value: Any) -> str:
    """Return a value as JSON that may stand inside a `<script>` element of any type.

    It is ASCII and has no `<`, so that nothing in it ends the element. NaN and infinity, which JSON lacks, become null.
    """
    return json.dumps(finite(value), allow_nan=False, separators=(",", ":")).translate(IN_SCRIPTS)


def for_csv(text: str) -> str:
    """Return text as the value of a CSV cell, before quoting, that no spreadsheet runs as a formula."""
    text = clean(text)
    return f"'{text}" if text[:1] in tuple(FORMULA) and not is_number(text) else text


def for_label(text: str) -> str:
    """Return text as the value of a label of a metric, before quoting: one line of at most 200 characters."""
    text = clean(text)
    return text if len(text) <= LONGEST_LABEL else text[: LONGEST_LABEL - 1] + "\u2026"


def finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, with None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def is_number(text: str) -> bool:
    """Return True if text is a number, in the spelling of Python."""
    try:
        float(text)
    except ValueError:
        return False
    return True
