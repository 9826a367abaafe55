"""Errors that a node reports to the control machine, with a remedy if there is one; lists in their messages."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any


class AgentError(Exception):
    """An error for the user. `kind` is one of the kinds of `clusterctl.errors`."""

    def __init__(self, message: str, *, kind: str = "node", hint: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.kind = kind
        self.hint = hint
        self.details = details

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "message": str(self), "hint": self.hint, "details": self.details}


class Gone(Exception):  # noqa: N818 - an ordinary end, not an error
    """The other side of the SSH command is gone."""


def describe_os_error(exc: OSError, doing: str) -> AgentError:
    """Return an operating system error as an error for the user, with a remedy if there is one."""
    remedies = {
        errno.ENOSPC: "free some space on that file system, or set ROOT_DIR to a larger one",
        errno.EDQUOT: "the quota is used up: free some space, or set ROOT_DIR to another file system",
        errno.EACCES: "this account may not write there: set ROOT_DIR to a directory it owns",
        errno.EPERM: "this account may not do that: set ROOT_DIR to a directory it owns",
        errno.EROFS: "the file system is read-only: set ROOT_DIR to another one",
        errno.ENOTDIR: "a file is in the way: remove it, or set ROOT_DIR to another directory",
    }
    where = f" {exc.filename}" if exc.filename else ""
    message = f"{doing}: {exc.strerror or exc}{where}"
    return AgentError(message, hint=remedies.get(exc.errno or 0))


def first_of(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """Return the first `most` names, and how many more there are: `a, b and 3 more`."""
    shown = separator.join(names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown
