"""AFTER_END and a `start` that TERM ends before it follows the run."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

START = """
import os, signal, sys
from clusterctl.cli.arguments import GlobalOptions
from clusterctl.cli.commands.hooks import Hooks
from clusterctl.cli.console import Console
from clusterctl.cli.invocation import Invocation

options = GlobalOptions(conf="conf.py")
invocation = Invocation(options, None, Console(options))
hooks = Hooks(invocation, invocation.settings(), wanted=True)
with hooks.after_end(lambda *run: None, attached=True):
    hooks.started += sys.argv[1:]  # the runs that were ordered to start
    os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize("runs", [0, 1])
def test_a_start_that_term_ends_before_it_follows_says_that_nothing_runs_then(tmp_path: Path, runs: int) -> None:
    (tmp_path / "conf.py").write_text('HOSTS = ["a"]\nAFTER_END = "announce"\n')
    (tmp_path / "tasks.py").write_text("from fabric import task\n\n@task\ndef announce(c):\n    print('announced')\n")
    command = [sys.executable, "-c", START, *["a run"] * runs]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == -signal.SIGTERM
    assert done.stdout == ""
    assert done.stderr == "AFTER_END was not run: start did not see the end of the run\n" * runs
