"""Merges the newest model on the lead's node: fetches the pieces of other nodes, and runs a process of the runtime."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from clusterctl.agent.node.checkpoint_files import is_merged_by_us
from clusterctl.agent.node.pieces import remove_merged
from clusterctl.agent.replication.copier import Fetcher, need_room, piece_of
from clusterctl.common.files import sync_directory
from clusterctl.common.manifest import MERGED_NAME, read_manifest
from clusterctl.common.paths import PACKAGE_ROOT, RunPaths

LAST_LINE_CHARS = 300


class MergeOrder(NamedTuple):
    """Merge model `tag` with the interpreter `python`, unless it has more than `limit_mb`.

    `sources` are the piece servers of the other nodes.
    """

    tag: str
    python: str
    limit_mb: int
    sources: Mapping[int, str]

    @classmethod
    def from_json(cls, order: Mapping[str, Any]) -> MergeOrder:
        sources = {int(node): str(endpoint) for node, endpoint in order["sources"].items()}
        return cls(order["tag"], order["python"], int(order["limit_mb"]), sources)


def merge(run: RunPaths, order: MergeOrder) -> None:
    """Carry out an order, and remove the merged model before this one. Raises OSError or ValueError."""
    directory = run.job.output / order.tag
    manifest = read_manifest(directory)
    if manifest is None:
        return  # it has been removed in the meantime
    needed = sum(file["bytes"] for file in manifest["files"])
    if needed > order.limit_mb * 1_000_000:
        raise ValueError(f"it has {needed / 1e6:,.0f} MB, and MODEL_ON_LEAD_MB is {order.limit_mb:,}")
    target = directory / MERGED_NAME
    if target.exists() and not is_merged_by_us(target):
        raise ValueError(f"{target} is a file of the program")
    beside = run.merging / order.tag
    shutil.rmtree(run.merging, ignore_errors=True)  # of a piece server that was killed
    beside.mkdir(0o700, parents=True)
    try:
        need_room(beside, 2 * needed)
        copies = run.copies / order.tag
        fetcher = Fetcher(run, order.sources)
        for file in manifest["files"]:
            if not any((place / file["file"]).is_file() for place in (directory, copies)):
                fetcher.fetch(piece_of(run, order.tag, file), file["node"], beside)
        _run_merge(
            order.python, beside / MERGED_NAME, [place for place in (directory, copies, beside) if place.is_dir()]
        )
        _put(beside / MERGED_NAME, target)
        sync_directory(directory)
    finally:
        shutil.rmtree(run.merging, ignore_errors=True)
    remove_merged(run.job, but=order.tag)


def _put(merged: Path, target: Path) -> None:
    """Give a merged model its name, unless the program has written a file of that name meanwhile."""
    if is_merged_by_us(target):
        merged.replace(target)
        return
    try:
        os.link(merged, target)
    except FileExistsError as exc:
        raise ValueError(f"{target} is a file of the program") from exc


def _run_merge(python: str, out_file: Path, sources: list[Path]) -> None:
    """Run the merging process. Its standard input is a lifeline: it ends when this process does."""
    environment = {**os.environ, "PYTHONPATH": PACKAGE_ROOT, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [python, "-m", "clusterctl.runtime.checkpoint.merge", str(out_file), *map(str, sources)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, cwd="/"
    )
    assert process.stderr is not None
    errors = process.stderr.read().decode(errors="replace").strip()
    if process.wait():
        raise OSError((errors.splitlines() or ["it failed"])[-1][:LAST_LINE_CHARS])
