"""Cache of the last dispatch of each workspace, so that the next dispatch sends only the changes to its file list.

Nodes check that they have the cached version. If they do not, they get the whole list.
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
class LastDispatch:
    """The last job made from a workspace: its id, the name of its contents, its entries."""

    job: str
    tree: str
    entries: Sequence[Entry]


def load(cache: Path | None, source: str) -> LastDispatch | None:
    """Return the last dispatch; None if it is unknown or the cache is damaged."""
    if cache is None:
        return None
    try:
        data = json.loads(_file(cache, source).read_bytes())
        return LastDispatch(data["job"], data["tree"], [Entry(*row) for row in data["entries"]])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):  # it may have millions of values
        return None


def save(cache: Path | None, source: str, sent: LastDispatch) -> None:
    """Cache the last dispatch. If the cache cannot be written, do without it."""
    if cache is None:
        return
    with contextlib.suppress(OSError):
        cache.mkdir(0o700, parents=True, exist_ok=True)
        data = {"job": sent.job, "tree": sent.tree, "entries": sent.entries}
        write_atomic(_file(cache, source), json.dumps(data, separators=(",", ":")).encode(), durable=False)


def _file(cache: Path, source: str) -> Path:
    return cache / f"sent-{source}.json"
