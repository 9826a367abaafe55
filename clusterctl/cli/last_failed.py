"""Which nodes failed last, for `--only failed@last`: a cache on this machine, by conf.py and HOSTS."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.cli.console import ReportedError
from clusterctl.common.files import write_json
from clusterctl.errors import ClusterctlError, JobFailedError, UsageError

if TYPE_CHECKING:
    from clusterctl.config import Settings


def record_path(cache_dir: Path, settings: Settings) -> Path:
    """Where the record of this conf.py is; with other HOSTS, node ids mean other machines."""
    source = str(settings.source.resolve()) if settings.source else ""
    hosts = [(host.user, host.hostname, host.port, host.root_dir) for host in settings.hosts]
    name = hashlib.sha256(json.dumps([source, hosts]).encode()).hexdigest()
    return cache_dir / "failed" / f"{name[:32]}.json"


def read(path: Path) -> tuple[int, ...]:
    """The ids of the nodes that failed last; none when that is not known."""
    try:
        nodes = json.loads(path.read_bytes())["nodes"]
    except (OSError, ValueError, TypeError, KeyError):
        return ()
    return tuple(node for node in nodes if isinstance(node, int)) if isinstance(nodes, list) else ()


def write(path: Path, nodes: Sequence[int]) -> None:
    """Replaces the record. One that cannot be written is no error: only `failed@last` lacks it."""
    with contextlib.suppress(OSError):
        if not nodes:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        write_json(path, {"v": 1, "nodes": sorted(nodes)}, durable=False)


def failed_nodes(error: ClusterctlError | None) -> list[int] | None:
    """The nodes that an operation failed on, by how it ended; None when it did not come to asking the nodes."""
    original = error.original if isinstance(error, ReportedError) else error
    if original is None or isinstance(original, JobFailedError):
        return []  # the nodes did what they were asked to
    if isinstance(original, UsageError):
        return None
    parts = original.details.get("nodes") or ([{"node": original.node}] if original.node else [])
    labels = [part["node"] if isinstance(part, dict) else f"node{part}" for part in parts]
    return sorted({int(label[4:]) for label in labels if label and label[4:].isdigit()}) or None
