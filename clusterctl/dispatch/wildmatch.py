"""Patterns of gitignore as regular expressions over bytes, after git's own matcher, wildmatch.c.

The pathspec library answers another question: whether a rule matches a path or anything above it. A walk that stops at
excluded directories needs to know whether a rule matches the path itself.
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


class _NeverMatches(Exception):  # noqa: N818 - what git does with a malformed pattern is no error
    pass


def translate(pattern: bytes, *, whole: bool) -> re.Pattern[bytes]:
    """What `pattern` matches in full; `whole` ones are about paths, in which only `**` between slashes matches `/`.

    `pattern` begins where its literal beginning ends: git strips that, and then takes a `**` in front for one that
    stands behind a slash. A malformed pattern matches nothing.
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
    """The end of the element at `at`, and its expression."""
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
    """A set in brackets, in which a `]` in front is a member; it never holds `/`."""
    at += 1
    negated = pattern.startswith((b"!", b"^"), at)
    at += negated
    members = b""
    first: int | None = None  # of a range that may follow
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
    """The end of the member at `at`, and its byte."""
    at += pattern.startswith(b"\\", at)
    if at >= len(pattern):
        raise _NeverMatches
    return at + 1, pattern[at]
