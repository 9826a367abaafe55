"""Errors of a rank before there is a run, and the messages that it prints itself."""

from __future__ import annotations

import os
from pathlib import Path

USAGE_CODE = 2
LINGER_S = 4.0  # in which mpirun ends the other ranks once the one has ended that has something to report


class RankError(Exception):
    """An error for the user; its `hint` works when pasted."""

    def __init__(self, message: str, hint: str, code: int = 1) -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code


def of_the_system(exc: OSError, shared: Path) -> RankError:
    """Return an error of the operating system, such as that of a full disk, as one for the user."""
    hint = "name a directory that all nodes share, with room for the job: clusterctl-rank --shared DIR"
    return RankError(f"cannot go on in {exc.filename or shared}: {exc.strerror or exc}", hint)


def say(line: str, more: str | None = None) -> None:
    """Print a line, and perhaps one that belongs to it, between the lines of the programs."""
    text = f"clusterctl-rank: {line}\n" + (f"  {more}\n" if more else "")
    os.write(2, text.encode(errors="replace"))
