"""What keeps a rank from its work, before there is a run; and what a rank says itself."""

from __future__ import annotations

import os

USAGE_CODE = 2
LINGER_S = 4.0  # in which mpirun ends the other ranks once the one has ended that has something to report


class RankError(Exception):
    """An error for the user; its `hint` works when pasted."""

    def __init__(self, message: str, hint: str, code: int = 1) -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code


def say(line: str, more: str | None = None) -> None:
    """Print a line, and perhaps one that belongs to it, between the lines of the programs."""
    text = f"clusterctl-rank: {line}\n" + (f"  {more}\n" if more else "")
    os.write(2, text.encode(errors="replace"))
