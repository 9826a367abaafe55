"""How the programs of a scheduler run on this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence


def run(
    argv: Sequence[str], environ: Mapping[str, str], *, text: str, deadline_s: float
) -> subprocess.CompletedProcess[str]:
    """Run a program with `text` as its input, and return its output, whatever its exit code.

    Raises OSError if it cannot be run, and subprocess.TimeoutExpired.
    """
    return subprocess.run(
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
