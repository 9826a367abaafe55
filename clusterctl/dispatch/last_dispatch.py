"""What was dispatched last from a workspace: a cache, so that the next time only changes are told.

Nodes check that they have what is remembered here; when they have not, everything is told.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterctl.common.files import write_atomic
from clusterctl.common.tree import Entry


@dataclass(frozen=True)
class Sent:
    """The job that a workspace became last: its id, the name of its contents, its entries."""

    job: str
    tree: str
    entries: Sequence[Entry]


def load(cache: Path | None, source: str) -> Sent | None:
    """None when nothing is known, or nothing that makes sense."""
    if cache is None:
        return None
    try:
        found = json.loads(_file(cache, source).read_bytes())
        return Sent(found["job"], found["tree"], [Entry(*row) for row in found["entries"]])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def save(cache: Path | None, source: str, sent: Sent) -> None:
    """A cache that cannot be written is none."""
    if cache is None:
        return
    with contextlib.suppress(OSError):
        cache.mkdir(0o700, parents=True, exist_ok=True)
        known = {"job": sent.job, "tree": sent.tree, "entries": sent.entries}
        write_atomic(_file(cache, source), json.dumps(known, separators=(",", ":")).encode(), durable=False)


def _file(cache: Path, source: str) -> Path:
    return cache / f"sent-{source}.json"
