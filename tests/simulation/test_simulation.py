"""Histories of runs whose machines, networks and processes fail."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest


def played(count: str, seed: str, *only: str) -> subprocess.CompletedProcess[str]:
    """Play histories in a process of their own, whose hashes are the same each time."""
    argv = [sys.executable, "-m", "simulation", count, seed, *only]
    return subprocess.run(argv, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)


def resumed(output: str) -> int:
    """Return how many runs keepers have resumed."""
    return int(output.partition(" runs resumed")[0].rpartition(" ")[2])


def test_whatever_fails_no_process_counts_twice_the_newest_checkpoint_is_found_and_the_run_ends() -> None:
    done = played("150", "always the same")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("150 histories")
    assert resumed(done.stdout) > 10


def test_a_run_whose_first_machine_loses_power_is_resumed_by_its_keeper() -> None:
    done = played("40", "always the same", "lead")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("40 histories")
    assert resumed(done.stdout) > 20


@pytest.mark.slow
def test_histories_that_nobody_has_seen_before() -> None:
    """A failure prints the seed that repeats it."""
    done = played("60s", f"{time.time():.0f}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_history_can_be_repeated() -> None:
    one, other = (played("1", "this one").stdout.partition(" in ")[2].partition("s, ")[2] for _ in range(2))
    assert one == other != ""
