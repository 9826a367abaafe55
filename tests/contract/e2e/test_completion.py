"""What commands have seen is completed from then on, without asking a node."""

from __future__ import annotations

import subprocess
import sys

import pytest

from contract.e2e.programs import REGRESSION
from support.site import Site

pytestmark = [pytest.mark.nodes(1), pytest.mark.slow]


def offered(site: Site, *words: str) -> list[str]:
    """Return the candidates for the last word, from a program that can reach no node."""
    env = {
        **{"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "CLUSTERCTL_CONF": str(site.conf_path)},
        "XDG_CACHE_HOME": str(site.nodes_directory / "cache"),
        **{"_CLUSTERCTL_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        "_TYPER_COMPLETE_ARGS": " ".join(["clusterctl", *words]),
    }
    command = [sys.executable, "-m", "clusterctl"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return [line.partition("\t")[0] for line in done.stdout.splitlines()]


def test_commands_refresh_what_is_completed(site: Site) -> None:
    job = site.dispatch(REGRESSION)
    assert job in offered(site, "start", "")
    assert "node0" in offered(site, "--only", "node")
    assert offered(site, "--only", "node1") == []

    site.ok("start", job, "--name", "first", "--", "--num_passes=1")
    assert offered(site, "status", "fir") == ["first"]
    assert offered(site, "status", f"{job}/") == [f"{job}/1"]
    assert offered(site, "start", "--load", job, "--load-tag", "") == ["pass-00000"]

    site.ok("prune", "--keep", "0", "--older-than", "0s", "--yes")
    assert offered(site, "stop", "") == []
