"""How the programs of a scheduler run on this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

MOST_WORDS = 10_000  # characters of standard error, in which patterns look for known errors


def run(
    argv: Sequence[str], environ: Mapping[str, str], *, text: str, deadline_s: float
) -> subprocess.CompletedProcess[str]:
    """Run a program with `text` as its input, and return its output, and the end of its errors, whatever its exit code.

    Raises OSError if it cannot be run, and subprocess.TimeoutExpired.
    """
    done = subprocess.run(
        argv,
        input=text,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=deadline_s,
        check=False,
        env=environ,
        start_new_session=True,  # Ctrl-C is for us
    )
    done.stderr = done.stderr[-MOST_WORDS:]
    return done
