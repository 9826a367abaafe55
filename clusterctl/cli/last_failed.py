"""The nodes that failed last, for `--only failed@last`: a cache on this machine, one entry per conf.py and HOSTS."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from clusterctl.cli.console import ReportedError
from clusterctl.common.files import write_json
from clusterctl.common.safe_json import parse
from clusterctl.config import Settings
from clusterctl.errors import ClusterctlError, JobFailedError, UsageError


def record_path(cache_dir: Path, settings: Settings) -> Path:
    """Return the path of the record of this conf.py and its HOSTS: with other HOSTS, ids mean other machines."""
    source = str(settings.source.resolve()) if settings.source else ""
    hosts = [(host.user, host.hostname, host.port, host.root_dir) for host in settings.hosts]
    name = hashlib.sha256(json.dumps([source, hosts]).encode()).hexdigest()
    return cache_dir / "failed" / f"{name[:32]}.json"


def read(path: Path) -> tuple[int, ...]:
    """Return the ids of the nodes that failed last; empty if unknown."""
    try:
        nodes = parse(path.read_bytes())["nodes"]
    except (OSError, ValueError, TypeError, KeyError):
        return ()
    return tuple(node for node in nodes if isinstance(node, int)) if isinstance(nodes, list) else ()


def write(path: Path, nodes: Sequence[int]) -> None:
    """Replace the record. A failure to write is not an error: only `failed@last` needs the record."""
    with contextlib.suppress(OSError):
        if not nodes:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        write_json(path, {"v": 1, "nodes": sorted(nodes)}, durable=False)


def failed_nodes(error: ClusterctlError | None) -> list[int] | None:
    """Return the nodes that a command failed on, given the error that ended it; None if it never asked the nodes."""
    original = error.original if isinstance(error, ReportedError) else error
    if original is None or isinstance(original, JobFailedError):
        return []  # the nodes carried out the request
    if isinstance(original, UsageError):
        return None
    parts = original.details.get("nodes") or ([{"node": original.node}] if original.node else [])
    labels = [part["node"] if isinstance(part, dict) else f"node{part}" for part in parts]
    return sorted({int(label[4:]) for label in labels if label and label[4:].isdigit()}) or None
