"""Translate gitignore patterns to regular expressions over bytes, following git's own matcher, wildmatch.c.

The pathspec library solves a different problem: does a rule match a path or any of its parents? A walk that does not
enter excluded directories has to match the path itself.
"""

from __future__ import annotations

import re

SPECIAL = re.compile(rb"[*?\[\\]")
NEVER = re.compile(rb"(?!)")
STARS = re.compile(rb"\*+")
CLASS_NAME = re.compile(rb"\[:([^\]]*):\]")
CLASSES = {
    b"alnum": rb"0-9A-Za-z",
    b"alpha": rb"A-Za-z",
    b"blank": rb" \t",
    b"cntrl": rb"\x00-\x1f\x7f",
    b"digit": rb"0-9",
    b"graph": rb"\x21-\x7e",
    b"lower": rb"a-z",
    b"print": rb"\x20-\x7e",
    b"punct": rb"\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e",
    b"space": rb" \t\n\r",
    b"upper": rb"A-Z",
    b"xdigit": rb"0-9A-Fa-f",
}


class _NeverMatches(Exception):  # noqa: N818 - a malformed pattern is not an error in git
    pass


def translate(pattern: bytes, *, whole: bool) -> re.Pattern[bytes]:
    """Return a regular expression for full matches of `pattern`.

    A `whole` pattern matches paths, and only `**` between slashes matches `/`. `pattern` has no literal prefix: git
    strips that first, and then treats a leading `**` as if it followed a slash. A malformed pattern matches nothing.
    """
    parts: list[bytes] = []
    at = 0
    try:
        while at < len(pattern):
            at, part = _next(pattern, at, whole)
            parts.append(part)
    except _NeverMatches:
        return NEVER
    return re.compile(b"".join(parts), re.DOTALL)


def _next(pattern: bytes, at: int, whole: bool) -> tuple[int, bytes]:
    """Return the end of the element at `at`, and its expression."""
    char = pattern[at : at + 1]
    if char == b"*":
        return _stars(pattern, at, whole)
    if char == b"?":
        return at + 1, b"[^/]"
    if char == b"[":
        return _bracket(pattern, at)
    if char == b"\\":
        at += 1
        if at == len(pattern):
            raise _NeverMatches
    return at + 1, re.escape(pattern[at : at + 1])


def _stars(pattern: bytes, at: int, whole: bool) -> tuple[int, bytes]:
    stars = STARS.match(pattern, at)
    assert stars is not None
    end = stars.end()
    behind_slash = at == 0 or pattern[at - 1 : at] == b"/"
    before_slash = pattern.startswith((b"/", b"\\/"), end)
    if not whole or end - at == 1 or not behind_slash or not (before_slash or end == len(pattern)):
        return end, b"[^/]*"
    return (end + 1, b"(?:.*/)?") if pattern.startswith(b"/", end) else (end, b".*")


def _bracket(pattern: bytes, at: int) -> tuple[int, bytes]:
    """Translate a set in brackets. A leading `]` is a member; `/` never is."""
    at += 1
    negated = pattern.startswith((b"!", b"^"), at)
    at += negated
    members = b""
    first: int | None = None  # the first byte of a possible range
    start = at
    while at == start or not pattern.startswith(b"]", at):
        name = CLASS_NAME.match(pattern, at)
        if name:
            if name[1] not in CLASSES:
                raise _NeverMatches
            members += CLASSES[name[1]]
            at, first = name.end(), None
        elif first is not None and pattern.startswith(b"-", at) and pattern[at + 1 : at + 2] not in (b"", b"]"):
            at, last = _member(pattern, at + 1)
            if first <= last:
                members += b"\\x%02x-\\x%02x" % (first, last)
            first = None
        else:
            at, first = _member(pattern, at)
            members += b"\\x%02x" % first
    return at + 1, b"(?!/)[%s%s]" % (b"^" if negated else b"", members)


def _member(pattern: bytes, at: int) -> tuple[int, int]:
    """Return the end of the member at `at`, and its byte."""
    at += pattern.startswith(b"\\", at)
    if at >= len(pattern):
        raise _NeverMatches
    return at + 1, pattern[at]
