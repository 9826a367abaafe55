"""The messages of `start` about what a run starts from."""

from __future__ import annotations

import shlex

from clusterctl.cli.chosen_settings import shown_option
from clusterctl.cli.invocation import Invocation
from clusterctl.config import Settings
from clusterctl.escape import clean
from clusterctl.launch import Origin, Resume


def tell_origin(invocation: Invocation, origin: Origin, settings: Settings) -> None:
    """Print the checkpoint or model that a run starts from, and the newer ones that are unusable."""
    for line in origin.warnings:
        invocation.console.warn(clean(line, keep_newlines=True))
    words = _resuming(invocation, origin, settings) if isinstance(origin, Resume) else f"loading {origin}"
    invocation.console.output(clean(words))


def _resuming(invocation: Invocation, resume: Resume, settings: Settings) -> str:
    kept = resume.arguments if invocation.program_args is None else None
    arguments = f" with its arguments: {shlex.join(kept)}" if kept else ""
    again = [shown_option(name, text) for name, text in resume.settings.items() if settings.chosen.get(name) == text]
    options = f"{' and' if kept else ' with'} its settings: {' '.join(again)}" if again else ""
    return f"resuming from {resume}{arguments}{options}"
