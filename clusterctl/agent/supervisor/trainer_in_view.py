"""The beginning of a trainer away from its shards: a process that makes its directory, and becomes the trainer."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from clusterctl.agent.node.shard_view import make_view
from clusterctl.common.paths import ENTRY, JobPaths, RunPaths, expand_program


def command_before(run: RunPaths, rank: int, patterns: Sequence[str]) -> list[str]:
    """Return what comes before the command of a trainer, so that it begins in its view."""
    about = [str(run.job.dir), run.run, str(rank), str(len(patterns)), *patterns]
    return [sys.executable, "-I", "-S", ENTRY, "trainer-in-view", *about]


def main(job_dir: str, run: str, rank: str, count: str, *rest: str) -> None:
    """Become the program of a trainer in its view. `rest`: `count` patterns of shards, then the command."""
    patterns, command = rest[: int(count)], rest[int(count) :]
    try:
        os.chdir(make_view(JobPaths(Path(job_dir)).run(run), int(rank), patterns))
        os.execvp(expand_program(command[0]), command)
    except OSError as exc:
        sys.exit(f"clusterctl: trainer {rank} cannot begin in a directory with its shards: {exc}")
